"""Skill labels: what the robot was doing in every frame, and with which object.

Scripted demonstrations carry them (in HDF5 as `skills/skill` and `skills/object` beside the
observations, in LeRobot as `meta/skills.parquet`), training ignores them, and they let a retrieval
be scored without a single rollout: of the retrieved frames, how many do what the query does?
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.errors import StrapError
from strap.types import Match, Segment

Label = tuple[str, str]
"""(skill, kind of object)"""
Labels = Mapping[str, Sequence[Label]]
"""trajectory id -> one label per frame"""

FILE = "meta/skills.parquet"


@dataclass(frozen=True)
class Precision:
    """How often retrieved frames do what their query does."""

    retrieved: float
    """share of the retrieved frames whose skill and object occur in their query"""
    random: float
    """the same for segments of the same lengths drawn at random from the prior"""

    @property
    def lift(self) -> float:
        """How many times better than random."""
        return self.retrieved / self.random if self.random else float("inf")


def read_labels(dataset: Dataset) -> Labels:
    """The labels of every trajectory of a dataset."""
    if (dataset.path / FILE).is_file():
        return _read_parquet(dataset.path / FILE)
    labels: dict[str, list[Label]] = {}
    for trajectory in dataset:
        if "skills/skill" not in trajectory.extras:
            raise StrapError(
                f"trajectory '{trajectory.id}' of '{dataset.path}' has no skill labels; collect "
                "demonstrations with `strap libero collect` to have them"
            )
        skills, objects = (trajectory.extras[f"skills/{n}"][:] for n in ("skill", "object"))
        labels[trajectory.id] = [
            (_text(s), kind(_text(o))) for s, o in zip(skills, objects, strict=True)
        ]
    return labels


def write_labels(path: Path, labels: Labels) -> None:
    """Write `meta/skills.parquet` into a LeRobot dataset's folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [(key, i, *label) for key, own in labels.items() for i, label in enumerate(own)]
    names = ("episode", "frame", "skill", "object")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    with replacing(path / FILE) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _read_parquet(file: Path) -> Labels:
    import pyarrow.parquet as pq

    columns = pq.read_table(file).to_pydict()
    labels: dict[str, list[Label]] = {}
    for key, skill, thing in zip(
        columns["episode"], columns["skill"], columns["object"], strict=True
    ):
        labels.setdefault(key, []).append((skill, thing))
    return labels


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def kind(thing: str) -> str:
    """`akita_black_bowl_2` -> `akita_black_bowl`: which one of several does not matter."""
    return re.sub(r"_\d+$", "", thing)


def precision(
    matches: Sequence[Match], target: Labels, prior: Mapping[str, Labels], *, seed: int = 0
) -> Precision:
    """Share of retrieved frames whose (skill, object) occurs in their query, beside random's.

    Args:
        matches: what was retrieved.
        target: labels of the target dataset.
        prior: dataset's name -> its labels.
        seed: of the random segments.
    """
    rng = np.random.default_rng(seed)
    pool = [(name, key) for name, labels in prior.items() for key in labels]
    hits: Counter[str] = Counter()
    for match in matches:
        wanted = set(_cut(target, match.query))
        found = _cut(prior[match.dataset], match.segment)
        hits["retrieved"] += sum(label in wanted for label in found)
        hits["frames"] += len(found)
        for _ in range(20):  # random segments are cheap, and one each would be noisy
            name, key = pool[rng.integers(len(pool))]
            own = prior[name][key]
            length = min(len(match.segment), len(own))
            start = int(rng.integers(len(own) - length + 1))
            drawn = own[start : start + length]
            hits["random"] += sum(label in wanted for label in drawn)
            hits["random frames"] += length
    if not hits["frames"]:
        raise StrapError("there is no match to score")
    return Precision(hits["retrieved"] / hits["frames"], hits["random"] / hits["random frames"])


def _cut(labels: Labels, segment: Segment) -> Sequence[Label]:
    if segment.trajectory_id not in labels:
        raise StrapError(f"trajectory '{segment.trajectory_id}' has no skill labels")
    return labels[segment.trajectory_id][segment.start : segment.stop]
