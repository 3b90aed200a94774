"""HDF5 files with one change in their attributes, datasets or links."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tests.fuzzing.values import ODD

DTYPES = ("uint8", "int16", "int64", "float16", "float64", "bool", "complex64", "S4", "V3")
BIG = (10**9, 1000, 1000, 3)
"""declared by a dataset of which no byte is there"""


def change_hdf5(rng: random.Random, file: Path) -> str:
    """One change in the tree; a change that does not suit what was chosen is drawn again."""
    with h5py.File(file, "r+") as handle:
        names: list[str] = []
        handle.visit(names.append)
        while True:
            name = rng.choice(names)
            change = rng.choice(list(CHANGES))
            try:
                CHANGES[change](rng, handle, name)
            except (TypeError, ValueError, LookupError, OverflowError, OSError, RuntimeError):
                continue
            return change


def _parent(handle: h5py.File, name: str) -> tuple[h5py.Group, str]:
    folder, _, own = name.rpartition("/")
    return handle[folder or "/"], own


def _replace(handle: h5py.File, name: str, **options: Any) -> None:
    parent, own = _parent(handle, name)
    del parent[own]
    parent.create_dataset(own, **options)


def _dataset(handle: h5py.File, name: str) -> h5py.Dataset:
    if not isinstance(handle[name], h5py.Dataset):
        raise KeyError(name)
    return handle[name]


def _change_attribute(rng: random.Random, handle: h5py.File, name: str) -> None:
    attributes = handle[name].attrs
    key = rng.choice(sorted(attributes))
    value = rng.choice((*ODD, np.arange(3), np.zeros((2, 2)), b"\xff\xfe", h5py.Empty("f8")))
    attributes[key] = value


def _drop_attribute(rng: random.Random, handle: h5py.File, name: str) -> None:
    del handle[name].attrs[rng.choice(sorted(handle[name].attrs))]


def _retype(rng: random.Random, handle: h5py.File, name: str) -> None:
    values = _dataset(handle, name)[:]
    dtype = rng.choice(DTYPES)
    other = np.zeros(values.shape, dtype) if dtype[0] in "SV" else values.astype(dtype)
    _replace(handle, name, data=other)


def _reshape(rng: random.Random, handle: h5py.File, name: str) -> None:
    values = _dataset(handle, name)[:]
    shapes = (
        values[:-1],
        values[:0],
        values[..., :-1],
        values.reshape(-1),
        values[None],
        np.concatenate([values, values]),
        values.T,
        values.reshape(-1)[0],
    )
    _replace(handle, name, data=rng.choice(shapes))


def _declare_big(rng: random.Random, handle: h5py.File, name: str) -> None:
    old = _dataset(handle, name)
    length = old.shape[0] if rng.random() < 0.5 else BIG[0]
    shape = (length, *BIG[1 : max(2, old.ndim)])
    chunks = tuple(min(n, 100) for n in shape)
    _replace(handle, name, shape=shape, dtype=old.dtype, chunks=chunks, compression="gzip")


def _make_text(rng: random.Random, handle: h5py.File, name: str) -> None:
    length = len(_dataset(handle, name))
    _replace(handle, name, data=["é\x1b[31m"] * length, dtype=h5py.string_dtype())


def _make_compound(_rng: random.Random, handle: h5py.File, name: str) -> None:
    length = len(_dataset(handle, name))
    _replace(handle, name, data=np.zeros(length, [("a", "f4"), ("b", "i4", (2,))]))


def _make_references(_rng: random.Random, handle: h5py.File, name: str) -> None:
    length = len(_dataset(handle, name))
    _replace(handle, name, data=[handle.ref] * length, dtype=h5py.ref_dtype)


def _make_empty(_rng: random.Random, handle: h5py.File, name: str) -> None:
    _replace(handle, name, data=h5py.Empty(_dataset(handle, name).dtype))


def _make_virtual(rng: random.Random, handle: h5py.File, name: str) -> None:
    old = _dataset(handle, name)
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource("missing.hdf5", "x", shape=old.shape)
    parent, own = _parent(handle, name)
    del parent[own]
    parent.create_virtual_dataset(own, layout, fillvalue=rng.choice((0, 1)))


def _make_external(rng: random.Random, handle: h5py.File, name: str) -> None:
    old = _dataset(handle, name)
    place = rng.choice(("/etc/hostname", "missing.bin", "../data.hdf5"))
    stored = [(place, 0, old.nbytes)]
    _replace(handle, name, shape=old.shape, dtype=old.dtype, external=stored)


def _make_group(_rng: random.Random, handle: h5py.File, name: str) -> None:
    parent, own = _parent(handle, name)
    _dataset(handle, name)
    del parent[own]
    parent.create_group(own)


def _make_dataset(rng: random.Random, handle: h5py.File, name: str) -> None:
    if isinstance(handle[name], h5py.Dataset):
        raise KeyError(name)
    _replace(handle, name, data=rng.choice((1, [1.0, 2.0], "x")))


def _link(rng: random.Random, handle: h5py.File, name: str) -> None:
    parent, own = _parent(handle, name)
    links = (
        h5py.SoftLink("/missing"),
        h5py.SoftLink(f"/{name}"),
        h5py.SoftLink("/data"),
        h5py.ExternalLink("missing.hdf5", "/data"),
        h5py.ExternalLink("/etc/hostname", "/"),
        h5py.ExternalLink(handle.filename, "/data"),
        parent,
    )
    del parent[own]
    parent[own] = rng.choice(links)


def _delete(_rng: random.Random, handle: h5py.File, name: str) -> None:
    parent, own = _parent(handle, name)
    del parent[own]


def _rename(rng: random.Random, handle: h5py.File, name: str) -> None:
    parent, own = _parent(handle, name)
    parent.move(own, rng.choice((own.upper(), own + "_x", "demo_99999999999", "\x1b[2J", "é")))


def _copy(rng: random.Random, handle: h5py.File, name: str) -> None:
    parent, own = _parent(handle, name)
    parent.copy(own, f"{own}{rng.choice(('7', '_7', ' '))}")


def _change_values(rng: random.Random, handle: h5py.File, name: str) -> None:
    values = _dataset(handle, name)
    if values.dtype.kind == "f":
        values[rng.randrange(len(values))] = rng.choice((np.nan, np.inf, 1e300))
    else:
        values[rng.randrange(len(values))] = 255


CHANGES = {
    "attribute changed": _change_attribute,
    "attribute dropped": _drop_attribute,
    "dataset retyped": _retype,
    "dataset reshaped": _reshape,
    "dataset declared big": _declare_big,
    "dataset made text": _make_text,
    "dataset made compound": _make_compound,
    "dataset made references": _make_references,
    "dataset made empty": _make_empty,
    "dataset made virtual": _make_virtual,
    "dataset made external": _make_external,
    "dataset made a group": _make_group,
    "group made a dataset": _make_dataset,
    "link replaced": _link,
    "object deleted": _delete,
    "object renamed": _rename,
    "object copied": _copy,
    "values changed": _change_values,
}
