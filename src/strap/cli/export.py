"""`strap export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.augmentation import augment
from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.datasets import Dataset
from strap.exports import write_filter, write_manifest, write_weights
from strap.runs import Run, open_run

Kind = Literal["lerobot", "robomimic", "manifest", "weights", "filter"]


@dataclass(frozen=True)
class Command:
    """Hand a retrieval to any trainer: as a dataset, or as weights and lists without images."""

    EXAMPLES: ClassVar = (
        "strap export my-run --as lerobot --out augmented",
        "strap export my-run --as weights --out weights",
    )
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    out: Path
    """the file to write; lerobot: a folder; weights: a folder with one file per dataset"""
    kind: Annotated[Kind, tyro.conf.arg(name="as")] = "lerobot"
    """lerobot, robomimic: target ∪ retrieved as a dataset; manifest: (dataset, episode, start,
    stop, weight), .json or .parquet; weights: per dataset a parquet of (index, weight) for every
    frame; filter: episodes and frame ranges to keep, JSON"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, write, and say what was written."""
        run = open_run(self.run_folder)
        target, priors = run.datasets()
        written = [self.out]
        if self.kind in ("lerobot", "robomimic"):
            with showing() as progress:
                options = run.manifest["arguments"]
                written = [
                    augment(
                        target,
                        priors,
                        run.matches,
                        self.out,
                        format="lerobot" if self.kind == "lerobot" else "robomimic",
                        history=options["history"],
                        chunk=options["chunk"],
                        progress=progress,
                    )
                ]
        elif self.kind == "manifest":
            write_manifest(self.out, target, run.matches)
        elif self.kind == "filter":
            write_filter(self.out, target, run.matches)
        else:
            written = _weights(self.out, target, priors, run)
        if self.json:
            print_json({"as": self.kind, "written": [str(file) for file in written]})
        else:
            print("\n".join(str(file) for file in written))


def _weights(out: Path, target: Dataset, priors: list[Dataset], run: Run) -> list[Path]:
    """A file for the target and one for each prior; a prior that is the target has one with it."""
    written = [write_weights(out / "target.parquet", target, run.matches, is_target=True)]
    for index, prior in enumerate(priors):
        if prior.name != target.name:
            file = out / f"prior-{index}-{prior.path.stem}.parquet"
            written.append(write_weights(file, prior, run.matches))
    return written
