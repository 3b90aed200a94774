"""Read robomimic and LIBERO HDF5 lazily, from one file or a folder of files.

Both formats have groups `/data/demo_i`. LIBERO adds the task's instruction and stores its images
bottom row first. Opening reads only names, lengths and attributes. Reading a range of frames of a
camera reads only that range of that camera.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py

from strap.datasets.base import natural_sort_key, require_unique
from strap.datasets.hdf5.attributes import (
    Attributes,
    Dialect,
    find_dialect,
    find_frame_rate,
    find_instruction,
    find_orientation,
    read_attributes,
)
from strap.datasets.hdf5.guard import GuardedFile
from strap.datasets.hdf5.links import has_member, member_names, members_under, resolve_link
from strap.datasets.hdf5.storage import Place, is_number, read_rows, require_apart, require_stored
from strap.datasets.image_arrays import as_uint8_images, is_image_array
from strap.datasets.untrusted import (
    MAX_ARRAY_BYTES,
    describe_error,
    explain_read_errors,
    require_at_most,
)
from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.types import Orientation, Source, Trajectory

SUFFIXES = (".hdf5", ".h5")
FORMAT = "HDF5"
DEMO_NAME = re.compile(r"demo_?[0-9]+")
DEMO_MEMBERS = ("obs", "next_obs", "states", "robot_states", "rewards", "dones")
"""members that mark a group as a demonstration, whatever its name"""
SHOWN_NOTES = 3


@dataclass(frozen=True)
class _Entry:
    """The file and the group of one demonstration."""

    file: Path
    key: str


@dataclass(frozen=True)
class _Listing:
    """What is read of one file when it is opened."""

    keys: Sequence[str]
    dialect: Dialect
    metadata: Mapping[str, Any]
    note: str
    """a contradiction in the file that does not prevent reading; empty if there is none"""


@dataclass(frozen=True)
class Hdf5Reader:
    """The reader of one HDF5 file or a folder of them.

    Ids are the group names (`demo_0`) for one file, `<file stem>/demo_0` for a folder.
    """

    entries: Mapping[str, _Entry]
    files: Sequence[Path]
    metadata: Mapping[str, Any]
    orientation: Orientation | None
    """the orientation given by the caller; None: as each file's attributes or dialect say"""
    notes: Sequence[str] = ()

    @property
    def ids(self) -> Sequence[str]:
        """The trajectory ids in natural order."""
        return tuple(self.entries)

    @property
    def summary(self) -> str:
        """One line about files that contradict themselves; empty if there are none."""
        more = len(self.notes) - SHOWN_NOTES
        return "; ".join(self.notes[:SHOWN_NOTES]) + (f"; … and {more} more" if more > 0 else "")

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory with its arrays unread."""
        entry = self.entries[trajectory_id]
        return _read_demo(trajectory_id, entry, self.orientation)


def is_hdf5(path: Path) -> bool:
    """Return whether `path` has the name of an HDF5 file, or is a folder with such files."""
    if path.is_dir():
        return any(_hdf5_files(path))
    return path.suffix in SUFFIXES


def open_hdf5(path: Path, *, orientation: Orientation | None = None) -> tuple[str, Hdf5Reader]:
    """Return the format (`libero`, `robomimic` or both) and the reader of a file or folder."""
    files = _hdf5_files(path) if path.is_dir() else [path]
    entries: dict[str, _Entry] = {}
    names: list[str] = []
    dialects: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    for file in files:
        prefix = f"{file.relative_to(path).with_suffix('').as_posix()}/" if path.is_dir() else ""
        listing = _list_demos(file)
        dialects.setdefault(listing.dialect, listing.metadata)
        names += [prefix + key for key in listing.keys]
        entries |= {prefix + key: _Entry(file, key) for key in listing.keys}
        notes += [listing.note] if listing.note else []
    require_unique(names, path)
    metadata = next(iter(dialects.values()), {})
    return "+".join(sorted(dialects)), Hdf5Reader(entries, files, metadata, orientation, notes)


def _hdf5_files(folder: Path) -> list[Path]:
    """Return the HDF5 files at any depth, without hidden ones, which can be unfinished."""
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES and not path.is_dir())
    visible = [p for p in found if not any(w.startswith(".") for w in p.relative_to(folder).parts)]
    return sorted(visible, key=lambda p: natural_sort_key(p.relative_to(folder).as_posix()))


@contextmanager
def _open(file: Path, part: str = "") -> Iterator[h5py.File]:
    """Yield the open file; errors of h5py become errors that name the file and the part.

    The file is open only inside the block: while it is open, this process cannot write to it.
    """
    with explain_read_errors(file, FORMAT, part=part), ExitStack() as stack:
        if not file.is_file():
            raise StrapError(f"'{file}' is not a file that can be read: leave it out")
        stream = stack.enter_context(GuardedFile(file))
        try:
            handle = h5py.File(stream, "r")
        except StrapError:
            raise
        except Exception as error:
            raise StrapError(
                f"cannot open '{file}' as HDF5 ({describe_error(error)}): the file is truncated or "
                "not HDF5; copy it again or leave it out"
            ) from error
        stack.enter_context(handle)
        if handle.id.get_create_plist().get_sizes() != (8, 8):
            raise StrapError(
                f"'{file}' stores addresses and lengths in numbers that are not of 8 bytes, which "
                "is the only size that can be read: repack it (h5repack)"
            )
        yield handle


def _list_demos(file: Path) -> _Listing:
    with _open(file) as handle:
        data = _find_data_group(handle, file)
        attributes = read_attributes(data, "/data", file, file.stat().st_size)
        lengths: dict[str, int] = {}
        for key in member_names(data, "data", file):
            node = resolve_link(data, key, file)
            if isinstance(node, h5py.Group) and has_member(node, "actions"):
                lengths[key] = len(_find_actions(node, key, file))
            elif _is_demo(key, node):
                raise StrapError(
                    f"'{file}': '/data/{key}' is a demonstration without 'actions'; the file is "
                    "damaged or half-written: copy or record it again, or remove the group"
                )
        keys = sorted(lengths, key=natural_sort_key)
        note = _check_counts(attributes, lengths)
        return _Listing(keys, find_dialect(attributes), attributes.values, note)


def _find_data_group(handle: h5py.File, file: Path) -> h5py.Group:
    found = resolve_link(handle["/"], "data", file) if has_member(handle["/"], "data") else None
    if not isinstance(found, h5py.Group):
        raise StrapError(
            f"'{file}' has no group '/data', so it is neither a robomimic nor a LIBERO file; "
            f"its top level holds: {', '.join(member_names(handle['/'], '/', file)) or 'nothing'}"
        )
    return found


def _is_demo(key: str, node: object) -> bool:
    """Return whether a member of `/data` without actions should be a demonstration."""
    if DEMO_NAME.fullmatch(key):
        return True
    if not isinstance(node, h5py.Group):
        return False
    return "num_samples" in node.attrs or any(has_member(node, name) for name in DEMO_MEMBERS)


def _find_actions(demo: h5py.Group, key: str, file: Path) -> h5py.Dataset:
    found = resolve_link(demo, "actions", file)
    if not isinstance(found, h5py.Dataset) or not found.shape or len(found.shape) > 2:
        wrong = f"has shape {found.shape}" if isinstance(found, h5py.Dataset) else "is a group"
        raise StrapError(
            f"'{file}', {key}: 'actions' {wrong}; it must be an array [frames, numbers]; the file "
            "is damaged: copy it again or leave it out"
        )
    return found


def _check_counts(data: Attributes, lengths: Mapping[str, int]) -> str:
    """Raise if demonstrations are lost; return a note if they might be.

    Fewer demonstrations than `num_demos` are an error. A wrong number of frames in `total` is only
    noted: `total` is out of date in sound files from which demonstrations were removed by hand.
    """
    count, total, frames = data.number("num_demos"), data.number("total"), sum(lengths.values())
    if count is not None and len(lengths) < count:
        raise StrapError(
            f"'{data.file}': '/data' has {len(lengths)} demonstrations but its attribute "
            f"'num_demos' says {count:g}: demonstrations are lost; copy the file again or, if you "
            f"removed them yourself, set 'num_demos' to {len(lengths)}"
        )
    if total is None or total == frames:
        return ""
    return (
        f"'/data' of '{data.file.name}' has {frames:,} frames but its attribute 'total' says "
        f"{total:,}: demonstrations are lost, or were removed without a change of 'total'"
    )


def _read_demo(trajectory_id: str, entry: _Entry, orientation: Orientation | None) -> Trajectory:
    file = entry.file
    with _open(file, entry.key) as handle:
        size, data = file.stat().st_size, _find_data_group(handle, file)
        demo = resolve_link(data, entry.key, file)
        if not isinstance(demo, h5py.Group):
            raise StrapError(
                f"'{file}': '/data/{entry.key}' is no longer a group: the file has changed, open "
                "it again"
            )
        shared = read_attributes(data, "/data", file, size)
        attributes = read_attributes(demo, entry.key, file, size)
        arrays = _find_frame_arrays(demo, entry, size)
        lazies = {name: _make_lazy(entry, name, array) for name, array in arrays.items()}
        cameras = {name for name, array in arrays.items() if _is_camera(name, array)}
        states = {name for name, array in arrays.items() if _is_state(name, array)}
        known = cameras | states | {"actions"}
        return Trajectory(
            id=trajectory_id,
            length=len(lazies["actions"]),
            instruction=find_instruction(shared, attributes),
            cameras={
                name: as_uint8_images(array, f"'{file}', {entry.key}, '{name}'")
                for name, array in _without_prefix(lazies, cameras).items()
            },
            proprioception=_without_prefix(lazies, states),
            actions=lazies["actions"],
            source=Source(file, entry.key, (file,)),
            fps=find_frame_rate(shared),
            orientation=orientation or find_orientation(shared),
            extras={name: array for name, array in lazies.items() if name not in known},
            attributes=attributes.values,
        )


def _is_camera(name: str, array: h5py.Dataset) -> bool:
    return (
        name.startswith("obs/")
        and array.ndim == 4
        and is_image_array(name.removeprefix("obs/"), array.shape[1:], array.dtype)
    )


def _is_state(name: str, array: h5py.Dataset) -> bool:
    return name.startswith("obs/") and array.ndim <= 2 and is_number(array.dtype)


def _without_prefix(arrays: Mapping[str, LazyArray], names: set[str]) -> dict[str, LazyArray]:
    return {name.removeprefix("obs/"): array for name, array in arrays.items() if name in names}


def _find_frame_arrays(demo: h5py.Group, entry: _Entry, size: int) -> dict[str, h5py.Dataset]:
    """Return path -> array for every array of the demonstration with a row per frame."""
    actions = _find_actions(demo, entry.key, entry.file)
    place = Place(entry.file, entry.key, "actions", size)
    if not is_number(actions.dtype):
        raise place.error(f"is of the type {actions.dtype}, not numbers")
    found: dict[str, h5py.Dataset] = {}
    for name, node in members_under(demo, f"data/{entry.key}", entry.file):
        place = replace(place, name=name)
        if isinstance(node, h5py.Group):
            if name.startswith("obs/") and not len(node):
                raise place.error("is an empty group, not observations")
        elif name == "obs":
            raise place.error("is an array, not a group of observations")
        elif node.shape and node.shape[0] == len(actions):
            _require_usable(name, node, place)
            require_stored(node, place)
            found[name] = node
        elif name in DEMO_MEMBERS or name.startswith(("obs/", "next_obs/")):
            raise place.error(f"has shape {node.shape} but 'actions' has {len(actions)} frames")
    require_apart(found, place)
    return found


def _require_usable(name: str, array: h5py.Dataset, place: Place) -> None:
    """Raise for images without pixels, and for actions or proprioception above the size limit."""
    if _is_camera(name, array) and not math.prod(array.shape[1:]):
        raise place.error(f"has shape {array.shape}: images without pixels")
    if name == "actions" or _is_state(name, array):
        length = math.prod(array.shape) * array.dtype.itemsize
        require_at_most(length, MAX_ARRAY_BYTES, f"bytes of {place.key} '{name}'", place.file)


def _make_lazy(entry: _Entry, name: str, array: h5py.Dataset) -> LazyArray:
    shape, dtype = tuple(array.shape), array.dtype

    def read(start: int, stop: int) -> Any:
        with _open(entry.file, f"{entry.key}, '{name}' frames {start}:{stop}") as handle:
            stored = resolve_link(handle["/"], f"data/{entry.key}/{name}", entry.file)
            if not isinstance(stored, h5py.Dataset) or stored.shape != shape:
                raise StrapError(
                    f"'{entry.file}', {entry.key}: '{name}' is no longer {shape}: the file has "
                    "changed, open it again"
                )
            place = Place(entry.file, entry.key, name, entry.file.stat().st_size)
            return read_rows(stored, start, stop, place)

    return LazyArray(shape, dtype, read)
