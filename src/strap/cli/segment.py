"""`strap segment`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import tyro

from strap.cli.options import (
    Json,
    OpenArgument,
    SegmentationArgument,
    SelectionArgument,
    print_json,
    require_used_cuts,
)
from strap.cli.progress import show_progress
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.folders import require_ending
from strap.segments import Cuts, cut_dataset, write_segments


@dataclass(frozen=True)
class Command:
    """Cut demonstrations into sub-trajectories and write the segments to a file."""

    EXAMPLES: ClassVar = ("strap segment demonstrations --out segments.json",)
    dataset: tyro.conf.Positional[Path]
    """the target demonstrations: a dataset, or the name of one on the hub"""
    out: Path
    """the JSON file to write"""
    segmentation: SegmentationArgument
    choosing: SelectionArgument = field(default_factory=Selection)
    plot: Path | None = None
    """also draw movement, threshold and cuts of each demonstration (PNG, PDF or SVG)"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    json: Json = False
    """print the segments as JSON"""

    def run(self) -> None:
        """Cut the demonstrations, write the segments, and print them."""
        require_ending(self.out, (".json",))
        # The figure shows the movement, whatever the cuts are.
        require_used_cuts(self.segmentation, ("unit", "norm", "position") if self.plot else ())
        with show_progress(quiet=self.json) as progress:
            dataset = self.choosing.apply(self.opening.open(self.dataset, progress))
            dataset.fetch(cameras=(), progress=progress)
        cuts = cut_dataset(dataset, self.segmentation)
        if self.plot:
            from strap.figures.cuts import write_cuts_figure

            write_cuts_figure(self.plot, dataset, cuts)
        write_segments(self.out, cuts.segments, dataset=dataset, segmentation=cuts.segmentation)
        if self.json:
            rows = [[s.trajectory_id, s.start, s.stop] for s in cuts.segments]
            print_json({"out": str(self.out), "plot": str(self.plot or ""), "segments": rows})
            return
        for key in dataset.ids:
            spans = [f"{s.start}-{s.stop}" for s in cuts.segments if s.trajectory_id == key]
            print(f"{key}: {' '.join(spans)}")
        count = f"{len(cuts.segments)} segments of {len(dataset)} trajectories"
        print(f"{count}{_cut_by(cuts)} → {self.out}")
        if self.plot:
            print(f"movement, threshold and cuts → {self.plot}")


def _cut_by(cuts: Cuts) -> str:
    """Return `, cut where ee_pos rests (moves less than 0.005 m per step)` for stops."""
    moved = cuts.movements
    if moved is None:
        return ""
    epsilon = f"{cuts.segmentation.epsilon:g} {moved.unit}"
    return f", cut where {moved.columns} rests (moves less than {epsilon})"
