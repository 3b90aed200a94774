"""numba's decorator with our settings and a type that survives mypy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending

F = TypeVar("F", bound=Callable[..., object])


def njit(function: F) -> F:
    """Compile on first use, keep the result on disk, release the interpreter lock.

    Threads come from our own pool, not from numba's: its layers differ between machines, and
    some abort when two Python threads or a forked child enter them.
    """
    return cast("F", numba.njit(cache=True, nogil=True)(function))


def njit_reordered(function: F) -> F:
    """Compile as `njit`, but sums may be taken in any order: for norms, never a returned cost."""
    relaxed = {"reassoc", "contract", "nsz"}
    return cast("F", numba.njit(cache=True, nogil=True, fastmath=relaxed)(function))


def intrinsic(function: Callable[..., object]) -> Any:
    """Return numba's decorator for what is written as instructions of its compiler."""
    return numba.extending.intrinsic(function)


carray = numba.carray  # type: ignore[attr-defined]
"""(address, shape, dtype) -> an array, in compiled loops."""
