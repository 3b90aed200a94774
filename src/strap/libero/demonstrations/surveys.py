"""How often the expert succeeds, task by task, on fresh placements: the table of docs/libero.md.

`python -m strap.libero.demonstrations.surveys --out FOLDER` measures all 100 tasks of LIBERO-90 and
LIBERO-10, physics only, and writes `survey.json` and `survey.md`; with `--page docs/libero.md` it puts the
table there. A run that is interrupted goes on where it was when started again with the same
arguments. Tasks that were measured elsewhere, on another machine or anew after the expert was
changed for them, come in with `--also FOLDER`: its rows take the place of those in `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from strap.errors import StrapError
from strap.libero.demonstrations.collection import DEFAULT_ARM_NOISE
from strap.libero.demonstrations.workers import run_each
from strap.libero.environment import LiberoEnv
from strap.libero.expert.attempts import DEFAULT_NOISE, solve
from strap.libero.tasks import find_task, list_tasks

SUITES = ("libero_90", "libero_10")
MARKER = "<!-- survey -->"
# Far from the seeds that `collect` starts from, so that a survey measures other placements.
FIRST_SEED = 1_000_000


@dataclass(frozen=True)
class Conditions:
    """What rows of one table have in common."""

    attempts: int
    noise: float
    arm_noise: float

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True)
class SurveyJob:
    """One task to be measured."""

    suite: str
    task: int
    under: Conditions


@dataclass(frozen=True)
class TaskScore:
    """The expert's record on one task."""

    suite: str
    index: int
    name: str
    goals: tuple[str, ...]  # predicates, in the expert's order
    attempts: int
    solved: int
    first_try: int  # placements solved without a second plan
    steps: float  # mean length of the solved ones
    reasons: tuple[str, ...]  # of the placements that were not solved


def survey(
    suites: str | Iterable[str] = SUITES,
    *,
    attempts: int = 10,
    out: str | Path,
    tasks: Iterable[str | int] | None = None,
    workers: int = 2,
    noise: float = DEFAULT_NOISE,
    arm_noise: float = DEFAULT_ARM_NOISE,
    also: Iterable[str | Path] = (),
    quiet: bool = False,
) -> tuple[TaskScore, ...]:
    """Measure the expert on `attempts` fresh placements of each task, writing as it goes.

    also: folders of other surveys; a task that is in one of them is not measured again, and the
    last folder's row counts.
    """
    if attempts < 1 or workers < 1:
        raise StrapError(f"attempts={attempts}, workers={workers}: both must be at least 1")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    names = [suites] if isinstance(suites, str) else list(suites)
    chosen = [
        task
        for suite in names
        for task in (
            list_tasks(suite) if tasks is None else [find_task(suite, name) for name in tasks]
        )
    ]
    under = Conditions(attempts, noise, arm_noise)
    scores = _read(folder / "survey.json", under)
    for other in also:
        scores |= _read_other(Path(other) / "survey.json", under)
    wanted = [task for task in chosen if (task.suite, task.index) not in scores]
    jobs = [SurveyJob(task.suite, task.index, under) for task in wanted]
    for _, score in run_each(score_task, jobs, workers):
        scores[score.suite, score.index] = score
        _write(folder, scores, under)
        if not quiet:
            print(f"{score.solved:2d}/{score.attempts} {score.name}", flush=True)
    done = [scores[task.suite, task.index] for task in chosen]
    _write(folder, scores, under)
    return tuple(done)


def score_task(job: SurveyJob) -> TaskScore:
    """Measure one task in this process."""
    task = find_task(job.suite, job.task)
    solved, steps, first, reasons = 0, 0, 0, []
    with LiberoEnv(task, cameras=False, arm_noise=job.under.arm_noise) as env:
        for number in range(job.under.attempts):
            outcome = solve(env, FIRST_SEED + number, noise=job.under.noise)
            solved += outcome.attempt.solved
            first += outcome.attempt.solved and outcome.tries == 1
            if outcome.attempt.solved:
                steps += len(outcome.attempt.frames)
            else:
                reasons.append(outcome.attempt.reason)
    return TaskScore(
        suite=task.suite,
        index=task.index,
        name=task.name,
        goals=tuple(goal.predicate for goal in task.goals),
        attempts=job.under.attempts,
        solved=solved,
        first_try=int(first),
        steps=round(steps / max(solved, 1), 1),
        reasons=tuple(reasons),
    )


def markdown(scores: Iterable[TaskScore]) -> str:
    """The table for the documentation, and a line per suite."""
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


def write_table(scores: Iterable[TaskScore], page: Path) -> None:
    """Put the table into a documentation page, in place of what follows the marker."""
    text = page.read_text(encoding="utf-8")
    if MARKER not in text:
        raise StrapError(f"{page} has no line '{MARKER}': the table goes after it; add one")
    head = text.split(MARKER)[0]
    page.write_text(f"{head}{MARKER}\n\n{markdown(scores)}", encoding="utf-8")


def _read(file: Path, under: Conditions) -> dict[tuple[str, int], TaskScore]:
    if not file.exists():
        return {}
    stored = json.loads(file.read_text(encoding="utf-8"))
    # Surveys knew no arm noise at first, and had none.
    if Conditions(stored["attempts"], stored["noise"], stored.get("arm_noise", 0.0)) != under:
        return {}
    scores = [
        TaskScore(**{**row, "goals": tuple(row["goals"]), "reasons": tuple(row["reasons"])})
        for row in stored["tasks"]
    ]
    return {(score.suite, score.index): score for score in scores}


def _read_other(file: Path, under: Conditions) -> dict[tuple[str, int], TaskScore]:
    scores = _read(file, under)
    if not scores:
        raise StrapError(
            f"{file} has no survey with {under}: "
            "give a folder that `python -m strap.libero.demonstrations.surveys --out` has written "
            "with the same"
        )
    return scores


def _write(folder: Path, scores: dict[tuple[str, int], TaskScore], under: Conditions) -> None:
    rows = [asdict(scores[key]) for key in sorted(scores)]
    content = {**asdict(under), "first_seed": FIRST_SEED, "tasks": rows}
    for name, text in (
        ("survey.json", json.dumps(content, indent=1)),
        ("survey.md", markdown(scores.values())),
    ):
        partial = folder / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)


def main() -> None:
    """The command line of `python -m strap.libero.demonstrations.surveys`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suites", nargs="+", default=list(SUITES))
    parser.add_argument("--tasks", nargs="+", default=None)
    parser.add_argument("--attempts", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--noise", type=float, default=DEFAULT_NOISE)
    parser.add_argument("--arm-noise", type=float, default=DEFAULT_ARM_NOISE)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--also", nargs="+", type=Path, default=[], help="folders to take rows from"
    )
    parser.add_argument("--page", type=Path, help="documentation page to put the table into")
    options = parser.parse_args()
    scores = survey(
        options.suites,
        attempts=options.attempts,
        out=options.out,
        tasks=options.tasks,
        workers=options.workers,
        noise=options.noise,
        arm_noise=options.arm_noise,
        also=options.also,
    )
    if options.page is not None:
        write_table(scores, options.page)


if __name__ == "__main__":
    main()
