"""`strap convert`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import tyro

from strap.cli.options import Json, OpenArgument, SelectionArgument, print_json
from strap.cli.progress import show_progress
from strap.conversion import convert, format_of
from strap.datasets import OpenOptions
from strap.datasets.base import Codec, Format
from strap.datasets.selection import Selection


@dataclass(frozen=True)
class Command:
    """Write a dataset in another format: robomimic HDF5 or LeRobot v3.0.

    If it is interrupted, run the same command again to continue with the next trajectory.
    """

    EXAMPLES: ClassVar = ("strap convert demonstrations.hdf5 demonstrations-lerobot",)
    dataset: tyro.conf.Positional[Path]
    """HDF5 (robomimic, LIBERO), LeRobot, RLDS or Zarr: a file or a folder; or the name of a LeRobot
    dataset on the Hugging Face hub, OWNER/NAME[@REVISION]"""
    out: tyro.conf.Positional[Path]
    """a .hdf5 file (robomimic) or a new folder (LeRobot v3.0)"""
    to: Format | None = None
    """the format to write (default: chosen by the name of OUT)"""
    choosing: SelectionArgument = field(default_factory=Selection)
    ids: tuple[str, ...] = ()
    """convert only the trajectories with these ids"""
    fps: float | None = None
    """the frame rate to write (default: the dataset's)"""
    codec: Codec = "h264"
    """LeRobot: how video is encoded"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Convert, then print what was written."""
        with show_progress() as progress:
            dataset = self.choosing.apply(self.opening.open(self.dataset, progress))
            out = convert(
                dataset,
                self.out,
                format=self.to,
                ids=self.ids,
                fps=self.fps,
                codec=self.codec,
                progress=progress,
            )
        size = sum(f.stat().st_size for f in out.rglob("*")) if out.is_dir() else out.stat().st_size
        count = len(self.ids or dataset.ids)
        if self.json:
            form = format_of(self.out, self.to)
            print_json({"out": str(out), "format": form, "trajectories": count, "bytes": size})
        else:
            print(f"{out}: {count} trajectories, {size / 1e6:.1f} MB")
