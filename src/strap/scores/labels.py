"""Skill labels: what the robot was doing in every frame, and with which object.

Scripted demonstrations carry them (in HDF5 as `skills/skill` and `skills/object` beside the
observations, in LeRobot as `meta/skills.parquet`), training ignores them, and they let a retrieval
be scored without a single rollout.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.errors import StrapError
from strap.tables import Kind, read_rows

Label = tuple[str, str]
"""(skill, kind of object)"""
Labels = Mapping[str, Sequence[Label]]
"""trajectory id -> one label per frame"""

FILE = "meta/skills.parquet"
COLUMNS: Mapping[str, Kind] = {
    "episode": "string",
    "frame": "int64",
    "skill": "string",
    "object": "string",
}


def read_labels(dataset: Dataset) -> Labels:
    """Return the labels of every trajectory of a dataset; of a view, of those it shows."""
    file = dataset.path / FILE
    stored = _read_parquet(file) if file.is_file() else None
    return {
        key: _read_extras(dataset, key) if stored is None else _labels_of(stored, key, file)
        for key in dataset.ids
    }


def write_labels(path: Path, labels: Labels) -> None:
    """Write `meta/skills.parquet` into a LeRobot dataset's folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(key, i, *label) for key in labels for i, label in enumerate(labels[key])]
    table = pa.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))
    with replacing(path / FILE) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def object_kind(name: str) -> str:
    """Return `akita_black_bowl` for `akita_black_bowl_2`: which of several does not matter."""
    return re.sub(r"_\d+$", "", name)


def _read_extras(dataset: Dataset, key: str) -> list[Label]:
    extras = dataset[key].extras
    if "skills/skill" not in extras or "skills/object" not in extras:
        raise StrapError(
            f"trajectory '{key}' of '{dataset.path}' has no skill labels, by which a retrieval is "
            f"scored: they lie in 'skills/skill' and 'skills/object' beside the observations, in "
            f"LeRobot datasets in '{FILE}'; `strap libero collect` records them"
        )
    skills, objects = (extras[f"skills/{name}"][:] for name in ("skill", "object"))
    return [(_text(s), object_kind(_text(o))) for s, o in zip(skills, objects, strict=True)]


def _read_parquet(file: Path) -> dict[str, list[Label]]:
    labels: dict[str, list[Label]] = {}
    for row in read_rows(file, COLUMNS, "skill labels"):
        frame_labels = labels.setdefault(row["episode"], [])
        if row["frame"] != len(frame_labels):
            raise StrapError(
                f"'{file}', '{row['episode']}': frame {row['frame']} follows "
                f"{len(frame_labels)} others; the frames of an episode must count up from 0"
            )
        frame_labels.append((row["skill"] or "", row["object"] or ""))
    return labels


def _labels_of(stored: Labels, key: str, file: Path) -> Sequence[Label]:
    if key not in stored:
        raise StrapError(f"'{file}' has no skill labels of trajectory '{key}': add them")
    return stored[key]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
