"""`strap segment`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import tyro

from strap.cli.options import Choosing, Cutting, Json, Opening, print_json
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.positions import position_name
from strap.segments import segment, write_segments


@dataclass(frozen=True)
class Command:
    """Cut demonstrations into sub-trajectories and write where the cuts lie."""

    EXAMPLES: ClassVar = ("strap segment demonstrations --out segments.json",)
    dataset: tyro.conf.Positional[Path]
    """the target demonstrations"""
    out: Path
    """the JSON file to write"""
    segmentation: Cutting
    choosing: Choosing = field(default_factory=Selection)
    opening: Opening = field(default_factory=OpenOptions)
    json: Json = False
    """print the segments as JSON"""

    def run(self) -> None:
        """Segment, write, and list the segments."""
        dataset = self.choosing.apply(self.opening.open(self.dataset))
        options = self.segmentation
        segments = segment(dataset, **vars(options))
        write_segments(self.out, segments, dataset=dataset, segmentation=options)
        if self.json:
            rows = [[s.trajectory_id, s.start, s.stop] for s in segments]
            print_json({"out": str(self.out), "segments": rows})
            return
        for key in dataset.ids:
            own = [s for s in segments if s.trajectory_id == key]
            print(f"{key}: {' '.join(f'{s.start}-{s.stop}' for s in own)}")
        by = ""
        if options.method == "stops":
            by = f", cut where {position_name(dataset[dataset.ids[0]], options.position)} rests"
        print(f"{len(segments)} segments of {len(dataset)} trajectories{by} → {self.out}")
