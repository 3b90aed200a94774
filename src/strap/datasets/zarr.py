"""Zarr replay buffers as diffusion_policy and UMI write them: read.

    data/<key>          arrays laid end to end over the episodes, first axis time
    meta/episode_ends   where each episode stops

A folder (`.zarr`) or a zip of one. The `zarr` package is an optional extra.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from strap.errors import StrapError, unknown
from strap.types import Array, LazyArray, Orientation, Source, Trajectory

ENDS = "meta/episode_ends"
ACTIONS = ("action", "actions")


@dataclass(frozen=True)
class ZarrReader:
    """Reads one replay buffer; ids are `episode_000000`, `episode_000001`, …"""

    path: Path
    ends: Sequence[int]
    arrays: Mapping[str, tuple[int, ...]]
    """name under data/ -> shape"""
    action: str
    orientation: Orientation
    instruction: str
    fps: float | None
    metadata: Mapping[str, Any]
    empty_chunks: bool

    @cached_property
    def ids(self) -> Sequence[str]:
        """Trajectory ids in the order of the buffer."""
        return tuple(f"episode_{i:06d}" for i in range(len(self.ends)))

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each trajectory, in the order of `ids`."""
        return [int(n) for n in np.diff(self.ends, prepend=0)]

    @cached_property
    def files(self) -> Sequence[Path]:
        """The zip, or every chunk of the folder."""
        if self.path.is_file():
            return (self.path,)
        walked = os.walk(self.path)
        return tuple(sorted(Path(folder) / name for folder, _, names in walked for name in names))

    def read(self, trajectory_id: str) -> Trajectory:
        """The trajectory, its arrays unread."""
        number = trajectory_id.removeprefix("episode_")
        if not number.isdigit() or trajectory_id != f"episode_{int(number):06d}":
            raise KeyError(trajectory_id)
        if int(number) >= len(self.ends):
            raise KeyError(trajectory_id)
        stop = self.ends[int(number)]
        start = self.ends[int(number) - 1] if int(number) else 0
        cameras: dict[str, LazyArray] = {}
        proprioception: dict[str, LazyArray] = {}
        extras: dict[str, LazyArray] = {}
        for name, shape in self.arrays.items():
            lazy = self._lazy(trajectory_id, name, start, stop)
            if _is_picture(shape):
                cameras[name] = _as_bytes(lazy)
            elif name == self.action:
                continue
            elif len(shape) <= 2 and lazy.dtype.kind in "biuf":
                proprioception[name] = lazy
            else:
                extras[name] = lazy
        return Trajectory(
            id=trajectory_id,
            length=stop - start,
            instruction=self.instruction,
            cameras=cameras,
            proprioception=proprioception,
            actions=self._lazy(trajectory_id, self.action, start, stop),
            source=Source(self.path, trajectory_id),
            fps=self.fps,
            orientation=self.orientation,
            extras=extras,
        )

    def _lazy(self, trajectory_id: str, name: str, start: int, stop: int) -> LazyArray:
        array = _open_array(self.path, *_stamp(self.path), name)

        def read(first: int, last: int) -> Array:
            where = f"'{self.path}', {trajectory_id}, 'data/{name}'"
            handle = _open_array(self.path, *_stamp(self.path), name)
            if not self.empty_chunks:
                _require_chunks(self.path, name, start + first, start + last, where)
            with _decoding(where):
                return np.asarray(handle[start + first : start + last])

        return LazyArray((stop - start, *array.shape[1:]), np.dtype(array.dtype), read)


def is_zarr(path: Path) -> bool:
    """Whether `path` is a replay buffer: a folder or zip with `meta/episode_ends`."""
    if path.is_dir():
        return (path / ENDS).is_dir()
    if path.suffix != ".zip" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith(ENDS) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return path.name.endswith(".zarr.zip")


def open_zarr(
    path: Path,
    *,
    orientation: Orientation | None = None,
    action: str | None = None,
    instruction: str = "",
    fps: float | None = None,
    empty_chunks: bool = False,
) -> tuple[str, ZarrReader]:
    """The reader of a replay buffer, and its format's name (`zarr`).

    Args:
        path: the `.zarr` folder or `.zarr.zip` file.
        orientation: how images lie on disk; they are upright by default.
        action: the array with the actions, when it is not called `action`.
        instruction: the language string of all trajectories: the format stores none.
        fps: the frame rate: the format stores none.
        empty_chunks: take chunks that are not there for zeros, as zarr does when the writer leaves
            such chunks out; by default one that is not there is an error.
    """
    group = _open_group(path, *_stamp(path))
    with _decoding(f"'{path}'"):
        names = sorted(group["data"].array_keys()) if "data" in group else []
        shapes = {name: tuple(int(n) for n in group["data"][name].shape) for name in names}
        metadata = dict(group.attrs)
        if ENDS not in group:
            raise StrapError(f"'{path}' has no '{ENDS}'; it is no replay buffer")
        ends = [int(n) for n in np.asarray(group[ENDS][:])]
    _require_chunks(path, "", 0, len(ends), f"'{path}', '{ENDS}'")
    _check(path, ends, shapes)
    found = action or next((name for name in ACTIONS if name in shapes), None)
    if found is None or found not in shapes:
        numeric = [name for name, shape in shapes.items() if len(shape) == 2]
        raise StrapError(f"'{path}': {unknown('action array', found or 'action', numeric)}")
    upright = orientation or "upright"
    reader = ZarrReader(
        path, ends, shapes, found, upright, instruction, fps, metadata, empty_chunks
    )
    return "zarr", reader


def _check(path: Path, ends: Sequence[int], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if not ends or ends[0] <= 0 or any(b <= a for a, b in pairwise(ends)):
        raise StrapError(f"'{path}': '{ENDS}' does not rise from above 0; the buffer is damaged")
    for name, shape in shapes.items():
        if not shape or shape[0] < ends[-1]:
            raise StrapError(
                f"'{path}': 'data/{name}' has {shape[:1]} frames but '{ENDS}' goes up to "
                f"{ends[-1]}; the buffer is damaged or half-written"
            )


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[3] == 3


def _as_bytes(array: LazyArray) -> LazyArray:
    """Pictures as uint8; some buffers keep them as floats, of 0 … 255 or of 0 … 1."""
    if array.dtype == np.uint8:
        return array

    def read(start: int, stop: int) -> Array:
        # One frame of the episode decides, not the range: a dark frame must not be stretched.
        middle = array.read(len(array) // 2, len(array) // 2 + 1)
        scale = 255.0 if array.dtype.kind == "f" and middle.max(initial=0) <= 1 else 1.0
        return np.clip(np.rint(array.read(start, stop) * scale), 0, 255).astype(np.uint8)

    return LazyArray(array.shape, np.dtype(np.uint8), read)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        return path.stat().st_mtime_ns, os.getpid()
    except OSError as error:
        raise StrapError(f"cannot read '{path}': {error.strerror}") from error


@lru_cache(maxsize=8)
def _open_group(path: Path, _mtime: int, _pid: int) -> Any:
    try:
        import zarr
        from zarr.storage import ZipStore
    except ImportError as error:
        raise StrapError(f"reading '{path}' needs zarr: pip install 'strap-robot[zarr]'") from error
    with contextlib.suppress(ImportError):  # JPEG XL and its like, where they are installed
        importlib.import_module("imagecodecs.numcodecs").register_codecs(verbose=False)
    with _decoding(f"'{path}'"):
        store = ZipStore(path, mode="r") if path.is_file() else path
        return zarr.open_group(store, mode="r")


@lru_cache(maxsize=64)
def _open_array(path: Path, mtime: int, pid: int, name: str) -> Any:
    with _decoding(f"'{path}', 'data/{name}'"):
        return _open_group(path, mtime, pid)["data"][name]


@contextlib.contextmanager
def _decoding(where: str) -> Iterator[None]:
    """zarr and its codecs raise many kinds of errors on damaged input; all mean the same here."""
    try:
        yield
    except StrapError:
        raise
    except Exception as error:
        hint = "damaged: copy it again"
        if "codec" in str(error).lower():
            hint = "its compression needs another package (UMI: pip install imagecodecs)"
        raise StrapError(
            f"cannot read {where} ({type(error).__name__}: {error}): {hint}"
        ) from error


def _require_chunks(path: Path, name: str, start: int, stop: int, where: str) -> None:
    """Raise where a chunk of these frames is missing: zarr would silently give zeros."""
    prefix = f"data/{name}" if name else ENDS
    layout = _chunk_layout(path, *_stamp(path), prefix)
    if layout is None or start >= stop:
        return
    chunks, shape, separator = layout
    rows = range(start // chunks[0], (stop - 1) // chunks[0] + 1)
    others = [range(-(-n // c)) for n, c in zip(shape[1:], chunks[1:], strict=True)]
    for key in product(rows, *others):
        file = f"{prefix}/{separator.join(map(str, key))}"
        if not _exists(path, file):
            raise StrapError(
                f"{where}: chunk '{file}' is missing: copy the dataset again, or open it with "
                "empty_chunks=True if its writer left out chunks of zeros"
            )


@lru_cache(maxsize=64)
def _chunk_layout(
    path: Path, _mtime: int, _pid: int, prefix: str
) -> tuple[list[int], list[int], str] | None:
    """(chunks, shape, separator) of an array in the version 2 layout, which these buffers use."""
    try:
        if path.is_dir():
            text = (path / prefix / ".zarray").read_text()
        else:
            with zipfile.ZipFile(path) as archive:
                text = archive.read(f"{prefix}/.zarray").decode()
        described = json.loads(text)
        return described["chunks"], described["shape"], described.get("dimension_separator") or "."
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def _exists(path: Path, file: str) -> bool:
    if path.is_dir():
        return (path / file).is_file()
    return file in _zip_names(path, *_stamp(path))


@lru_cache(maxsize=8)
def _zip_names(path: Path, _mtime: int, _pid: int) -> frozenset[str]:
    with zipfile.ZipFile(path) as archive:
        return frozenset(archive.namelist())
