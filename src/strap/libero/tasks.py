"""List the benchmark's suites and tasks: names, instructions, goals, fixed initial states."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.errors import StrapError, unknown
from strap.libero.distribution import import_libero


@dataclass(frozen=True)
class Goal:
    """One predicate of a task's goal, e.g. `in alphabet_soup_1 basket_1_contain_region`."""

    predicate: str  # in, on, open, close, turnon, turnoff
    subject: str
    target: str | None = None

    def as_list(self) -> list[str]:
        """Return the form in which LIBERO evaluates the predicate."""
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
        """LIBERO's name for the file of this task's demonstrations."""
        return f"{self.bddl.stem}_demo.hdf5"


def list_suites() -> tuple[str, ...]:
    """Return the names of all suites in the installed distribution."""
    return tuple(import_libero("libero.libero.benchmark").get_benchmark_dict())


@cache
def list_tasks(suite: str) -> tuple[Task, ...]:
    """Return all tasks of a suite, in the benchmark's order."""
    parser = import_libero("libero.libero.envs.bddl_utils")
    folder = Path(import_libero().get_libero_path("bddl_files"))
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
    """Return a task by its index, name or instruction, or by a unique part of its name."""
    tasks = list_tasks(suite)
    if isinstance(task, int) or task.isdigit():
        index = int(task)
        if not 0 <= index < len(tasks):
            raise StrapError(f"{suite} has tasks 0 to {len(tasks) - 1}, not {index}")
        return tasks[index]
    exact = [entry for entry in tasks if task in (entry.name, entry.instruction)]
    partial = exact or [entry for entry in tasks if task.replace(" ", "_") in entry.name]
    if len(partial) > 1:
        names = ", ".join(entry.name for entry in partial[:4])
        raise StrapError(
            f"'{task}' matches {len(partial)} tasks of {suite} ({names}, ...): give more of the "
            "name or the index"
        )
    if not partial:
        raise unknown(f"task of {suite}", task, [entry.name for entry in tasks])
    return partial[0]


def select_tasks(suite: str, names: Iterable[str | int] | None) -> tuple[Task, ...]:
    """Return the named tasks of a suite; all tasks if `names` is None."""
    if names is None:
        return list_tasks(suite)
    return tuple(dict.fromkeys(find_task(suite, name) for name in names))


def load_fixed_states(task: Task) -> NDArray[np.float64]:
    """Return the benchmark's fixed initial states [50, state] of a task, for evaluation only."""
    states = _benchmark(task.suite).get_task_init_states(task.index)
    return np.asarray(states, dtype=np.float64)


@cache
def _benchmark(suite: str) -> Any:
    """Return the distribution's object for a suite."""
    known = import_libero("libero.libero.benchmark").get_benchmark_dict()
    if suite not in known:
        raise unknown("LIBERO suite", suite, ["libero_90", "libero_10", *sorted(known)])
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the order of its tasks
        return known[suite](task_order_index=0)
