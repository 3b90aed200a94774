"""numba's decorator with our settings and a type that survives mypy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending

F = TypeVar("F", bound=Callable[..., object])


def njit(function: F) -> F:
    """Compile on first use, keep the result on disk, release the interpreter lock.

    Threads come from our own pool, not from numba's: its layers differ between machines, and
    some abort when two Python threads or a forked child enter them.
    """
    return _compiled(function)


def njit_reordered(function: F) -> F:
    """Compile as `njit`, but sums may be taken in any order: for norms, never a returned cost."""
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


def _compiled(function: F, **options: Any) -> F:
    """Return numba's function, whose kept code is out of date when a module of `dtw` changes.

    numba itself looks at the function's own file alone, and not at what it calls in others.
    """
    compiled = numba.njit(cache=True, nogil=True, **options)(function)
    kept: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):  # not where numba is told to compile nothing
        kept._source_stamp = (kept._source_stamp, _stamp_modules())
    return cast("F", compiled)


@cache
def _stamp_modules() -> list[tuple[str, int, int]]:
    """Return names, times and sizes of the modules whose compiled functions call each other."""
    folder = Path(__file__).parent / "dtw"
    found = [(file.relative_to(folder).as_posix(), file.stat()) for file in folder.rglob("*.py")]
    return sorted((name, state.st_mtime_ns, state.st_size) for name, state in found)


def intrinsic(function: Callable[..., object]) -> Any:
    """Return numba's decorator for what is written as instructions of its compiler."""
    return numba.extending.intrinsic(function)


carray = numba.carray  # type: ignore[attr-defined]
"""(address, shape, dtype) -> an array, in compiled loops."""
