"""Evaluate a checkpoint: run rollouts of a task, keep each when it ends, and summarise them.

OUT/
  episodes.jsonl     one line per finished episode
  evaluation.json    the checkpoint, task and settings
  videos/            000-success.mp4, 001-failure.mp4, …
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from strap.atomic import explain_write_errors, remove_leftovers, write_json
from strap.errors import StrapError
from strap.evaluation.libero_simulator import (
    LIBERO_ACTION,
    LIBERO_CAMERAS,
    LIBERO_STATES,
    make_libero,
)
from strap.evaluation.records import (
    DESCRIPTION,
    FPS,
    OUTCOME,
    read_description,
    read_records,
    require_same_task,
)
from strap.evaluation.rollouts import Episode, roll_out
from strap.evaluation.simulators import HORIZON, Maker
from strap.evaluation.statistics import Comparison, mcnemar, wilson
from strap.locks import LOCK, exclusive_lock
from strap.policies.acting import Policy, load_policy
from strap.policies.checkpoints import WEIGHT_FILES, Which
from strap.policies.settings import Acting, Interface
from strap.progress import Progress, silent
from strap.provenance import fingerprint_content

ACTING_SETTINGS = ("execute", "acting", "blend")
"""settings that can change how a policy acts after its training"""


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of an evaluation."""

    suite: str = "libero_10"
    task: str = "0"
    episodes: int = 20
    """number of the benchmark's fixed initial states to run"""
    first: int = 0
    """the first of these states"""
    horizon: int = HORIZON
    workers: int = 2
    seed: int = 0
    which: Which = "last"
    videos: bool = True
    device: str = "auto"
    execute: int = 0
    """actions executed between two predictions (0: as in training)"""
    acting: Acting | Literal[""] = ""
    """act on the mode with the largest weight, or on a random one ("": as in training)"""
    blend: int = 0
    """number of predictions of the same action that are averaged (0: as in training)"""
    demos: str = ""
    """HDF5 file of demonstrations whose first states replace the fixed initial states"""

    @property
    def states(self) -> range:
        """The numbers of the initial states."""
        return range(self.first, self.first + self.episodes)


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    path: Path
    records: tuple[Mapping[str, Any], ...]

    @property
    def successes(self) -> dict[int, bool]:
        """Initial state -> success."""
        return {int(row["state"]): bool(row["success"]) for row in self.records}

    @property
    def rate(self) -> float:
        """The share of successes."""
        return sum(self.successes.values()) / max(len(self.records), 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the rate."""
        return wilson(sum(self.successes.values()), len(self.records))

    @property
    def partial(self) -> float:
        """The mean share of sub-goals reached."""
        return sum(float(row["partial"]) for row in self.records) / max(len(self.records), 1)

    def __str__(self) -> str:
        low, high = self.interval
        count = sum(self.successes.values())
        return (
            f"{count} of {len(self.records)} episodes succeeded: {self.rate:.0%} "
            f"(95 % interval {low:.0%} to {high:.0%}); sub-goals reached: {self.partial:.0%}"
        )


def evaluate(
    checkpoint: str | Path,
    settings: EvaluationSettings,
    out: str | Path | None = None,
    *,
    progress: Progress = silent,
) -> Evaluation:
    """Run rollouts of a checkpoint in LIBERO; skip episodes that are recorded already.

    Args:
        checkpoint: a folder that `strap train` wrote.
        settings: the task and the settings of the evaluation.
        out: folder for records and videos (default: in the checkpoint's folder).
        progress: called with (what, done, total).
    """
    from strap.libero.rendering.backend import select_backend
    from strap.libero.tasks import find_task, load_fixed_states

    checkpoint = Path(checkpoint).expanduser()
    policy = load_policy(checkpoint, device=settings.device, which=settings.which)
    changed = {name: value for name in ACTING_SETTINGS if (value := getattr(settings, name))}
    policy.change(**changed)
    check_interface(policy)
    task = find_task(settings.suite, settings.task)
    if not settings.demos:
        require_states(settings, task.name, len(load_fixed_states(task)))
    select_backend()  # once: the workers inherit the choice
    folder = Path(out).expanduser() if out else _default_folder(checkpoint, settings, task.index)
    demos = str(Path(settings.demos).expanduser().resolve()) if settings.demos else ""
    arguments = (settings.suite, task.index, rendered_size(policy.interface), demos)
    identity = {
        "checkpoint": fingerprint(checkpoint / WEIGHT_FILES[settings.which]),
        "suite": settings.suite,
        "task": task.name,
        "horizon": settings.horizon,
        "seed": settings.seed,
        **changed,
        **({"demos": fingerprint(Path(demos))} if demos else {}),
    }
    return run_episodes(
        policy, task.instruction, settings, make_libero, arguments, folder, identity, progress
    )


def require_states(settings: EvaluationSettings, task: str, count: int) -> None:
    """Raise if an evaluation goes beyond the `count` fixed initial states of a task."""
    if settings.states.stop > count:
        fitting = count - settings.first
        advice = f"--episodes {fitting} or fewer" if fitting > 0 else f"a --first below {count}"
        raise StrapError(
            f"'{task}' has {count} fixed initial states, numbered from 0, but episodes "
            f"{settings.first} to {settings.states.stop - 1} are to run: give {advice}"
        )


def rendered_size(interface: Interface) -> int:
    """Return the side of the images to render: that of the training data, if it has only one."""
    sides = {side for name in interface.cameras for side in interface.frame_sizes.get(name, ())}
    return sides.pop() if len(sides) == 1 else interface.image_size


def run_episodes(
    policy: Policy,
    instruction: str,
    settings: EvaluationSettings,
    maker: Maker,
    arguments: tuple[Any, ...],
    out: Path,
    identity: Mapping[str, Any],
    progress: Progress = silent,
) -> Evaluation:
    """Run the missing episodes; record each when it ends."""
    if settings.episodes < 1 or settings.workers < 1 or settings.horizon < 1:
        raise StrapError(
            f"episodes={settings.episodes}, workers={settings.workers}, "
            f"horizon={settings.horizon}: each must be at least 1"
        )
    if settings.first < 0:
        raise StrapError(f"the first initial state is {settings.first}: it must be at least 0")
    with exclusive_lock(out / LOCK, f"rolling out into '{out}'"):
        for folder in (out, out / "videos"):
            remove_leftovers(folder)
        _describe_or_compare(out, identity)
        _drop_unfinished_line(out / "episodes.jsonl")
        recorded = read_records(out, seed=settings.seed, required=OUTCOME)
        missing = [s for s in settings.states if s not in recorded]
        videos = settings.videos and find_spec("av") is not None
        if missing:
            roll_out(
                policy,
                instruction,
                missing,
                maker,
                arguments,
                _make_recorder(out, videos),
                horizon=settings.horizon,
                workers=settings.workers,
                seed=settings.seed,
                videos=videos,
                progress=progress,
            )
    return open_evaluation(out, settings.states)


def open_evaluation(out: str | Path, states: range | None = None) -> Evaluation:
    """Return a finished or unfinished evaluation: all its records, or those of `states`."""
    out = Path(out).expanduser()
    if not (out / DESCRIPTION).is_file():
        raise StrapError(f"'{out}' holds no evaluation: make one with `strap evaluate`")
    rows = read_records(out, seed=read_description(out).get("seed"), required=OUTCOME)
    chosen = [rows[state] for state in sorted(rows) if states is None or state in states]
    return Evaluation(out, tuple(chosen))


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two evaluations of one task, state by state."""
    require_same_task(first.path, second.path)
    return mcnemar(first.successes, second.successes)


def check_interface(policy: Policy) -> None:
    """Raise if LIBERO lacks a camera or proprioception of the policy, or its actions differ."""
    interface = policy.interface
    for name in interface.cameras:
        if name not in LIBERO_CAMERAS:
            raise StrapError(
                f"the policy was trained with camera '{name}': LIBERO has "
                f"{', '.join(LIBERO_CAMERAS)}"
            )
    for key, size in interface.proprioception.items():
        if LIBERO_STATES.get(key) != size:
            known = ", ".join(f"{name} ({count})" for name, count in LIBERO_STATES.items())
            raise StrapError(
                f"the policy was trained with proprioception '{key}' ({size}): LIBERO has {known}"
            )
    if interface.action_size != LIBERO_ACTION:
        raise StrapError(
            f"the policy's actions have {interface.action_size} numbers: LIBERO's have "
            f"{LIBERO_ACTION}"
        )


def fingerprint(path: Path) -> str:
    """Return a hash of a file's content."""
    if not (found := fingerprint_content(path)):
        raise StrapError(f"'{path}' does not exist: check the path")
    return found


def _default_folder(checkpoint: Path, settings: EvaluationSettings, index: int) -> Path:
    suffix = "-demos" if settings.demos else ""
    for name in ACTING_SETTINGS:
        suffix += f"-{name}-{value}" if (value := getattr(settings, name)) else ""
    return checkpoint / "evaluation" / f"{settings.suite}-{index}-{settings.which}{suffix}"


def _describe_or_compare(out: Path, identity: Mapping[str, Any]) -> None:
    """Write evaluation.json; if it exists, raise unless it describes the same evaluation."""
    file = out / DESCRIPTION
    if file.is_file():
        known = read_description(out)
        keys = dict.fromkeys((*identity, *known))
        changed = [key for key in keys if known.get(key) != identity.get(key)]
        if changed:
            raise StrapError(
                f"'{out}' holds an evaluation with another {', '.join(changed)}: choose another "
                "--out, or remove it"
            )
        return
    write_json(file, dict(identity))


def _make_recorder(out: Path, videos: bool) -> Callable[[Episode], None]:
    def record(episode: Episode) -> None:
        row: dict[str, Any] = {
            "state": episode.state,
            "seed": episode.seed,
            "steps": episode.steps,
            "success": episode.success,
            "partial": episode.partial,
            "goals": dict(episode.goals),
            "final": dict(episode.final),
            "seconds": episode.seconds,
        }
        if videos:
            outcome = "success" if episode.success else "failure"
            name = f"videos/{episode.state:03d}-{outcome}.mp4"
            write_video(out / name, episode.frames)
            row["video"] = name
        with explain_write_errors(out), (out / "episodes.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    return record


def _drop_unfinished_line(file: Path) -> None:
    """Remove an unfinished last line, which the next line would otherwise continue."""
    if not file.is_file():
        return
    with file.open("r+b") as stream:
        stream.truncate(stream.read().rfind(b"\n") + 1)


def write_video(path: Path, frames: Any) -> None:
    """Write frames, uint8 [t h w 3], as an MP4 at 20 frames per second."""
    from strap.datasets.lerobot.encoding import Encoding, encode

    height, width = frames.shape[1:3]
    encode(path, iter([frames]), Encoding("h264", Fraction(FPS), height, width, crf=23, gop=FPS))


def format_table(evaluations: Sequence[tuple[str, Evaluation]]) -> str:
    """Return a Markdown table: name, successes, rate with interval, sub-goals."""
    lines = ["| policy | successes | rate (95 % interval) | sub-goals |", "|---|---|---|---|"]
    for name, evaluation in evaluations:
        low, high = evaluation.interval
        count = f"{sum(evaluation.successes.values())} / {len(evaluation.records)}"
        rate = f"{evaluation.rate:.0%} ({low:.0%} to {high:.0%})"
        lines.append(f"| {name} | {count} | {rate} | {evaluation.partial:.0%} |")
    return "\n".join(lines)
