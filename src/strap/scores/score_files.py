"""Scores on disk: a JSON line for each retrieval, with the values that identify it.

{"method": "strap", …, "task": "Mug-Mug", "top_k": 100, "frames": 5952, …,
 "precision": [found, best, random], …}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strap.atomic import replacing
from strap.errors import StrapError
from strap.scores.scoring import Score, Scores

TRIPLES = ("precision", "recall", "border_error")
COUNTS = ("frames", "matches", "trajectories", "effective_tasks")
DIGITS = 4


@dataclass(frozen=True)
class ScoreRecord:
    """The scores of one retrieval, and the values that identify it."""

    retrieval: Mapping[str, Any]
    """name -> value that identifies the retrieval, such as method, task and K, or a cell's name"""
    precision: Score
    recall: Score
    border_error: Score
    frames: int
    matches: int
    trajectories: int
    effective_tasks: float

    @classmethod
    def of(cls, retrieval: Mapping[str, Any], scores: Scores) -> ScoreRecord:
        """Return the record of a retrieval's scores; the numbers of `Scores` are rounded."""
        return cls(
            retrieval,
            precision=_round(scores.precision),
            recall=_round(scores.recall),
            border_error=_round(scores.border_error),
            frames=scores.frames,
            matches=scores.matches,
            trajectories=scores.trajectories,
            effective_tasks=round(scores.effective_tasks, 5),
        )

    @property
    def share_of_best(self) -> float:
        """Precision / the best precision possible with the prior; 0 if that is 0."""
        return self.precision.value / self.precision.best if self.precision.best else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return one flat JSON object, in which scores are [found, best, random]."""
        counts = {name: getattr(self, name) for name in COUNTS}
        scores = {name: getattr(self, name) for name in TRIPLES}
        triples = {name: [s.value, s.best, s.random] for name, s in scores.items()}
        return {**self.retrieval, **counts, **triples}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> ScoreRecord:
        """Return the record of a JSON object that `to_json` made."""
        names = (*COUNTS, *TRIPLES)
        numbers: dict[str, Any] = {name: line[name] for name in COUNTS}
        numbers |= {name: Score(*line[name]) for name in TRIPLES}
        return cls({name: line[name] for name in line if name not in names}, **numbers)


def read_scores(path: Path) -> list[ScoreRecord]:
    """Read a file of scores; a missing file has no records."""
    if not path.is_file():
        return []
    records = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            records.append(ScoreRecord.from_json(json.loads(text)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StrapError(
                f"line {number} of '{path}' is not a record of scores ({error!r}): remove the "
                "line, and score that retrieval again"
            ) from error
    return records


def write_scores(path: Path, records: Iterable[ScoreRecord]) -> None:
    """Write a file of scores."""
    lines = [json.dumps(record.to_json()) for record in records]
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines))


def _round(score: Score) -> Score:
    return Score(*(round(n, DIGITS) for n in (score.value, score.best, score.random)))
