"""Read RLDS datasets (TFDS records of Open X-Embodiment, DROID, Bridge) without TensorFlow."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, SupportsIndex, overload

from strap.datasets.rlds.description import DATASET_INFO, FEATURES
from strap.datasets.rlds.episodes import EpisodeRecord
from strap.datasets.rlds.fields import Fields, Roles, assign_roles
from strap.datasets.rlds.records import record_index
from strap.datasets.rlds.shards import RecordShard
from strap.datasets.rlds.structure import Structure, find_folder, load_structure
from strap.datasets.untrusted import MAX_TRAJECTORIES, explain_read_errors, require_at_most
from strap.errors import StrapError
from strap.types import Orientation, Source, Trajectory


@dataclass(frozen=True)
class EpisodeIds(Sequence[str]):
    """The ids `train/000000` … of the episodes of some shards, each created on access."""

    shards: Sequence[tuple[RecordShard, int]]
    """(shard, number of its first episode within its split)"""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[str]: ...
    def __getitem__(self, key: SupportsIndex | slice) -> str | Sequence[str]:
        if isinstance(key, slice):
            return [self[i] for i in range(len(self))[key]]
        index = range(len(self))[key]
        at = bisect_right(self._ends, index)
        shard, first = self.shards[at]
        return f"{shard.split}/{first + index - (self._ends[at] - _length(shard)):06d}"

    def __contains__(self, trajectory_id: object) -> bool:
        return isinstance(trajectory_id, str) and self.locate(trajectory_id) is not None

    def locate(self, trajectory_id: str) -> tuple[RecordShard, int] | None:
        """Return an episode's shard and its index in the shard; None for an unknown id."""
        split, _, digits = trajectory_id.rpartition("/")
        shards = self._by_split.get(split)
        if not shards or not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            return None
        number = int(digits)
        at = bisect_right(shards, number, key=lambda shard: shard[1]) - 1
        if at < 0 or trajectory_id != f"{split}/{number:06d}":
            return None
        shard, first = shards[at]
        return (shard, number - first) if number - first < _length(shard) else None

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(_length(shard) for shard, _ in self.shards))

    @cached_property
    def _by_split(self) -> Mapping[str, Sequence[tuple[RecordShard, int]]]:
        splits: dict[str, list[tuple[RecordShard, int]]] = {}
        for shard, first in self.shards:
            splits.setdefault(shard.split, []).append((shard, first))
        return splits


@dataclass(frozen=True)
class RldsReader:
    """The reader of a TFDS folder; ids are `train/000000`: the split and the index in it."""

    structure: Structure
    roles: Roles
    ids: EpisodeIds
    orientation: Orientation
    skipped: EpisodeIds
    """ids left out because their shard is missing (`missing="skip"`)"""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The content of `dataset_info.json`."""
        return self.structure.info

    @cached_property
    def files(self) -> Sequence[Path]:
        """The two JSON files and all shards."""
        files = [self.structure.folder / name for name in (FEATURES, DATASET_INFO)]
        files += [shard.file for shard in self.structure.shards]
        return tuple(file for file in files if file.exists())

    @property
    def summary(self) -> str:
        """One line about skipped episodes; empty if there are none."""
        if not self.skipped:
            return ""
        total = len(self.ids) + len(self.skipped)
        return f"skipped {len(self.skipped)} of {total} episodes whose shards are missing"

    @property
    def missing(self) -> Mapping[str, Sequence[str]]:
        """The missing files: `shard` -> ids of the trajectories whose shard is missing."""
        with explain_read_errors(self.structure.folder, "RLDS"):
            shards = [pair for pair in self.ids.shards if not pair[0].file.exists()]
            return {"shard": list(EpisodeIds(shards))}

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory; its record is read and checked, its images are not decoded."""
        place = self.ids.locate(trajectory_id)
        if place is None:
            raise KeyError(trajectory_id)
        shard, index = place
        with explain_read_errors(shard.file, f"the RLDS episode {trajectory_id}"):
            return self._read(EpisodeRecord(trajectory_id, shard.file, index, shard.length))

    def _read(self, episode: EpisodeRecord) -> Trajectory:
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


def is_rlds(path: Path) -> bool:
    """Return whether `path` is a TFDS version folder, a dataset's folder or its parent folder."""
    return path.is_dir() and find_folder(path) is not None


def open_rlds(
    path: Path,
    *,
    orientation: Orientation | None = None,
    fields: Fields | None = None,
    missing: Literal["error", "skip"] = "error",
) -> tuple[str, RldsReader]:
    """Return the format's name (`rlds`) and the reader of a TFDS folder.

    Args:
        path: the version folder (with `features.json`), the dataset's folder, or its parent.
        orientation: how images are stored; by default upright.
        fields: the fields of a step for `camera`, `position`, `language`, `action`, by path under
            `steps/` (`observation/wrist_image`): a string or a list of strings for each.
        missing: how to treat episodes whose shard is missing: raise an error when they are read,
            or skip them (then listed in `reader.skipped` and `reader.summary`).
    """

    folder = find_folder(path)
    if folder is None:
        raise StrapError(
            f"'{path}' holds no RLDS dataset: no {FEATURES} in it or up to two levels below"
        )
    with explain_read_errors(folder, "RLDS"):
        return "rlds", _open(folder, orientation or "upright", fields, missing == "skip")


def _open(
    folder: Path, orientation: Orientation, fields: Fields | None, is_skipping: bool
) -> RldsReader:
    structure = load_structure(folder)
    roles = assign_roles(structure, fields)
    total = sum(_length(shard) for shard in structure.shards)
    require_at_most(total, MAX_TRAJECTORIES, "episodes", folder)
    shards = _number_episodes(structure.shards)
    skipped = [pair for pair in shards if is_skipping and not pair[0].file.exists()]
    missing = {shard.file for shard, _ in skipped}
    kept = [pair for pair in shards if pair[0].file not in missing]
    return RldsReader(structure, roles, EpisodeIds(kept), orientation, EpisodeIds(skipped))


def _number_episodes(shards: Sequence[RecordShard]) -> list[tuple[RecordShard, int]]:
    """Return each shard with the number of its first episode, split by split."""
    splits: dict[str, list[RecordShard]] = {}
    for shard in shards:
        splits.setdefault(shard.split, []).append(shard)
    found: list[tuple[RecordShard, int]] = []
    for split_shards in splits.values():
        found += zip(split_shards, accumulate(map(_length, split_shards), initial=0), strict=False)
    return found


def _length(shard: RecordShard) -> int:
    return len(record_index(shard.file)) if shard.length is None else shard.length
