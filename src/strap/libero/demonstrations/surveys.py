"""Measure the expert's success rate on new placements of each task, as in docs/libero.md."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from strap.atomic import read_json, replacing, write_json
from strap.errors import StrapError
from strap.libero.demonstrations.collection import DEFAULT_ARM_NOISE
from strap.libero.environment import LiberoEnv
from strap.libero.expert.attempts import DEFAULT_NOISE, solve
from strap.libero.tasks import Task, select_tasks
from strap.progress import Progress, silent
from strap.workers import run_each

SURVEYED_SUITES = ("libero_90", "libero_10")
# Far from the seeds of `collect`, so that a survey uses other placements.
FIRST_SEED = 1_000_000


@dataclass(frozen=True)
class Conditions:
    """The options that all rows of a table share."""

    attempts: int
    noise: float
    arm_noise: float


@dataclass(frozen=True)
class TaskScore:
    """The success counts of the expert on one task."""

    suite: str
    index: int
    name: str
    goals: tuple[str, ...]  # predicates, in the expert's order
    attempts: int
    solved: int
    first_try: int  # placements solved without a second plan
    steps: float  # mean length of the solved attempts
    reasons: tuple[str, ...]  # reasons of the placements that were not solved


def survey(
    suites: str | Iterable[str] = SURVEYED_SUITES,
    *,
    attempts: int = 10,
    out: str | Path,
    tasks: Iterable[str | int] | None = None,
    workers: int = 2,
    noise: float = DEFAULT_NOISE,
    arm_noise: float = DEFAULT_ARM_NOISE,
    also: Iterable[str | Path] = (),
    progress: Progress = silent,
) -> tuple[TaskScore, ...]:
    """Measure the expert on `attempts` new placements of each task, and write every result.

    The same call resumes an interrupted survey. `also` names folders of other surveys: tasks in
    them are not measured again, and the last folder's row counts. `progress` is called with
    (what, done, total).
    """
    if attempts < 1 or workers < 1:
        raise StrapError(f"attempts={attempts}, workers={workers}: both must be at least 1")
    folder = Path(out)
    names = [suites] if isinstance(suites, str) else list(suites)
    chosen = [task for suite in names for task in select_tasks(suite, tasks)]
    conditions = Conditions(attempts, noise, arm_noise)
    scores = _read(folder / "survey.json", conditions)
    for other in also:
        rows = _read(Path(other) / "survey.json", conditions)
        if not rows:
            raise StrapError(
                f"{other} has no survey with attempts={attempts}, noise={noise}, "
                f"arm_noise={arm_noise}: give a folder that `strap libero survey --out` has "
                "written with these options"
            )
        scores |= rows
    remaining = [task for task in chosen if (task.suite, task.index) not in scores]
    _write(folder, scores, conditions)
    measure = partial(score_task, conditions)
    for done, (_, score) in enumerate(run_each(measure, remaining, workers), start=1):
        scores[score.suite, score.index] = score
        _write(folder, scores, conditions)
        progress("tasks", len(chosen) - len(remaining) + done, len(chosen))
    return tuple(scores[task.suite, task.index] for task in chosen)


def score_task(conditions: Conditions, task: Task) -> TaskScore:
    """Measure one task in this process."""
    with LiberoEnv(task, cameras=False, arm_noise=conditions.arm_noise) as env:
        results = [
            solve(env, FIRST_SEED + number, noise=conditions.noise)
            for number in range(conditions.attempts)
        ]
    lengths = [len(result.frames) for result in results if result.solved]
    return TaskScore(
        suite=task.suite,
        index=task.index,
        name=task.name,
        goals=tuple(goal.predicate for goal in task.goals),
        attempts=conditions.attempts,
        solved=len(lengths),
        first_try=sum(result.solved and result.variation == 0 for result in results),
        steps=round(sum(lengths) / max(len(lengths), 1), 1),
        reasons=tuple(result.failure for result in results if not result.solved),
    )


def format_table(scores: Iterable[TaskScore]) -> str:
    """Return the Markdown table of the documentation, with a heading per suite."""
    lines = []
    ordered = sorted(scores, key=lambda score: (score.suite, score.index))
    for suite in dict.fromkeys(score.suite for score in ordered):
        rows = [score for score in ordered if score.suite == suite]
        good = sum(score.solved >= 0.8 * score.attempts for score in rows)
        lines += [
            f"### {suite}: {good} of {len(rows)} tasks solved on at least 8 of 10 placements",
            "",
            "| # | task | goal | solved | first plan | steps |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {score.index} | {score.name} | {', '.join(score.goals)} "
            f"| {score.solved}/{score.attempts} | {score.first_try} | {score.steps:.0f} |"
            for score in rows
        ]
        lines.append("")
    return "\n".join(lines)


def _read(file: Path, conditions: Conditions) -> dict[tuple[str, int], TaskScore]:
    """Return the rows of a survey by (suite, index); none if it has other conditions."""
    if not file.exists():
        return {}
    stored = read_json(file)
    if any(stored.get(name) != value for name, value in asdict(conditions).items()):
        return {}
    scores = [
        TaskScore(**{**row, "goals": tuple(row["goals"]), "reasons": tuple(row["reasons"])})
        for row in stored["tasks"]
    ]
    return {(score.suite, score.index): score for score in scores}


def _write(folder: Path, scores: dict[tuple[str, int], TaskScore], conditions: Conditions) -> None:
    rows = [asdict(scores[key]) for key in sorted(scores)]
    content = {**asdict(conditions), "first_seed": FIRST_SEED, "tasks": rows}
    write_json(folder / "survey.json", content)
    with replacing(folder / "survey.md") as temporary:
        temporary.write_text(format_table(scores.values()), encoding="utf-8")
