"""`strap export`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.atomic import write_json
from strap.augmentation import augment
from strap.choices import ChoicesMode, ChosenMatches, choose_matches
from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress
from strap.datasets import Dataset
from strap.exports import (
    require_earlier_export,
    write_filter,
    write_manifest,
    write_weights,
)
from strap.folders import require_ending, require_separate_output
from strap.runs import RUN_FILES, Run, open_run

Kind = Literal["lerobot", "robomimic", "manifest", "weights", "filter"]


@dataclass(frozen=True)
class Command:
    """Write a retrieval for any trainer: as a dataset, or as weights and lists without images."""

    EXAMPLES: ClassVar = (
        "strap export my-run --as lerobot --out augmented",
        "strap export my-run --as weights --out weights",
    )
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    out: Path
    """the file to write; for lerobot a folder; for weights a folder with one file per dataset"""
    kind: Annotated[Kind, tyro.conf.arg(name="as")] = "lerobot"
    """lerobot, robomimic: target ∪ retrieved as a dataset; manifest: rows of (dataset, episode,
    start, stop, weight), .json or .parquet; weights: for each dataset a Parquet file with (index,
    weight) of every frame; filter: the episodes and frame ranges to keep, as JSON"""
    choices: ChoicesMode = "use"
    """use: leave out matches rejected in `strap view`, apply the weights set there (manifest,
    weights), and write these choices to OUT.choices.json; ignore: export all matches"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, write the output, and print the names of its files."""
        run = open_run(self.run_folder)
        target, priors = run.datasets()
        out = self.out
        if self.kind == "robomimic" and not out.suffix:
            out = out.with_suffix(".hdf5")
        self._require_output(out, run, [target, *priors])
        chosen = choose_matches(run.path, run.matches, self.choices)
        written = [out]
        if self.kind in ("lerobot", "robomimic"):
            with show_progress() as progress:
                options = run.manifest["arguments"]
                written = [
                    augment(
                        target,
                        priors,
                        chosen.matches,
                        out,
                        format="lerobot" if self.kind == "lerobot" else "robomimic",
                        history=options["history"],
                        chunk=options["chunk"],
                        progress=progress,
                    )
                ]
        elif self.kind == "manifest":
            write_manifest(out, target, chosen.matches, chosen.weights)
        elif self.kind == "filter":
            write_filter(out, target, chosen.matches)
        else:
            written = _weights(out, target, priors, chosen)
        written += self._note_choices(out, run, chosen)
        if self.json:
            files = [str(file) for file in written]
            print_json({"as": self.kind, "written": files, "choices": chosen.to_json()})
        else:
            print("\n".join([*map(str, written), *([str(chosen)] if chosen.fingerprint else [])]))

    def _require_output(self, out: Path, run: Run, datasets: list[Dataset]) -> None:
        """Raise if the output has a wrong ending or would replace a file that is read."""
        endings = {"filter": (".json",), "robomimic": (".hdf5", ".h5")}
        if self.kind in endings:
            require_ending(out, endings[self.kind])
        require_separate_output(out, [dataset.path for dataset in datasets])
        require_separate_output(out, [run.path / name for name in RUN_FILES])
        require_separate_output(out, run.path.glob("choices-older*.json"))
        if self.kind == "weights":
            for file in _weight_files(out, datasets[0], datasets[1:]):
                require_earlier_export(file)
        else:
            require_earlier_export(out)

    def _note_choices(self, out: Path, run: Run, chosen: ChosenMatches) -> list[Path]:
        """Write the choices that were used beside the output, or remove those of an older one."""
        note = out.with_name(f"{out.name}.choices.json")
        used = chosen.to_json()
        if used is None:
            note.unlink(missing_ok=True)
            return []
        if chosen.n_reweighed and self.kind not in ("manifest", "weights"):
            warnings.warn(
                f"{chosen.n_reweighed} matches have a weight other than 1, which '{self.kind}' "
                "cannot store: export --as weights, too, and give these weights to the trainer",
                stacklevel=2,
            )
        write_json(note, {"run": str(run.path.resolve()), "as": self.kind, **used})
        return [note]


def _weights(
    out: Path, target: Dataset, priors: list[Dataset], chosen: ChosenMatches
) -> list[Path]:
    """Write one file for the target and one for each prior that is not the target itself."""
    weighted = (chosen.matches, chosen.weights)
    return [
        write_weights(file, dataset, *weighted, is_target=dataset is target)
        for file, dataset in _weight_files(out, target, priors).items()
    ]


def _weight_files(out: Path, target: Dataset, priors: list[Dataset]) -> dict[Path, Dataset]:
    """Return the files of `--as weights` and their datasets; each dataset has one file."""
    files = {out / "target.parquet": target}
    named = {target.name}
    for index, prior in enumerate(priors):
        if prior.name not in named:
            named.add(prior.name)
            files[out / f"prior-{index}-{Path(prior.label).stem}.parquet"] = prior
    return files
