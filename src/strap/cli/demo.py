"""`strap demo`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from strap.cli.progress import show_progress
from strap.cli.report import precision as skill_precision
from strap.cli.report import write_report
from strap.cli.retrieve import summary
from strap.datasets import open_dataset
from strap.embeddings import AGENT_VIEWS
from strap.errors import StrapError, unknown
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.view.run_views import RunView

IN_PACKAGE = Path(__file__).parents[1] / "samples"
IN_REPOSITORY = Path(__file__).parents[3] / "samples"
"""The folder of the samples in an editable install."""
SAMPLE = (IN_PACKAGE if IN_PACKAGE.is_dir() else IN_REPOSITORY) / "libero-mini"


@dataclass(frozen=True)
class Command:
    """Retrieve for a LIBERO-10 task from LIBERO-90 demonstrations that come with the package.

    Embeds the sample with a small real encoder, cuts the target into sub-trajectories, finds the
    best-matching segments of the prior, writes the augmented dataset and a report page, and scores
    the retrieved frames by what the robot was doing in them. Then trains two small policies, one on
    the target alone and one on target ∪ retrieved, and compares them on a demonstration that
    neither policy has seen.
    """

    EXAMPLES: ClassVar = ("strap demo --task mug-mug",)
    out: Path = Path("demo")
    """the folder to work in"""
    task: str = "soup-sauce"
    """the target task: soup-sauce, soup-cheese or mug-mug"""
    encoder: str = "efficientnet-lite0@96"
    """the model that embeds the frames"""
    top_k: int = 30
    """how many matches to keep"""
    train_steps: int = 600
    """training steps of each of the two policies; 0: do not train"""
    sample: Path = SAMPLE
    """the folder of the sample data (default: the one that comes with the package)"""

    def run(self) -> None:
        """Retrieve, write the report, score, and train and compare two policies."""
        target, prior = open_dataset(self._target()), open_dataset(self.sample / "prior")
        options = RetrievalOptions(encoder=self.encoder, top_k=self.top_k)
        with show_progress() as progress:
            run = run_retrieval(
                target.path,
                [prior.path],
                self.out / self.task,
                options,
                stores=self.out / "stores",
                progress=progress,
            )
            view = RunView.open(run.path)
            precision = skill_precision(view.sources)
            page = write_report(view, None, progress=progress)
        print(summary(run))
        if precision:
            print(
                f"skill precision: {precision.value:.0%} of the retrieved frames do what their "
                f"query does, with the same kind of object; at random {precision.random:.0%} "
                f"({precision.lift:.1f} times)"
            )
        print(f"sample data: {self.sample}")
        print(f"report: {page.path}")
        if self.train_steps:
            print(compare_policies(run.path, self.out / "policies" / self.task, self.train_steps))

    def _target(self) -> Path:
        folder = self.sample / "target"
        if not folder.is_dir():
            raise StrapError(
                f"no sample data at '{self.sample}': a sample has the folders target and prior; "
                "leave --sample out to use the one that comes with the package"
            )
        names = sorted(path.name for path in folder.iterdir())
        if self.task not in names:
            raise unknown("task", self.task, names)
        return folder / self.task


def compare_policies(run: Path, out: Path, steps: int, *, image_size: int = 128) -> str:
    """Train on the target alone (BC) and on target ∪ retrieved; compare on held-out data.

    The policies see frozen features of the agent view and proprioception, which is fast enough for
    a CPU.
    """
    from strap.policies import policy_preset
    from strap.training import train, training_preset
    from strap.training.cache_builder import CacheOptions, build_cache
    from strap.training.data import open_training_data

    data = open_training_data(run)
    views = data.clips[0].trajectory().cameras
    cameras = tuple(name for name in AGENT_VIEWS if name in views)[:1]
    options = CacheOptions(vision="frozen", cameras=cameras, image_size=image_size)
    with show_progress() as progress:
        cache = build_cache(data, out / "maps", options, progress=progress)
    lines = []
    for recipe in ("bc", "strap"):
        training = replace(
            training_preset(vision="frozen"),
            recipe=recipe,
            steps=steps,
            holdout=1,
            eval_every=max(1, steps // 6),
            log_every=max(1, steps // 6),
        )
        policy = policy_preset(vision="frozen")
        print(f"training {recipe}, {steps} steps", flush=True)
        done = train(cache, out / f"{recipe}-{steps}", policy=policy, training=training)
        lines.append(
            f"  {recipe:5s}  {done.held_out:7.3f} after {done.step} steps, best {done.best:7.3f} "
            f"after {done.best_step}"
        )
    head = "policies: −log likelihood of the actions of a demonstration held out (lower is better)"
    return "\n".join([head, *lines])
