"""Stores that somebody forged or damaged, their checksums repaired: each is refused by name."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fuzzing.checksums import repair_checksums
from tests.stores import make_store

import strap
from strap.cli import main
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.store import PendingTrajectory, Session, StoreConfig, create_store, upkeep
from strap.store.journal import claims, pack, unpack
from strap.store.sketches import sketch_store
from strap.types import Segment

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.random((6 + i, 8), np.float32) for i in range(12)}
    return make_store(tmp_path / "store", arrays).path


def change(file: Path, how: Change) -> None:
    content = json.loads(file.read_text())
    changed = how(content)
    file.write_text(json.dumps(content if changed is None else changed))
    repair_checksums(file)


def put(*keys: Any, value: Any) -> Change:
    def how(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return how


def drop(*keys: Any) -> Change:
    def how(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return how


SHARDS: dict[str, tuple[Change, str]] = {
    "a list instead": (lambda _: [1], "it is list, not an object"),
    "no entries": (drop("entries"), "it has no 'entries'"),
    "another key": (put("more", value=1), "unknown key 'more'"),
    "another name": (put("name", value="../../x"), "it holds the name of another shard"),
    "a file elsewhere": (put("files", 0, value="/etc/hostname"), "its files are not 000000.camera"),
    "too few files": (put("files", value=[]), "its files are not"),
    "frames as text": (put("frames", value="9"), "frames is '9', not a whole number"),
    "fewer frames": (put("frames", value=3), "go up to row 138 of 3"),
    "negative frames": (put("frames", value=-1), "frames is -1"),
    "an entry that is none": (put("entries", 0, value=None), "an entry is NoneType"),
    "an id that is none": (put("entries", 0, "id", value=7), "an id is 7, not text"),
    "a negative offset": (put("entries", 0, "offset", value=-2), "an offset is -2"),
    "a negative length": (put("entries", 0, "length", value=-6), "a length is -6"),
    "a length of true": (put("entries", 0, "length", value=True), "a length is True"),
    "a length beyond": (put("entries", 11, "length", value=10**9), "go up to row"),
    "a length past all": (put("entries", 11, "length", value=2**63), "a huge number"),
    "overlapping": (put("entries", 1, "offset", value=2), "'t1' overlaps"),
    "an id twice": (put("entries", 1, "id", value="t0"), "'t0' overlaps"),
    "no instruction": (put("entries", 0, "instruction", value=None), "an instruction is NoneType"),
    "checksums as text": (
        put("entries", 0, "checksums", value="x"),
        "checksums is 'x', not a list",
    ),
    "too many checksums": (put("entries", 0, "checksums", value=[1, 2]), "2 checksums for 1"),
    "an entry's key missing": (drop("entries", 0, "stamp"), "an entry has no 'stamp'"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_forged_shard_is_refused(store: Path, name: str) -> None:
    how, message = SHARDS[name]
    change(store / "shards/000000.json", how)
    with pytest.raises(StrapError, match=message) as caught:
        strap.open_store(store)
    assert "000000.json' is damaged" in str(caught.value)
    assert "embed again; only that shard is embedded again" in str(caught.value)
    assert main(["store", "verify", str(store)]) == 2


IDENTITIES: dict[str, tuple[Change, str]] = {
    "a list instead": (lambda _: [], "it is list, not an object"),
    "no dimension": (drop("dim"), "it has no 'dim'"),
    "a dimension of 0": (put("dim", value=0), "dim is 0"),
    "a dimension as text": (put("dim", value="8"), "dim is '8'"),
    "objects as numbers": (put("dtype", value="object"), "dtype is not one of float16"),
    "a dtype of lists": (put("dtype", value=["float32"]), "dtype is not one of float16"),
    "cameras as text": (put("cameras", value="camera"), "cameras is 'camera', not a list"),
    "a camera that is none": (put("cameras", value=[None]), "an item of cameras is NoneType"),
    "no cameras": (put("cameras", value=[]), "it has no cameras, or the same one twice"),
    "an encoder as text": (put("encoder", value="made"), "encoder is 'made', not an object"),
    "a dataset of numbers": (put("dataset", value=[0] * 999), "dataset is list"),
    **{
        f"an opening that is {name}": (put("opening", value=value), "opening does not say how")
        for name, value in {
            "a text": "flipped",
            "of other words": {"out": "x"},
            "of numbers": {"orientation": 1},
            "of lists": {"fields": {"camera": "image"}},
            "of no texts": {"fields": {"camera": [1]}},
        }.items()
    },
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_forged_description_of_a_store_is_refused(store: Path, name: str) -> None:
    how, message = IDENTITIES[name]
    change(store / "store.json", how)
    with pytest.raises(StrapError, match=message) as caught:
        strap.open_store(store)
    assert "store.json' is damaged" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda _: "x", "it is 'x', not an object"),
        (put("dropped", value=3), "dropped is 3, not a list"),
        (put("dropped", value=[["t0"]]), "an item of dropped is list"),
        (put("unchecked", value="t0"), "unchecked is 't0', not a list"),
        (put("dataset", value=None), "dataset is NoneType"),
        (put("shards", value=["../../x"]), "a shard's name is not a number"),
    ],
)
def test_a_forged_manifest_is_refused(store: Path, how: Change, message: str) -> None:
    change(store / "manifest.json", how)
    with pytest.raises(StrapError, match=rf"manifest\.json' is damaged .*{message}"):
        strap.open_store(store)


def test_a_manifest_cannot_have_files_deleted_elsewhere(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    change(store / "manifest.json", put("shards", value=["../../other"]))
    assert main(["store", "verify", str(store), "--drop"]) == 2
    assert other.exists()


def test_a_shard_that_is_gone_is_noticed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(store / "manifest.json", put("shards", value=["000000", "000001"]))
    assert not strap.open_store(store).complete
    assert main(["store", "verify", str(store)]) == 2
    assert "000001.json' is gone: embed again" in capsys.readouterr().out


def test_json_too_deep_or_with_endless_numbers_or_half_characters_is_refused(store: Path) -> None:
    for text in ("[" * 100_000, '{"version": ' + "9" * 5000 + "}", r'{"encoder": "\ud800"}'):
        (store / "store.json").write_text(text)
        with pytest.raises(StrapError, match=r"cannot read '.*store\.json' as JSON"):
            strap.open_store(store)


def test_rows_that_declare_more_than_is_there_take_no_memory(store: Path) -> None:
    file = store / "shards/000000.camera.npy"
    content = file.read_bytes()
    for shape in (b"(900000000000, 8)", b"(-1, 8)", b"()"):
        header = content[:128].replace(b"(138, 8)", shape)[:127].ljust(127) + b"\n"
        file.write_bytes(header + content[128:])
        with pytest.raises(StrapError, match=r"not float32 \(138, 8\): delete the \.json"):
            strap.open_store(store)["t0"]


OTHER = {
    "id": "x",
    "offset": 5,
    "length": 3,
    "instruction": "",
    "fingerprint": "",
    "stamp": "",
    "checksums": [0],
}
JOURNALS: dict[str, list[Any]] = {
    "no object": [[1, 2]],
    "claims that are no texts": [{"claim": [["a"]]}],
    "claims that are no list": [{"claim": 3}],
    "a begun trajectory without a length": [{"begin": [{"id": "a"}]}],
    "a negative length": [{"begin": [{"id": "c", "length": -5, "instruction": "", "stamp": ""}]}],
    "rows of a camera that is not there": [{"rows": [7, 5, 1, 0]}],
    "rows before the first": [{"rows": [0, -4, 1, 0]}],
    "rows that are no numbers": [{"rows": ["a", 0, 1, 0]}],
    "too few numbers": [{"rows": [0, 1]}],
    "rows again": [{"rows": [0, 0, 1, 0]}],
    "an entry out of nothing": [{"entry": {"id": "x", "checksums": 4}}],
    "an entry of another trajectory": [{"entry": OTHER}],
    "a trajectory begun twice": [
        {"drop": True},
        {"begin": [{"id": "a", "length": 5, "instruction": "", "stamp": ""}]},
    ],
}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_forged_journal_ends_where_it_stops_making_sense(tmp_path: Path, name: str) -> None:
    """What a writer left before it is kept, and what follows is embedded again."""
    config, rows = StoreConfig({"name": "made"}, "float32", 4, ("camera",)), np.ones((5, 4))
    create_store(tmp_path, config)
    session = Session(tmp_path, config)
    session.claim({"a": None, "b": None})
    session.add(PendingTrajectory("a", 5, "", ""), [rows], "f")
    session.begin([PendingTrajectory("b", 3, "", "")])
    session.append(0, rows[:2])
    session.close()
    journal = tmp_path / "partial/000000/journal"
    journal.write_bytes(journal.read_bytes() + pack(JOURNALS[name]))
    assert claims(journal) == {"a", "b"}
    upkeep.list_unfinished(tmp_path)
    left = [
        (partial.rows, partial.done, [one.id for one in partial.begun], partial.publish())[:3]
        for partial in Session(tmp_path, config).adopt()
    ]
    # Where it was told to drop what was begun, all that is left is whole.
    assert left == ([] if name == "a trajectory begun twice" else [(5, [7], ["b"])])
    assert strap.open_store(tmp_path).ids == ("a",)


def test_lines_of_a_journal_that_are_no_text_end_it() -> None:
    good = pack([{"claim": ["a"]}])
    for bad in (b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b"{"):
        line = b"%08x %s\n" % (zlib.crc32(bad), bad)
        assert [line for line, _ in unpack(good + line + good)] == [{"claim": ["a"]}]


def test_an_unfinished_shard_that_is_no_file_is_told(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "store"
    opened = strap.open_dataset(dataset)
    strap.embed(opened, PixelEncoder(4), out, batch=16)
    (out / "manifest.json").unlink()
    for name in ("lock", "journal", "left.npy"):
        folder = out / "partial/000009"
        (folder / name).mkdir(parents=True)
        with pytest.raises(
            StrapError, match=r"partial/000009.*(delete that folder|Is a directory)"
        ):
            strap.embed(opened, PixelEncoder(4), out, batch=16)
        (folder / name).rmdir()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


@pytest.mark.parametrize("name", ["mean.npy", "basis.npy", "000000.npy", "000000.scales.npy"])
def test_every_flipped_byte_of_sketches_is_found_or_harmless(store: Path, name: str) -> None:
    """They never change a result: damaged directions are not used, other damage is told."""
    sketch_store(strap.open_store(store), kinds=[(4, 1)])
    (folder,) = (store / "sketches").iterdir()
    query = [Segment("t3", 2, 5)]
    expected = strap.retrieve(query, strap.open_store(store), strap.open_store(store), top_k=1)
    file, messages = folder / name, []
    whole = file.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        file.write_bytes(damaged)
        opened = strap.open_store(store)
        try:
            assert strap.retrieve(query, opened, opened, top_k=1) == expected
        except StrapError as error:
            messages.append(str(error))
    assert all(f"{name}' are damaged" in message for message in messages)
    assert all("(searches return the same matches without it)" in message for message in messages)
    assert len(messages) > 30 or name in ("mean.npy", "basis.npy")
