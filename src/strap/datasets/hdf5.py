"""robomimic and LIBERO HDF5, one file or a folder of files, read lazily.

Both keep `/data/demo_i` groups; LIBERO adds the task's instruction and stores its images bottom row
first. Nothing is read on opening but names and lengths; a frame range of one camera reads only
that range of that camera.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from strap.datasets.base import natural, require_unique
from strap.errors import StrapError
from strap.types import Array, LazyArray, Orientation, Source, Trajectory

SUFFIXES = (".hdf5", ".h5")
LIBERO_FPS = 20.0
Dialect = Literal["robomimic", "libero"]


@dataclass(frozen=True)
class _Entry:
    """One demonstration: which file, which group."""

    file: Path
    key: str


@dataclass(frozen=True)
class Hdf5Reader:
    """Reads one HDF5 file or a folder of them.

    Ids are the group names (`demo_0`) for one file, `<file stem>/demo_0` for a folder.
    """

    entries: Mapping[str, _Entry]
    files: Sequence[Path]
    metadata: Mapping[str, Any]
    orientation: Orientation | None
    """as the caller says; None: as the file's dialect says"""

    @property
    def ids(self) -> Sequence[str]:
        """Trajectory ids in natural order."""
        return tuple(self.entries)

    def read(self, trajectory_id: str) -> Trajectory:
        """The trajectory, its arrays unread."""
        entry = self.entries[trajectory_id]
        return _read_demo(trajectory_id, entry, self.orientation)


def is_hdf5(path: Path) -> bool:
    """Whether `path` is an HDF5 file by its name, or a folder that holds some."""
    if path.is_dir():
        return any(_hdf5_files(path))
    return path.suffix in SUFFIXES


def open_hdf5(path: Path, *, orientation: Orientation | None = None) -> tuple[str, Hdf5Reader]:
    """The reader of a file or folder, and its format's name (`libero`, `robomimic` or both)."""
    files = _hdf5_files(path) if path.is_dir() else [path]
    entries: dict[str, _Entry] = {}
    names: list[str] = []
    dialects: set[str] = set()
    for file in files:
        handle = _open(file)
        dialects.add(_dialect(handle))
        prefix = f"{file.relative_to(path).with_suffix('').as_posix()}/" if path.is_dir() else ""
        keys = sorted((k for k, v in _data(handle, file).items() if "actions" in v), key=natural)
        names += [prefix + key for key in keys]
        entries |= {prefix + key: _Entry(file, key) for key in keys}
    require_unique(names, path)
    metadata = _metadata(_open(files[0])) if files else {}
    return "+".join(sorted(dialects)), Hdf5Reader(entries, files, metadata, orientation)


def _hdf5_files(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*") if p.suffix in SUFFIXES and not p.name.startswith("."))
    return sorted(found, key=lambda p: natural(p.relative_to(folder).as_posix()))


def _open(file: Path) -> h5py.File:
    """An open handle, kept while the file stays the same; one per process, as HDF5 cannot fork."""
    stat = file.stat()
    return _cached_handle(file, stat.st_mtime_ns, stat.st_size, os.getpid())


@lru_cache(maxsize=16)
def _cached_handle(file: Path, _mtime: int, _size: int, _pid: int) -> h5py.File:
    try:
        return h5py.File(file, "r", locking="best-effort")
    except OSError as error:
        if isinstance(error, PermissionError):
            raise StrapError(f"cannot read '{file}': permission denied") from error
        raise StrapError(
            f"cannot open '{file}' as HDF5 ({_reason(error)}): the file is truncated or not HDF5; "
            "copy it again or leave it out"
        ) from error


def _reason(error: OSError) -> str:
    text = str(error)
    return text[text.rfind("(") + 1 : text.rfind(")")] if "(" in text else text


def _data(handle: h5py.File, file: Path) -> h5py.Group:
    if "data" not in handle or not isinstance(handle["data"], h5py.Group):
        raise StrapError(
            f"'{file}' has no group '/data', so it is neither a robomimic nor a LIBERO file; "
            f"its top level holds: {', '.join(handle) or 'nothing'}"
        )
    return handle["data"]


def _dialect(handle: h5py.File) -> Dialect:
    attrs = handle["data"].attrs if "data" in handle else {}
    return "libero" if "bddl_file_name" in attrs or "problem_info" in attrs else "robomimic"


def _metadata(handle: h5py.File) -> dict[str, Any]:
    return {key: _plain(value) for key, value in handle["data"].attrs.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value


def _json(value: Any) -> dict[str, Any]:
    try:
        parsed = json.loads(_plain(value))
    except (TypeError, ValueError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _read_demo(trajectory_id: str, entry: _Entry, orientation: Orientation | None) -> Trajectory:
    handle = _open(entry.file)
    demo = handle["data"][entry.key]
    length = int(demo["actions"].shape[0])
    cameras: dict[str, LazyArray] = {}
    proprioception: dict[str, LazyArray] = {}
    extras: dict[str, LazyArray] = {}
    for name, array in _per_frame(demo, length, trajectory_id, entry.file).items():
        lazy = _lazy(entry, name, array)
        short = name.removeprefix("obs/")
        if short == name:
            extras[name] = lazy
        elif _is_image(array):
            cameras[short] = lazy
        elif len(array.shape) <= 2:
            proprioception[short] = lazy
        else:
            extras[name] = lazy
    actions = extras.pop("actions")
    return Trajectory(
        id=trajectory_id,
        length=length,
        instruction=_instruction(handle, demo, entry.file),
        cameras=cameras,
        proprioception=proprioception,
        actions=actions,
        source=Source(entry.file, entry.key, (entry.file,)),
        fps=_fps(handle),
        orientation=orientation or _orientation(handle),
        extras=extras,
        attributes={key: _plain(value) for key, value in demo.attrs.items()},
    )


def _per_frame(
    demo: h5py.Group, length: int, trajectory_id: str, file: Path
) -> dict[str, h5py.Dataset]:
    """Every array of the demonstration with one row per frame, by its path inside the group."""
    found: dict[str, h5py.Dataset] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.shape and node.shape[0] == length:
            found[name] = node
        elif isinstance(node, h5py.Dataset) and name.startswith("obs/"):
            raise StrapError(
                f"'{file}', {trajectory_id}: '{name}' has shape {node.shape} but 'actions' has "
                f"{length} frames; the file is damaged or half-written: record or copy it again"
            )

    demo.visititems(visit)
    return found


def _is_image(array: h5py.Dataset) -> bool:
    return len(array.shape) == 4 and array.shape[-1] == 3 and array.dtype == np.uint8


def _lazy(entry: _Entry, name: str, array: h5py.Dataset) -> LazyArray:
    def read(start: int, stop: int) -> Array:
        try:
            values: Array = _open(entry.file)["data"][entry.key][name][start:stop]
        except (OSError, KeyError) as error:
            raise StrapError(
                f"'{entry.file}', {entry.key}: cannot read '{name}' frames {start}:{stop} "
                f"({error}); the file is damaged: copy it again or leave it out"
            ) from error
        return values

    return LazyArray(tuple(array.shape), array.dtype, read)


def _instruction(handle: h5py.File, demo: h5py.Group, file: Path) -> str:
    """The language string, from the first of the places where the dialects keep it."""
    data = handle["data"]
    env_args = _json(data.attrs.get("env_args"))
    places = (
        _json(demo.attrs.get("ep_meta")).get("lang"),
        *(demo.attrs.get(key) for key in ("language_instruction", "lang", "instruction")),
        _json(data.attrs.get("problem_info")).get("language_instruction"),
        *(data.attrs.get(key) for key in ("language_instruction", "lang", "instruction")),
        *(env_args.get(key) for key in ("lang", "env_lang", "language_instruction")),
    )
    for value in map(_plain, places):
        if isinstance(value, list):
            value = "".join(value)
        if isinstance(value, str) and value.strip():
            return value.strip().strip('"')
    return _instruction_from_name(file) if _dialect(handle) == "libero" else ""


def _instruction_from_name(file: Path) -> str:
    """`KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5` -> `turn on the stove`."""
    words = file.stem.removesuffix("_demo").split("_")
    return " ".join(w for w in words if not w.isupper() or (w.isalpha() and len(w) == 1))


def _fps(handle: h5py.File) -> float | None:
    data = handle["data"]
    control = _json(data.attrs.get("env_args")).get("env_kwargs", {})
    rate = data.attrs.get("fps", control.get("control_freq") if control else None)
    if rate is None and _dialect(handle) == "libero":
        return LIBERO_FPS
    return float(rate) if rate is not None else None


def _orientation(handle: h5py.File) -> Orientation:
    """What the file says of its images, else its dialect's habit: LIBERO flips, robomimic not."""
    attrs = handle["data"].attrs
    said = _plain(attrs.get("image_orientation", ""))
    if said in ("upright", "flipped"):
        return "upright" if said == "upright" else "flipped"
    convention = _plain(attrs.get("macros_image_convention", ""))
    if convention in ("opengl", "opencv") and _dialect(handle) == "libero":
        return "flipped" if convention == "opengl" else "upright"
    return "flipped" if _dialect(handle) == "libero" else "upright"
