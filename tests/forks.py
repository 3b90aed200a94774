"""Processes to be killed or to meet each other, forked from one that has imported what they need.

An interpreter takes a second to start and to import, often longer than what it is started for. A
test in which the start itself matters calls `subprocess` instead.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

COMMON = (
    "PIL.Image",
    "av",
    "h5py",
    "pandas",  # pyarrow looks for it
    "pyarrow.dataset",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "pytest",
    "scipy.linalg",
    "strap.choices",
    "strap.cli.convert",
    "strap.cli.embed",
    "strap.cli.export",
    "strap.cli.inspect",
    "strap.cli.retrieve",
    "strap.cli.segment",
    "strap.datasets.hdf5",
    "strap.datasets.lerobot",
    "strap.datasets.rlds",
    "strap.datasets.zarr",
    "strap.experiments.runner",
    "typeguard",  # tyro imports it with the first command
)
"""what most commands import"""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*COMMON])


def start(
    function: Callable[..., int | None],
    *arguments: object,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | str = os.devnull,
) -> BaseProcess:
    """Start a process that calls a function of a module; what it returns is the exit code.

    Args:
        function: what is called, with the arguments.
        folder: in which it works; None: this process's.
        environment: variables besides this process's own.
        log: where standard output and error go.
    """
    process = CONTEXT.Process(
        target=_call,
        args=(
            *(function, arguments, folder or Path.cwd()),
            *({**os.environ, **(environment or {})}, Path(log).absolute()),
        ),
        daemon=True,
    )
    process.start()
    return process


def _call(
    function: Callable[..., int | None],
    arguments: tuple[object, ...],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    raise SystemExit(function(*arguments) or 0)
