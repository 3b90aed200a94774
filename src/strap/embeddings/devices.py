"""Embedding on several GPUs, by one worker process for each: they share the work on one store."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from strap.datasets.base import Dataset
from strap.embeddings.local import embed_here
from strap.embeddings.settings import EmbeddingSettings
from strap.encoders import EncoderSpec
from strap.errors import StrapError
from strap.progress import Progress
from strap.store import EmbeddingStore, Session, StoreConfig
from strap.workers import Worker, WorkerError, wait_for


def embed_on_devices(
    dataset: Dataset,
    spec: EncoderSpec,
    store: EmbeddingStore,
    devices: Sequence[str],
    settings: EmbeddingSettings,
    progress: Progress,
) -> None:
    """Start a worker for each device and wait; if one is killed, the others do its work."""
    settings = replace(settings, workers=max(1, settings.n_workers // len(devices)))
    with ExitStack() as stack:
        working: dict[Worker, str] = {}
        for device in devices:
            worker = Worker(_embed_on, dataset, spec, store.path, store.config, settings)
            stack.enter_context(closing(worker))
            worker.send(device)
            working[worker] = device
        _watch(working, progress)


def _watch(working: dict[Worker, str], progress: Progress) -> None:
    """Wait for all workers; `working` names the device of each."""
    n_images: dict[Worker, int] = dict.fromkeys(working, 0)
    is_done = False
    while working:
        for worker in wait_for(list(working)):
            try:
                message = worker.receive()
            except StrapError as error:
                raise StrapError(f"on {working[worker]}: {error}") from error
            except WorkerError as error:
                device = working.pop(worker)
                warnings.warn(f"the process on {device} was killed: {error}", stacklevel=3)
                continue
            if message is None:
                is_done = True
                del working[worker]
            else:
                n_images[worker], total = message
                done = sum(n_images.values())
                progress("embedding", done, max(total, done))
    if not is_done:
        raise StrapError(
            "every process was killed before the end (memory?): run the same command again, "
            "perhaps with a smaller --batch; what was embedded is kept"
        )


def _embed_on(
    line: Connection,
    dataset: Dataset,
    spec: EncoderSpec,
    store: Path,
    config: StoreConfig,
    settings: EmbeddingSettings,
) -> None:
    """Embed in a worker, on the device received over the line; send progress, then None."""

    def report(what: str, done: int, total: int) -> None:  # noqa: ARG001
        line.send((done, total))

    encoder = spec.load(line.recv())
    embed_here(dataset, encoder, Session(store, config), settings, report)
    line.send(None)
