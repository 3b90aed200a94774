"""What there is to embed: groups of trajectories, claimed one at a time.

Groups are cut from the dataset in its own order, whether or not their trajectories are embedded
already, and batches never cross a group's border: so the images that share a batch, and with them
the last bits of the vectors, do not depend on how many workers there are or who was killed when.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from strap.datasets.base import Dataset
from strap.errors import StrapError
from strap.store import Begun, Entry, Partial, Session
from strap.types import Trajectory

GROUP_IMAGES = 2048
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class EmbeddingJob:
    """Trajectories embedded together, and how far a killed writer got with them."""

    trajectories: tuple[Trajectory, ...]
    stamps: tuple[str, ...]
    done: tuple[int, ...]
    """rows that are there already, camera by camera"""
    partial: Partial | None = None
    """the unfinished shard they lie in; None: none are there"""

    @property
    def begun(self) -> list[Begun]:
        """As the store's journal has them."""
        pairs = zip(self.trajectories, self.stamps, strict=True)
        return [Begun(t.id, t.length, t.instruction, stamp) for t, stamp in pairs]


def stamp_trajectory(trajectory: Trajectory) -> str:
    """Return the stamp of its files. Read the other way up, they hold other images."""
    return f"{trajectory.source.stamp()} {trajectory.orientation}"


class Work:
    """Finds what a store lacks of a dataset and claims it, beside other writers."""

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
        """found missing so far, done by whomever"""
        self._scanned = 0
        self._images_seen = 0
        self._unknown = sum(key not in session.places for key in dataset.ids)
        self._waiting: list[list[str]] = []

    @property
    def images(self) -> int:
        """How many images are missing in all: those found, and a guess for what is unseen."""
        if not self._scanned:
            return self.n_missing
        unseen = self._unknown * self._images_seen // self._scanned
        return self.n_missing + unseen // self._part[1]

    @property
    def expected(self) -> int:
        """How many images are missing, by the first trajectory's length: before any was seen."""
        return self._unknown * self.dataset[self.dataset.ids[0]].length * len(self.cameras)

    def jobs(self) -> Iterator[EmbeddingJob]:
        """Yield everything that can be claimed now."""
        yield from self._resumed()
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
        """Yield what can be claimed, again and again until nothing is lacking."""
        while True:
            yield self.jobs()
            self.session.flush()
            if not self.unfinished:
                return
            time.sleep(POLL_SECONDS)

    @property
    def unfinished(self) -> bool:
        """Whether other writers are still at something; they may die and leave it to us."""
        self.session.refresh()
        return bool(self._waiting)

    def _scan(self) -> Iterator[list[Trajectory]]:
        """Yield the groups in the dataset's order; of n parts, every n-th of them."""
        index, count = self._part
        for number, group in enumerate(self._groups()):
            known = [t.id in self.session.places for t in group]
            images = [t.length * len(self.cameras) for t in group]
            self._scanned += len(group)
            self._images_seen += sum(images)
            self._unknown -= len(group) - sum(known)
            if number % count == index:
                self.n_missing += sum(n for n, k in zip(images, known, strict=True) if not k)
                yield group

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

    def _resumed(self) -> Iterator[EmbeddingJob]:
        """Yield what dead writers had begun, where it still is what the dataset holds."""
        for partial in self.session.adopt():
            trajectories = self._find_again(partial.begun) if self._resume else None
            if trajectories is None:
                self.session.discard(partial)
                continue
            done = tuple(rows - partial.rows for rows in partial.done)
            yield EmbeddingJob(
                trajectories, tuple(one.stamp for one in partial.begun), done, partial
            )

    def _find_again(self, begun: Sequence[Begun]) -> tuple[Trajectory, ...] | None:
        known = set(self.dataset.ids)
        if not all(one.id in known for one in begun):
            return None
        trajectories = tuple(self.dataset[one.id] for one in begun)
        now = [Begun(t.id, t.length, t.instruction, stamp_trajectory(t)) for t in trajectories]
        return trajectories if now == list(begun) else None

    def _is_current(self, trajectory: Trajectory) -> bool:
        """Return whether the store holds this content, by the files' stamp, else by reading it."""
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
    """Return whether a stored path of a dataset is this one, or is gone (it was moved)."""
    return stored in ("", path) or not Path(stored).exists()
