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
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import tfrecord
from droid import draw_pictures, write_droid
from machine import describe, rates, ratio
from PIL import Image

from strap.datasets.rlds import open_rlds
from strap.datasets.rlds.example import parse
from strap.datasets.rlds.reading import RldsReader
from strap.datasets.rlds.records import read_record

STEPS = 120


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
    count = 0
    for shard in reader.structure.shards:
        for index in range(shard.length or 0):
            example = parse(read_record(shard.file, index))
            for name, kind in fields.items():
                _ = example.texts(name) if kind == "byte" else example.numbers(name)
            count += 1
    return count


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
            write_droid(path, arguments.episodes, STEPS, [draw_pictures(8)])
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
