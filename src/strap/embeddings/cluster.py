"""Embedding on a Ray cluster: actors encode groups of trajectories, this process writes the store.

A group is a task; its frames are packed into the same batches as without Ray, so the vectors are
the same. Ray starts killed actors again and repeats their tasks. The dataset must lie at the same
path on every machine; the store need not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from strap.artifacts import Progress
from strap.datasets.base import Dataset
from strap.embeddings.batches import Packer
from strap.embeddings.work import Job, Work
from strap.encoders import Encoder, EncoderSpec
from strap.errors import StrapError
from strap.store import Session
from strap.store.layout import SHARD_BYTES
from strap.types import Array

QUEUED = 2
"""tasks per actor: one at work, one waiting"""
ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class Embedded:
    """One trajectory's vectors [t d], camera by camera, and its content's fingerprint."""

    vectors: tuple[Array, ...]
    fingerprint: str


class CollectingSink:
    """Keeps a job's rows until it is whole."""

    def __init__(self, cameras: int, dtype: str) -> None:
        self._rows: list[list[Array]] = [[] for _ in range(cameras)]
        self._prints: dict[int, Callable[[], str]] = {}
        self._dtype = dtype
        self.found: list[Embedded] = []

    def rows(self, job: Job, camera: int, vectors: Array) -> None:  # noqa: ARG002
        """Keep them, as they will be stored; the store refuses what overflows, by name."""
        with np.errstate(over="ignore"):
            self._rows[camera].append(vectors.astype(self._dtype))

    def whole(self, job: Job, index: int, fingerprint: Callable[[], str]) -> None:  # noqa: ARG002
        """Keep the fingerprint."""
        self._prints[index] = fingerprint

    def end(self, job: Job) -> None:
        """Cut the rows at the borders of the trajectories."""
        cuts = np.cumsum([t.length for t in job.trajectories])[:-1]
        cameras = [np.split(np.concatenate(rows), cuts) for rows in self._rows]
        for index in range(len(job.trajectories)):
            own = tuple(parts[index] for parts in cameras)
            self.found.append(Embedded(own, self._prints[index]()))


class Worker:
    """What runs on the cluster: an encoder and a view of the dataset."""

    def __init__(
        self,
        dataset: Dataset,
        encoder: Encoder | EncoderSpec,
        cameras: tuple[str, ...],
        dtype: str,
        batch: int,
        threads: int,
    ) -> None:
        self._dataset, self._cameras, self._dtype = dataset, cameras, dtype
        self._encoder = encoder.load() if isinstance(encoder, EncoderSpec) else encoder
        self._batch, self._threads = batch, threads

    def embed(self, ids: Sequence[str]) -> list[Embedded]:
        """Embed these trajectories, as one group."""
        own = tuple(self._dataset[key] for key in ids)
        job = Job(own, ("",) * len(own), (0,) * len(self._cameras))
        sink = CollectingSink(len(self._cameras), self._dtype)
        Packer(self._encoder, self._cameras, self._batch, sink).run([job], self._threads)
        return sink.found


@contextmanager
def running(address: str | None, workers: int) -> Iterator[Any]:
    """Ray: the cluster at `address`, or one on this machine's loopback for the block."""
    if address is None:
        # Ray on one machine still listens on all of its interfaces, unless it believes that
        # clusters are not supported here; it reads this when it is imported.
        os.environ[ONE_MACHINE] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray._private.ray_constants
    except ImportError as error:
        raise StrapError("--engine ray needs Ray: pip install 'strap-robot[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = False  # where it was imported before
        options |= {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise StrapError(f"cannot reach Ray at '{address or 'local'}': {error}") from error
    try:
        if address is None:
            nodes: Any = ray.nodes
            _require_loopback(nodes())
        yield ray
    finally:
        ray.shutdown()


def _require_loopback(nodes: Sequence[Mapping[str, Any]]) -> None:
    for node in nodes:
        ip = node["NodeManagerAddress"]
        if ip not in ("127.0.0.1", "::1"):
            raise StrapError(
                f"Ray would listen on {ip}, for everybody in the network: set {ONE_MACHINE}=0 in "
                "the environment, or start a cluster yourself and give its address"
            )


def embed_on_ray(
    dataset: Dataset,
    encoder: Encoder | EncoderSpec,
    session: Session,
    *,
    batch: int,
    workers: int,
    threads: int,
    address: str | None,
    part: tuple[int, int],
    progress: Progress,
) -> None:
    """Embed what the store lacks on a cluster, beside whatever other writers there are."""
    config = session.config
    work = Work(dataset, session, config.cameras, part=part, resume=False)
    try:
        with running(address, workers) as ray:
            has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
            kind = ray.remote(Worker).options(
                num_cpus=1, num_gpus=1 if has_gpus else 0, max_restarts=-1, max_task_retries=-1
            )
            shared = (ray.put(dataset), ray.put(encoder))
            rest = (config.cameras, config.dtype, batch, threads)
            crew = _Crew(ray, [kind.remote(*shared, *rest) for _ in range(workers)])
            for jobs in work.rounds():
                _drive(crew, jobs, work, session, progress)
    finally:
        session.close()


class _Crew:
    """The actors, and which job each task in flight is."""

    def __init__(self, ray: Any, actors: Sequence[Any]) -> None:
        self._ray = ray
        self._free = list(actors) * QUEUED
        self._flying: dict[Any, tuple[Any, Job]] = {}

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def is_idle(self) -> bool:
        return not self._flying

    def submit(self, job: Job) -> None:
        actor = self._free.pop(0)
        task = actor.embed.remote([t.id for t in job.trajectories])
        self._flying[task] = (actor, job)

    def next(self) -> tuple[Job, list[Embedded]]:
        """Wait for the next task to end."""
        (task, *_), _ = self._ray.wait(list(self._flying), num_returns=1)
        actor, job = self._flying.pop(task)
        self._free.append(actor)
        try:
            return job, self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, StrapError):
                raise StrapError(str(cause)) from error
            raise
        except self._ray.exceptions.RayActorError as error:
            raise StrapError(f"a Ray worker could not be started again: {error}") from error


def _drive(
    crew: _Crew, jobs: Iterator[Job], work: Work, session: Session, progress: Progress
) -> None:
    done = 0
    more = True
    while more or not crew.is_idle:
        while more and not crew.is_full:
            job = next(jobs, None)
            if job is None:
                more = False
            else:
                crew.submit(job)
        if crew.is_idle:
            continue
        ended, found = crew.next()
        for begun, one in zip(ended.begun, found, strict=True):
            session.add(begun, one.vectors, one.fingerprint)
            done += begun.length * len(one.vectors)
        progress("embedding", done, max(work.images, done))
        if session.nbytes > SHARD_BYTES:
            session.flush()
