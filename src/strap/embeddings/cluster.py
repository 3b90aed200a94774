"""Embedding with Ray Data: workers encode groups of trajectories, this process writes the store.

A group is a row of the pipeline's input; its frames are packed into the same batches as without
Ray, so the vectors are the same. Ray starts killed workers again and repeats their groups. On one
machine the pipeline is the same, on a cluster of its own. The dataset must lie at the same path on
every machine; the store need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from strap.datasets.base import Dataset
from strap.embeddings.batches import Packer
from strap.embeddings.settings import EmbeddingSettings
from strap.embeddings.work import EmbeddingJob, Work
from strap.encoders import Encoder, EncoderSpec
from strap.errors import StrapError
from strap.progress import Progress
from strap.ray import connect, silence_data
from strap.store import Begun, Session, StoreConfig
from strap.store.layout import SHARD_BYTES
from strap.types import Array

WINDOW = 256
"""groups per worker that are claimed at a time and pass through one pipeline: more leave less to
other writers, fewer start the workers and load their encoders more often"""
THREADS = 2
"""that read frames, in each worker"""
WAITING_BYTES = 64 << 20
"""of vectors per worker that may wait to be written"""
FOUND = pa.schema(
    [("id", pa.string()), ("fingerprint", pa.string()), ("vectors", pa.large_binary())]
)
"""a row per trajectory; its vectors [c t d] as bytes, in the store's dtype"""


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

    def rows(self, job: EmbeddingJob, camera: int, vectors: Array) -> None:  # noqa: ARG002
        """Keep them, as they will be stored; the store refuses what overflows, by name."""
        with np.errstate(over="ignore"):
            self._rows[camera].append(vectors.astype(self._dtype))

    def whole(self, job: EmbeddingJob, index: int, fingerprint: Callable[[], str]) -> None:  # noqa: ARG002
        """Keep the fingerprint."""
        self._prints[index] = fingerprint

    def end(self, job: EmbeddingJob) -> None:
        """Cut the rows at the borders of the trajectories."""
        cuts = np.cumsum([t.length for t in job.trajectories])[:-1]
        cameras = [np.split(np.concatenate(rows), cuts) for rows in self._rows]
        for index in range(len(job.trajectories)):
            vectors = tuple(rows[index] for rows in cameras)
            self.found.append(Embedded(vectors, self._prints[index]()))


class RefusedError(Exception):
    """Holds a worker's StrapError; Ray Data adds words of its own to an exception's text."""


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
        self._given, self._batch, self._threads = encoder, batch, threads

    def __call__(self, groups: pa.Table) -> pa.Table:
        """Embed one group: a table of one row, its `ids`. Gives a table of `FOUND`."""
        (ids,) = groups["ids"].to_pylist()
        try:
            found = self._embed(ids)
        except StrapError as error:
            raise RefusedError(error) from error
        rows = [
            {"id": key, "fingerprint": one.fingerprint, "vectors": np.stack(one.vectors).tobytes()}
            for key, one in zip(ids, found, strict=True)
        ]
        return pa.Table.from_pylist(rows, FOUND)

    @cached_property
    def _encoder(self) -> Encoder:
        """Loaded with the first group: of an error in a constructor Ray keeps the text alone."""
        return self._given.load() if isinstance(self._given, EncoderSpec) else self._given

    def _embed(self, ids: Sequence[str]) -> list[Embedded]:
        trajectories = tuple(self._dataset[key] for key in ids)
        job = EmbeddingJob(trajectories, ("",) * len(ids), (0,) * len(self._cameras))
        sink = CollectingSink(len(self._cameras), self._dtype)
        Packer(self._encoder, self._cameras, self._batch, sink).run([job], self._threads)
        return sink.found


def embed_on_ray(
    dataset: Dataset,
    encoder: Encoder | EncoderSpec,
    session: Session,
    batch: int,
    settings: EmbeddingSettings,
    progress: Progress,
) -> None:
    """Embed what the store lacks on a cluster, beside whatever other writers there are."""
    config, workers = session.config, settings.n_workers
    work = Work(dataset, session, config.cameras, part=settings.part, resume=False)
    given = (dataset, encoder, config.cameras, config.dtype, batch, THREADS)
    done = 0
    try:
        with connect(settings.address, workers) as ray, silence_data():
            for groups in _windows(work, WINDOW * workers):
                begun = {one.id: one for group in groups for one in group}
                for found in _embedded(ray, groups, workers, given):
                    for key, one in _read(found, config):
                        session.add(begun[key], one.vectors, one.fingerprint)
                        done += sum(map(len, one.vectors))
                    progress("embedding", done, max(work.images, done))
                    if session.nbytes > SHARD_BYTES:
                        session.flush()
    finally:
        session.close()


def _windows(work: Work, size: int) -> Iterator[list[list[Begun]]]:
    for jobs in work.rounds():
        while window := [job.begun for job in islice(jobs, size)]:
            yield window


def _embedded(
    ray: Any, groups: Sequence[Sequence[Begun]], workers: int, given: tuple[Any, ...]
) -> Iterator[pa.Table]:
    """One pipeline: tables of `FOUND`, in the order in which they are done."""
    rows = [{"ids": [one.id for one in group]} for group in groups]
    source = ray.data.from_items(rows, override_num_blocks=len(rows))
    _configure(source.context, workers * WAITING_BYTES)
    has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
    found = source.map_batches(
        Worker,
        fn_constructor_args=given,
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(rows))),
        **{"num_gpus" if has_gpus else "num_cpus": 1},
    )
    tables = iter(found.iter_batches(batch_size=None, batch_format="pyarrow"))
    try:
        with closing(tables):
            yield from tables
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RefusedError):
            raise StrapError(str(error.cause.args[0])) from error
        raise
    except ray.exceptions.RayActorError as error:
        raise StrapError(f"a Ray worker could not be started: {error}") from error


def _configure(context: Any, waiting: int) -> None:
    """Settings of this pipeline; others of the caller's keep theirs."""
    context.enable_progress_bars = False
    options = context.execution_options
    options.resource_limits = options.resource_limits.copy(object_store_memory=waiting)
    context.execution_no_progress_timeout_s = -1  # a group on a slow machine may take an hour
    context.max_errored_blocks = 0
    context.raise_original_map_exception = True


def _read(found: pa.Table, config: StoreConfig) -> Iterator[tuple[str, Embedded]]:
    columns = (found["id"].to_pylist(), found["fingerprint"].to_pylist(), found["vectors"])
    for key, fingerprint, vectors in zip(*columns, strict=True):
        flat = np.frombuffer(vectors.as_buffer(), config.dtype)
        yield key, Embedded(tuple(flat.reshape(len(config.cameras), -1, config.dim)), fingerprint)
