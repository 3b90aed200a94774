"""A retrieval run on disk.

RUN/
  segments.json      the queries and how they were cut
  matches.parquet    the matches
  augmented.hdf5     target ∪ retrieved as robomimic HDF5; or
  augmented/         target ∪ retrieved as a LeRobot dataset
  report.html        a page with the matches beside their queries
  choices.json       matches that the user accepted, rejected or re-weighed (`strap.choices`)
  boundaries.json    the boundaries of the segments, if the user moved them
  policy/            the policy that `strap train RUN` trained
  manifest.json      arguments, fingerprints of the inputs, versions, timings; written last
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any

from strap.atomic import read_json
from strap.datasets import Dataset, OpenOptions, is_opening, open_dataset
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.locks import is_empty_folder
from strap.provenance import fingerprint_content
from strap.types import Matches

AUGMENTED = {"robomimic": "augmented.hdf5", "lerobot": "augmented"}
REPORT = "report.html"
"""The page on which `strap retrieve` and `strap report` show the matches."""
POLICY = "policy"
"""The folder inside a run in which `strap train` puts its policy by default."""
RUN_FILES = (
    *("segments.json", "matches.parquet", *AUGMENTED.values(), REPORT),
    *("choices.json", "boundaries.json", POLICY, "manifest.json"),
)
"""Names in a run's folder that an export must not overwrite."""


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    path: Path
    matches: Matches
    manifest: Mapping[str, Any]
    reused: bool
    """whether the run was finished before, so that nothing was done"""

    @property
    def augmented(self) -> Path | None:
        """The path of the augmented dataset; None if the run has none."""
        places = (self.path / name for name in AUGMENTED.values())
        return next((place for place in places if place.exists()), None)

    def datasets(self) -> tuple[Dataset, list[Dataset]]:
        """Open the run's target and priors as the run did; raise if one has changed since."""
        arguments = self.manifest["arguments"]
        saved: dict[str, Any] = dict(arguments["opening"])
        saved |= {name: tuple(saved[name]) for name in ("camera", "language", "action")}
        opening, others = OpenOptions(**saved).arguments(), arguments.get("openings", {})
        try:
            opened = [
                open_dataset(path, **others.get(path, opening))
                for path in (arguments["target"], *arguments["prior"])
            ]
        except StrapError as error:
            raise StrapError(
                f"'{self.path}' was made from a dataset that cannot be opened: {error}"
            ) from error
        target = _selection(arguments, "target").apply(opened[0])
        chosen = _selection(arguments, "prior")
        priors = [chosen.apply(prior) for prior in opened[1:]]
        for dataset in (target, *priors):
            if dataset.fingerprint() != self.manifest["inputs"].get(dataset.name):
                raise StrapError(
                    f"'{dataset.path}' has changed since '{self.path}' was made: run "
                    "`strap retrieve` again"
                )
        return target, priors

    def has_datasets(self) -> bool:
        """Return whether the run's datasets still exist at their paths."""
        arguments = self.manifest["arguments"]
        return all(Path(place).exists() for place in (arguments["target"], *arguments["prior"]))


def is_run(path: Path) -> bool:
    """Return whether a folder is a run, finished or not."""
    return (path / "matches.parquet").is_file()


def open_run(path: str | Path) -> Run:
    """Open a finished run."""
    path = Path(path).expanduser()
    manifest = _read_manifest(path)
    return Run(path, Matches.from_parquet(path / "matches.parquet"), manifest, reused=True)


def _read_manifest(path: Path) -> Mapping[str, Any]:
    if not (path / "manifest.json").is_file():
        raise StrapError(
            f"'{path}' is not a finished run (it has no manifest.json): make it with `strap "
            "retrieve`"
        )
    manifest: dict[str, Any] = read_json(path / "manifest.json")
    if wrong := _wrong_in(manifest):
        raise StrapError(
            f"'{path / 'manifest.json'}' is damaged ({wrong}): restore it from a copy, or run "
            "`strap retrieve` again with --overwrite"
        )
    return manifest


def find_finished(
    out: Path, arguments: Mapping[str, Any], inputs: Mapping[str, str], *, overwrite: bool
) -> Run | None:
    """Return the run in a folder if it is finished and up to date; None if it must be made."""
    if not (out / "manifest.json").is_file():
        if out.is_dir() and not (out / "segments.json").is_file() and not is_empty_folder(out):
            raise StrapError(f"'{out}' holds other files; choose a new folder for the run")
        return None
    try:
        manifest = _read_manifest(out)
    except StrapError:
        if overwrite:  # a damaged manifest is replaced too
            return None
        raise
    old = {"openings": {}, **manifest["arguments"]}  # older runs have no `openings`
    changed = [key for key in arguments if old.get(key) != arguments[key]]
    if changed and not overwrite:
        what = "; ".join(f"{key} {old.get(key)} → {arguments[key]}" for key in changed)
        raise StrapError(
            f"'{out}' holds a run with other arguments ({what}): choose another --out, or pass "
            "--overwrite to replace it"
        )
    before = manifest["inputs"]
    if changed or any(before.get(name) != fingerprint for name, fingerprint in inputs.items()):
        return None
    if wrong := _wrong_results(out, manifest):
        warnings.warn(f"'{out}': {wrong}, so the run is made again", stacklevel=3)
        return None
    run = open_run(out)
    return run if run.augmented or arguments["augmented"] == "none" else None


def fingerprint_results(out: Path) -> dict[str, str]:
    """Return the hashes of a run's result files by name, as the manifest records them."""
    return {name: fingerprint_content(out / name) for name in ("segments.json", "matches.parquet")}


def _wrong_results(out: Path, manifest: Mapping[str, Any]) -> str | None:
    """Return a description of the first result file that was changed or is gone; else None."""
    saved, found = manifest.get("files", {}), fingerprint_results(out)
    for name, fingerprint in found.items():
        if not fingerprint:
            return f"{name} is gone"
        if saved and saved.get(name) != fingerprint:
            return f"{name} was changed"
    if saved:
        return None
    try:
        count = len(Matches.from_parquet(out / "matches.parquet"))
    except StrapError:
        return "matches.parquet cannot be read"
    expected = manifest.get("matches")
    return None if count == expected else f"matches.parquet has {count} matches, not {expected}"


def _wrong_in(manifest: Any) -> str | None:
    """Return a description of what is missing or invalid in a manifest; None if it is valid."""
    if not _are(dict, manifest) or manifest.get("format") != "strap-run":
        return "it is not the manifest of a run"
    arguments, inputs, seconds = (manifest.get(key) for key in ("arguments", "inputs", "seconds"))
    if not _are(dict, arguments, inputs, seconds):
        return "arguments, inputs or seconds are missing"
    opening, openings = arguments.get("opening"), arguments.get("openings", {})
    if not _are(dict, opening) or not set(opening) <= set(OpenOptions.__dataclass_fields__):
        return "'opening' does not say how the datasets were opened"
    if not _are(dict, openings) or not all(map(is_opening, openings.values())):
        return "'openings' does not say how the datasets of stores were opened"
    selections = [arguments.get(f"{which}_selection", {}) for which in ("target", "prior")]
    if not _are(dict, *selections):
        return "it does not say which trajectories were chosen"
    files, reasons = manifest.get("files", {}), manifest.get("reasons", {})
    if not _are(dict, files):
        return "'files' does not say what the run holds"
    if not _are(dict, reasons):
        return "'reasons' does not say why something was chosen"
    lists = [arguments.get("prior"), arguments.get("cameras")]
    lists += [opening.get(name) for name in ("camera", "language", "action")]
    lists += [selection.get("tasks", []) for selection in selections]
    if not _are(list, *lists) or not arguments["prior"]:
        return "'prior' or another list is missing"
    texts = [arguments.get("target"), *inputs.values(), *reasons.values(), *chain(*lists)]
    texts += [selection.get("episodes", "") for selection in selections]
    texts += [opening.get(name) or "" for name in ("format", "orientation", "missing")]
    if not _are(str, *texts):
        return "a path or name is not text"
    counts = [manifest.get("queries"), arguments.get("history"), arguments.get("chunk")]
    if not all(type(n) is int for n in counts) or not _are(int | float, *seconds.values()):
        return "'queries', 'history', 'chunk' or a duration is not a number"
    return None


def _are(kind: type | UnionType, *values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _selection(arguments: Mapping[str, Any], which: str) -> Selection:
    """Return the selection of trajectories of the target, or of each prior, from a manifest."""
    saved = arguments.get(f"{which}_selection", {})
    return Selection(tuple(saved.get("tasks", ())), saved.get("episodes", ""))
