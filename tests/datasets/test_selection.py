"""Choosing trajectories of a dataset by task and by place."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from strap.datasets import Dataset, open_dataset
from strap.datasets.selection import Selection
from strap.errors import StrapError

TASKS = ("open the drawer", "open the top drawer", "close the door")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Six demonstrations, of the three tasks in turn."""
    file = tmp_path / "six.hdf5"
    with h5py.File(file, "w") as handle:
        for index in range(6):
            demo = handle.create_group(f"data/demo_{index}")
            demo["actions"] = np.full((4, 7), index, np.float64)
            demo["obs/agentview_rgb"] = np.zeros((4, 8, 8, 3), np.uint8)
            demo.attrs["lang"] = TASKS[index % 3]
    return open_dataset(file)


def chosen(dataset: Dataset, *tasks: str, episodes: str = "") -> list[int]:
    view = Selection(tasks, episodes).apply(dataset)
    assert [t.id for t in view] == list(view.ids)
    assert len(view) == len(view.ids)
    return [int(view[key].actions[0][0]) for key in view.ids]


def test_everything_is_chosen_by_default(dataset: Dataset) -> None:
    assert Selection().apply(dataset) is dataset


def test_a_task_is_its_whole_instruction_before_a_part_of_others(dataset: Dataset) -> None:
    assert chosen(dataset, "open the drawer") == [0, 3]
    assert chosen(dataset, "OPEN") == [0, 1, 3, 4]
    assert chosen(dataset, "top", "door") == [1, 2, 4, 5]


def test_places_count_among_what_the_tasks_leave(dataset: Dataset) -> None:
    assert chosen(dataset, episodes="0:2,4") == [0, 1, 4]
    assert chosen(dataset, episodes="-1") == [5]
    assert chosen(dataset, episodes="3,1,1:3") == [1, 2, 3]
    assert chosen(dataset, "close", episodes="1:") == [5]


def test_a_view_hides_the_others_and_keeps_the_dataset(dataset: Dataset) -> None:
    view = Selection(episodes="1:3").apply(dataset)
    assert (view.name, view.fingerprint()) == (dataset.name, dataset.fingerprint())
    with pytest.raises(StrapError, match="unknown trajectory 'demo_0'"):
        view["demo_0"]


@pytest.mark.parametrize(
    ("tasks", "episodes", "message"),
    [
        (
            ("close the drawer",),
            "",
            "unknown task 'close the drawer': did you mean 'open the drawer'",
        ),
        ((), "7", "'7' is not among the 6 trajectories"),
        ((), "6:9", "none of the 6 trajectories is chosen"),
        ((), "0:6:2", "'0:6:2' is not a number or a range; write 3, 0:10"),
        ((), "a", "'a' is not a number or a range"),
        ((), "1,,2", "'' is not among"),
        (("close",), "2", "'2' is not among the 2 trajectories"),
    ],
)
def test_what_is_not_there_is_told(
    dataset: Dataset, tasks: tuple[str, ...], episodes: str, message: str
) -> None:
    with pytest.raises(StrapError, match=message):
        Selection(tasks, episodes).apply(dataset)
