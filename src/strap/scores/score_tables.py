"""Markdown tables of scores: the precision for every task, and the means of all scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from strap.retrieval import METHODS
from strap.scores.score_files import ScoreRecord
from strap.scores.scoring import Score

ROW = ("method", "encoder", "fuse", "segmentation")
"""the values that identify a row: its retrievals differ only in task and K"""
HEAD = ("method", "encoder", "fused", "cut by")


@dataclass(frozen=True)
class ScoreTable:
    """Scores of several rows, tasks and Ks."""

    records: Sequence[ScoreRecord]

    @property
    def tasks(self) -> list[str]:
        """The tasks, in the order of the records."""
        return list(dict.fromkeys(record.retrieval["task"] for record in self.records))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows, by method, without fused features first, then in the order of the records."""
        found = dict.fromkeys(_row_of(record) for record in self.records)
        methods: list[str] = list(METHODS)
        return sorted(found, key=lambda row: (methods.index(row[0]), bool(row[2])))

    def of(self, row: tuple[str, ...], top_k: int) -> dict[str, ScoreRecord]:
        """Return task -> record of a row."""
        return {
            record.retrieval["task"]: record
            for record in self.records
            if _row_of(record) == row and record.retrieval["top_k"] == top_k
        }

    def format_precision(self, top_k: int) -> str:
        """Return a table of precision: found / best for every task, and the means over tasks."""
        lines = [[*HEAD, *self.tasks, "mean", "best", "random"]]
        for row in self.rows:
            if found := self.of(row, top_k):
                each = [
                    f"{_share(found[task].precision.value)} / {_share(found[task].precision.best)}"
                    if task in found
                    else "none"
                    for task in self.tasks
                ]
                means = self._means([record.precision for record in found.values()])
                lines.append([*_row_cells(row), *each, *means])
        return format_table(lines)

    def format_all(self, top_ks: Sequence[int], *, is_fused: bool) -> str:
        """Return a table of the means of all scores, for rows with or without fused features."""
        lines = [
            [*HEAD, "K", "matches", "frames", "precision", "best", "random"]
            + ["recall", "best", "random", "border error", "random"]
            + ["trajectories", "effective tasks"]
        ]
        for row in self.rows:
            for top_k in top_ks:
                found = list(self.of(row, top_k).values())
                if found and bool(row[2]) == is_fused:
                    lines.append([*_row_cells(row), str(top_k), *self._all_means(found)])
        return format_table(lines)

    def _all_means(self, found: Sequence[ScoreRecord]) -> list[str]:
        if len(found) < len(self.tasks):
            return [self._incomplete(len(found)), *["–"] * 11]
        borders = [record.border_error for record in found]
        return [
            f"{mean(record.matches for record in found):,.0f}",
            f"{mean(record.frames for record in found):,.0f}",
            *self._means([record.precision for record in found]),
            *self._means([record.recall for record in found]),
            f"{mean(border.value for border in borders):.1f}",
            f"{mean(border.random for border in borders):.1f}",
            f"{mean(record.trajectories for record in found):.0f}",
            f"{mean(record.effective_tasks for record in found):.1f}",
        ]

    def _means(self, scores: Sequence[Score]) -> list[str]:
        """Return the means of found, best and random; no means if some tasks have no score."""
        if len(scores) < len(self.tasks):
            return [self._incomplete(len(scores)), "–", "–"]
        return [
            _thousandths(mean(getattr(score, part) for score in scores))
            for part in ("value", "best", "random")
        ]

    def _incomplete(self, count: int) -> str:
        return f"{count} of {len(self.tasks)} tasks"


def format_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table; the first line is the head."""
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]])


def _row_of(record: ScoreRecord) -> tuple[str, ...]:
    return tuple(str(record.retrieval[name]) for name in ROW)


def _row_cells(row: tuple[str, ...]) -> list[str]:
    method, encoder, fuse, segmentation = row
    return [method, encoder, fuse or "–", segmentation]


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _thousandths(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")
