"""numba's decorators with our settings, and with types that mypy understands."""

from __future__ import annotations

import logging
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
    """Compile a function on first use, cache the result on disk, and release the GIL in it.

    Threads come from our own pool, not from numba's. numba's threading layers differ between
    machines, and some abort if two Python threads or a forked process use them.
    """
    return _compiled(function)


def njit_reordered(function: F) -> F:
    """Compile as `njit`, but allow sums in any order: for norms, never for returned costs."""
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


def _compiled(function: F, **options: Any) -> F:
    """Return numba's function, whose cached code is invalid as soon as a module of `dtw` changes.

    numba itself checks only the function's own file, not the files of the functions that it calls.
    """
    compiled = numba.njit(cache=True, nogil=True, **options)(function)
    on_disk: Any = getattr(compiled, "_cache", None)
    cache_file = getattr(on_disk, "_cache_file", None)
    if hasattr(cache_file, "_index_path"):  # absent if numba is configured not to compile
        _name_by_stamp(cache_file)
        on_disk.load_overload = _announcing(on_disk.load_overload)
    return cast("F", compiled)


def _announcing(load: Callable[..., object]) -> Callable[..., object]:
    """Return numba's function that loads compiled code, which announces that there is none."""

    def load_or_announce(*arguments: Any) -> object:
        code = load(*arguments)
        if code is None:
            _announce_compilation()
        return code

    return load_or_announce


@cache
def _announce_compilation() -> None:
    """Log, once per process, why the first search takes longer than later ones."""
    logging.getLogger("strap").info(
        "compiling for this machine, which takes up to a minute, only the first time"
    )


def _name_by_stamp(cache_file: Any) -> None:
    """Prefix a function's cache files with the modules' stamp; remove files with older stamps.

    A stamp inside the files would not be enough: numba writes an index before the code that it
    names, so a process killed in between would leave an index that names older code.
    """
    stamp, folder = _stamp_modules(), Path(cache_file._cache_path)
    index = folder / f"{stamp}.{cache_file._index_name}"
    if not index.exists():
        name = cache_file._index_name.rpartition("-")[0]  # without the line number
        for file in folder.glob(f"{'?' * len(stamp)}.{name}-*"):
            if not file.name.startswith(stamp):
                with suppress(OSError):
                    file.unlink()
    cache_file._index_path = str(index)
    cache_file._data_name_pattern = f"{stamp}.{cache_file._data_name_pattern}"


@cache
def _stamp_modules() -> str:
    """Return a hash of the names, times and sizes of all modules of `dtw`."""
    folder, states = Path(__file__).parent / "dtw", []
    for file in sorted(folder.rglob("*.py")):
        with suppress(FileNotFoundError):  # a broken link, as some editors create
            state = file.stat()
            states.append([file.relative_to(folder).as_posix(), state.st_mtime_ns, state.st_size])
    return fingerprint_json(states)[:12]


def intrinsic(function: Callable[..., object]) -> Any:
    """Decorate a function that generates compiler instructions (numba's `intrinsic`)."""
    return numba.extending.intrinsic(function)


carray = numba.carray  # type: ignore[attr-defined]
"""(address, shape, dtype) -> array, for use in compiled functions."""
