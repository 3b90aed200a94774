"""Embedding on a Ray cluster: actors encode groups of trajectories, this process writes the store.

A group's frames are packed into the same batches as without Ray, so the vectors are the same. If an
actor or its machine is lost, other actors embed its groups, and Ray restarts it where the cluster
has room. Every machine needs the dataset at the same path, in files of the same sizes and times;
only this one needs the store.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np

from strap.datasets.base import Dataset
from strap.embeddings.batches import Packer
from strap.embeddings.settings import EmbeddingSettings
from strap.embeddings.work import EmbeddingJob, EmbeddingQueue, stamp_trajectory
from strap.encoders import Encoder, EncoderSpec
from strap.errors import StrapError
from strap.progress import Progress
from strap.ray import RETRIES, connect, get_result
from strap.store import PendingTrajectory, Session
from strap.store.layout import SHARD_BYTES
from strap.types import Array

THREADS = 2
"""threads that read frames in each actor"""
GROUPS_AHEAD = 2
"""groups that an actor has at a time: the current one and the next; bounds the queue"""


@dataclass(frozen=True)
class EmbeddedTrajectory:
    """One trajectory's vectors [t d] for each camera, and the fingerprint of its content."""

    vectors: tuple[Array, ...]
    fingerprint: str


class CollectingSink:
    """A sink that keeps the rows of a job and splits them by trajectory at its end."""

    def __init__(self, cameras: int, dtype: str) -> None:
        self._rows: list[list[Array]] = [[] for _ in range(cameras)]
        self._fingerprints: dict[int, Callable[[], str]] = {}
        self._dtype = dtype
        self.embedded: list[EmbeddedTrajectory] = []

    def add_rows(self, job: EmbeddingJob, camera: int, vectors: Array) -> None:  # noqa: ARG002
        """Keep the rows in the store's dtype; if one overflows, the store raises an error."""
        with np.errstate(over="ignore"):
            self._rows[camera].append(vectors.astype(self._dtype))

    def finish_trajectory(
        self,
        job: EmbeddingJob,  # noqa: ARG002
        index: int,
        fingerprint: Callable[[], str],
    ) -> None:
        """Keep the fingerprint."""
        self._fingerprints[index] = fingerprint

    def end_job(self, job: EmbeddingJob) -> None:
        """Split the rows by trajectory."""
        cuts = np.cumsum([t.length for t in job.trajectories])[:-1]
        cameras = [np.split(np.concatenate(rows), cuts) for rows in self._rows]
        for index in range(len(job.trajectories)):
            vectors = tuple(rows[index] for rows in cameras)
            self.embedded.append(EmbeddedTrajectory(vectors, self._fingerprints[index]()))


class GroupEmbedder:
    """An actor on the cluster: it reads the dataset and embeds groups of trajectories."""

    def __init__(
        self,
        dataset: Dataset,
        encoder: Encoder | EncoderSpec,
        cameras: tuple[str, ...],
        dtype: str,
        batch: int,
    ) -> None:
        self._dataset, self._cameras, self._dtype = dataset, cameras, dtype
        self._given, self._batch = encoder, batch

    @cached_property
    def _encoder(self) -> Encoder:
        """Load the encoder with the first group: Ray hides the type of a constructor's error."""
        return self._given.load() if isinstance(self._given, EncoderSpec) else self._given

    def wait(self) -> None:
        """Return, which the actor can do only when it has a place on the cluster."""

    def embed(self, begun: Sequence[PendingTrajectory]) -> list[EmbeddedTrajectory]:
        """Return the trajectories' vectors; raise if this machine has other files."""
        trajectories = tuple(self._dataset[one.id] for one in begun)
        stamps = tuple(one.stamp for one in begun)
        for trajectory, stamp in zip(trajectories, stamps, strict=True):
            if stamp_trajectory(trajectory) != stamp:
                raise StrapError(
                    f"the files of trajectory '{trajectory.id}' of '{self._dataset.path}' have "
                    f"other sizes or times on machine '{platform.node()}': copy the dataset there "
                    "again, with the files' times (rsync -a)"
                )
        job = EmbeddingJob(trajectories, stamps, (0,) * len(self._cameras))
        sink = CollectingSink(len(self._cameras), self._dtype)
        Packer(self._encoder, self._cameras, self._batch, sink).run([job], THREADS)
        return sink.embedded


def embed_on_ray(
    dataset: Dataset,
    encoder: Encoder | EncoderSpec,
    session: Session,
    batch: int,
    settings: EmbeddingSettings,
    progress: Progress,
) -> None:
    """Embed what the store lacks on a cluster; other processes can write the store as well."""
    config = session.config
    work = EmbeddingQueue(dataset, session, config.cameras, part=settings.part, resume=False)
    shared = (dataset, encoder, config.cameras, config.dtype, batch)
    done = 0
    try:
        with connect(settings.address, settings.n_workers) as ray:
            # A restarted actor needs these references, so they must stay in scope.
            arguments = [ray.put(value) for value in shared]
            actors = start_embedders(ray, settings, arguments)
            for jobs in work.rounds():
                groups = (job.begun for job in jobs)
                for group, embedded in _embed_groups(ray, actors, groups):
                    for begun, one in zip(group, embedded, strict=True):
                        session.add(begun, one.vectors, one.fingerprint)
                        done += sum(map(len, one.vectors))
                    progress("embedding", done, max(work.images, done))
                    if session.nbytes > SHARD_BYTES:
                        session.flush()
    finally:
        session.close()


def start_embedders(ray: Any, settings: EmbeddingSettings, arguments: Sequence[Any]) -> list[Any]:
    """Start `settings.workers` actors; by default one per GPU, or core, of a given cluster."""
    resources = ray.cluster_resources()
    resource = "GPU" if resources.get("GPU", 0) >= 1 else "CPU"
    count = settings.n_workers
    if settings.workers is None and settings.address is not None:
        count = max(1, int(resources.get(resource, 0)))
    options = {"max_restarts": -1, f"num_{resource.lower()}s": 1}
    actor = ray.remote(**options)(GroupEmbedder)
    return [actor.remote(*arguments) for _ in range(count)]


@dataclass(frozen=True)
class _Group:
    """Trajectories that are embedded together."""

    begun: Sequence[PendingTrajectory]
    n_lost: int = 0
    """how many actors were lost while they embedded the group"""

    def retry(self) -> _Group:
        """Return the group for another actor; raise if so many were lost that it may kill them."""
        if self.n_lost == RETRIES:
            first, last = self.begun[0].id, self.begun[-1].id
            raise StrapError(
                f"trajectories '{first}' to '{last}': {RETRIES + 1} workers were lost while they "
                "embedded them; if they ran out of memory, give fewer --workers or a smaller "
                "--batch"
            )
        return _Group(self.begun, self.n_lost + 1)


def _embed_groups(
    ray: Any, actors: Sequence[Any], groups: Iterable[Sequence[PendingTrajectory]]
) -> Iterator[tuple[Sequence[PendingTrajectory], list[EmbeddedTrajectory]]]:
    """Yield each group with its vectors, in the order in which they are done.

    An actor gets groups only after it has answered `wait`, at its start and after it was lost. So
    nothing waits for an actor that has no place on the cluster.
    """
    remaining, lost, idle = (_Group(begun) for begun in groups), deque[_Group](), deque[Any]()
    pending: dict[Any, tuple[Any, _Group | None]] = {
        _wait_for(actor): (actor, None) for actor in actors for _ in range(GROUPS_AHEAD)
    }
    n_unfinished = 0
    while True:
        for group in islice(chain(_drain(lost), remaining), len(idle)):
            actor = idle.popleft()
            pending[actor.embed.remote(group.begun)] = actor, group
            n_unfinished += 1
        if idle and not n_unfinished:
            return
        (ready, *_), _ = ray.wait(list(pending), num_returns=1)
        actor, done = pending.pop(ready)
        n_unfinished -= done is not None
        try:
            embedded = get_result(ray, ready)
        except (ray.exceptions.ActorUnavailableError, ray.exceptions.ObjectLostError):
            if done is not None:
                lost.append(done.retry())
            pending[_wait_for(actor)] = actor, None
            continue
        idle.append(actor)
        if done is not None:
            yield done.begun, embedded


def _wait_for(actor: Any) -> Any:
    """Return a task that is done when the actor has a place on the cluster."""
    return actor.wait.options(max_task_retries=-1).remote()


def _drain(lost: deque[_Group]) -> Iterator[_Group]:
    while lost:
        yield lost.popleft()
