"""Select trajectories of a dataset by task or by position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strap.datasets.base import Dataset
from strap.errors import StrapError, unknown
from strap.types import Array


@dataclass(frozen=True)
class Selection:
    """A choice of trajectories of a dataset; by default all of them."""

    tasks: tuple[str, ...] = ()
    """instructions; a text that equals no instruction selects all that contain it"""
    episodes: str = ""
    """positions among the trajectories selected by `tasks`, as Python slices: `0:10,17`"""

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the dataset with only the selected trajectories, in their order."""
        if not self.tasks and not self.episodes:
            return dataset
        ids = _find_by_task(dataset, self.tasks) if self.tasks else list(dataset.ids)
        if self.episodes:
            ids = [ids[i] for i in _parse_positions(self.episodes, len(ids), dataset)]
        return dataset.select(ids)


def space_evenly(length: int, count: int) -> Array:
    """Return up to `count` numbers from 0 to length − 1, evenly spaced, both ends included."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))


def _find_by_task(dataset: Dataset, tasks: Sequence[str]) -> list[str]:
    """Return the ids of the trajectories with one of these tasks."""
    instructions = {trajectory.id: trajectory.instruction for trajectory in dataset}
    known = list(dict.fromkeys(instructions.values()))
    wanted: set[str] = set()
    for task in tasks:
        similar = [text for text in known if task.lower() in text.lower()]
        found = [task] if task in known else similar
        if not found:
            raise StrapError(f"'{dataset.path}': {unknown('task', task, known)}")
        wanted |= set(found)
    return [key for key, text in instructions.items() if text in wanted]


def _parse_positions(text: str, count: int, dataset: Dataset) -> list[int]:
    """Return the positions below `count` that a text such as `0:10,17` selects, sorted."""
    positions: set[int] = set()
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) > 2 or not all(re.fullmatch(r"(-?[0-9]{1,9})?", n) for n in numbers):
            raise StrapError(
                f"episodes '{text}': '{part}' is not a number or a range; write 3, 0:10 or 0:10,17"
            )
        if len(numbers) == 1:
            if not numbers[0] or not -count <= int(numbers[0]) < count:
                raise StrapError(
                    f"episodes '{text}': '{part}' is not among the {count} trajectories of "
                    f"'{dataset.path}' to choose from, which are counted from 0"
                )
            positions.add(int(numbers[0]) % count)
        else:
            start, stop = (int(n) if n else None for n in numbers)
            positions |= set(range(count)[start:stop])
    if not positions:
        raise StrapError(
            f"episodes '{text}' of '{dataset.path}': none of the {count} trajectories is chosen"
        )
    return sorted(positions)
