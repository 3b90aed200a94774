"""Tables, curves and film strips of the policies that `libero_policy` trained and rolled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from strap.evaluation import compare, open_evaluation
from strap.evaluation.results import table
from strap.report.figures import BLUE, ORANGE, styled
from strap.training.logs import read_log

FRAMES = 10
"""of a strip"""
LOOK = {"bc": (BLUE, "BC"), "strap": (ORANGE, "STRAP")}


def write(work: Path, tasks: Sequence[str]) -> None:
    """Write the tables as `report.md` into the work folder, and draw its pictures."""
    page = work / "report.md"
    page.write_text("\n".join(line for task in tasks for line in lines(work, task)))
    styled(curves, work, tasks).savefig(work / "policy-curves.png")
    styled(strips, work, tasks).savefig(work / "policy-rollouts.png")
    print(page)


def lines(work: Path, task: str) -> list[str]:
    """A task's rates, comparisons and likelihoods."""
    folder = work / "evaluations"
    names = sorted(path.name for path in folder.glob(f"{task}-*") if path.is_dir())
    if not names:
        return []
    found = {name: open_evaluation(folder / name) for name in names}
    parts = [f"### {task}", "", table(list(found.items())), ""]
    for vision in ("resnet", "frozen"):
        pair = [found.get(f"{task}-{method}-{vision}") for method in ("strap", "bc")]
        if pair[0] is not None and pair[1] is not None:
            told = compare(pair[0], pair[1])
            parts.append(
                f"- {vision}, same states: only STRAP {told.first_only}, only BC "
                f"{told.second_only}, McNemar's exact p = {told.p_value:.3g}."
            )
    for name in names:
        rows = [row for row in log_of(work, name) if "held_out" in row]
        if rows:
            best = min(rows, key=lambda row: row["held_out"])
            parts.append(
                f"- {name}: held-out −log π {best['held_out']:.2f} at step {best['step']}, "
                f"{rows[-1]['held_out']:.2f} at the end ({rows[-1]['step']})."
            )
    return [*parts, ""]


def log_of(work: Path, name: str) -> list[Mapping[str, Any]]:
    """The training log, wherever the policy lies."""
    for place in ("policies", "slim"):
        if (work / place / name / "log.jsonl").is_file():
            return list(read_log(work / place / name))
    return []


def curves(work: Path, tasks: Sequence[str]) -> Any:
    """−log π over the steps: of what is trained on, and of the held-out demonstrations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.7 * len(tasks), 4.8), layout="constrained")
    explained = False
    for row, (vision, words) in enumerate((("resnet", "full"), ("frozen", "frozen features"))):
        for column, task in enumerate(tasks):
            logs = {method: log_of(work, f"{task}-{method}-{vision}") for method in LOOK}
            if not any(logs.values()):
                continue
            axes = figure.add_subplot(2, len(tasks), row * len(tasks) + column + 1)
            for method, (colour, label) in LOOK.items():
                for key, line, what in (("loss", ":", "training"), ("held_out", "o-", "held out")):
                    own = [(entry["step"], entry[key]) for entry in logs[method] if key in entry]
                    if own:
                        told = f"{label}, {what}"
                        axes.plot(*zip(*own, strict=True), line, color=colour, ms=3, label=told)
            axes.set_title(f"{task}, {words}")
            axes.set_xlabel("step")
            if column == 0:
                axes.set_ylabel("−log π")
            if not explained:
                axes.legend(fontsize=7, frameon=False)
                explained = True
    return figure


def strips(work: Path, tasks: Sequence[str]) -> Any:
    """For each task one success and one failure of STRAP, ten frames each, evenly over time."""
    from matplotlib.figure import Figure

    rows = []
    for task in tasks:
        folder = work / "evaluations" / f"{task}-strap-resnet"
        episodes = open_evaluation(folder).records if folder.is_dir() else ()
        for wanted in (True, False):
            own = [one for one in episodes if one["success"] == wanted and is_there(folder, one)]
            own.sort(key=lambda one: -one["partial"])
            for one in own[:1]:
                told = "done" if wanted else f"not done, {one['partial']:.0%} of the sub-goals"
                title = f"{task}, STRAP, state {one['state']}: {told} after {one['steps']} steps"
                rows.append((title, strip(folder / one["video"])))
    figure = Figure(figsize=(9, 1.15 * len(rows)), layout="constrained")
    for row, (title, frames) in enumerate(rows, 1):
        axes = figure.add_subplot(len(rows), 1, row)
        axes.imshow(frames)
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_axis_off()
    return figure


def is_there(folder: Path, episode: Mapping[str, Any]) -> bool:
    """Whether an episode's video is at hand."""
    return bool(episode.get("video")) and (folder / episode["video"]).is_file()


def strip(video: Path) -> np.ndarray:
    """Frames side by side, the first camera alone."""
    with av.open(str(video)) as opened:
        frames = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    chosen = np.linspace(0, len(frames) - 1, FRAMES).astype(int)
    side = frames[0].shape[0]
    return np.concatenate([frames[i][:, :side] for i in chosen], axis=1)
