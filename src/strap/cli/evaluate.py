"""`strap evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.cli.run_policies import find_policy
from strap.errors import StrapError
from strap.runs import is_run, open_run


@dataclass(frozen=True)
class Command:
    """Roll a policy out in LIBERO on the benchmark's fixed initial states.

    Environments run in processes of their own, the policy in this one. Every finished episode is
    kept; run again, only missing ones are run, and a crashed environment is replaced.
    """

    EXAMPLES: ClassVar = (
        "strap evaluate my-run --suite libero_10",
        "strap evaluate my-run --suite libero_10 --against bc --workers 4",
    )
    GROUPS: ClassVar = {
        "what is given, what is made": (
            *("checkpoint", "which", "against", "out", "videos", "json"),
        ),
        "what it has to do": ("task", "suite", "episodes", "first", "horizon", "demos"),
        "how it acts": ("execute", "acting", "blend", "seed"),
        "where it runs": ("workers", "device"),
    }

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """a folder that `strap train` wrote, or a run that it trained on"""
    task: str = ""
    """the task's name, a part of it, or its number (default, for a run: its target's
    instruction)"""
    suite: str = "libero_10"
    """libero_90, libero_10, libero_spatial, libero_object or libero_goal"""
    episodes: int = 20
    """how many of the fixed initial states"""
    first: int = 0
    """the first of them"""
    horizon: int | None = None
    """steps after which an episode has failed (default: as the policy's preset says, 520; released:
    300)"""
    workers: int = 2
    """environments at once, each a process of up to 2.5 GB"""
    out: Path | None = None
    """where records and videos go (default: in the checkpoint's folder)"""
    against: Path | None = None
    """another checkpoint, or its evaluation's folder, to compare with state by state"""
    which: Literal["last", "best"] = "last"
    """the last weights, or those with the best held-out likelihood"""
    execute: int = 0
    """how many predicted actions are executed before the policy observes again (0: as it was
    trained to)"""
    acting: Literal["mode", "sample", ""] = ""
    """the mean of the heaviest mode, or of one drawn by weight ("": as it was trained to)"""
    blend: int = 0
    """average the actions that the last so many predictions have for the same step: smoother (0:
    as it was trained to)"""
    demos: str = ""
    """begin where the demonstrations of this HDF5 file begin: for a policy trained on one of them,
    the first thing to try"""
    seed: int = 0
    """of what the policy draws at random (--acting sample, diffusion policies)"""
    videos: bool = True
    """write no MP4 of the episodes (default: one of each)"""
    device: str = "auto"
    """where the policy runs: auto, cpu, cuda"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Evaluate, then say how it went."""
        from strap.evaluation import EvaluationSettings
        from strap.evaluation.comparison import as_json, evaluate_pair, in_words
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
        with showing(quiet=self.json) as progress:
            done = evaluate_pair(checkpoint, settings, self.out, self.against, progress=progress)
        if self.json:
            print_json(as_json(*done))
        else:
            print(in_words(*done))

    def _target_task(self) -> str:
        """Return what the demonstrations of the run were of."""
        if not is_run(self.checkpoint):
            raise StrapError(f"which task is '{self.checkpoint}' to do? say it with --task")
        target, _ = open_run(self.checkpoint).datasets()
        instructions = {trajectory.instruction for trajectory in target}
        if len(instructions) != 1:
            raise StrapError(
                f"the target of '{self.checkpoint}' has {len(instructions)} instructions: say "
                "which task with --task"
            )
        return instructions.pop()
