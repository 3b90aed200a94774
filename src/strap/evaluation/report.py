"""An evaluation in words, alone or against another."""

from __future__ import annotations

from pathlib import Path

from strap.evaluation.results import (
    Evaluation,
    EvaluationSettings,
    compare,
    evaluate,
    open_evaluation,
    table,
)
from strap.progress import Progress, silent


def run_and_report(
    checkpoint: Path,
    settings: EvaluationSettings,
    out: Path | None = None,
    against: Path | None = None,
    *,
    progress: Progress = silent,
) -> str:
    """Evaluate, and where `against` names a checkpoint or an evaluation, compare."""
    ours = evaluate(checkpoint, settings, out, progress=progress)
    lines = [str(ours), f"records: {ours.path}"]
    if against is not None:
        theirs = _other(against, settings, progress)
        lines += [str(theirs), f"records: {theirs.path}", compared(ours, theirs)]
    return "\n".join(lines)


def compared(ours: Evaluation, theirs: Evaluation) -> str:
    """The paired comparison in one line, and a table."""
    pair = compare(ours, theirs)
    words = (
        f"on the same states: both {pair.both}, only the first {pair.first_only}, only the second "
        f"{pair.second_only}, neither {pair.neither}; McNemar's exact p = {pair.p_value:.3g}"
    )
    return f"{words}\n\n{table([('first', ours), ('second', theirs)])}"


def _other(against: Path, settings: EvaluationSettings, progress: Progress) -> Evaluation:
    if (against / "episodes.jsonl").is_file():
        return open_evaluation(against, settings.states)
    return evaluate(against, settings, progress=progress)
