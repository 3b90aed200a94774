"""Skill labels: the skill and the object of every frame.

Scripted demonstrations have skill labels: in HDF5 as `skills/skill` and `skills/object` beside the
observations, in LeRobot as `meta/skills.parquet`. With them a retrieval can be scored without
rollouts. Training ignores them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.tables import Kind, read_rows
from strap.types import Trajectory

Label = tuple[str, str]
"""(skill, object)"""
Labels = Mapping[str, Sequence[Label]]
"""trajectory id -> one label per frame"""

FILE = "meta/skills.parquet"
COLUMNS: Mapping[str, Kind] = {
    "episode": "string",
    "frame": "int64",
    "skill": "string",
    "object": "string",
}
SKILL, OBJECT = "skills/skill", "skills/object"  # the names in HDF5


def read_labels(dataset: Dataset) -> Labels:
    """Return the labels of every trajectory of a dataset or of a selection."""
    labels = {trajectory.id: labels_of(trajectory) for trajectory in with_labels(dataset)}
    for key, found in labels.items():
        if not found:
            raise StrapError(
                f"trajectory '{key}' of '{dataset.path}' has no skill labels, which are needed to "
                f"score a retrieval: HDF5 files have them as '{SKILL}' and '{OBJECT}' of each "
                f"demonstration, LeRobot datasets in '{FILE}'; `strap libero collect` records them"
            )
    return labels


def with_labels(dataset: Dataset) -> Iterator[Trajectory]:
    """Yield a dataset's trajectories; labels, if any, are in `extras` under their HDF5 names."""
    file = dataset.path / FILE
    stored = _read_parquet(file) if file.is_file() else {}
    for trajectory in dataset:
        labels = stored.get(trajectory.id)
        yield trajectory if labels is None else _add_labels(trajectory, labels)


def labels_of(trajectory: Trajectory) -> list[Label]:
    """Return the label of every frame from `extras`; an empty list if there are no labels."""
    if not trajectory.extras.keys() >= {SKILL, OBJECT}:
        return []
    skills, objects = (trajectory.extras[name][:] for name in (SKILL, OBJECT))
    return [(_text(s), object_kind(_text(o))) for s, o in zip(skills, objects, strict=True)]


def write_labels(path: Path, labels: Labels) -> None:
    """Write `meta/skills.parquet` into a LeRobot dataset's folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(key, i, *label) for key in labels for i, label in enumerate(labels[key])]
    table = pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    with replacing(path / FILE) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def object_kind(name: str) -> str:
    """Return an object's name without its number: `akita_black_bowl_2` is `akita_black_bowl`."""
    return re.sub(r"_\d+$", "", name)


def _add_labels(trajectory: Trajectory, labels: Sequence[Label]) -> Trajectory:
    """Return the trajectory with labels in `extras`; labels that it already has are kept."""
    import h5py

    if len(labels) != trajectory.length:
        raise StrapError(
            f"trajectory '{trajectory.id}' of '{trajectory.source.path}' has {trajectory.length} "
            f"frames but skill labels for {len(labels)}: correct '{FILE}', or remove it"
        )

    text = h5py.string_dtype()
    columns = zip((SKILL, OBJECT), zip(*labels, strict=True), strict=True)
    extras = {name: lazy(np.array(column, text)) for name, column in columns}
    return replace(trajectory, extras={**extras, **trajectory.extras})


def _read_parquet(file: Path) -> dict[str, list[Label]]:
    labels: dict[str, list[Label]] = {}
    for row in read_rows(file, COLUMNS, "skill labels"):
        frame_labels = labels.setdefault(row["episode"], [])
        if row["frame"] != len(frame_labels):
            raise StrapError(
                f"'{file}', '{row['episode']}': expected frame {len(frame_labels)}, found frame "
                f"{row['frame']}; the frames of an episode must be 0, 1, 2, …: correct the file"
            )
        frame_labels.append((row["skill"] or "", row["object"] or ""))
    return labels


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
