"""Videos decoded by processes of their own: the same frames, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import strap
from strap import cpus
from strap.datasets import OpenOptions
from strap.datasets.base import Dataset
from strap.datasets.lerobot import write_lerobot
from strap.datasets.selection import Selection
from strap.embeddings import decoding
from strap.embeddings.frames import FrameSpan, read_frames, split_job
from strap.embeddings.work import EmbeddingJob
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.progress import silent
from strap.synthetic import Planted
from strap.training import cache_writer
from strap.training.cache_builder import CacheOptions, build_cache
from strap.training.data import open_whole_datasets
from strap.types import Source, Trajectory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux's memory files")
CAMERAS = ("front", "wrist")


def episodes(count: int, seed: int = 0) -> Iterator[Trajectory]:
    rng = np.random.default_rng(seed)
    for index in range(count):
        length = 9 + index
        yield Trajectory(
            id=str(index),
            length=length,
            instruction="go",
            cameras={
                name: lazy(rng.integers(0, 255, (length, 32, 32, 3), np.uint8))
                for name in ("front", "wrist")
            },
            proprioception={},
            actions=lazy(np.zeros((length, 7), np.float32)),
            source=Source(Path(), str(index)),
            fps=10.0,
        )


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("videos") / "data"
    write_lerobot(path, episodes(4))
    return strap.open_dataset(path)


def all_spans(dataset: Dataset) -> list[tuple[FrameSpan, str]]:
    own = tuple(dataset)
    job = EmbeddingJob(own, ("",) * len(own), (0,) * len(CAMERAS))
    return [(span, CAMERAS[span.camera]) for span in split_job(job, CAMERAS)]


def test_the_frames_are_the_same(videos: Dataset) -> None:
    with decoding.decoder_processes(2) as images_of:
        images = images_of(videos)
        for span in all_spans(videos):
            assert np.array_equal(images(*span), read_frames(*span))


def test_one_process_reads_several_datasets(videos: Dataset, tmp_path: Path) -> None:
    write_lerobot(tmp_path / "others", episodes(2, seed=1))
    others = strap.open_dataset(tmp_path / "others")
    with decoding.decoder_processes(1) as images_of:
        for span, other in zip(all_spans(videos), all_spans(others), strict=False):
            assert np.array_equal(images_of(videos)(*span), read_frames(*span))
            assert np.array_equal(images_of(others)(*other), read_frames(*other))
            assert not np.array_equal(read_frames(*span), read_frames(*other))


def watch_decoders(monkeypatch: pytest.MonkeyPatch) -> list[decoding.FrameDecoder]:
    """Return a list to which every decoder is added that is started."""
    started: list[decoding.FrameDecoder] = []

    class Watched(decoding.FrameDecoder):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            started.append(self)

    monkeypatch.setattr(decoding, "FrameDecoder", Watched)
    return started


def test_a_killed_process_is_a_warning(videos: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    started = watch_decoders(monkeypatch)
    first, *rest = all_spans(videos)
    with decoding.decoder_processes(1) as images_of:
        images = images_of(videos)
        assert np.array_equal(images(*first), read_frames(*first))
        os.kill(started[0].worker.process.pid, signal.SIGKILL)
        started[0].worker.process.wait()
        with pytest.warns(UserWarning, match="was killed"):
            assert np.array_equal(images(*rest[0]), read_frames(*rest[0]))
        for span in rest[1:]:
            assert np.array_equal(images(*span), read_frames(*span))


def test_errors_come_through(videos: Dataset) -> None:
    (span, _), *_ = all_spans(videos)
    with decoding.decoder_processes(1) as images_of:
        images = images_of(videos)
        with pytest.raises(StrapError, match="unknown camera 'side'"):
            images(span, "side")
        assert len(images(span, CAMERAS[0])) == span.stop - span.start


def test_cpus_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "_sharing", 1)
    whole = cpus.count_cpus()
    cpus.share_cpus(whole)
    assert cpus.count_cpus() == 1
    cpus.share_cpus(10 * whole)
    assert cpus.count_cpus() == 1


def test_processes_end_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started = watch_decoders(monkeypatch)
    with decoding.decoder_processes(3):
        pass
    assert len(started) == 3
    assert all(decoder.worker.process.poll() is not None for decoder in started)


def test_processes_end_with_a_killed_parent() -> None:
    script = """
import time
from strap.embeddings import decoding
made, make = [], decoding.FrameDecoder
decoding.FrameDecoder = lambda *given: made.append(make(*given)) or made[-1]
with decoding.decoder_processes(2):
    print(*(decoder.worker.process.pid for decoder in made), flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.kill()
        parent.wait()
    for _ in range(100):
        if not any(_runs(pid) for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail("processes outlived their parent")


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie, for want of somebody to bury it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_dataset_that_cannot_be_sent_is_read_here(videos: Dataset) -> None:
    class Own:
        ids, files, metadata = videos.ids, (), {}
        read = videos.reader.read

    dataset = Dataset(videos.path, "own", Own())
    with decoding.decoder_processes(1) as images_of:
        assert images_of(dataset) is read_frames


def test_a_store_is_the_same(
    videos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_threads = strap.embed(videos, "pixels", tmp_path / "threads", workers=4)
    assert not decoding.is_worth_processes(80, 4)
    monkeypatch.setattr(decoding, "MIN_IMAGES", 1)
    assert decoding.is_worth_processes(80, 4)
    assert not decoding.is_worth_processes(80, 2)
    by_processes = strap.embed(videos, "pixels", tmp_path / "processes", workers=4)
    for key in videos.ids:
        assert np.array_equal(by_threads[key], by_processes[key])
        assert by_threads.entry(key).fingerprint == by_processes.entry(key).fingerprint


def test_a_cache_of_several_datasets_is_the_same(
    videos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lerobot(tmp_path / "others", episodes(2, seed=1))
    others = strap.open_dataset(tmp_path / "others")
    data = open_whole_datasets([videos.path, others.path], OpenOptions(), Selection(), silent)
    options = CacheOptions(image_size=32, language="words")
    by_threads = build_cache(data, tmp_path / "threads", options, workers=4)
    monkeypatch.setattr(decoding, "MIN_IMAGES", 1)
    started = watch_decoders(monkeypatch)
    by_processes = build_cache(data, tmp_path / "processes", options, workers=4)
    assert len(started) == 4
    for name in CAMERAS:
        one, other = (np.load(c.path / f"frames-{name}.npy") for c in (by_threads, by_processes))
        assert np.array_equal(one, other)
        firsts = [next(iter(dataset)).frames(name, 0, 1) for dataset in (videos, others)]
        rows = [0, sum(trajectory.length for trajectory in videos)]
        assert np.array_equal(other[rows], np.concatenate(firsts))


def test_what_is_no_video_is_told_apart(planted: Planted) -> None:
    assert not decoding.has_videos(strap.open_dataset(planted.prior))


def test_frames_that_are_missing_are_not_made_up(
    videos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resize = cache_writer.resize_square
    monkeypatch.setattr(
        cache_writer, "resize_square", lambda images, size: resize(images, size)[:1]
    )
    data = open_whole_datasets([videos.path], OpenOptions(), Selection(), silent)
    options = CacheOptions(image_size=32, language="words")
    message = r"'episode_000000' has values of shape \[1, 32, 32, 3\] for 'frames-.*', not \[9, 32"
    with pytest.raises(StrapError, match=message):
        build_cache(data, tmp_path / "cache", options)
