"""Fill a frame cache: threads or processes decode clips ahead, which are written in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from typing import Any, cast

import numpy as np

from strap.atomic import explain_write_errors
from strap.cpus import count_cpus
from strap.datasets.base import Dataset
from strap.datasets.finite import first_fault
from strap.embeddings.decoding import Images, decoder_processes, has_videos, is_worth_processes
from strap.embeddings.frames import (
    SPAN_BYTES,
    SPAN_FRAMES,
    FrameSpan,
    SpanImages,
    read_ahead,
    read_frames,
)
from strap.embeddings.work import EmbeddingJob
from strap.errors import StrapError
from strap.policies.images import resize_square
from strap.training.cache import FrameCache
from strap.training.data import Clip, TrainingData
from strap.types import Array, short_name

MAX_THREADS = 8
"""more threads only wait for each other"""


class ClipWriter:
    """Fills the arrays of a new cache, clip by clip.

    Rows are written to the files, not to memory maps of them: a map causes a page fault every four
    kilobytes, which takes several times as long as writing does.
    """

    def __init__(self, cache: FrameCache, data: TrainingData) -> None:
        self.cache, self.data = cache, data
        kind = "frames" if cache.has_frames else "maps"
        self.image_files = {name: f"{kind}-{name}.npy" for name in cache.interface.cameras}
        # Memory maps, used only for their shape, dtype and offset:
        self.layouts: dict[str, Any] = {
            name: np.load(cache.path / name, mmap_mode="r", allow_pickle=False)
            for name in ("actions.npy", "states.npy", *self.image_files.values())
        }
        self.vision: Any = None
        if not cache.has_frames:
            from strap.policies.checkpoints import read_tensors
            from strap.policies.frozen_vision import FrozenVision, Projection

            tensors = read_tensors(cache.path / "tensors.safetensors")
            self.vision = FrozenVision()
            self.projection = Projection(tensors["mean"], tensors["directions"])

    def write(self, first: int, workers: int | None = None) -> Iterator[int]:
        """Write the clips from number `first` on; yield each clip's number after writing it.

        Args:
            first: the number of the first clip to write.
            workers: number of threads that decode, or of processes if there are many images in
                videos (default: the number of CPUs, at most 8 for threads).
        """
        numbers = range(first, len(self.data.clips))
        groups, n_images = [], 0
        for _, found in groupby(numbers, key=lambda number: id(self.data.clips[number].dataset)):
            group = tuple(found)
            dataset = self.data.clips[group[0]].dataset
            is_video = has_videos(dataset)
            groups.append((dataset, is_video, group))
            if is_video:
                n_images += sum(self.cache.clips[number].length for number in group)
        count = workers or count_cpus()
        with ExitStack() as stack:
            by_processes: Callable[[Dataset], Images] | None = None
            if is_worth_processes(n_images * len(self.cache.interface.cameras), count):
                by_processes = stack.enter_context(decoder_processes(count))
            for dataset, is_video, group in groups:
                if by_processes and is_video:
                    yield from self._write_clips(group, by_processes(dataset), count)
                else:
                    n_threads = workers or min(MAX_THREADS, count_cpus())
                    yield from self._write_clips(group, read_frames, n_threads)

    def flush(self) -> None:
        """Force written rows onto the disk."""
        for name in self.layouts:
            with (
                explain_write_errors(self.cache.path / name),
                (self.cache.path / name).open("r+b") as file,
            ):
                os.fsync(file.fileno())

    def _write_clips(self, numbers: Sequence[int], decode: Images, count: int) -> Iterator[int]:
        cameras, size = self.cache.interface.cameras, self.cache.interface.image_size

        def fitted(span: FrameSpan, camera: str) -> Array:
            return resize_square(decode(span, camera), size)

        todo = (span for number in numbers for span in self._spans(number))
        with closing(
            cast(Generator[SpanImages], read_ahead(todo, cameras, count, fitted))
        ) as decoded:
            for number in numbers:
                self._write_actions_and_states(number)
                for read in decoded if cameras else ():
                    self._write_images(read.span, read.images)
                    if read.span.final:
                        break
                yield number

    def _spans(self, number: int) -> Iterator[FrameSpan]:
        """Yield spans of a clip's frames, camera by camera; their `row` is that of the cache."""
        clip, row = self.data.clips[number], self.cache.clips[number].row
        trajectory = clip.trajectory()
        job = EmbeddingJob((trajectory,), (), ())
        for camera, name in enumerate(self.cache.interface.cameras):
            frame_bytes = int(np.prod(trajectory.camera(name).shape[1:]))
            step = min(max(SPAN_BYTES // max(frame_bytes, 1), 16), SPAN_FRAMES)
            for start in range(clip.start, clip.stop, step):
                stop = min(start + step, clip.stop)
                is_last = camera == len(self.cache.interface.cameras) - 1 and stop == clip.stop
                yield FrameSpan(job, camera, 0, start, stop, row + start - clip.start, is_last)

    def _write_images(self, span: FrameSpan, images: Array) -> None:
        name = self.image_files[self.cache.interface.cameras[span.camera]]
        rows = slice(span.row, span.row + span.stop - span.start)
        if self.vision is not None:
            images = self.vision.project(images, self.projection)
        self._write_rows(name, rows, images, span.job.trajectories[0].id)

    def _write_actions_and_states(self, number: int) -> None:
        """Write the actions and proprioception of a clip."""
        clip, rows = self.data.clips[number], _rows(self.cache, number)
        trajectory = clip.trajectory()
        actions = np.asarray(trajectory.actions[clip.start : clip.stop], np.float32)
        if fault := first_fault("actions", actions, clip.start):
            raise StrapError(f"trajectory '{clip.id}', {fault}: correct it, or leave it out")
        self._write_rows("actions.npy", rows, actions, clip.id)
        names = {short_name(key): key for key in trajectory.proprioception}
        states = [
            np.asarray(trajectory.proprioception[names[key]][clip.start : clip.stop], np.float32)
            for key in self.cache.interface.proprioception
        ]
        if states:
            self._write_rows("states.npy", rows, np.concatenate(states, axis=1), clip.id)

    def _write_rows(self, name: str, rows: slice, values: Array, trajectory: str) -> None:
        layout, path = self.layouts[name], self.cache.path / name
        expected = (rows.stop - rows.start, *layout.shape[1:])
        if values.shape != expected:
            raise StrapError(
                f"trajectory '{trajectory}' has values of shape {list(values.shape)} for '{name}', "
                f"not {list(expected)}: check the dataset with `strap inspect`"
            )
        with explain_write_errors(path), path.open("r+b") as file:
            file.seek(layout.offset + rows.start * layout.strides[0])
            file.write(np.ascontiguousarray(values, layout.dtype).data)


def _rows(cache: FrameCache, number: int) -> slice:
    clip = cache.clips[number]
    return slice(clip.row, clip.row + clip.length)


def sample_images(clips: Sequence[Clip], cameras: Sequence[str], size: int, count: int) -> Array:
    """Return about `count` images [n size size 3], spread over clips and cameras."""
    each = max(1, count // (len(clips) * len(cameras)))
    step = max(1, len(clips) * len(cameras) // count)
    sample = []
    for clip in clips[::step]:
        trajectory = clip.trajectory()
        for start in np.linspace(clip.start, clip.stop - 1, each).astype(int).tolist():
            for camera in cameras:
                sample.append(resize_square(trajectory.frames(camera, start, start + 1), size))
    return np.concatenate(sample)
