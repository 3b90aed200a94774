"""Changes that keep to a file's format, so that they get past its parser."""

from __future__ import annotations

import json
import random
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.datasets.writers import record
from tests.fuzzing import groups, tables, values
from tests.fuzzing.checksums import records_of

Mutator = Callable[[random.Random, Path], str]

BOXES = (
    b"ftyp mdat moov mvhd trak tkhd mdia mdhd stbl stsd stts stsz stco stsc stss ctts elst".split()
)
WORDS = (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000)


def find_mutator(file: Path) -> Mutator | None:
    """What changes the structure of such a file; None for one without structure."""
    if ".tfrecord" in file.name:
        return change_records
    if file.name == "journal":
        return values.change_journal
    if file.name in (".zarray", ".zgroup", ".zattrs"):
        return values.change_json
    if "data.zarr" in file.parts:
        return change_chunk
    return {
        ".json": values.change_json,
        ".jsonl": values.change_lines,
        ".parquet": tables.change_table,
        ".hdf5": groups.change_hdf5,
        ".npy": change_npy,
        ".safetensors": change_safetensors,
        ".mp4": change_boxes,
        ".zip": change_zip,
    }.get(file.suffix)


def change_npy(rng: random.Random, file: Path) -> str:
    """Another dtype, order or shape in the header of an array, which keeps its width."""
    content = file.read_bytes()
    size = 10 + struct.unpack_from("<H", content, 8)[0]
    header, rows = content[10:size], content[size:]
    array = np.load(file, allow_pickle=False)
    shape, descr = array.shape, array.dtype.str
    change = rng.choice(("shape", "dtype", "order", "values", "rows"))
    if change == "values":
        return _spoil_values(rng, file, array)
    if change == "rows":
        np.save(file, array[:-1] if rng.random() < 0.5 else np.concatenate([array, array]))
        return "npy rows changed"
    if change == "shape":
        odd = ((10**12, 4), (-1, *shape[1:]), (), (0, 0), shape[::-1], (2**62, 2**62), (*shape, 1))
        shape = rng.choice(odd)
    elif change == "dtype":
        descr = rng.choice(
            ("|O", "<f8", "<f2", "|S0", "<U1000000", "|V4", "<c16", "[('a', '<f4')]")
        )
    order = change == "order"
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    file.write_bytes(
        content[:10] + text.encode().ljust(len(header) - 1)[: len(header) - 1] + b"\n" + rows
    )
    return f"npy {change} changed"


def _spoil_values(rng: random.Random, file: Path, array: np.ndarray) -> str:
    spoiled = array.copy()
    if spoiled.size and spoiled.dtype.kind == "f":
        spoiled.reshape(-1)[rng.randrange(spoiled.size)] = rng.choice((np.nan, np.inf, 1e30, 0))
    elif spoiled.size:
        spoiled.reshape(-1)[rng.randrange(spoiled.size)] = 1
    np.save(file, spoiled)
    return "npy values changed"


def change_safetensors(rng: random.Random, file: Path) -> str:
    """One change in the header, or numbers that are none among the weights."""
    content = file.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header, data = content[8 : 8 + size], bytearray(content[8 + size :])
    change = rng.choice(("header", "header", "header", "length", "weights"))
    if change == "header":
        change, described = values.change_json_value(rng, json.loads(header))
        header = values.json_text(described)
        file.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return f"header {change}"
    if change == "length":
        size = rng.choice((0, size - 1, size + 1, 2**31, 2**63 - 1, 2**64 - 1))
        file.write_bytes(struct.pack("<Q", size) + content[8:])
        return "header length changed"
    at = rng.randrange(len(data) // 4) * 4
    data[at : at + 4] = struct.pack("<f", rng.choice((float("nan"), float("inf"), 1e38, -1e38)))
    file.write_bytes(content[: 8 + size] + data)
    return "weights changed"


def change_boxes(rng: random.Random, file: Path) -> str:
    """Another size, or other numbers, in one of a video's boxes."""
    content = bytearray(file.read_bytes())
    box = rng.choice([box for box in BOXES if box in content])
    at = content.index(box)
    word = struct.pack(">I", rng.choice(WORDS))
    if rng.random() < 0.4:
        content[at - 4 : at] = word
        change = "size of a box changed"
    else:
        place = at + 4 * rng.randrange(1, 8)
        content[place : place + 4] = word
        change = "number in a box changed"
    file.write_bytes(content)
    return change


def change_records(rng: random.Random, file: Path) -> str:
    """Records dropped, doubled or swapped, or bytes changed in one; checksums fit."""
    bodies = records_of(file.read_bytes())
    at = rng.randrange(len(bodies))
    change = rng.choice(
        ("changed", "changed", "changed", "dropped", "doubled", "emptied", "swapped")
    )
    if change == "changed":
        body = bytearray(bodies[at])
        for _ in range(rng.choice((1, 2, 8))):
            # Most of a record is pictures; lengths and names are found at its borders too.
            place = rng.choice(
                (rng.randrange(len(body)), rng.randrange(64), -1 - rng.randrange(64))
            )
            body[place] = rng.choice((0, 0x7F, 0x80, 0xFF, body[place] ^ 1, body[place] ^ 0x40))
        bodies[at] = bytes(body)
    elif change == "dropped":
        del bodies[at]
    elif change == "doubled":
        bodies.insert(at, bodies[at])
    elif change == "emptied":
        bodies[at] = b""
    else:
        bodies.reverse()
    file.write_bytes(b"".join(map(record, bodies)))
    return f"record {change}"


def change_chunk(rng: random.Random, file: Path) -> str:
    """What a compressed chunk holds, or how much."""
    content = bytearray(zlib.decompress(file.read_bytes()))
    change = rng.choice(("value", "shorter", "longer"))
    if change == "value":
        content[rng.randrange(len(content))] ^= 0xFF
    elif change == "shorter":
        del content[rng.randrange(len(content)) :]
    else:
        content += bytes(rng.choice((1, 1000, 50_000_000)))
    file.write_bytes(zlib.compress(content))
    return f"chunk's {'value changed' if change == 'value' else f'content made {change}'}"


def change_zip(rng: random.Random, file: Path) -> str:
    """A change in a member, or of the members themselves; the archive's checksums fit."""
    with zipfile.ZipFile(file) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    change = rng.choice(("changed", "changed", "changed", "dropped", "doubled", "renamed"))
    at = rng.randrange(len(members))
    name, content = members[at]
    if change == "changed":
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "data.zarr" / name
            copy.parent.mkdir(parents=True)
            copy.write_bytes(content)
            mutate = find_mutator(copy)
            change = mutate(rng, copy) if mutate else "unchanged"
            members[at] = name, copy.read_bytes()
    elif change == "dropped":
        del members[at]
    elif change == "doubled":
        members.append((name, content[: len(content) // 2]))
    else:
        members[at] = rng.choice(("../" + name, "/etc/hostname", name.upper())), content
    with zipfile.ZipFile(
        file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return f"member: {change}"
