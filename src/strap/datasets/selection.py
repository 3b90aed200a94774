"""Which trajectories of a dataset are used: by task, by place, evenly spaced."""

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
    """Trajectories of a dataset; by default all of them."""

    tasks: tuple[str, ...] = ()
    """instructions: exact ones, or where none is equal all that contain the text"""
    episodes: str = ""
    """places among the trajectories that `tasks` leaves, as Python counts them: `0:10,17`"""

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the dataset with the selected trajectories alone, in their order."""
        if not self.tasks and not self.episodes:
            return dataset
        ids = _of_tasks(dataset, self.tasks) if self.tasks else list(dataset.ids)
        if self.episodes:
            ids = [ids[place] for place in _places(self.episodes, len(ids), dataset)]
        return dataset.select(ids)


def space_evenly(length: int, count: int) -> Array:
    """Return up to `count` numbers from 0 to length − 1, evenly spaced, both ends included."""
    return np.unique(np.linspace(0, length - 1, min(count, length)).round().astype(int))


def _of_tasks(dataset: Dataset, tasks: Sequence[str]) -> list[str]:
    instructions = {trajectory.id: trajectory.instruction for trajectory in dataset}
    there = list(dict.fromkeys(instructions.values()))
    wanted: set[str] = set()
    for task in tasks:
        equal = [text for text in there if text == task]
        found = equal or [text for text in there if task.lower() in text.lower()]
        if not found:
            raise StrapError(f"'{dataset.path}': {unknown('task', task, there)}")
        wanted |= set(found)
    return [key for key, text in instructions.items() if text in wanted]


def _places(text: str, count: int, dataset: Dataset) -> list[int]:
    """Return the places that `0:10,17` names of `count`, in their order, each once."""
    places: set[int] = set()
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) > 2 or not all(re.fullmatch(r"(-?[0-9]{1,9})?", n) for n in numbers):
            raise StrapError(f"episodes '{text}': '{part}' is no place; write 3, 0:10 or 0:10,17")
        if len(numbers) == 1:
            if not numbers[0] or not -count <= int(numbers[0]) < count:
                raise StrapError(
                    f"episodes '{text}': '{part}' is not among the {count} trajectories of "
                    f"'{dataset.path}' that are chosen from, counted from 0"
                )
            places.add(int(numbers[0]) % count)
        else:
            start, stop = (int(n) if n else None for n in numbers)
            places |= set(range(count)[start:stop])
    if not places:
        raise StrapError(
            f"episodes '{text}' of '{dataset.path}': none of the {count} trajectories is chosen"
        )
    return sorted(places)
