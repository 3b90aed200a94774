"""Evaluate one checkpoint or compare two, and format the result as text or JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from strap.evaluation.results import (
    Evaluation,
    EvaluationSettings,
    compare,
    evaluate,
    format_table,
    open_evaluation,
)
from strap.progress import Progress, silent


def evaluate_pair(
    checkpoint: Path,
    settings: EvaluationSettings,
    out: Path | None = None,
    against: Path | None = None,
    *,
    progress: Progress = silent,
) -> tuple[Evaluation, Evaluation | None]:
    """Evaluate a checkpoint, and the checkpoint or evaluation to compare it with."""
    first = evaluate(checkpoint, settings, out, progress=progress)
    return first, None if against is None else _evaluate_other(against, settings, progress)


def format_comparison(first: Evaluation, second: Evaluation | None) -> str:
    """Format an evaluation, and the one to compare it with, for a terminal."""
    lines = [str(first), f"records: {first.path}"]
    if second is not None:
        lines += [str(second), f"records: {second.path}", _format_comparison(first, second)]
    return "\n".join(lines)


def comparison_to_json(first: Evaluation, second: Evaluation | None) -> dict[str, Any]:
    """Return an evaluation, and the one to compare it with, as JSON-able values."""
    low, high = first.interval
    rates = {"rate": first.rate, "low": low, "high": high, "partial": first.partial}
    values = {"path": str(first.path), **rates, "episodes": list(first.records)}
    if second is not None:
        values |= {
            "against": comparison_to_json(second, None),
            "comparison": asdict(compare(first, second)),
        }
    return values


def _format_comparison(first: Evaluation, second: Evaluation) -> str:
    """Format a paired comparison as one line and a table."""
    pair = compare(first, second)
    words = (
        f"on the same states: both {pair.both}, only the first {pair.first_only}, only the second "
        f"{pair.second_only}, neither {pair.neither}; McNemar's exact p = {pair.p_value:.3g}"
    )
    return f"{words}\n\n{format_table([('first', first), ('second', second)])}"


def _evaluate_other(against: Path, settings: EvaluationSettings, progress: Progress) -> Evaluation:
    if (against / "episodes.jsonl").is_file():
        return open_evaluation(against, settings.states)
    return evaluate(against, settings, progress=progress)
