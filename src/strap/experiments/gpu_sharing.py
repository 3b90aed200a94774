"""CUDA's Multi-Process Service for the time of a run: processes share a GPU at the same moment."""

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
SECONDS = 120
PROBE = "import torch; torch.zeros(1, device='cuda').cpu()"


@contextmanager
def sharing_gpu(*, enabled: bool = True) -> Iterator[dict[str, str]]:
    """Start a service of our own; give the variables by which commands find it.

    Where there is no service, no GPU, or CUDA does not work through it, there are no variables.
    """
    control = shutil.which(CONTROL) if enabled else None
    if control is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="strap-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **places}
        if not _succeeds([control, "-d"], environment):
            yield {}
            return
        try:
            works = _succeeds([sys.executable, "-c", PROBE], environment)
            yield places if works else {}
        finally:
            with suppress(subprocess.SubprocessError, OSError):
                subprocess.run(
                    [control],
                    input=b"quit\n",
                    env=environment,
                    timeout=SECONDS,
                    check=False,
                    capture_output=True,
                )


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    # The service keeps its standard output open, so that is a file and no pipe.
    try:
        with Path(os.devnull).open("wb") as nowhere:
            done = subprocess.run(
                command,
                env=environment,
                timeout=SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
                stderr=nowhere,
            )
    except (subprocess.SubprocessError, OSError):
        return False
    return done.returncode == 0
