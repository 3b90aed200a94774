"""The work of an embedding: groups of trajectories, claimed one at a time.

Groups follow the dataset's order, whether or not their trajectories are embedded already, and a
batch never contains frames of two groups. So the images that share a batch, and with them the last
bits of the vectors, do not depend on how many workers there are or on when one was killed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strap.datasets.base import Dataset
from strap.errors import StrapError
from strap.store import Entry, PartialShard, PendingTrajectory, Session
from strap.types import Trajectory

GROUP_IMAGES = 2048
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class EmbeddingJob:
    """Trajectories that are embedded together, and the rows that a killed process left of them."""

    trajectories: tuple[Trajectory, ...]
    stamps: tuple[str, ...]
    done: tuple[int, ...]
    """rows that exist already, for each camera"""
    partial: PartialShard | None = None
    """the unfinished shard with these rows; None if there is none"""

    @property
    def begun(self) -> list[PendingTrajectory]:
        """The trajectories as records of the store's journal."""
        pairs = zip(self.trajectories, self.stamps, strict=True)
        return [PendingTrajectory(t.id, t.length, t.instruction, stamp) for t, stamp in pairs]


def stamp_trajectory(trajectory: Trajectory) -> str:
    """Return the stamp of a trajectory's files and orientation; either changes the images."""
    return f"{trajectory.source.stamp()} {trajectory.orientation}"


class EmbeddingQueue:
    """Finds the trajectories that a store lacks and claims them, shared with other processes."""

    def __init__(
        self,
        dataset: Dataset,
        session: Session,
        cameras: Sequence[str],
        *,
        part: tuple[int, int] = (0, 1),
        resume: bool = True,
    ) -> None:
        self._part, self._resume = part, resume
        self.dataset, self.session, self.cameras = dataset, session, tuple(cameras)
        self.n_missing = 0
        """images found missing so far, whichever process embeds them"""
        self._scanned = 0
        self._images_seen = 0
        self._unknown = sum(key not in session.places for key in dataset.ids)
        self._waiting: list[list[str]] = []

    @property
    def images(self) -> int:
        """The number of missing images: those found so far, and an estimate of the rest."""
        if not self._scanned:
            return self.n_missing
        unseen = self._unknown * self._images_seen // self._scanned
        return self.n_missing + unseen // self._part[1]

    @property
    def expected(self) -> int:
        """An estimate of the missing images before the scan, from the first trajectory's length."""
        return self._unknown * self.dataset[self.dataset.ids[0]].length * len(self.cameras)

    def jobs(self) -> Iterator[EmbeddingJob]:
        """Yield everything that can be claimed now."""
        yield from self._resume_partials()
        if self._scanned < len(self.dataset):
            groups: Iterator[list[Trajectory]] = self._scan()
        else:
            waiting, self._waiting = self._waiting, []
            groups = ([self.dataset[key] for key in keys] for keys in waiting)
        for group in groups:
            missing = [t for t in group if not self._is_current(t)]
            if missing:
                yield from self._claim(missing)

    def rounds(self) -> Iterator[Iterator[EmbeddingJob]]:
        """Yield the jobs that can be claimed, again and again until the store lacks nothing."""
        while True:
            yield self.jobs()
            self.session.flush()
            if not self.unfinished:
                return
            time.sleep(POLL_SECONDS)

    @property
    def unfinished(self) -> bool:
        """Whether other processes still embed something, which they leave behind if they die."""
        self.session.refresh()
        return bool(self._waiting)

    def _scan(self) -> Iterator[list[Trajectory]]:
        """Yield the groups in the dataset's order; for a part of n, every n-th group."""
        index, count = self._part
        number = -1
        for number, group in enumerate(self._groups()):
            known = [t.id in self.session.places for t in group]
            images = [t.length * len(self.cameras) for t in group]
            self._scanned += len(group)
            self._images_seen += sum(images)
            self._unknown -= len(group) - sum(known)
            if number % count == index:
                self.n_missing += sum(n for n, k in zip(images, known, strict=True) if not k)
                yield group
        if number < index:
            warnings.warn(
                f"part {index + 1}/{count} of '{self.dataset.path}' is empty: parts consist of "
                f"groups of {GROUP_IMAGES:,} images, of which this dataset has {number + 1}",
                stacklevel=2,
            )

    def _groups(self) -> Iterator[list[Trajectory]]:
        group: list[Trajectory] = []
        for trajectory in self.dataset:
            _require_frames(trajectory, self.cameras)
            group.append(trajectory)
            if sum(t.length for t in group) * len(self.cameras) >= GROUP_IMAGES:
                yield group
                group = []
        if group:
            yield group

    def _claim(self, missing: Sequence[Trajectory]) -> Iterator[EmbeddingJob]:
        seen: dict[str, Entry | None] = {t.id: self.session.places.get(t.id) for t in missing}
        free = set(self.session.claim(seen))
        claimed = tuple(t for t in missing if t.id in free)
        if len(claimed) < len(missing):
            self._waiting.append([t.id for t in missing if t.id not in free])
        if claimed:
            stamps = tuple(map(stamp_trajectory, claimed))
            yield EmbeddingJob(claimed, stamps, (0,) * len(self.cameras))

    def _resume_partials(self) -> Iterator[EmbeddingJob]:
        """Yield the jobs that killed processes left, unless their trajectories have changed."""
        for partial in self.session.adopt():
            trajectories = self._find_unchanged(partial.begun) if self._resume else None
            if trajectories is None:
                self.session.discard(partial)
                continue
            done = tuple(rows - partial.rows for rows in partial.done)
            yield EmbeddingJob(
                trajectories, tuple(one.stamp for one in partial.begun), done, partial
            )

    def _find_unchanged(self, begun: Sequence[PendingTrajectory]) -> tuple[Trajectory, ...] | None:
        """Return the journal's trajectories; None if one of them is gone or has changed."""
        known = set(self.dataset.ids)
        if not all(one.id in known for one in begun):
            return None
        trajectories = tuple(self.dataset[one.id] for one in begun)
        now = [
            PendingTrajectory(t.id, t.length, t.instruction, stamp_trajectory(t))
            for t in trajectories
        ]
        return trajectories if now == list(begun) else None

    def _is_current(self, trajectory: Trajectory) -> bool:
        """Return whether the store has this content, by the files' stamp, or else by reading it."""
        entry = self.session.places.get(trajectory.id)
        if entry is None or entry.length != trajectory.length:
            return False
        if entry.instruction != trajectory.instruction:
            return False
        stamp = stamp_trajectory(trajectory)
        if entry.stamp == stamp:
            return True
        is_same = entry.fingerprint == trajectory.fingerprint(self.cameras)
        if is_same:
            self.session.restamp(entry, stamp)
        return is_same


def _require_frames(trajectory: Trajectory, cameras: Sequence[str]) -> None:
    if trajectory.length == 0:
        raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
    for camera in cameras:
        trajectory.camera(camera)


def is_same_place(stored: str, path: str) -> bool:
    """Return whether a stored path of a dataset is `path`, or does not exist (it was moved)."""
    return stored in ("", path) or not Path(stored).exists()
