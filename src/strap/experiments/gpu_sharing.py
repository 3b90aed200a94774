"""Run CUDA's Multi-Process Service during an experiment, so that processes can share a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
TIMEOUT = 120
PROBE = "import torch; torch.zeros(1, device='cuda').cpu()"


@contextmanager
def sharing_gpu(*, enabled: bool = True) -> Iterator[dict[str, str]]:
    """Start a service; yield the environment variables by which commands find it.

    Without a GPU, without the service's program, or if CUDA fails through it, yield none.
    """
    control = shutil.which(CONTROL) if enabled else None
    if control is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="strap-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **variables}
        if not _succeeds([control, "-d"], environment):
            yield {}
            return
        try:
            works = _succeeds([sys.executable, "-c", PROBE], environment)
            yield variables if works else {}
        finally:
            with suppress(subprocess.SubprocessError, OSError):
                subprocess.run(
                    [control],
                    input=b"quit\n",
                    env=environment,
                    timeout=TIMEOUT,
                    check=False,
                    capture_output=True,
                )


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    # The service keeps its standard output open, so it must be a file: a pipe would never end.
    try:
        with Path(os.devnull).open("wb") as nowhere:
            done = subprocess.run(
                command,
                env=environment,
                timeout=TIMEOUT,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
                stderr=nowhere,
            )
    except (subprocess.SubprocessError, OSError):
        return False
    return done.returncode == 0
