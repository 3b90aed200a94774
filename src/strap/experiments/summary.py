"""Compute the numbers of a table: successes by task and column, means, paired comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from strap.evaluation.statistics import Comparison, mcnemar, sign_flips, wilson
from strap.experiments.cellfolders import CellResult
from strap.experiments.cells import Cell, Column
from strap.experiments.description import Experiment

Start = tuple[str, str, int, int]
"""task, demonstrations, seed, initial state"""
MIN_TASKS = 6
"""smallest number of tasks with which the sign-flip test can give p < 0.05"""


@dataclass(frozen=True)
class SuccessCount:
    """The successes of one task and column, with all repetitions pooled."""

    successes: int
    trials: int
    finished: int
    """number of finished cells"""
    expected: int
    """number of cells in the experiment"""

    @property
    def rate(self) -> float | None:
        """The success rate; None without rollouts."""
        return self.successes / self.trials if self.trials else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson(self.successes, self.trials)


@dataclass(frozen=True)
class Paired:
    """A paired comparison of two columns on the rollouts that both have."""

    column: Column
    reference: Column
    comparison: Comparison
    by_task: dict[str, Comparison]

    @property
    def pairs(self) -> int:
        """The number of pairs of rollouts with the same task, state, seed and demonstrations."""
        return count_pairs(self.comparison)

    @property
    def difference(self) -> float:
        """The column's success rate minus the reference's."""
        return float(rate_difference(self.comparison))

    @property
    def p_over_tasks(self) -> float | None:
        """The p-value of the sign-flip test over tasks; None for fewer than six tasks."""
        if len(self.by_task) < MIN_TASKS:
            return None
        return sign_flips([rate_difference(comparison) for comparison in self.by_task.values()])

    @property
    def worst_task(self) -> tuple[str, float] | None:
        """The task with the smallest difference from the reference, and this difference."""
        found = {task: float(rate_difference(counts)) for task, counts in self.by_task.items()}
        return min(found.items(), key=lambda item: item[1]) if found else None


@dataclass(frozen=True, eq=False)
class Summary:
    """The data of all tables and figures."""

    experiment: Experiment
    cells: Sequence[Cell]
    results: Sequence[CellResult]

    @cached_property
    def tasks(self) -> list[str]:
        """The short names of the tasks, in the order of the experiment."""
        chosen = {cell.task for cell in self.cells}
        return [task for task in self.experiment.tasks if task in chosen]

    @cached_property
    def columns(self) -> list[Column]:
        """The columns (method, K and encoder), in the order of the experiment."""
        names = [method.name for method in self.experiment.methods]
        found = dict.fromkeys(cell.column for cell in self.cells)
        return sorted(found, key=lambda column: names.index(column.method))

    @cached_property
    def started_columns(self) -> list[Column]:
        """The columns with at least one finished cell."""
        there = {result.cell.column for result in self.results}
        return [column for column in self.columns if column in there]

    def label(self, column: Column) -> str:
        """Return a column's title, with K and encoder only if the method has several."""
        siblings = [other for other in self.columns if other.method == column.method]
        parts = [column.method]
        if len({other.top_k for other in siblings}) > 1:
            parts.append(f"K={column.top_k}")
        if len({other.encoder for other in siblings}) > 1:
            parts.append(str(column.encoder))
        return " ".join(parts)

    @property
    def missing(self) -> list[Cell]:
        """The unfinished cells."""
        there = {result.cell.name for result in self.results}
        return [cell for cell in self.cells if cell.name not in there]

    def of(self, column: Column, task: str | None = None) -> list[CellResult]:
        """Return a column's finished cells, of one task or of all."""
        return [
            result
            for result in self.results
            if result.cell.column == column and task in (None, result.cell.task)
        ]

    def count(self, column: Column, task: str | None = None) -> SuccessCount:
        """Return the successes of a column, of one task or of all together."""
        found = self.of(column, task)
        expected = [c for c in self.cells if c.column == column and task in (None, c.task)]
        return SuccessCount(
            successes=sum(sum(result.successes.values()) for result in found),
            trials=sum(len(result.successes) for result in found),
            finished=len(found),
            expected=len(expected),
        )

    def mean(self, column: Column) -> float | None:
        """Return the mean of the tasks' rates; None if a task is missing.

        Tasks differ in difficulty, so means over different tasks cannot be compared.
        """
        rates = [self.count(column, task).rate for task in self.tasks]
        known = [rate for rate in rates if rate is not None]
        return sum(known) / len(known) if len(known) == len(rates) else None

    def outcomes(self, column: Column, task: str | None = None) -> dict[Start, bool]:
        """Return the outcome of each rollout by its start."""
        return {
            (result.cell.task, *result.cell.repetition, state): success
            for result in self.of(column, task)
            for state, success in result.successes.items()
        }

    @cached_property
    def references(self) -> list[Column]:
        """The columns to compare all others with: the first column of each method in `compare`."""
        found = []
        for name in self.experiment.compare:
            found += [column for column in self.columns if column.method == name][:1]
        return found

    def compare(self, column: Column, reference: Column) -> Paired:
        """Compare two columns rollout by rollout."""
        by_task = {
            task: mcnemar(self.outcomes(column, task), self.outcomes(reference, task))
            for task in self.tasks
        }
        return Paired(
            column,
            reference,
            mcnemar(self.outcomes(column), self.outcomes(reference)),
            {task: comparison for task, comparison in by_task.items() if count_pairs(comparison)},
        )

    def comparisons(self) -> list[Paired]:
        """Return all comparisons of a column with a reference with shared rollouts, each once."""
        found = [
            self.compare(column, reference)
            for place, reference in enumerate(self.references)
            for column in self.columns
            if column not in self.references[: place + 1]
        ]
        return [paired for paired in found if paired.pairs]


def count_pairs(comparison: Comparison) -> int:
    """Return the number of pairs in a comparison."""
    return comparison.both + comparison.first_only + comparison.second_only + comparison.neither


def rate_difference(comparison: Comparison) -> Fraction:
    """Return the first success rate minus the second."""
    return Fraction(comparison.first_only - comparison.second_only, count_pairs(comparison))
