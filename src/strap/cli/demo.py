"""`strap demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strap.cli.progress import showing
from strap.cli.retrieve import summary
from strap.datasets import open_dataset
from strap.errors import StrapError, unknown
from strap.report import write_report
from strap.runs import RetrievalOptions, run_retrieval
from strap.skills import precision, read_labels

SAMPLE = Path(__file__).parents[3] / "samples" / "libero-mini"


@dataclass(frozen=True)
class Command:
    """Retrieve for a LIBERO-10 task from LIBERO-90 demonstrations that come with the repository.

    Embeds the sample with a small real encoder, cuts the target into sub-trajectories, finds the
    best-matching pieces of the prior, writes the augmented dataset and a report page, and scores
    the retrieved frames by what the robot was doing in them.
    """

    out: Path = Path("demo")
    """the folder to work in"""
    task: str = "soup-sauce"
    """which target: soup-sauce, soup-cheese or mug-mug"""
    encoder: str = "efficientnet-lite0@128"
    """which model embeds the frames"""
    top_k: int = 30
    """how many matches to keep"""
    sample: Path = SAMPLE
    """where the sample data is"""

    def run(self) -> None:
        """Retrieve, report, score."""
        target, prior = open_dataset(self._target()), open_dataset(self.sample / "prior")
        options = RetrievalOptions(encoder=self.encoder, top_k=self.top_k)
        with showing() as progress:
            run = run_retrieval(
                target.path,
                [prior.path],
                self.out / self.task,
                options,
                stores=self.out / "stores",
                progress=progress,
            )
            labels = {prior.name: read_labels(prior)}
            score = precision(run.matches, read_labels(target), labels)
            title = f"{target[target.ids[0]].instruction}"
            page = write_report(
                run, target, [prior], precision=score, title=title, progress=progress
            )
        print(summary(run))
        print(
            f"skill precision: {score.retrieved:.0%} of the retrieved frames do what their query "
            f"does, with the same kind of object; at random {score.random:.0%} "
            f"({score.lift:.1f} times)"
        )
        print(f"report: {page}")

    def _target(self) -> Path:
        folder = self.sample / "target"
        if not folder.is_dir():
            raise StrapError(
                f"no sample data at '{self.sample}': run the demo from a clone of the repository, "
                "or say where it is with --sample"
            )
        names = sorted(path.name for path in folder.iterdir())
        if self.task not in names:
            raise unknown("task", self.task, names)
        return folder / self.task
