"""Sequential reading of a LeRobot v3.0 dataset against bare PyAV on the same files.

    python benchmarks/formats/video.py [--frames 1000] [--rounds 5]

Both give every frame as an RGB array. Ours goes through `dataset[id].frames(camera, …)`, 32 frames
at a time, as embedding does. Rates are per second, and per second of processor time, which other
work on the machine does not change. The aim is 90 % of the bare rate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import av
import numpy as np
from machine import describe, rates, ratio

from strap.datasets.base import Dataset
from strap.datasets.lerobot import open_lerobot, write_lerobot
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Source, Trajectory

SIZE = (256, 256)
EPISODE = 200
CHUNK = 32
os.environ.setdefault("SVT_LOG", "1")


def moving_scene(start: int, stop: int) -> np.ndarray:
    """Frames with texture and movement, so that the codec has its usual work."""
    rows, columns = np.mgrid[0 : SIZE[0], 0 : SIZE[1]]
    texture = np.random.default_rng(0).normal(0, 8, SIZE)
    out = np.empty((stop - start, *SIZE, 3), np.uint8)
    for i, t in enumerate(range(start, stop)):
        x, y = 128 + 90 * np.cos(t / 30), 128 + 90 * np.sin(t / 23)
        ball = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 400)
        grey = 90 + 40 * np.sin((columns + t) / 20) + texture + 120 * ball
        out[i] = np.clip(np.stack([grey, grey * 0.8, 200 - grey / 2], -1), 0, 255)
    return out


def trajectory(index: int) -> Trajectory:
    return Trajectory(
        id=str(index),
        length=EPISODE,
        instruction="go",
        cameras={"front": LazyArray((EPISODE, *SIZE, 3), np.dtype(np.uint8), moving_scene)},
        proprioception={},
        actions=lazy(np.zeros((EPISODE, 7), np.float32)),
        source=Source(Path(), str(index)),
        fps=20.0,
    )


def ours(path: Path) -> int:
    dataset = Dataset(path, *open_lerobot(path))
    count = 0
    for one in dataset:
        for start in range(0, one.length, CHUNK):
            count += len(one.frames("front", start, min(start + CHUNK, one.length)))
    return count


def bare(path: Path) -> int:
    count = 0
    for file in sorted(path.glob("videos/*/*/*.mp4")):
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for frame in container.decode(stream):
                frame.to_ndarray(format="rgb24")
                count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(describe("av", "numpy", "pyarrow"))
    cases = (("h264", 2), ("h264", 30), ("av1", 2))
    with tempfile.TemporaryDirectory() as folder:
        for codec, gop in cases:
            path = Path(folder) / f"{codec}-{gop}"
            episodes = (trajectory(i) for i in range(max(1, arguments.frames // EPISODE)))
            write_lerobot(path, episodes, codec=codec, gop=gop)
            work = {"strap": lambda p=path: ours(p), "bare": lambda p=path: bare(p)}
            for unit, clock in (("second", time.perf_counter), ("CPU second", time.process_time)):
                found = rates(work, rounds=arguments.rounds, clock=clock)
                print(
                    f"{codec} 256×256, keyframe every {gop:2d}: strap "
                    f"{statistics.median(found['strap']):6.0f} frames per {unit}, bare PyAV "
                    f"{statistics.median(found['bare']):6.0f}, "
                    f"ratio {ratio(found['strap'], found['bare']):.2f}"
                )


if __name__ == "__main__":
    main()
