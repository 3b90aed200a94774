"""Embedding a LeRobot dataset from its videos: what bounds it, decoding or encoding?

    PYTHONPATH=src python benchmarks/encoders/video.py [--encoder dinov2-base] [--frames 4000]

Three rates in one run, in images per second: reading and decoding alone (the same threads or
processes, their start included, no encoder), encoding alone (images in memory), and `strap.embed`
with both, store and checksums included. Together they can be no faster than the slower of the two
on a GPU; on a CPU they share the cores, so the bound is 1 / (1/decode + 1/encode).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

if importlib.util.find_spec("av") is None:
    sys.exit(
        "this benchmark decodes video, which needs PyAV, and it is not installed here: "
        "pip install 'av>=14'. Without it, benchmarks/encoders/gpu.py and cpu.py measure encoding "
        "alone."
    )

import numpy as np
from gpu import in_flight
from machine import describe

import strap
from strap.datasets.lerobot import write_lerobot
from strap.embeddings import decoding
from strap.embeddings.frames import read_ahead, read_frames, split_job
from strap.embeddings.work import EmbeddingJob
from strap.encoders import Encoder, EncoderSpec
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Source, Trajectory

EPISODE = 250


SCENES = 4  # different ones; further ones are the same, moved aside


@cache
def drawn(size: int, seed: int) -> np.ndarray:
    """Texture and movement, so that the codec has its usual work."""
    texture = np.random.default_rng(seed).normal(0, 8, (size, size))
    rows, columns = np.mgrid[0:size, 0:size]
    out = np.empty((EPISODE, size, size, 3), np.uint8)
    for t in range(EPISODE):
        x, y = size / 2 * (1 + 0.7 * np.cos(t / 30)), size / 2 * (1 + 0.7 * np.sin(t / 23))
        ball = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 400)
        grey = 90 + 40 * np.sin((columns + t) / 20) + texture + 120 * ball
        out[t] = np.clip(np.stack([grey, grey * 0.8, 200 - grey / 2], -1), 0, 255)
    return out


def scene(size: int, seed: int) -> LazyArray:
    def frames(start: int, stop: int) -> np.ndarray:
        return np.roll(drawn(size, seed % SCENES)[start:stop], seed, axis=2)

    return LazyArray((EPISODE, size, size, 3), np.dtype(np.uint8), frames)


def episodes(count: int, size: int) -> Iterator[Trajectory]:
    for index in range(count):
        yield Trajectory(
            id=str(index),
            length=EPISODE,
            instruction="go",
            cameras={"front": scene(size, 2 * index), "wrist": scene(size, 2 * index + 1)},
            proprioception={},
            actions=lazy(np.zeros((EPISODE, 7), np.float32)),
            source=Source(Path(), str(index)),
            fps=20.0,
        )


def decode_rate(dataset: strap.Dataset, cameras: tuple[str, ...], workers: int) -> float:
    own = tuple(dataset)
    job = EmbeddingJob(own, ("",) * len(own), (0,) * len(cameras))
    begin, count = time.perf_counter(), 0
    with ExitStack() as stack:
        images = read_frames
        if decoding.is_worth_processes(dataset, sum(t.length for t in own) * len(cameras), workers):
            images = stack.enter_context(decoding.decoders(dataset, workers))
        for read in read_ahead(split_job(job, cameras), cameras, workers, images):
            count += len(read.images)
        return count / (time.perf_counter() - begin)


def encode_rate(encoder: Encoder, images: np.ndarray) -> float:
    work = in_flight if hasattr(encoder, "start") else lambda e, x: e.encode(x)
    work(encoder, images[:256])
    begin = time.perf_counter()
    work(encoder, images)
    return len(images) / (time.perf_counter() - begin)


def embed_rate(
    dataset: strap.Dataset, encoder: Encoder, store: Path, cameras: tuple[str, ...], workers: int
) -> float:
    begin = time.perf_counter()
    done = strap.embed(dataset, encoder, store, cameras=cameras, workers=workers)
    return done.frames * len(cameras) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="efficientnet-lite0")
    parser.add_argument("--frames", type=int, default=4000, help="images in all, of two cameras")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--codec", default="h264")
    parser.add_argument("--workers", type=int, nargs="+", default=[min(8, os.cpu_count() or 1)])
    parser.add_argument("--by", nargs="+", default=["auto"], choices=["auto", "threads"])
    options = parser.parse_args()
    known = decoding.MIN_IMAGES
    print(describe("av", "numpy"))
    encoder = EncoderSpec(options.encoder).load()
    device = str(getattr(encoder, "device", "cpu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        count = max(1, options.frames // (2 * EPISODE))
        write_lerobot(path, episodes(count, options.size), codec=options.codec)
        dataset = strap.open_dataset(path)
        cameras = tuple(dataset[dataset.ids[0]].cameras)
        images = dataset[dataset.ids[0]].frames(cameras[0])
        encode = encode_rate(encoder, np.concatenate([images] * 8))
        print(f"{options.codec} {options.size}×{options.size}, two cameras, {count} episodes")
        print(f"encode alone           {encode:8.0f} images/s ({options.encoder} on {device})")
        for by, workers in itertools.product(options.by, options.workers):
            decoding.MIN_IMAGES = sys.maxsize if by == "threads" else known
            decode = decode_rate(dataset, cameras, workers)
            store = Path(folder) / f"store-{by}-{workers}"
            both = embed_rate(dataset, encoder, store, cameras, workers)
            bound = min(decode, encode) if "cuda" in device else 1 / (1 / decode + 1 / encode)
            what = "decoding" if decode < encode else "encoding"
            print(
                f"{workers:2} workers ({by}): decode alone {decode:.0f} images/s, "
                f"strap.embed {both:.0f}, "
                f"{both / bound:.0%} of what is possible; bounded by {what}"
            )


if __name__ == "__main__":
    main()
