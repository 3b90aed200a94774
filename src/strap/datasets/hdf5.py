"""robomimic and LIBERO HDF5, one file or a folder of files, read lazily.

Both keep `/data/demo_i` groups; LIBERO adds the task's instruction and stores its images bottom row
first. Nothing is read on opening but names and lengths; a frame range of one camera reads only
that range of that camera.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    dialects: dict[str, Mapping[str, Any]] = {}
    for file in files:
        prefix = f"{file.relative_to(path).with_suffix('').as_posix()}/" if path.is_dir() else ""
        with _open(file) as handle:
            data = _data(handle, file)
            keys = sorted((k for k, v in data.items() if "actions" in v), key=natural)
            dialects.setdefault(_dialect(handle), _metadata(handle))
        names += [prefix + key for key in keys]
        entries |= {prefix + key: _Entry(file, key) for key in keys}
    require_unique(names, path)
    metadata = next(iter(dialects.values()), {})
    return "+".join(sorted(dialects)), Hdf5Reader(entries, files, metadata, orientation)


def _hdf5_files(folder: Path) -> list[Path]:
    """HDF5 files at any depth; what is hidden is somebody's work in progress."""
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    shown = [p for p in found if not any(w.startswith(".") for w in p.relative_to(folder).parts)]
    return sorted(shown, key=lambda p: natural(p.relative_to(folder).as_posix()))


@contextmanager
def _open(file: Path) -> Iterator[h5py.File]:
    """The file, open for one read: kept open it could not be changed from the same process."""
    try:
        handle = h5py.File(file, "r", locking="best-effort")
    except PermissionError as error:
        raise StrapError(f"cannot read '{file}': permission denied") from error
    except OSError as error:
        raise StrapError(
            f"cannot open '{file}' as HDF5 ({_reason(error)}): the file is truncated or not HDF5; "
            "copy it again or leave it out"
        ) from error
    with handle:
        yield handle


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
    with _open(entry.file) as handle:
        demo = handle["data"][entry.key]
        length = int(demo["actions"].shape[0])
        arrays = _per_frame(demo, length, trajectory_id, entry.file)
        lazies = {name: _lazy(entry, name, array) for name, array in arrays.items()}
        cameras = {name for name, array in arrays.items() if _is_camera(name, array)}
        states = {n for n, array in arrays.items() if n.startswith("obs/") and array.ndim <= 2}
        others = lazies.keys() - cameras - states - {"actions"}
        return Trajectory(
            id=trajectory_id,
            length=length,
            instruction=_instruction(handle, demo, entry.file),
            cameras=_without_prefix(lazies, cameras),
            proprioception=_without_prefix(lazies, states),
            actions=lazies["actions"],
            source=Source(entry.file, entry.key, (entry.file,)),
            fps=_fps(handle),
            orientation=orientation or _orientation(handle),
            extras={name: array for name, array in lazies.items() if name in others},
            attributes={key: _plain(value) for key, value in demo.attrs.items()},
        )


def _is_camera(name: str, array: h5py.Dataset) -> bool:
    images = array.ndim == 4 and array.shape[-1] == 3 and array.dtype == np.uint8
    return name.startswith("obs/") and images


def _without_prefix(arrays: Mapping[str, LazyArray], names: set[str]) -> dict[str, LazyArray]:
    return {name.removeprefix("obs/"): array for name, array in arrays.items() if name in names}


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


def _lazy(entry: _Entry, name: str, array: h5py.Dataset) -> LazyArray:
    def read(start: int, stop: int) -> Array:
        try:
            with _open(entry.file) as handle:
                values: Array = handle["data"][entry.key][name][start:stop]
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
