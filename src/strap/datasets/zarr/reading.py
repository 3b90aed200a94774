"""Read Zarr replay buffers, as diffusion_policy and UMI write them.

    data/<key>          arrays with the frames of all episodes, first axis time
    meta/episode_ends   the stop frame of each episode

A buffer is a folder (`.zarr`) or a zip of one. The `zarr` package is an optional extra. Every array
description is checked before zarr reads it (`layout.py`), and every chunk before it is decoded
(`chunks.py`). Consolidated metadata is not read.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from strap.datasets.image_arrays import as_uint8_images, is_image_array
from strap.datasets.untrusted import (
    MAX_ARRAY_BYTES,
    MAX_TRAJECTORIES,
    REMEDY,
    explain_read_errors,
    require_at_most,
)
from strap.datasets.zarr.buffer_files import BufferFiles, FolderFiles, ZipFiles, read_document
from strap.datasets.zarr.chunks import require_chunks
from strap.datasets.zarr.layout import IMAGE_CODECS, ArrayLayout, read_layout
from strap.errors import StrapError, unknown
from strap.extras import missing_extra
from strap.lazy_arrays import LazyArray
from strap.provenance import fingerprint_files
from strap.types import Array, Orientation, Source, Trajectory

ENDS = "meta/episode_ends"
ACTIONS = ("action", "actions")
FORMAT = "zarr"
EPISODE = re.compile(r"episode_([0-9]{6,12})")
BATCH_BYTES = 1 << 28
"""larger ranges are read in batches of whole chunks, because zarr decodes several at a time"""


@dataclass(frozen=True)
class ZarrReader:
    """The reader of one replay buffer; ids are `episode_000000`, `episode_000001`, …"""

    path: Path
    ends: Sequence[int]
    layouts: Mapping[str, ArrayLayout]
    """name in `data/` -> layout of the array"""
    action: str
    orientation: Orientation
    instruction: str
    fps: float | None
    metadata: Mapping[str, Any]
    empty_chunks: bool

    @cached_property
    def ids(self) -> Sequence[str]:
        """The trajectory ids in the order of the buffer."""
        return tuple(f"episode_{i:06d}" for i in range(len(self.ends)))

    @property
    def lengths(self) -> Sequence[int]:
        """The number of frames of each trajectory, in the order of `ids`."""
        return [int(n) for n in np.diff(self.ends, prepend=0)]

    @cached_property
    def files(self) -> Sequence[Path]:
        """The zip, or all files in the folder."""
        if self.path.is_file():
            return (self.path,)
        walked = os.walk(self.path)
        return tuple(sorted(Path(folder) / name for folder, _, names in walked for name in names))

    @cached_property
    def _fingerprint_of_files(self) -> str:
        return fingerprint_files(self.files, self.path)

    def _stamp(self) -> str:
        return self._fingerprint_of_files

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory with its arrays unread."""
        number = self._number(trajectory_id)
        stop = self.ends[number]
        start = self.ends[number - 1] if number else 0
        cameras: dict[str, LazyArray] = {}
        proprioception: dict[str, LazyArray] = {}
        extras: dict[str, LazyArray] = {}
        for name, layout in self.layouts.items():
            lazy = self._lazy(trajectory_id, layout, start, stop)
            if _is_image(name, layout):
                cameras[name] = as_uint8_images(
                    lazy, f"'{self.path}', {trajectory_id}, '{layout.key}'"
                )
            elif name == self.action:
                continue
            elif len(layout.shape) <= 2 and layout.dtype.kind in "biuf":
                proprioception[name] = self._require_small(lazy, name)
            else:
                extras[name] = lazy
        actions = self._lazy(trajectory_id, self.layouts[self.action], start, stop)
        return Trajectory(
            id=trajectory_id,
            length=stop - start,
            instruction=self.instruction,
            cameras=cameras,
            proprioception=proprioception,
            actions=self._require_small(actions, self.action),
            # A zip is one file: without `make_stamp`, its size and time are the stamp.
            source=Source(
                self.path, trajectory_id, make_stamp=self._stamp if self.path.is_dir() else None
            ),
            fps=self.fps,
            orientation=self.orientation,
            extras=extras,
        )

    def _number(self, trajectory_id: str) -> int:
        found = EPISODE.fullmatch(trajectory_id)
        number = int(found[1]) if found else len(self.ends)
        if number >= len(self.ends) or trajectory_id != f"episode_{number:06d}":
            raise KeyError(trajectory_id)
        return number

    def _require_small(self, array: LazyArray, name: str) -> LazyArray:
        """Return the array; raise if it is too large to be read at once."""
        length = math.prod(array.shape) * array.dtype.itemsize
        require_at_most(length, MAX_ARRAY_BYTES, f"bytes of an episode's '{name}'", self.path)
        return array

    def _lazy(self, trajectory_id: str, layout: ArrayLayout, start: int, stop: int) -> LazyArray:
        def read(first: int, last: int) -> Array:
            rows = start + first, start + last
            return _read_rows(
                self.path, layout, rows, part=trajectory_id, empty_chunks=self.empty_chunks
            )

        return LazyArray((stop - start, *layout.shape[1:]), layout.dtype, read)


def is_zarr(path: Path) -> bool:
    """Return whether `path` is a replay buffer: a folder or zip with `meta/episode_ends`."""
    if path.is_dir():
        return (path / ENDS).is_dir()
    if path.suffix != ".zip" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith(ENDS) for name in archive.namelist())
    except Exception:  # zipfile raises many kinds of errors; opening the buffer reports them
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
    """Return the format's name (`zarr`) and the reader of a replay buffer.

    Args:
        path: the `.zarr` folder or `.zarr.zip` file.
        orientation: how images are stored; by default upright.
        action: the array with the actions, if it is not called `action`.
        instruction: the instruction of all trajectories, which the format does not store.
        fps: the frame rate, which the format does not store.
        empty_chunks: read missing chunks as zeros, for writers that leave out chunks of zeros; by
            default a missing chunk is an error.
    """
    with explain_read_errors(path, FORMAT):
        store = _store(path, *_stamp(path))
        layouts = _read_layouts(store)
        ends = _read_episode_ends(store)
        metadata = _read_metadata(store)
    _require_consistent(path, ends, layouts)
    found = action or next((name for name in ACTIONS if name in layouts), None)
    if found is None or found not in layouts:
        numeric = [name for name, layout in layouts.items() if len(layout.shape) == 2]
        raise StrapError(f"'{path}': {unknown('action array', found or 'action', numeric)}")
    if layouts[found].dtype.kind not in "biuf" or len(layouts[found].shape) > 2:
        raise StrapError(
            f"'{path}': 'data/{found}' has shape {layouts[found].shape} and dtype "
            f"{layouts[found].dtype}; it must be an array [frames, numbers]: name the action array "
            "with action="
        )
    reader = ZarrReader(
        path,
        ends,
        layouts,
        action=found,
        orientation=orientation or "upright",
        instruction=instruction,
        fps=fps,
        metadata=metadata,
        empty_chunks=empty_chunks,
    )
    return FORMAT, reader


def _read_layouts(store: BufferFiles) -> dict[str, ArrayLayout]:
    found: dict[str, ArrayLayout] = {}
    for name in store.folders("data"):
        if name.encode("utf-8", "replace").decode() != name:
            raise StrapError(f"'{store.path}': 'data' holds the name {name!a}: rename the array")
        layout = read_layout(store, f"data/{name}")
        if layout is not None:
            found[name] = layout
    if any(codec.name in IMAGE_CODECS for layout in found.values() for codec in layout.codecs):
        _require_imagecodecs(store.path)
    return found


def _require_imagecodecs(path: Path) -> None:
    if importlib.util.find_spec("imagecodecs") is None:
        raise StrapError(f"'{path}' holds compressed images (UMI): pip install imagecodecs")


def _read_episode_ends(store: BufferFiles) -> list[int]:
    folder, name = ENDS.split("/")
    layout = read_layout(store, ENDS) if name in store.folders(folder) else None
    if layout is None:
        raise StrapError(f"'{store.path}' has no '{ENDS}'; it is not a replay buffer")
    if len(layout.shape) != 1 or layout.dtype.kind not in "iu":
        raise StrapError(
            f"'{store.path}': '{ENDS}' has shape {layout.shape} and dtype {layout.dtype}; it must "
            f"be a list of whole numbers; the buffer is damaged: {REMEDY}"
        )
    count = layout.shape[0]
    require_at_most(count, MAX_TRAJECTORIES, "episodes", store.path)
    values = _read_rows(store.path, layout, (0, count), part="", empty_chunks=False)
    return [int(n) for n in values]


def _read_metadata(store: BufferFiles) -> dict[str, Any]:
    attributes = read_document(store, ".zattrs")
    if attributes is None:
        attributes = (read_document(store, "zarr.json") or {}).get("attributes", {})
    return attributes if isinstance(attributes, dict) else {}


def _require_consistent(
    path: Path, ends: Sequence[int], layouts: Mapping[str, ArrayLayout]
) -> None:
    if not ends or ends[0] <= 0 or any(b <= a for a, b in pairwise(ends)):
        raise StrapError(
            f"'{path}': '{ENDS}' must start above 0 and increase; the buffer is damaged: {REMEDY}"
        )
    for name, layout in layouts.items():
        if layout.shape[0] < ends[-1]:
            raise StrapError(
                f"'{path}': 'data/{name}' has {layout.shape[:1]} frames but '{ENDS}' goes up to "
                f"{ends[-1]}; the buffer is damaged or half-written: {REMEDY}"
            )
        if _is_image(name, layout) and not math.prod(layout.shape):
            raise StrapError(
                f"'{path}': 'data/{name}' has the shape {layout.shape}: images without pixels; "
                f"the buffer is damaged: {REMEDY}"
            )


def _is_image(name: str, layout: ArrayLayout) -> bool:
    is_last = len(layout.shape) == 4 and layout.shape[3] == 3 and layout.dtype.kind in "biuf"
    return is_last or is_image_array(name, layout.shape[1:], layout.dtype)


def _read_rows(
    path: Path, layout: ArrayLayout, rows: tuple[int, int], *, part: str, empty_chunks: bool
) -> Array:
    """Return rows of an array, after a check of each chunk that holds some of them."""
    part = f"{part}, '{layout.key}'".lstrip(", ")
    start, stop = rows
    stamp = _stamp(path)
    with explain_read_errors(path, FORMAT, part=part):
        require_chunks(
            _store(path, *stamp),
            layout,
            start,
            stop,
            empty_chunks=empty_chunks,
            where=f"'{path}', {part}",
        )
        handle = _open_array(path, *stamp, layout.key, layout.version)
        if tuple(handle.shape) != layout.shape or np.dtype(handle.dtype) != layout.dtype:
            raise StrapError(f"'{path}', {part} has changed: open it again")
        step = layout.files[0] * max(1, BATCH_BYTES // layout.chunk_bytes)
        values = np.empty((max(0, stop - start), *layout.shape[1:]), layout.dtype)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            values[first - start : last - start] = handle[first:last]
        return values


def _stamp(path: Path) -> tuple[int, int]:
    try:
        return path.stat().st_mtime_ns, os.getpid()
    except OSError as error:
        raise StrapError(f"cannot read '{path}': {error.strerror}") from error


@lru_cache(maxsize=8)
def _store(path: Path, _mtime: int, _pid: int) -> BufferFiles:
    return ZipFiles(path) if path.is_file() else FolderFiles(path)


@lru_cache(maxsize=64)
def _open_array(path: Path, _mtime: int, _pid: int, key: str, version: Literal[2, 3]) -> Any:
    """Return the array opened by zarr, which reads its description but not the group's."""
    try:
        import zarr
        from zarr.storage import ZipStore as ZarrZipStore
    except ImportError as error:
        raise missing_extra(f"reading '{path}' needs zarr", "zarr") from error
    with contextlib.suppress(ImportError):  # image codecs (JPEG XL, …) are optional
        importlib.import_module("imagecodecs.numcodecs").register_codecs(verbose=False)
    store = ZarrZipStore(path, mode="r") if path.is_file() else path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zarr.open_array(store=store, path=key, mode="r", zarr_format=version)
