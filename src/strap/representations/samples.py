"""The inputs of a representation: pictures of one size (images or optical flow) and actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from strap.cpus import count_cpus
from strap.datasets.base import Dataset
from strap.embeddings import choose_cameras
from strap.errors import StrapError
from strap.policies.images import resize_square
from strap.progress import Progress
from strap.representations.flow import optical_flow
from strap.representations.settings import Kind, RepresentationSettings
from strap.types import Array, ContentHasher, Trajectory

CHUNK = 64
"""frames read at a time, before they are resized"""
MAX_THREADS = 16
"""maximum number of threads that read trajectories"""


@dataclass(frozen=True, eq=False)
class Samples:
    """The pictures and actions of consecutive frames."""

    pictures: Array
    """`br`: uint8 [n s s 3]; `fr`: float16 [n s s 2]"""
    actions: Array
    """float32 [n a]; `fr`: [n 0]"""
    fingerprint: str = ""
    """the fingerprint of the trajectory's content, the same as in a vision store"""

    def __len__(self) -> int:
        return len(self.pictures)


def choose_camera(dataset: Dataset, settings: RepresentationSettings) -> str:
    """Return the camera to use: that of the settings, or else the agent view, or the only one."""
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    cameras = choose_cameras(dataset, [settings.camera] if settings.camera else None)
    if len(cameras) > 1:
        raise StrapError(
            f"dataset '{dataset.path}' has no agent view but {len(cameras)} cameras "
            f"({', '.join(cameras)}): name one with --cameras, or as camera in the settings"
        )
    return cameras[0]


def action_width(kind: Kind, datasets: Sequence[Dataset]) -> int:
    """Return the number of action dimensions, which all datasets share; 0 for `fr`."""
    if kind == "fr":
        return 0
    first = datasets[0]
    width = first[first.ids[0]].actions.shape[-1]
    for dataset in datasets:
        for trajectory in dataset:
            require_actions(trajectory, width, dataset)
    return int(width)


def require_actions(trajectory: Trajectory, width: int, dataset: Dataset) -> None:
    """Raise unless a trajectory has one action of `width` dimensions for each frame."""
    shape = trajectory.actions.shape
    if shape != (trajectory.length, width) or not width:
        raise StrapError(
            f"dataset '{dataset.path}': the actions of '{trajectory.id}' are {list(shape)}, not "
            f"[{trajectory.length}, {width or 'at least 1'}]: BehaviorRetrieval compares actions, "
            "so all must have the same size; leave that dataset out, or use --method fr"
        )


def read_trajectory(
    trajectory: Trajectory, camera: str, kind: Kind, settings: RepresentationSettings
) -> Samples:
    """Read one trajectory's samples, and hash its content at the same time."""
    if trajectory.length == 0:
        raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
    hasher, small = ContentHasher(trajectory), []
    for start in range(0, trajectory.length, CHUNK):
        images = trajectory.frames(camera, start, min(start + CHUNK, trajectory.length))
        hasher.update(images)
        small.append(resize_square(images, settings.image_size))
    recorded = trajectory.actions[:]
    pictures = np.concatenate(small)
    actions = np.zeros((len(pictures), 0), np.float32)
    if kind == "fr":
        pictures = optical_flow(pictures, settings.horizon)
    else:
        actions = np.asarray(recorded, np.float32)
        if not np.isfinite(actions).all():
            raise StrapError(
                f"trajectory '{trajectory.id}' of '{trajectory.source.path}' has actions that are "
                "not finite (NaN or infinite): leave it out"
            )
    return Samples(pictures, actions, hasher.finish(recorded))


def read_trajectories(
    trajectories: Sequence[Trajectory], camera: str, kind: Kind, settings: RepresentationSettings
) -> Iterator[Samples]:
    """Yield the trajectories' samples in order, read by threads ahead of the caller."""

    def read(trajectory: Trajectory) -> Samples:
        return read_trajectory(trajectory, camera, kind, settings)

    with ThreadPoolExecutor(min(MAX_THREADS, count_cpus())) as threads:
        yield from threads.map(read, trajectories)


def read_samples(
    kind: Kind, datasets: Sequence[Dataset], settings: RepresentationSettings, progress: Progress
) -> Samples:
    """Read the samples of all datasets, concatenated."""
    width = action_width(kind, datasets)
    whole = [list(dataset) for dataset in datasets]
    total = sum(t.length for trajectories in whole for t in trajectories)
    side, channels = settings.image_size, 3 if kind == "br" else 2
    pictures = np.empty((total, side, side, channels), np.uint8 if kind == "br" else np.float16)
    actions = np.empty((total, width), np.float32)
    row = 0
    for dataset, trajectories in zip(datasets, whole, strict=True):
        camera = choose_camera(dataset, settings)
        dataset.fetch([camera], progress)
        for samples in read_trajectories(trajectories, camera, kind, settings):
            stop = row + len(samples)
            pictures[row:stop], actions[row:stop] = samples.pictures, samples.actions
            row = stop
            progress("frames", row, total)
    return Samples(pictures, actions)
