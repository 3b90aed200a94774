"""One process per GPU: each is a writer of the store like any other, and they share the work."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from strap.datasets.base import Dataset
from strap.encoders import EncoderSpec
from strap.errors import StrapError
from strap.progress import Progress


@dataclass
class _Child:
    device: str
    process: BaseProcess
    messages: Connection
    images: int = 0
    state: str = "working"


def embed_on_devices(
    dataset: Dataset,
    spec: EncoderSpec,
    out: Path,
    devices: Sequence[str],
    options: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Start a process per device and wait; when one is killed, the others do its work."""
    context = multiprocessing.get_context("spawn")
    children: list[_Child] = []
    try:
        for device in devices:
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, dataset, spec, out, device, dict(options))
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that its end is seen here
            children.append(_Child(device, process, ours))
        _watch(children, progress)
    finally:
        for child in children:
            child.process.terminate()
            child.process.join()


def _watch(children: Sequence[_Child], progress: Progress) -> None:
    while working := {c.messages: c for c in children if c.state == "working"}:
        for ready in wait(list(working)):
            assert isinstance(ready, Connection)
            child = working[ready]
            try:
                kind, *content = ready.recv()
            except EOFError:
                child.state = "killed"
                warnings.warn(f"the process on {child.device} was killed", stacklevel=2)
                continue
            if kind == "error":
                raise StrapError(f"on {child.device}: {content[0]}")
            if kind == "done":
                child.state = "done"
            else:
                child.images = content[0]
                done = sum(one.images for one in children)
                progress("embedding", done, max(content[1], done))
    if not any(child.state == "done" for child in children):
        raise StrapError(
            "every process was killed before the end (memory?): run the same command again, "
            "perhaps with a smaller --batch; what was embedded is kept"
        )


def _work(
    messages: Connection,
    dataset: Dataset,
    spec: EncoderSpec,
    out: Path,
    device: str,
    options: Mapping[str, Any],
) -> None:
    from strap.embeddings import embed

    def report(what: str, done: int, total: int) -> None:  # noqa: ARG001
        messages.send(("progress", done, total))

    try:
        embed(dataset, spec, out, devices=(device,), progress=report, **options)
        messages.send(("done",))
    except StrapError as error:
        messages.send(("error", str(error)))
    except BrokenPipeError:
        pass  # the parent is gone, and with it the reason to go on
