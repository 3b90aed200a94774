"""Checks of what works on this machine, each by trying it."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from strap.cpus import count_cpus
from strap.errors import StrapError
from strap.extras import explain_missing, missing_extra
from strap.folders import cache_folder


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    works: bool
    detail: str
    """what was found, or how to fix it"""
    needed: bool
    """whether every command needs it"""


def diagnose() -> list[Check]:
    """Run all checks; a check that fails reports how to fix it."""
    return [
        Check("python", True, f"{platform.python_version()} on {platform.machine()}", True),
        Check("cores", True, str(count_cpus()), True),
        *(_check_package(name) for name in ("numpy", "h5py", "pyarrow", "numba", "pillow")),
        _try("search", _check_search, needed=True),
        _try("cache folder", _check_cache, needed=True),
        _try("torch", _check_torch, needed=False),
        _try("gpu", _check_gpu, needed=False),
        _try("libero", _check_libero, needed=False),
    ]


def _try(name: str, check: Callable[[], str], *, needed: bool) -> Check:
    try:
        return Check(name, True, check(), needed)
    except ModuleNotFoundError as error:
        return Check(name, False, str(explain_missing(error, name) or error), needed)
    except Exception as error:  # a check must report any error, not stop the others
        return Check(name, False, str(error) or type(error).__name__, needed)


def _check_package(name: str) -> Check:
    def version() -> str:
        import_module({"pillow": "PIL"}.get(name, name))
        return metadata.version(name)

    return _try(name, version, needed=True)


def _check_search() -> str:
    import numpy as np

    from strap import dtw

    trajectory = np.arange(12.0)[:, None]
    chosen = dtw.resolve_backend("auto")
    found = dtw.search([trajectory[4:8]], [trajectory], k=1, backend=chosen.name)[0]
    if (found.start[0], found.stop[0], found.cost[0]) != (4, 8, 0.0):
        raise StrapError(
            f"the {chosen.name} backend gives wrong answers: reinstall numba and numpy"
        )
    return f"{chosen.name}: {chosen.reason}"


def _check_cache() -> str:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StrapError(
            f"{folder} cannot be written ({error.strerror}): set STRAP_CACHE to a folder that can"
        ) from error
    free = shutil.disk_usage(folder).free / 1e9
    return f"{folder}, {free:.0f} GB free"


def _check_torch() -> str:
    try:
        import torch
    except ImportError as error:
        raise missing_extra("not installed, so the models are missing", "encoders") from error
    return f"{torch.__version__}, {'cuda' if torch.cuda.is_available() else 'cpu only'}"


def _check_libero() -> str:
    from strap.libero import render_check

    seen = render_check()
    return f"renders by {seen.backend}; a frame of {seen.task} has brightness {seen.brightness:.0f}"


def _check_gpu() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None or not Path(tool).exists():
        raise StrapError("no NVIDIA GPU was found; everything runs on the CPU")
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    shown = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    return shown.stdout.strip().replace("\n", "; ")
