"""`strap evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress
from strap.cli.run_policies import find_policy
from strap.errors import StrapError
from strap.runs import is_run, open_run


@dataclass(frozen=True)
class Command:
    """Roll a policy out in LIBERO on the benchmark's fixed initial states.

    Each environment runs in its own process, the policy in this one. A crashed environment is
    replaced. Every finished episode is kept, so the same command runs only the missing ones.
    """

    EXAMPLES: ClassVar = (
        "strap evaluate my-run --suite libero_10",
        "strap evaluate my-run --suite libero_10 --against bc --workers 4",
    )
    GROUPS: ClassVar = {
        "input and output": ("checkpoint", "which", "against", "out", "videos", "json"),
        "the task": ("task", "suite", "episodes", "first", "horizon", "demos"),
        "how the policy acts": ("execute", "acting", "blend", "seed"),
        "hardware": ("workers", "device"),
    }

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """a folder that `strap train` wrote, or the run that it was trained on"""
    task: str = ""
    """the task's name, a part of it, or its number (default, for a run: its target's
    instruction)"""
    suite: str = "libero_10"
    """libero_90, libero_10, libero_spatial, libero_object or libero_goal"""
    episodes: int = 20
    """how many episodes to run, each from another of the benchmark's fixed initial states"""
    first: int = 0
    """the number of the first initial state"""
    horizon: int | None = None
    """steps after which an episode counts as failed (default: that of the policy's preset: 520, for
    released 300)"""
    workers: int = 2
    """environments at the same time, each a process of up to 2.5 GB"""
    out: Path | None = None
    """the folder for records and videos (default: in the checkpoint's folder)"""
    against: Path | None = None
    """another checkpoint, or its evaluation folder, to compare with, initial state by initial
    state"""
    which: Literal["last", "best"] = "last"
    """last: the last weights; best: those with the best held-out likelihood"""
    execute: int = 0
    """how many predicted actions are executed before the policy observes again (0: the policy's own
    setting)"""
    acting: Literal["mode", "sample", ""] = ""
    """mode: execute the mean of the mode with the largest weight; sample: the mean of a mode
    drawn by its weight ("": the policy's own setting)"""
    blend: int = 0
    """average the actions that this many past predictions give for the same step, for smoother
    motion (0: the policy's own setting)"""
    demos: str = ""
    """start from the initial states of the demonstrations in this HDF5 file; the first thing to try
    for a policy trained on one of them"""
    seed: int = 0
    """seed of what the policy draws at random (--acting sample, diffusion policies)"""
    videos: bool = True
    """do not write an MP4 of each episode (default: written)"""
    device: str = "auto"
    """where the policy runs: auto, cpu or cuda"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Evaluate, then print the results."""
        from strap.evaluation import EvaluationSettings
        from strap.evaluation.comparison import comparison_to_json, evaluate_pair, format_comparison
        from strap.policies.checkpoints import load_config

        checkpoint = find_policy(self.checkpoint)
        horizon = self.horizon
        if horizon is None:
            horizon = load_config(checkpoint)["settings"].horizon
        settings = EvaluationSettings(
            suite=self.suite,
            task=self.task or self._target_task(),
            episodes=self.episodes,
            first=self.first,
            horizon=horizon,
            workers=self.workers,
            seed=self.seed,
            which=self.which,
            videos=self.videos,
            device=self.device,
            demos=self.demos,
            execute=self.execute,
            acting=self.acting,
            blend=self.blend,
        )
        with show_progress(quiet=self.json) as progress:
            done = evaluate_pair(checkpoint, settings, self.out, self.against, progress=progress)
        if self.json:
            print_json(comparison_to_json(*done))
        else:
            print(format_comparison(*done))

    def _target_task(self) -> str:
        """Return the instruction of the run's target demonstrations."""
        if not is_run(self.checkpoint):
            raise StrapError(
                f"'{self.checkpoint}' is not a run, so its task is unknown: name the task with "
                "--task"
            )
        target, _ = open_run(self.checkpoint).datasets()
        instructions = {trajectory.instruction for trajectory in target}
        if len(instructions) != 1:
            raise StrapError(
                f"the target of '{self.checkpoint}' has {len(instructions)} instructions: name one "
                "with --task"
            )
        return instructions.pop()
