"""Embedding in this process: it claims trajectories, encodes them and writes the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from strap.cpus import count_cpus
from strap.datasets.base import Dataset
from strap.embeddings import decoding
from strap.embeddings.batches import Packer
from strap.embeddings.decoding import Images
from strap.embeddings.frames import read_frames
from strap.embeddings.settings import EmbeddingSettings
from strap.embeddings.work import EmbeddingJob, EmbeddingQueue
from strap.encoders import Encoder
from strap.progress import Progress
from strap.store import Session
from strap.store.layout import SHARD_BYTES
from strap.types import Array

MAX_THREADS = 8
"""default limit of threads that read frames: more of them wait for each other"""
MAX_PROCESSES = 16
"""default limit of processes that decode videos. They also use at most half the cores, for the
other half encodes, hashes and copies (16 cores, 8 and 16 processes: 3,231 and 2,964 images a
second)"""


class StoreSink:
    """A sink that writes the rows to the session's shard."""

    def __init__(self, session: Session, work: EmbeddingQueue, progress: Progress) -> None:
        self._session, self._work, self._progress = session, work, progress
        self._job: EmbeddingJob | None = None
        self._fingerprints: dict[tuple[int, int], Callable[[], str]] = {}
        self._done = 0

    def add_rows(self, job: EmbeddingJob, camera: int, vectors: Array) -> None:
        """Append the rows, and complete the trajectories that now have all of theirs."""
        self._start(job)
        self._session.append(camera, vectors)
        self._complete(job)
        self._done += len(vectors)
        self._progress("embedding", self._done, max(self._work.images, self._done))

    def finish_trajectory(
        self, job: EmbeddingJob, index: int, fingerprint: Callable[[], str]
    ) -> None:
        """Remember the fingerprint until the trajectory has all its rows."""
        self._fingerprints[id(job), index] = fingerprint

    def end_job(self, job: EmbeddingJob) -> None:
        """Complete the job's trajectories, and finish the shard if it is big enough."""
        self._start(job)
        self._complete(job)
        for index in range(len(job.trajectories)):
            del self._fingerprints[id(job), index]
        if job.partial is not None or self._session.nbytes > SHARD_BYTES:
            self._session.flush()

    def _start(self, job: EmbeddingJob) -> None:
        if self._job is job:
            return
        self._job = job
        if job.partial is not None:
            self._session.switch(job.partial)
        else:
            self._session.begin(job.begun)

    def _complete(self, job: EmbeddingJob) -> None:
        """Complete the trajectories that have all rows and a fingerprint, in order."""
        shard = self._session.partial
        while shard and shard.next_is_whole:
            index = len(job.trajectories) - len(shard.begun)
            fingerprint = self._fingerprints.get((id(job), index))
            if fingerprint is None:
                return
            self._session.complete(fingerprint())


def embed_here(
    dataset: Dataset,
    encoder: Encoder,
    session: Session,
    settings: EmbeddingSettings,
    progress: Progress,
) -> None:
    """Embed what the store lacks, and wait for other processes that embed the rest."""
    cameras = session.config.cameras
    batch, workers = settings.batch_for(encoder), settings.workers
    encoder = settings.tune(encoder, dataset, len(cameras))
    work = EmbeddingQueue(dataset, session, cameras, part=settings.part)
    sink = StoreSink(session, work, progress)
    try:
        with ExitStack() as stack:
            images: Images = read_frames
            count = workers or min(MAX_PROCESSES, count_cpus() // 2)
            if decoding.is_worth_processes(work.expected, count) and decoding.has_videos(dataset):
                images = stack.enter_context(decoding.decoder_processes(count))(dataset)
            else:
                count = workers or min(MAX_THREADS, count_cpus())
            for jobs in work.rounds():
                Packer(encoder, cameras, batch, sink).run(jobs, count, images)
    finally:
        session.close()
