"""Reading RLDS episodes against the `tfrecord` package (PyPI) on the same shards.

    python benchmarks/formats/rlds.py [--episodes 60] [--rounds 5] [--path DATASET]

`parse`: every field of every record as arrays and encoded pictures. `decode`: the pictures too,
with Pillow on both sides. Ours checks both checksums of every record, `tfrecord` checks none.
Both sides use one thread, so processor time is measured: other work on the machine does not count.
The aim is a ratio of at least 1.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import tfrecord
from machine import describe, rates, ratio
from PIL import Image

from strap.datasets.rlds import open_rlds
from strap.datasets.rlds.example import parse
from strap.datasets.rlds.reading import RldsReader
from strap.datasets.rlds.records import masked_crc, read_record

STEPS, SIZE = 120, (180, 320)
CAMERAS = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: list[bytes] | np.ndarray) -> bytes:
    if isinstance(values, list):
        return field(1, b"".join(field(1, value) for value in values))
    if values.dtype.kind == "f":
        return field(2, field(1, values.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(v)) for v in values.ravel())))


def record(features: dict[str, list[bytes] | np.ndarray]) -> bytes:
    entries = (field(1, k.encode()) + field(2, feature(v)) for k, v in features.items())
    data = field(1, b"".join(field(1, entry) for entry in entries))
    length = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", masked_crc(part)) for part in (length, data)]
    return length + crcs[0] + data + crcs[1]


def write_droid(folder: Path, episodes: int) -> None:
    """A dataset with DROID's fields, sizes and step rate, in shards of 20 episodes."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(8):
        smooth = rng.integers(0, 255, (*(n // 10 for n in SIZE), 3)).astype(np.uint8)
        image = Image.fromarray(smooth).resize(SIZE[::-1], Image.Resampling.BICUBIC)
        out = io.BytesIO()
        image.save(out, "JPEG", quality=90)
        pictures.append(out.getvalue())
    observation = {
        name: {"image": {"shape": {"dimensions": [*map(str, SIZE), "3"]}, "dtype": "uint8"}}
        for name in CAMERAS
    }
    numbers = {"cartesian_position": 6, "joint_position": 7, "gripper_position": 1}
    observation |= {n: tensor("float64", width) for n, width in numbers.items()}
    steps = {
        "observation": {"featuresDict": {"features": observation}},
        "action": tensor("float64", 7),
        "is_last": tensor("bool"),
        "language_instruction": {"text": {}},
    }
    inner = {"sequence": {"feature": {"featuresDict": {"features": steps}}}}
    (folder / "features.json").write_text(
        json.dumps({"featuresDict": {"features": {"steps": inner}}})
    )
    shards = [20] * (episodes // 20) + ([episodes % 20] if episodes % 20 else [])
    split = {"name": "train", "shardLengths": [str(n) for n in shards]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "droid", "splits": [split]}))
    for i, count in enumerate(shards):
        with (folder / f"droid-train.tfrecord-{i:05d}-of-{len(shards):05d}").open("wb") as file:
            for _ in range(count):
                file.write(record(episode(rng, pictures, numbers)))


def tensor(dtype: str, *shape: int) -> dict[str, object]:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"}}


def episode(
    rng: np.random.Generator, pictures: list[bytes], numbers: dict[str, int]
) -> dict[str, list[bytes] | np.ndarray]:
    found: dict[str, list[bytes] | np.ndarray] = {
        f"steps/observation/{name}": [pictures[i % 8] for i in range(STEPS)] for name in CAMERAS
    }
    for name, width in numbers.items():
        found[f"steps/observation/{name}"] = rng.normal(size=(STEPS, width))
    return found | {
        "steps/action": rng.normal(size=(STEPS, 7)),
        "steps/is_last": (np.arange(STEPS) == STEPS - 1).astype(int),
        "steps/language_instruction": [b"put the marker in the cup"] * STEPS,
    }


def kinds(reader: RldsReader) -> dict[str, str]:
    """The description that `tfrecord` asks for."""
    first = reader.structure.shards[0].file
    spans = parse(read_record(first, 0))
    found = {}
    for name in spans.spans:
        try:
            numbers = spans.numbers(name)
            found[name] = "float" if numbers.dtype.kind == "f" else "int"
        except ValueError:
            found[name] = "byte"
    return found


def ours_parsed(reader: RldsReader, fields: dict[str, str]) -> int:
    for trajectory_id in reader.ids:
        shard, index = reader._place(trajectory_id)
        example = parse(read_record(shard.file, index))
        for name, kind in fields.items():
            _ = example.texts(name) if kind == "byte" else example.numbers(name)
    return len(reader.ids)


def theirs_parsed(reader: RldsReader, fields: dict[str, str]) -> int:
    count = 0
    for shard in reader.structure.shards:
        for _ in tfrecord.tfrecord_loader(str(shard.file), None, fields):
            count += 1
    return count


def ours_decoded(reader: RldsReader) -> int:
    for trajectory_id in reader.ids:
        trajectory = reader.read(trajectory_id)
        for array in (
            trajectory.actions,
            *trajectory.proprioception.values(),
            *trajectory.extras.values(),
            *trajectory.cameras.values(),
        ):
            array[:]
    return len(reader.ids)


def theirs_decoded(reader: RldsReader, fields: dict[str, str]) -> int:
    cameras = [f"steps/{f.path}" for f in reader.roles.cameras.values()]
    count = 0
    for shard in reader.structure.shards:
        for found in tfrecord.tfrecord_loader(str(shard.file), None, fields):
            for name in cameras:
                np.stack(
                    [np.asarray(Image.open(io.BytesIO(b)).convert("RGB")) for b in found[name]]
                )
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--path", type=Path)
    arguments = parser.parse_args()
    print(describe("tfrecord", "protobuf", "google-crc32c", "pillow", "numpy"))
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.path or Path(folder)
        if arguments.path is None:
            write_droid(path, arguments.episodes)
        _, reader = open_rlds(path)
        fields = kinds(reader)
        steps = {
            "parse": (
                lambda: ours_parsed(reader, fields),
                lambda: theirs_parsed(reader, fields),
            ),
            "decode": (lambda: ours_decoded(reader), lambda: theirs_decoded(reader, fields)),
        }
        for name, (ours, theirs) in steps.items():
            rounds = arguments.rounds if name == "parse" else 3
            work = {"strap": ours, "tfrecord": theirs}
            found = rates(work, rounds=rounds, clock=time.process_time)
            print(
                f"{name:6s}: strap {statistics.median(found['strap']):8.1f} episodes per CPU "
                f"second, tfrecord {statistics.median(found['tfrecord']):8.1f}, "
                f"ratio {ratio(found['strap'], found['tfrecord']):.2f}"
            )


if __name__ == "__main__":
    main()
