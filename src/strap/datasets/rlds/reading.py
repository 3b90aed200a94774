"""RLDS episodes (TFDS records of Open X-Embodiment, DROID, Bridge) without TensorFlow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from strap.datasets.boundary import MAX_TRAJECTORIES, reading, require_at_most
from strap.datasets.rlds.description import DATASET_INFO, FEATURES
from strap.datasets.rlds.episodes import Episode
from strap.datasets.rlds.fields import Fields, Roles, assign_roles
from strap.datasets.rlds.records import record_index
from strap.datasets.rlds.shards import Shard
from strap.datasets.rlds.structure import Structure, find_folder, load_structure
from strap.errors import StrapError, unknown
from strap.types import Orientation, Source, Trajectory


@dataclass(frozen=True)
class RldsReader:
    """Reads a TFDS folder; ids are `train/000000`: the split and the place in it."""

    structure: Structure
    roles: Roles
    splits: Mapping[str, Sequence[tuple[Shard, int]]]
    """split -> its shards, each with the number of its first episode"""
    ids: Sequence[str]
    orientation: Orientation
    skipped: Sequence[str] = ()
    """ids left out because their shard is missing (`missing="skip"`)"""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`dataset_info.json`."""
        return self.structure.info

    @cached_property
    def files(self) -> Sequence[Path]:
        """The two descriptions and every shard."""
        files = [self.structure.folder / name for name in (FEATURES, DATASET_INFO)]
        files += [shard.file for shard in self.structure.shards]
        return tuple(file for file in files if file.exists())

    @property
    def summary(self) -> str:
        """One line about what was left out; empty when nothing was."""
        if not self.skipped:
            return ""
        total = len(self.ids) + len(self.skipped)
        return f"skipped {len(self.skipped)} of {total} episodes whose shards are missing"

    def read(self, trajectory_id: str) -> Trajectory:
        """The trajectory: its record is found and checked, its pictures are not decoded."""
        shard, index = self._place(trajectory_id)
        with reading(shard.file, f"the RLDS episode {trajectory_id}"):
            return self._read(Episode(trajectory_id, shard.file, index, shard.length))

    def _read(self, episode: Episode) -> Trajectory:
        roles = self.roles
        length = episode.count(self.structure.steps)
        instructions = episode.instructions(roles.language, self.structure, length)
        attributes: dict[str, Any] = dict(episode.attributes(self.structure.episode))
        if roles.position:
            attributes["position"] = roles.position
        if len(instructions) > 1:
            attributes["instructions"] = instructions
        return Trajectory(
            id=episode.id,
            length=length,
            instruction=instructions[0] if instructions else "",
            cameras={n: episode.camera(f, length) for n, f in roles.cameras.items()},
            proprioception={
                n: episode.numbers([f], length, flat=False) for n, f in roles.proprioception.items()
            },
            actions=episode.numbers(roles.actions, length, flat=False),
            source=Source(episode.shard, str(episode.record)),
            fps=roles.fps,
            orientation=self.orientation,
            extras={n: episode.numbers([f], length) for n, f in roles.extras.items()},
            attributes=attributes,
        )

    def _place(self, trajectory_id: str) -> tuple[Shard, int]:
        split, _, digits = trajectory_id.rpartition("/")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 18
        if split not in self.splits or not is_number or trajectory_id in self._left_out:
            raise KeyError(trajectory_id)
        shards, number = self.splits[split], int(digits)
        at = bisect_right(shards, number, key=lambda shard: shard[1]) - 1
        shard, first = shards[at]
        if trajectory_id != f"{split}/{number:06d}" or number - first >= _length(shard):
            raise KeyError(trajectory_id)
        return shard, number - first

    @cached_property
    def _left_out(self) -> frozenset[str]:
        return frozenset(self.skipped)


def is_rlds(path: Path) -> bool:
    """Whether `path` is a TFDS version folder, its dataset's folder or the folder above."""
    return path.is_dir() and find_folder(path) is not None


def open_rlds(
    path: Path,
    *,
    orientation: Orientation | None = None,
    fields: Fields | None = None,
    missing: Literal["error", "skip"] = "error",
) -> tuple[str, RldsReader]:
    """The reader of a TFDS folder, and its format's name (`rlds`).

    Args:
        path: the version folder (with `features.json`), the dataset's folder, or the one above.
        orientation: how images lie on disk; RLDS's are upright.
        fields: which fields of a step to take for `camera`, `position`, `language`, `action`, by
            path under `steps/` (`observation/wrist_image`); a string or a list of them.
        missing: what to do about episodes whose shard is absent: an error when they are read, or
            leave them out (`reader.skipped` and `reader.summary` tell).
    """
    if missing not in ("error", "skip"):
        raise unknown("value of missing", missing, ("error", "skip"))
    folder = find_folder(path)
    if folder is None:
        raise StrapError(f"'{path}' holds no RLDS dataset: no {FEATURES} there or two levels below")
    with reading(folder, "RLDS"):
        return "rlds", _open(folder, orientation or "upright", fields, missing == "skip")


def _open(
    folder: Path, orientation: Orientation, fields: Fields | None, is_skipping: bool
) -> RldsReader:
    structure = load_structure(folder)
    roles = assign_roles(structure, fields)
    total = sum(_length(shard) for shard in structure.shards)
    require_at_most(total, MAX_TRAJECTORIES, "episodes", folder)
    ids: list[str] = []
    skipped: list[str] = []
    splits = _first_episodes(structure.shards)
    for split, shards in splits.items():
        for shard, first in shards:
            gone = is_skipping and not shard.file.exists()
            numbers = range(first, first + _length(shard))
            (skipped if gone else ids).extend(f"{split}/{i:06d}" for i in numbers)
    return RldsReader(structure, roles, splits, tuple(ids), orientation, tuple(skipped))


def _first_episodes(shards: Sequence[Shard]) -> dict[str, list[tuple[Shard, int]]]:
    """split -> its shards, each with the number of its first episode"""
    splits: dict[str, list[Shard]] = {}
    for shard in shards:
        splits.setdefault(shard.split, []).append(shard)
    return {
        split: list(zip(own, accumulate(map(_length, own), initial=0), strict=False))
        for split, own in splits.items()
    }


def _length(shard: Shard) -> int:
    return len(record_index(shard.file)) if shard.length is None else shard.length
