"""Finish and read the folders of cells, and copy them between machines.

CELL/
  episodes.jsonl     one line per rollout
  evaluation.json    the checkpoint, task and settings of `strap evaluate`
  matches.parquet    the retrieved matches; datasets are named relative to the data folder
  manifest.json      identity, data, versions, commands and seconds; written last
  train.log, evaluate.log

Only the logs contain absolute paths.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strap.atomic import explain_write_errors, read_json, remove_folder, replacing, write_json
from strap.errors import StrapError
from strap.evaluation.records import DESCRIPTION, OUTCOME, read_description, read_records
from strap.experiments.cells import Cell, describe_difference
from strap.experiments.datafolder import as_relative, fits_pattern, relative_matches
from strap.experiments.plan import Planner, Stage
from strap.provenance import versions

MATCHES = "matches.parquet"
KEPT = ("episodes.jsonl", "evaluation.json", MATCHES, "manifest.json")
"""files to copy; the manifest last"""


@dataclass(frozen=True, eq=False)
class CellResult:
    """The result of a finished cell."""

    cell: Cell
    path: Path
    manifest: Mapping[str, Any]
    successes: Mapping[int, bool]
    """initial state -> success"""
    partial: float
    """the mean share of sub-goals reached"""

    @property
    def matches(self) -> Path | None:
        """The file of matches, or None if the cell retrieved nothing."""
        file = self.path / MATCHES
        return file if file.is_file() else None


def note_stage(stage: Stage, seconds: float, planner: Planner) -> None:
    """Record that a stage is finished."""
    write_json(stage.note, {**_describe(stage, seconds, planner), "stamp": stage.stamp})


def _describe(stage: Stage, seconds: float, planner: Planner) -> dict[str, Any]:
    places = {"DATA": planner.data.path, "WORK": planner.work}
    command = as_relative(stage.command[len(planner.program) :], places)
    return {"command": command, "seconds": round(seconds, 1)}


def finish_cell(
    stage: Stage, seconds: float, planner: Planner, stages: Mapping[str, Stage]
) -> Path:
    """Write an evaluated cell's matches and, last, its manifest; return its folder."""
    cell = stage.cell
    if cell is None:
        raise StrapError(f"stage '{stage.name}' evaluates no cell")
    folder = planner.work / cell.folder
    _read_successes(folder, cell)
    chain = _with_needed(stage, stages)
    if not (folder / MATCHES).is_file():
        keep_matches(stage, planner, stages)
    notes = {other.kind: read_json(other.note) for other in chain if other.note.is_file()}
    notes[stage.kind] = _describe(
        stage, seconds, planner
    )  # this stage has no note: the manifest replaces it
    manifest = {
        "format": "strap-cell",
        "experiment": cell.experiment.name,
        "identity": cell.identity,
        "data": planner.data.fingerprints,
        "versions": versions(),
        "commands": {kind: note["command"] for kind, note in notes.items()},
        "seconds": {kind: note["seconds"] for kind, note in notes.items()},
    }
    write_json(folder / "manifest.json", manifest)
    return folder


def _with_needed(stage: Stage, stages: Mapping[str, Stage]) -> list[Stage]:
    """Return a stage and, before it, all stages that it needs."""
    needed = [other for name in stage.needs for other in _with_needed(stages[name], stages)]
    return list(dict.fromkeys([*needed, stage]))


def keep_matches(stage: Stage, planner: Planner, stages: Mapping[str, Stage]) -> None:
    """Copy the matches that a cell was trained on, if any, to the cell's folder."""
    import pyarrow.parquet as pq

    if stage.cell is None:
        return
    file = planner.work / stage.cell.folder / MATCHES
    file.unlink(missing_ok=True)
    for other in _with_needed(stage, stages):
        if other.kind == "retrieve":
            source = other.output / MATCHES
            if not source.is_file():
                raise StrapError(
                    f"'{planner.policy(stage.cell)}' was trained on '{source}', which is gone: "
                    "restore it from a copy, or remove that policy to train it again"
                )
            with replacing(file) as temporary:
                table = relative_matches(pq.read_table(source), planner.data.path)
                pq.write_table(table, temporary)


def drop_weights(cell: Cell, planner: Planner) -> None:
    """Remove the policy of a finished cell."""
    remove_folder(planner.policy(cell))
    (planner.work / cell.folder / "train.json").unlink(missing_ok=True)


def read_cell(folder: Path, cell: Cell) -> CellResult | None:
    """Read a cell's result below a folder; return None if the cell is not finished.

    A cell with other settings than those of the experiment is an error.
    """
    place = folder / cell.folder
    manifest = _read_manifest(place)
    if manifest is None:
        return None
    if difference := describe_difference(manifest["identity"], cell.identity):
        raise StrapError(
            f"'{place}' differs from the experiment's file: {difference}; choose another folder, "
            "or undo the change"
        )
    _check_data(place, manifest["data"], cell)
    successes, partial = _read_successes(place, cell)
    return CellResult(cell, place, manifest, successes, partial)


def describe_state(folders: Iterable[Path], cell: Cell) -> str:
    """Return "finished", or why a run would refuse a cell, or "" if it is not finished yet.

    Args:
        folders: the work folder, and perhaps one of kept cells; a run reads the cell in each.
        cell: the cell.
    """
    found = ""
    for folder in folders:
        try:
            manifest = _read_manifest(folder / cell.folder)
            if manifest is None:
                continue
            if difference := describe_difference(manifest["identity"], cell.identity):
                return f"differs: {difference}"
            read_cell(folder, cell)
        except StrapError as error:
            return f"unusable: {error}"
        found = "finished"
    return found


def _read_manifest(place: Path) -> dict[str, Any] | None:
    """Read the manifest in a cell's folder; return None if there is none."""
    file = place / "manifest.json"
    if not file.is_file():
        return None
    manifest = read_json(file)
    identity = manifest.get("identity") if isinstance(manifest, dict) else None
    if not isinstance(identity, dict) or not isinstance(manifest.get("data"), dict):
        raise StrapError(
            f"'{file}' is not the manifest of a cell: restore it from a copy, or remove '{place}'"
        )
    _check_costs(file, manifest)
    return dict(manifest)


def _check_data(place: Path, data: Iterable[str], cell: Cell) -> None:
    """Raise unless a cell was made from exactly the datasets that the experiment names."""
    named = (cell.experiment.target, *cell.experiment.prior)
    used = list(data)
    is_named = all(any(fits_pattern(name, pattern) for pattern in named) for name in used)
    is_used = all(any(fits_pattern(name, pattern) for name in used) for pattern in named)
    if not (is_named and is_used):
        raise StrapError(
            f"'{place}' was made from the datasets {', '.join(used)}, but the experiment's file "
            f"says {', '.join(named)}: choose another folder, or undo the change"
        )


def _check_costs(file: Path, manifest: Mapping[str, Any]) -> None:
    """Raise if a manifest's seconds or versions are invalid."""
    for name in ("seconds", "versions"):
        if not isinstance(manifest.get(name, {}), dict):
            raise StrapError(
                f"'{file}': {name} is {manifest[name]!r}, not an object: restore it from a copy, "
                f"or remove '{file.parent}'"
            )
    for kind, spent in manifest.get("seconds", {}).items():
        if type(spent) not in (int, float) or not 0 <= spent < math.inf:
            raise StrapError(
                f"'{file}': seconds.{kind} is {spent!r}, not a number from 0 on: restore it from a "
                f"copy, or remove '{file.parent}'"
            )


def _read_successes(place: Path, cell: Cell) -> tuple[dict[int, bool], float]:
    if (place / DESCRIPTION).is_file():
        _check_evaluation(place, cell)
    first, stop = cell.experiment.states
    rows = read_records(place, seed=cell.seed, required=OUTCOME)
    missing = [state for state in range(first, stop) if state not in rows]
    if missing:
        raise StrapError(
            f"'{place / 'episodes.jsonl'}' lacks {len(missing)} of {stop - first} episodes "
            f"(initial state {missing[0]}, …): restore it from a copy, or remove '{place}'"
        )
    chosen = [rows[state] for state in range(first, stop)]
    partial = sum(float(row["partial"]) for row in chosen) / len(chosen)
    return {int(row["state"]): bool(row["success"]) for row in chosen}, partial


def _check_evaluation(place: Path, cell: Cell) -> None:
    """Raise if an evaluation is of another suite, task, seed or horizon."""
    about, evaluated = read_description(place), cell.identity["evaluate_options"]
    expected: dict[str, Any] = {"suite": cell.experiment.suite, "seed": cell.seed}
    expected["task"] = cell.identity["instruction"]
    if "horizon" in evaluated:
        expected["horizon"] = evaluated["horizon"]
    found = {key: about.get(key, value) for key, value in expected.items()}
    if expected["task"].replace(" ", "_") in str(found["task"]):  # it is the end of a task's name
        found["task"] = expected["task"]
    if difference := describe_difference(found, expected):
        raise StrapError(
            f"'{place / DESCRIPTION}' is of another cell than '{cell.name}': {difference}; restore "
            f"'{place}' from a copy, or remove it"
        )


def copy_cell(cell: Cell, source: Path, destination: Path) -> bool:
    """Copy the KEPT files of a finished cell to another folder, unless they are there already.

    Returns:
        whether the files were copied.
    """
    if read_cell(source, cell) is None or read_cell(destination, cell) is not None:
        return False
    for name in KEPT:
        file = source / cell.folder / name
        if file.is_file():
            with (
                explain_write_errors(destination),
                replacing(destination / cell.folder / name) as temporary,
            ):
                shutil.copyfile(file, temporary)
    return True


def read_results(cells: Iterable[Cell], folder: Path) -> list[CellResult]:
    """Read all finished cells; cells made from different data are an error."""
    results = [result for cell in cells if (result := read_cell(folder, cell))]
    for result in results[1:]:
        first = results[0]
        if difference := describe_difference(first.manifest["data"], result.manifest["data"]):
            raise StrapError(
                f"'{first.path}' and '{result.path}' were made from different data: {difference}; "
                "report them apart"
            )
    return results
