"""Correlate the scores of retrieved data with the gains of the policies trained on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean

from strap.errors import StrapError
from strap.experiments.cellfolders import CellResult
from strap.experiments.cells import Column
from strap.experiments.summary import Summary
from strap.scores import rank_correlation
from strap.scores.score_files import ScoreRecord
from strap.scores.score_tables import format_table

SCORES: Mapping[str, Callable[[ScoreRecord], float]] = {
    "precision": lambda record: record.precision.value,
    "precision / best": lambda record: record.share_of_best,
    "recall": lambda record: record.recall.value,
    "border error": lambda record: record.border_error.value,
    "effective tasks": lambda record: record.effective_tasks,
    "trajectories": lambda record: record.trajectories,
}
"""name -> the score of a record to correlate with gains"""


@dataclass(frozen=True)
class ScoredGain:
    """The gain of a retrieval method on a task, and the scores of its retrieved data."""

    column: Column
    task: str
    gain: float
    """success rate minus that of the reference, averaged over the repetitions that both have"""
    scores: Mapping[str, float]
    """name -> mean over these repetitions"""


def scored_gains(summary: Summary, records: Sequence[ScoreRecord]) -> list[ScoredGain]:
    """Return the gain over the first reference of every task and column that has scores.

    Args:
        summary: the experiment's cells.
        records: the scores of cells.
    """
    scored = {record.retrieval["cell"]: record for record in records}
    reference = summary.references[0]
    found = []
    for column in summary.columns:
        for task in summary.tasks:
            others = {result.cell.repetition: result for result in summary.of(reference, task)}
            cells = [
                result
                for result in summary.of(column, task)
                if result.cell.name in scored and result.cell.repetition in others
            ]
            if cells:
                gains = [_rate(cell) - _rate(others[cell.cell.repetition]) for cell in cells]
                kept = [scored[cell.cell.name] for cell in cells]
                means = {name: mean(map(read, kept)) for name, read in SCORES.items()}
                found.append(ScoredGain(column, task, float(mean(gains)), means))
    return found


def format_score_correlations(summary: Summary, records: Sequence[ScoreRecord]) -> str:
    """Return a table of each score's rank correlation with the gains, with n and p.

    A method has its own columns if all its tasks are finished. The last columns are for all methods
    together.
    """
    gains = scored_gains(summary, records)
    groups = {summary.label(column): _select(gains, column) for column in summary.columns}
    groups = {name: group for name, group in groups.items() if len(group) == len(summary.tasks)}
    groups["all methods"] = gains
    head = ["score"]
    for name, group in groups.items():
        head += [f"{name}, n = {len(group)}", "p"]
    rows = [head]
    for name in SCORES:
        row = [name]
        for group in groups.values():
            row += _correlate(group, name)
        rows.append(row)
    counts = [(summary.label(c), len(_select(gains, c))) for c in summary.columns]
    listed = ", ".join(f"{count} of {label}" for label, count in counts if count)
    reference = summary.label(summary.references[0])
    text = (
        f"Spearman's rank correlation of each score with the gain over {reference}.\n"
        "n is the number of tasks; for all methods it is the number of pairs of a method and a\n"
        f"task ({listed})."
    )
    return f"{text}\n\n{format_table(rows)}"


def _select(gains: Sequence[ScoredGain], column: Column) -> list[ScoredGain]:
    return [gain for gain in gains if gain.column == column]


def _rate(result: CellResult) -> Fraction:
    """Return the exact success rate, so that equal gains have equal ranks."""
    return Fraction(sum(result.successes.values()), len(result.successes))


def _correlate(gains: Sequence[ScoredGain], name: str) -> list[str]:
    """Return coefficient and p; dashes if there is no correlation to compute."""
    try:
        found = rank_correlation([gain.scores[name] for gain in gains], [g.gain for g in gains])
    except StrapError:
        return ["–", "–"]
    return [f"{found.coefficient:+.2f}".replace("-", "−"), f"{found.p_value:.2g}"]
