"""Zarr replay buffers, written chunk by chunk by the test."""

from __future__ import annotations

import builtins
import bz2
import gzip
import importlib.util
import io
import json
import lzma
import os
import pickle
import random
import shutil
import struct
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.datasets.writers import number_of, picture, write_zarr

import strap
from strap.datasets.base import Dataset
from strap.datasets.zarr import is_zarr, open_zarr
from strap.datasets.zarr.sizes import unpacked_bytes
from strap.errors import StrapError

pytest.importorskip("zarr")
ENDS = (9, 10, 30)


def arrays(kind: str = "uint8") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    frames = np.stack([picture(i) for i in range(30)])
    return {
        "camera0_rgb": frames if kind == "uint8" else (frames / 255).astype(kind),
        "robot0_eef_pos": rng.normal(size=(30, 3)).astype(np.float32),
        "action": rng.normal(size=(30, 7)).astype(np.float32),
        "depth": np.ones((30, 4, 4), np.float32),
    }


def opened(path: Path, **options: Any) -> Dataset:
    name, reader = open_zarr(path, **options)
    return Dataset(path, name, reader)


def zipped(root: Path) -> Path:
    out = root.with_name(root.name + ".zip")
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(root).as_posix())
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_a_replay_buffer(tmp_path: Path, packed: bool) -> None:
    content = arrays()
    path = write_zarr(tmp_path / "buffer.zarr", content, ENDS)
    path = zipped(path) if packed else path
    assert is_zarr(path)
    dataset = opened(path, fps=10.0, instruction="push the block")
    assert list(dataset.ids) == ["episode_000000", "episode_000001", "episode_000002"]
    assert list(dataset.reader.lengths) == [9, 1, 20]
    last = dataset["episode_000002"]
    assert (last.length, last.fps, last.instruction) == (20, 10.0, "push the block")
    np.testing.assert_array_equal(last.actions[:], content["action"][10:])
    np.testing.assert_array_equal(last.actions[5:9], content["action"][15:19])
    position = last.proprioception["robot0_eef_pos"]
    np.testing.assert_array_equal(position[:], content["robot0_eef_pos"][10:])
    assert [number_of(f) for f in last.frames("camera0_rgb", 3, 6)] == [13, 14, 15]
    assert last.extras["depth"].shape == (20, 4, 4)
    assert dataset.fingerprint()
    with pytest.raises(StrapError, match="unknown trajectory 'episode_000003'"):
        dataset["episode_000003"]


def test_pictures_kept_as_floats(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays("float32"), ENDS)
    frames = opened(path)["episode_000000"].frames("camera0_rgb")
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, arrays()["camera0_rgb"][:9])


def test_a_changed_chunk_is_a_changed_trajectory(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays(), ENDS)
    before = opened(path)["episode_000001"].source.stamp()
    assert opened(path)["episode_000001"].source.stamp() == before
    chunk = next(file for file in (path / "data/action").iterdir() if file.name[0] != ".")
    os.utime(chunk, ns=(1, 1))
    assert opened(path)["episode_000001"].source.stamp() != before


@pytest.mark.parametrize("packed", [False, True])
def test_a_buffer_by_a_link_of_another_name_is_the_same(tmp_path: Path, packed: bool) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays(), ENDS)
    path = zipped(path) if packed else path
    link = tmp_path / path.name.replace("buffer", "other")
    link.symlink_to(path)
    one, two = opened(path), opened(link)
    assert one.fingerprint() == two.fingerprint()
    stamps = [dataset["episode_000001"].source.stamp() for dataset in (one, two)]
    assert stamps[0] == stamps[1]


def test_not_a_buffer(tmp_path: Path) -> None:
    assert not is_zarr(tmp_path)
    (tmp_path / "x.zip").write_bytes(b"no archive")
    assert not is_zarr(tmp_path / "x.zip")
    path = write_zarr(tmp_path / "a.zarr", {"state": np.zeros((30, 2))}, ENDS)
    with pytest.raises(StrapError, match=r"unknown action array 'action'.*state"):
        opened(path)
    assert opened(path, action="state")["episode_000001"].actions.shape == (1, 2)


def test_truncated_and_missing_chunks(tmp_path: Path) -> None:
    sound = write_zarr(tmp_path / "sound.zarr", arrays(), ENDS)
    file = "data/action/1.0"
    whole = (sound / file).read_bytes()
    for place in random.Random(0).sample(range(len(whole) - 1), 10):
        path = Path(shutil.copytree(sound, tmp_path / f"{place}.zarr"))
        (path / file).write_bytes(whole[:place])
        with pytest.raises(StrapError, match=rf"{place}.zarr', episode_000000, 'data/action'"):
            opened(path)["episode_000000"].actions[:]
    path = Path(shutil.copytree(sound, tmp_path / "gone.zarr"))
    (path / file).unlink()
    with pytest.raises(StrapError, match=r"chunk 'data/action/1.0' is missing"):
        opened(path)["episode_000000"].actions[:]
    assert not opened(path, empty_chunks=True)["episode_000000"].actions[8:].any()
    packed = zipped(sound)
    whole = packed.read_bytes()
    for place in random.Random(1).sample(range(len(whole) - 1), 10):
        cut = tmp_path / f"cut{place}.zarr.zip"
        cut.write_bytes(whole[:place])
        assert is_zarr(cut)
        with pytest.raises(StrapError, match=f"cut{place}.zarr.zip"):
            opened(cut)


def test_wrong_ends_and_unknown_codec(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match=r"'data/action' has \(30,\) frames but .* up to 40"):
        opened(write_zarr(tmp_path / "a.zarr", arrays(), (9, 40)))
    with pytest.raises(StrapError, match="must start above 0 and increase"):
        opened(write_zarr(tmp_path / "b.zarr", arrays(), (9, 9)))
    path = write_zarr(tmp_path / "c.zarr", arrays(), ENDS)
    described = path / "data/camera0_rgb/.zarray"
    described.write_text(described.read_text().replace("zlib", "imagecodecs_jpegxl"))
    with pytest.raises(StrapError, match=r"c.zarr.*imagecodecs"):
        opened(path)["episode_000000"].frames("camera0_rgb")


def test_without_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays(), ENDS)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "zarr":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StrapError, match=r"needs zarr: pip install .*\[zarr\]"):
        opened(path)


# --- what a description may ask for --------------------------------------------------------------


def read_all(path: Path) -> dict[str, np.ndarray]:
    """Every array of a buffer by `<id>/<name>`, read through the public interface."""
    found = {}
    for own in strap.open_dataset(path):
        kept = {"action": own.actions, **own.cameras, **own.proprioception, **own.extras}
        found |= {f"{own.id}/{name}": array[:] for name, array in kept.items()}
    return found


def refuses(path: Path, *words: str) -> None:
    """Opening and reading all of it raises an error with the buffer's name and these words."""
    with pytest.raises(StrapError) as refused:
        read_all(path)
    text = str(refused.value)
    assert path.name in text
    assert [word for word in words if word not in text] == [], text


def described(path: Path, array: str = "data/action", **changes: Any) -> Path:
    """A sound buffer with some keys of one array's description changed."""
    write_zarr(path, arrays(), ENDS)
    document = path / array / ".zarray"
    document.write_text(json.dumps({**json.loads(document.read_text()), **changes}))
    return path


def sound(path: Path) -> None:
    """Raise unless a buffer holds what `arrays` and `ENDS` say."""
    found, content = read_all(path), arrays()
    for number, (start, stop) in enumerate(pairwise((0, *ENDS))):
        for name, array in content.items():
            values = found[f"episode_{number:06d}/{name}"]
            np.testing.assert_array_equal(values, array[start:stop])


class Trap:
    """What a pickle makes of itself: a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["filters", "compressor", "consolidated", "version 3"])
def test_pickles_are_never_opened(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numcodecs import pickles

    monkeypatch.setattr(pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    sprung, path = tmp_path / "sprung", tmp_path / "a.zarr"
    codec = {"id": "pickle", "protocol": 5}
    if place == "version 3":
        write_v3(path, compressors=None)
        document = path / "data/action/zarr.json"
        codecs = [{"name": "bytes"}, {"name": "numcodecs.pickle", "configuration": {}}]
        document.write_text(json.dumps({**json.loads(document.read_text()), "codecs": codecs}))
        chunks = sorted((path / "data/action/c").rglob("0"))
    else:
        changes = {"filters": [codec], "compressor": None}
        changes = {"filters": None, "compressor": codec} if place == "compressor" else changes
        described(path, **(changes if place != "consolidated" else {}))
        described_there = json.loads((path / "data/action/.zarray").read_text())
        forged = {"data/action/.zarray": {**described_there, **changes}}
        documents = {"zarr_consolidated_format": 1, "metadata": forged}
        (path / ".zmetadata").write_text(json.dumps(documents))
        chunks = sorted((path / "data/action").glob("*.0"))
    for chunk in chunks:
        if chunk.is_file():
            chunk.write_bytes(pickle.dumps(Trap(sprung)))
    words = ("'data/action'",) if place == "consolidated" else ("'pickle'", "not allowed")
    refuses(path, *(("'numcodecs.pickle'", "not allowed") if place == "version 3" else words))
    assert not sprung.exists()


@pytest.mark.parametrize(
    "codec", ["pickle", "json2", "msgpack2", "vlen-utf8", "vlen-bytes", "categorize", "base64", 7]
)
def test_codecs_that_are_not_allowed(tmp_path: Path, codec: object) -> None:
    path = described(tmp_path / "a.zarr", filters=[{"id": codec}])
    refuses(path, f"'data/action' uses the codec {codec!r}", "write the array again with blosc")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "|O", "filters": [{"id": "vlen-utf8"}]}, "is of the type '|O': numbers"),
        ({"dtype": "|O"}, "is of the type '|O': numbers and texts of a fixed length are read"),
        ({"dtype": [["a", "<f4"]]}, "is of the type [['a', '<f4']]"),
        ({"dtype": "(1000000000,)f4"}, "is of the type '(1000000000,)f4'"),
        ({"dtype": "<M8[s]"}, "is of the type '<M8[s]'"),
        ({"shape": []}, "has the shape [], not a list of lengths"),
        ({"shape": [30, -7]}, "has the shape [30, -7], which are not lengths"),
        ({"shape": [30.0, 7]}, "has the shape [30.0, 7], which are not lengths"),
        ({"shape": None}, "has the shape None, not a list of lengths"),
        ({"chunks": [8]}, "has chunks (8,) of the shape (30, 7)"),
        ({"chunks": [0, 7]}, "has chunks (0, 7) of the shape (30, 7)"),
        ({"chunks": [1 << 40, 7]}, "30,786,325,577,728 bytes per chunk of 'data/action'"),
        ({"shape": [30, 1 << 40]}, "bytes per frame of 'data/action'; at most 268,435,456"),
        ({"filters": 5}, "has the filters 5, not a list"),
        (
            {"filters": [{"id": "zlib"}]},
            "compresses twice, or changes compressed data (zlib, zlib)",
        ),
        ({"filters": [{"id": "delta", "dtype": "|O"}]}, "has the dtype '|O' in the codec 'delta'"),
        ({"compressor": {"id": "lzma", "format": 3}}, "has raw LZMA filters"),
        ({"compressor": {"id": "zlib", "level": {}, "odd": 1}}, "data/action"),
        ({"dimension_separator": ".."}, "has the separator '..'"),
        ({"zarr_format": 9}, "has zarr_format 9, not 2"),
        ({"order": "X"}, "'data/action' as zarr"),
        ({"fill_value": []}, "'data/action' as zarr"),
    ],
)
def test_descriptions_of_odd_kinds(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    refuses(described(tmp_path / "a.zarr", **changes), words)


def test_descriptions_that_are_none(tmp_path: Path) -> None:
    for name, text, words in (
        ("a", "{", "'data/action/.zarray' is not JSON ("),
        ("b", "[" * 100_000, "'data/action/.zarray' is not JSON ("),
        ("c", "[]", "'data/action/.zarray' is not a JSON object"),
    ):
        path = write_zarr(tmp_path / f"{name}.zarr", arrays(), ENDS)
        (path / "data/action/.zarray").write_text(text)
        refuses(path, words)
    path = write_zarr(tmp_path / "d.zarr", arrays(), ENDS)
    (path / "data/camera0_rgb/.zarray").unlink()
    refuses(path, "'data/camera0_rgb' has neither '.zarray' nor 'zarr.json'")
    path = write_zarr(tmp_path / "e.zarr", arrays(), ENDS)
    with (path / ".zattrs").open("wb") as stream:
        stream.truncate((1 << 26) + 1)
    refuses(path, "67,108,865 bytes of JSON in '.zattrs'")


def test_episode_ends_of_odd_kinds(tmp_path: Path) -> None:
    def with_ends(name: str, values: Any) -> Path:
        path = write_zarr(tmp_path / f"{name}.zarr", arrays(), ENDS)
        shutil.rmtree(path / "meta/episode_ends")
        spare = write_zarr(tmp_path / f"spare-{name}", {"ends": np.asarray(values)}, ENDS)
        (spare / "data/ends").rename(path / "meta/episode_ends")
        return path

    rises = "must start above 0 and increase"
    for name, values, words in (
        ("negative", [-9, 10, 30], rises),
        ("falling", [10, 9, 30], rises),
        ("empty", np.zeros(0, np.int64), rises),
        (
            "floats",
            [9.0, np.nan, 30.0],
            "has shape (3,) and dtype float64; it must be a list of whole numbers",
        ),
        ("texts", ["9", "30"], "it must be a list of whole numbers"),
        (
            "square",
            [[9, 30]],
            "has shape (1, 2) and dtype int64; it must be a list of whole numbers",
        ),
        ("huge", [9, 1 << 62], f"frames but 'meta/episode_ends' goes up to {1 << 62}"),
        ("unsigned", np.array([9, 1 << 63], np.uint64), f"goes up to {1 << 63}"),
    ):
        refuses(with_ends(name, values), words)
    many = described(tmp_path / "many.zarr", "meta/episode_ends", shape=[1 << 40])
    refuses(many, "declares 1,099,511,627,776 episodes")


# --- chunks that become more than they declare ---------------------------------------------------


def zstd_of_zeros(blocks: int) -> bytes:
    """A zstd frame that does not say its length: blocks of 128 KiB of one repeated byte."""
    block = struct.pack("<I", 2 | (1 << 17) << 3)[:3] + b"\0"
    last = struct.pack("<I", 3 | (1 << 17) << 3)[:3] + b"\0"
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + block * (blocks - 1) + last


LARGE = "unpacks to more than the 8"
BOMBS = {
    "zlib": (zlib.compress(random.Random(0).randbytes(300_000) + bytes(1 << 20)), LARGE),
    "gzip": (
        gzip.compress(random.Random(0).randbytes(300_000)) + gzip.compress(bytes(1 << 20)),
        LARGE,
    ),
    "bz2": (bz2.compress(bytes(1 << 22)), LARGE),
    "lzma": (lzma.compress(bytes(1 << 22)), LARGE),
    "lz4": (struct.pack("<I", 1 << 31) + bytes(8), LARGE),
    "blosc": (struct.pack("<BBBBIII", 2, 1, 1, 4, 1 << 31, 1 << 20, 24) + bytes(8), LARGE),
    "zstd": (zstd_of_zeros(100), LARGE),
}


@pytest.mark.parametrize("codec", BOMBS)
def test_bombs(tmp_path: Path, codec: str) -> None:
    packed, words = BOMBS[codec]
    content = {**arrays(), "action": np.zeros((30, 25_000), np.float32)}
    path = write_zarr(tmp_path / "a.zarr", content, ENDS)
    document = path / "data/action/.zarray"
    changed = {**json.loads(document.read_text()), "compressor": {"id": codec}}
    document.write_text(json.dumps(changed))
    (path / "data/action/0.0").write_bytes(packed)
    refuses(path, "chunk 'data/action/0.0'", words)


def test_chunks_that_are_longer_than_their_values(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", arrays(), ENDS)
    (path / "data/action/0.0").write_bytes(bytes(100_000))
    refuses(path, "chunk 'data/action/0.0' has 100,000 bytes, more than")
    path = described(tmp_path / "b.zarr", compressor={"id": "blosc"})
    (path / "data/action/0.0").write_bytes(struct.pack("<BBBBIII", 2, 1, 1, 4, 224, 224, 99))
    refuses(path, "is not valid blosc (ValueError: 99 packed bytes declared, 16 found)")
    path = described(tmp_path / "c.zarr", compressor={"id": "zstd"})
    refuses(path, "is not valid zstd (ValueError: not a zstd frame)")


JPEG_XL = {
    "ff0a00900100130800b000bf48aa": 1,
    "ff0a770600130800e800bf48aa01": 224 * 224,
    "ff0af8be01001308009042080c00": 640 * 480,
    "ff0a2081cec70013080080c0040c": 1000 * 37,
    "ff0a7a161d00130800a4c2120c00": 1280 * 720,
}
"""beginnings of pictures that libjxl wrote, and how many pixels they have"""


def test_the_pixels_of_packed_pictures() -> None:
    def pixels(kind: str, data: bytes) -> int:
        return unpacked_bytes(f"imagecodecs_{kind}", data, 0, length=len(data))

    boxed = "0000000c4a584c200d0a870a00000014667479706a786c20000000006a786c200000003f6a786c63"
    for start, count in JPEG_XL.items():
        assert pixels("jpegxl", bytes.fromhex(start)) == count
        assert pixels("jpegxl", bytes.fromhex(boxed + start)) == count
    image = Image.fromarray(np.zeros((37, 100, 3), np.uint8))
    for kind, format, options in (
        ("jpeg2k", "JPEG2000", {}),
        ("jpeg", "JPEG", {}),
        ("png", "PNG", {}),
        ("webp", "WEBP", {"lossless": True}),
        ("webp", "WEBP", {"lossless": False}),
        ("webp", "WEBP", {"exif": b"Exif\0\0"}),
    ):
        stream = io.BytesIO()
        image.save(stream, format, **options)
        assert pixels(kind, stream.getvalue()) == 3700
    for kind in ("jpegxl", "webp", "png", "jpeg", "jpeg2k"):
        with pytest.raises(Exception, match=r"not a|cannot identify"):
            pixels(kind, b"nothing of the kind")


def test_pictures_larger_than_their_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    path = described(
        tmp_path / "a.zarr", "data/camera0_rgb", compressor={"id": "imagecodecs_jpegxl"}
    )
    (path / "data/camera0_rgb/0.0.0.0").write_bytes(bytes.fromhex("ff0a" + "ff" * 12))
    refuses(path, "chunk 'data/camera0_rgb/0.0.0.0' unpacks to more than the 73,728")


# --- what is allowed is read ---------------------------------------------------------------------


def write_v3(path: Path, **options: Any) -> Path:
    """A replay buffer in version 3, written by zarr."""
    import zarr

    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    stored = {f"data/{name}": array for name, array in arrays().items()}
    for name, array in {**stored, "meta/episode_ends": np.array(ENDS)}.items():
        shards = (16, *array.shape[1:]) if "shards" in options else None
        chunks = (8, *array.shape[1:])
        kept = {**options, "shards": shards, "chunks": chunks}
        created = root.create_array(name, shape=array.shape, dtype=array.dtype, **kept)
        created[...] = array
    root.attrs["note"] = "by zarr"
    return path


@pytest.mark.parametrize(
    ("compressor", "filters"),
    [
        (None, None),
        ({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}, None),
        ({"id": "zstd", "level": 1}, None),
        ({"id": "gzip", "level": 1}, None),
        ({"id": "lz4", "acceleration": 1}, None),
        ({"id": "bz2", "level": 1}, None),
        ({"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None}, None),
        ({"id": "zlib", "level": 1}, [{"id": "shuffle", "elementsize": 4}]),
        ({"id": "zlib", "level": 1}, [{"id": "crc32"}]),
        ({"id": "crc32"}, [{"id": "zstd", "level": 1}]),
        ({"id": "fletcher32"}, [{"id": "blosc"}]),
    ],
)
def test_codecs_that_are_allowed(tmp_path: Path, compressor: Any, filters: Any) -> None:
    import numcodecs

    path = write_zarr(tmp_path / "a.zarr", arrays(), ENDS)
    for document in path.rglob(".zarray"):
        changed = {**json.loads(document.read_text()), "compressor": compressor, "filters": filters}
        document.write_text(json.dumps(changed))
        for chunk in document.parent.glob("[0-9]*"):
            data = zlib.decompress(chunk.read_bytes())
            for codec in [*(filters or []), *([compressor] if compressor else [])]:
                data = numcodecs.get_codec(codec).encode(data)
            chunk.write_bytes(bytes(data))
    sound(path)
    sound(zipped(path))


def test_version_3(tmp_path: Path) -> None:
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

    sound(write_v3(tmp_path / "a.zarr", compressors=ZstdCodec()))
    sound(write_v3(tmp_path / "b.zarr", compressors=[BloscCodec(), Crc32cCodec()]))
    sound(write_v3(tmp_path / "c.zarr", compressors=None, chunk_key_encoding={"name": "v2"}))
    sharded = write_v3(tmp_path / "d.zarr", compressors=GzipCodec(), shards=True)
    sound(sharded)
    assert dict(strap.open_dataset(sharded).metadata) == {"note": "by zarr"}
    shard = sharded / "data/action/c/1/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-36] + b"\xff" * 16 + whole[-20:])
    refuses(sharded, "chunk 'data/action/c/1/0 [0, 0]' is missing")
    shard.write_bytes(whole[:-36] + struct.pack("<QQ", 0, 1 << 40) + whole[-20:])
    refuses(sharded, "shard 'data/action/c/1/0' is cut short")
    shard.unlink()
    refuses(sharded, "chunk 'data/action/c/1/0' is missing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_type": "string"}, "is of the type 'string'"),
        ({"data_type": {"name": "r16"}}, "is of the type {'name': 'r16'}"),
        ({"codecs": [{"name": "vlen-utf8"}]}, "uses the codec 'vlen-utf8'"),
        ({"codecs": [{"name": "bytes"}, {"name": "zlib"}]}, "uses the codec 'zlib'"),
        ({"codecs": [{"name": "numcodecs.json2"}]}, "uses the codec 'numcodecs.json2'"),
        ({"codecs": "bytes"}, "has the codecs 'bytes', not a list"),
        (
            {"codecs": [{"name": "bytes"}, {"name": "sharding_indexed"}]},
            "around 'sharding_indexed'",
        ),
        (
            {"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 7]}}]},
            "has the codecs None, not a list",
        ),
        ({"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        ({"chunk_grid": {"name": "rectilinear"}}, "has the chunk_grid {'name': 'rectilinear'}"),
        ({"chunk_key_encoding": 3}, "has the chunk_key_encoding 3; known: default, v2"),
        ({"node_type": "file"}, "has node_type 'file', not 'array'"),
    ],
)
def test_version_3_of_odd_kinds(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = write_v3(tmp_path / "a.zarr", compressors=None)
    document = path / "data/action/zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), **changes}))
    refuses(path, words)


# --- zips ----------------------------------------------------------------------------------------


def test_zips_that_name_other_files(tmp_path: Path) -> None:
    packed = zipped(write_zarr(tmp_path / "a.zarr", arrays(), ENDS))
    for number, name in enumerate(("../../outside", "/etc/passwd", "data/../../x")):
        path = Path(shutil.copy(packed, tmp_path / f"{number}.zarr.zip"))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, b"x")
        refuses(path, repr(name), "which is outside of it")


def test_zips_that_unpack_to_more(tmp_path: Path) -> None:
    root = write_zarr(tmp_path / "a.zarr", arrays(), ENDS)
    (root / "data/action/0.0").write_bytes(bytes(200 << 20))
    path = tmp_path / "bomb.zarr.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(root).as_posix())
    assert path.stat().st_size < 1 << 20
    refuses(path, "chunk 'data/action/0.0' has 209,715,200 bytes, more than")
    path = tmp_path / "lzma.zarr.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(root / ".zgroup", "meta/episode_ends/.zarray")
    refuses(path, "packed with the zip method 14; create the zip again")


def test_the_last_of_members_with_one_name_counts(tmp_path: Path) -> None:
    packed = zipped(write_zarr(tmp_path / "a.zarr", arrays(), ENDS))
    with zipfile.ZipFile(packed) as archive:
        chunk = archive.read("data/action/0.0")
    with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("data/action/0.0", chunk)
    sound(packed)


# --- pictures and ids ----------------------------------------------------------------------------


def test_pixels_that_are_no_numbers(tmp_path: Path) -> None:
    content = arrays("float32")
    content["camera0_rgb"][4, 0, 0, 0] = np.nan
    path = write_zarr(tmp_path / "a.zarr", content, ENDS)
    refuses(path, "episode_000000, 'data/camera0_rgb' has pixels that are NaN or infinite")
    blind = {"shape": [30, 0, 4, 3], "chunks": [8, 1, 4, 3]}
    path = described(tmp_path / "b.zarr", "data/camera0_rgb", **blind)
    refuses(path, "'data/camera0_rgb' has the shape (30, 0, 4, 3): images without pixels")


def test_actions_of_another_kind(tmp_path: Path) -> None:
    content = {**arrays(), "action": np.zeros((30, 2, 2))}
    path = write_zarr(tmp_path / "a.zarr", content, ENDS)
    refuses(
        path,
        "'data/action' has shape (30, 2, 2) and dtype float64",
        "it must be an array [frames, numbers]",
    )
    content["action"] = np.zeros((30, 2), "S4")
    path = write_zarr(tmp_path / "b.zarr", content, ENDS)
    refuses(
        path, "'data/action' has shape (30, 2) and dtype |S4; it must be an array [frames, numbers]"
    )


def test_only_an_unknown_id_is_unknown(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "a.zarr", arrays(), ENDS)
    dataset = strap.open_dataset(path)
    for name in ("episode_000003", "episode_²", "episode_1", "episode_" + "9" * 5000, "demo_0"):
        with pytest.raises(KeyError):
            dataset.reader.read(name)
    own = dataset["episode_000000"]
    shutil.rmtree(path / "data/action")
    with pytest.raises(StrapError, match=r"a.zarr', episode_000000, 'data/action'"):
        own.actions[:]
