"""A small experiment, its data and finished cells, written to disk."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strap.atomic import write_json
from strap.experiments.cells import Cell, list_cells
from strap.experiments.datafolder import open_data
from strap.experiments.description import Experiment, read_experiment
from strap.experiments.plan import Planner
from strap.types import Match, Matches, Segment

TOY = (sys.executable, "-S", "-E", str(Path(__file__).parent / "toy_commands.py"))
KNOWN = {
    "cache": {"--image-size": False},
    "train": {"--steps": False, "--decay": True, "--alpha": False, "--qkv-bias": False},
    "retrieve": dict.fromkeys(("--segmentation", "--cameras", "--fraction", "--threshold"), False),
    "evaluate": {"--episodes": False, "--horizon": False, "--acting": False, "--no-videos": True},
}
TEXT = """
name = "small"
target = "target"
prior = ["prior*"]
demonstrations = "0:5"
encoder = "pixels"
seeds = [1]

[train]
steps = 10
decay = true

[evaluate]
episodes = "0:4"
videos = false

[tasks]
Mug = "put the mug on the plate"
Book = "put the book on the shelf"

[[methods]]
name = "BC"
train = "bc"
seeds = [1, 2]

[[methods]]
name = "FT"
train = "ft"

[[methods]]
name = "STRAP"
train = "strap"
retrieval = "strap"
top_k = [10, 20]
seeds = [1, 2]

[paper.BC]
Mug = 50
"""


def write_experiment(folder: Path, text: str = TEXT) -> Path:
    """Write an experiment's file, and datasets that are folders with a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("target", "prior-0", "prior-1"):
        if not (folder / name).is_dir():
            (folder / name).mkdir()
            (folder / name / "data.bin").write_bytes(b"x" * 10)
    file = folder / "small.toml"
    file.write_text(text)
    return file


def read_small(folder: Path, text: str = TEXT) -> Experiment:
    """Write the small experiment and read it."""
    return read_experiment(write_experiment(folder, text), KNOWN)


def toy_planner(experiment: Experiment, data: Path, work: Path) -> Planner:
    """Return a planner whose commands are toys."""
    return Planner(open_data(experiment, data), work.resolve(), KNOWN, program=TOY)


def toy_environment(folder: Path, data: Path, seconds: float = 0.02) -> dict[str, str]:
    """Return the variables that the toys want; makes the journal and the matches they copy."""
    journal = folder / "journal"
    journal.mkdir(exist_ok=True)
    query = Segment("demo_0", 0, 5)
    rows = [
        Match(
            query,
            Segment(f"demo_{i}", 2, 9),
            0.5 * i,
            i + 1,
            f"task {i % 2}",
            str(data / "prior-0"),
        )
        for i in range(3)
    ]
    Matches(tuple(rows)).to_parquet(folder / "matches.parquet")
    return {
        **os.environ,
        "JOURNAL": str(journal),
        "MATCHES": str(folder / "matches.parquet"),
        "SECONDS": str(seconds),
    }


def journal_of(folder: Path, what: str) -> list[str]:
    """Return the outputs that the toys noted: "begin", "done" or "collision"."""
    names = [path.name.split(" ") for path in (folder / "journal").iterdir()]
    return sorted(label for kind, label, _ in names if kind == what)


def write_cell(folder: Path, cell: Cell, successes: Sequence[bool], **changes: Any) -> Path:
    """Write a finished cell as the runner would."""
    place = folder / cell.folder
    place.mkdir(parents=True)
    rows = [
        {"state": state, "success": success, "partial": float(success)}
        for state, success in enumerate(successes)
    ]
    (place / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = {
        "format": "strap-cell",
        "identity": cell.identity,
        "data": {"target": "a", "prior": "b"},
        "versions": {"python": "3"},
        "commands": {},
        "seconds": {"train": 10.0, "evaluate": 5.0},
    }
    write_json(place / "manifest.json", {**manifest, **changes})
    return place


def cell_named(experiment: Experiment, name: str) -> Cell:
    """Return the cell of a name."""
    return {cell.name: cell for cell in list_cells(experiment)}[name]
