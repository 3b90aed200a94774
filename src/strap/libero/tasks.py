"""The benchmark's suites and tasks: names, instructions, goals and fixed initial states."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.errors import StrapError, unknown
from strap.libero.rendering.backend import import_libero


@dataclass(frozen=True)
class Goal:
    """One predicate of a task's goal, e.g. `in alphabet_soup_1 basket_1_contain_region`."""

    predicate: str  # in, on, open, close, turnon, turnoff
    subject: str
    target: str | None = None

    def as_list(self) -> list[str]:
        """The form in which LIBERO evaluates it."""
        return [self.predicate, self.subject, *([self.target] if self.target else [])]


@dataclass(frozen=True)
class Task:
    """One task of one suite."""

    suite: str
    index: int
    name: str
    instruction: str
    bddl: Path
    goals: tuple[Goal, ...]

    @property
    def file_name(self) -> str:
        """The name LIBERO gives to the file of this task's demonstrations."""
        return f"{self.bddl.stem}_demo.hdf5"


def list_suites() -> tuple[str, ...]:
    """Names of all suites the installed distribution knows."""
    return tuple(import_libero("libero.libero.benchmark").get_benchmark_dict())


@cache
def list_tasks(suite: str) -> tuple[Task, ...]:
    """All tasks of a suite, in the benchmark's order."""
    libero = import_libero()
    parser = import_libero("libero.libero.envs.bddl_utils")
    folder = Path(libero.get_libero_path("bddl_files"))
    tasks = []
    for index, entry in enumerate(_benchmark(suite).tasks):
        bddl = (folder / entry.problem_folder / entry.bddl_file).resolve()
        problem = parser.robosuite_parse_problem(str(bddl))
        goals = tuple(
            Goal(str(state[0]).lower(), *(str(word) for word in state[1:]))
            for state in problem["goal_state"]
        )
        tasks.append(Task(suite, index, entry.name, str(entry.language), bddl, goals))
    return tuple(tasks)


def find_task(suite: str, task: str | int) -> Task:
    """A task by its index, its name or a part of the name that only one task has."""
    tasks = list_tasks(suite)
    if isinstance(task, int) or task.isdigit():
        index = int(task)
        if not 0 <= index < len(tasks):
            raise StrapError(f"{suite} has tasks 0 to {len(tasks) - 1}, not {index}")
        return tasks[index]
    exact = [entry for entry in tasks if entry.name == task]
    partial = exact or [entry for entry in tasks if task.replace(" ", "_") in entry.name]
    if len(partial) > 1:
        names = ", ".join(entry.name for entry in partial[:4])
        raise StrapError(
            f"'{task}' fits {len(partial)} tasks of {suite} ({names}, ...): "
            "give more of the name or the index"
        )
    if not partial:
        raise unknown(f"task of {suite}", task, [entry.name for entry in tasks])
    return partial[0]


def fixed_states(task: Task) -> NDArray[np.float64]:
    """The benchmark's fixed initial states of a task [50 state]: for evaluation only."""
    benchmark = _benchmark(task.suite)
    try:
        states = benchmark.get_task_init_states(task.index)
    except Exception:
        # The original calls torch.load as it was before weights_only became the default.
        import torch

        folder = Path(import_libero().get_libero_path("init_states"))
        entry = benchmark.tasks[task.index]
        file = folder / entry.problem_folder / entry.init_states_file
        states = torch.load(file, weights_only=False)
    return np.asarray(states, dtype=np.float64)


@cache
def _benchmark(suite: str) -> Any:
    known = import_libero("libero.libero.benchmark").get_benchmark_dict()
    if suite not in known:
        raise unknown("LIBERO suite", suite, ["libero_90", "libero_10", *sorted(known)])
    with contextlib.redirect_stdout(io.StringIO()):  # it announces its task order
        return known[suite](task_order_index=0)
