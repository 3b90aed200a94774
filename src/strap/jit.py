"""numba's decorator with our settings and a type that survives mypy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending

from strap.provenance import fingerprint_json

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
    kept = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_index_path"):  # not where numba is told to compile nothing
        _name_by_stamp(kept)
    return cast("F", compiled)


def _name_by_stamp(kept: Any) -> None:
    """Let the modules' stamp begin the names of a function's files; remove those of older stamps.

    A stamp inside them would not do: numba writes an index before the code that it names, so a
    process that is killed in between would leave one that names older code.
    """
    stamp, folder = _stamp_modules(), Path(kept._cache_path)
    index = folder / f"{stamp}.{kept._index_name}"
    if not index.exists():
        name = kept._index_name.rpartition("-")[0]  # without the line
        for file in folder.glob(f"{'?' * len(stamp)}.{name}-*"):
            if not file.name.startswith(stamp):
                with suppress(OSError):
                    file.unlink()
    kept._index_path = str(index)
    kept._data_name_pattern = f"{stamp}.{kept._data_name_pattern}"


@cache
def _stamp_modules() -> str:
    """Return a hash of names, times and sizes of the modules whose functions call each other."""
    folder, states = Path(__file__).parent / "dtw", []
    for file in sorted(folder.rglob("*.py")):
        with suppress(FileNotFoundError):  # an editor's link to nothing
            state = file.stat()
            states.append([file.relative_to(folder).as_posix(), state.st_mtime_ns, state.st_size])
    return fingerprint_json(states)[:12]


def intrinsic(function: Callable[..., object]) -> Any:
    """Return numba's decorator for what is written as instructions of its compiler."""
    return numba.extending.intrinsic(function)


carray = numba.carray  # type: ignore[attr-defined]
"""(address, shape, dtype) -> an array, in compiled loops."""
