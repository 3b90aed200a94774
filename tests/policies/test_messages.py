"""Messages of `strap serve`: numbers and text, in the form of openpi's client."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strap.errors import StrapError
from strap.serving.messages import pack, unpack


def array(**changes: Any) -> bytes:
    form = {b"__ndarray__": True, b"data": bytes(6), b"dtype": "|u1", b"shape": [2, 3]}
    return msgpack.packb({"a": {**form, **{k.encode(): v for k, v in changes.items()}}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (array(dtype="|O"), r"an array has dtype '\|O': arrays must hold numbers, not obj"),
        (array(dtype="<U3"), "an array has dtype '<U3'"),
        (array(dtype="f4,f4"), "an array has dtype 'f4,f4'"),
        (array(dtype="<c8"), "an array has dtype '<c8'"),
        (array(dtype=None), "an array has dtype None"),
        (array(shape=[2, 4]), r"an array of \|u1 \(2, 4\) holds 6 bytes instead of 8: send it"),
        (array(shape=[2**62, 2**62]), "holds 6 bytes instead of"),
        (array(shape=[-2, -3]), r"an array has shape \[-2, -3\]: send up to 8 whole numbers"),
        (array(shape=[True] * 9), "an array has shape"),
        (array(shape="23"), "an array has shape '23'"),
        (array(data="abcdef"), "holds no bytes instead of 6"),
        (msgpack.packb({"a": {b"__npgeneric__": 1, b"data": [1]}}), "of numpy holds list: send a"),
    ],
)
def test_arrays_that_are_none_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(StrapError, match=message):
        unpack(data)


def test_arrays_of_no_numbers_are_not_sent() -> None:
    with pytest.raises(TypeError, match="ndarray cannot be sent in a message"):
        pack({"a": np.array([None])})


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float16", ">f4", "float64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 1)])
def test_arrays_come_back_as_they_were_sent(dtype: str, shape: tuple[int, ...]) -> None:
    sent = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    came = unpack(pack({"a": sent}))["a"]
    assert came.dtype == sent.dtype
    if sent.size:
        np.testing.assert_array_equal(came, sent)
    assert came.size == sent.size


def test_what_openpi_packs_is_read_and_what_we_pack_it_reads() -> None:
    theirs = pytest.importorskip("openpi_client.msgpack_numpy")
    sent = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(0.5), "c": np.str_("pick"), "d": [1]}
    came = unpack(theirs.packb(sent))
    np.testing.assert_array_equal(came["a"], sent["a"])
    assert (came["b"], came["c"], came["d"]) == (0.5, "pick", [1])
    np.testing.assert_array_equal(theirs.unpackb(pack({"a": sent["a"]}))["a"], sent["a"])


@given(st.binary(max_size=200) | st.builds(lambda d: array() + d, st.binary(max_size=9)))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    with suppress(StrapError):
        assert isinstance(unpack(data), dict)
