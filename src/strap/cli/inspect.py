"""`strap inspect`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

import tyro

from strap.cli.options import Json, OpenArgument, SelectionArgument, print_json
from strap.cli.progress import show_progress
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.folders import require_ending
from strap.inspection import inspect, write_contact_sheet


@dataclass(frozen=True)
class Command:
    """Show what is in a dataset: episodes, cameras, rates, instructions, lengths, positions."""

    EXAMPLES: ClassVar = (
        "strap inspect demonstrations --sheet frames.png",
        "strap inspect lerobot/pusht",
    )
    dataset: tyro.conf.Positional[Path]
    """HDF5 (robomimic, LIBERO), LeRobot, RLDS or Zarr: a file or a folder; or the name of a LeRobot
    dataset on the Hugging Face hub, OWNER/NAME[@REVISION]"""
    choosing: SelectionArgument = field(default_factory=Selection)
    sheet: Path | None = None
    """also write a contact sheet of its frames (PNG)"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    json: Json = False
    """print the findings as JSON"""

    def run(self) -> None:
        """Inspect the dataset and print the findings."""
        if self.sheet:
            require_ending(self.sheet, (".png",))
        with show_progress(quiet=self.json) as progress:
            dataset = self.choosing.apply(self.opening.open(self.dataset, progress))
            found = inspect(dataset)
            if self.sheet:
                write_contact_sheet(dataset, self.sheet, progress=progress)
        if self.json:
            print_json({**asdict(found), "path": str(found.path), "sheet": str(self.sheet or "")})
        else:
            print(found)
            if self.sheet:
                print(f"contact sheet → {self.sheet}")
