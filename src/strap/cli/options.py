"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from strap.segments import Method, Norm, Segmentation, Unit

Json = Annotated[bool, tyro.conf.arg(name="json")]


@dataclass(frozen=True)
class SegmentationOptions:
    """How demonstrations are cut into sub-trajectories."""

    method: Method = "stops"
    """stops: where the end effector rests; window: equal pieces; full: whole demonstrations;
    manual: from --boundaries"""
    epsilon: float = 5e-3
    """stops: a frame that moves less than this before the next is a stop (metres, or the unit of
    the position columns)"""
    unit: Unit = "step"
    """epsilon is per step, or per second (uses the dataset's frame rate)"""
    norm: Norm = "l1"
    """how a movement is measured over the position columns"""
    min_length: int = 20
    """stops: shorter chunks are merged with the next one"""
    window: int = 30
    """window: frames per piece"""
    position: str | None = None
    """which proprioception is the position: NAME, 'NAME[0:3]' or 'NAME[0,2,5]' (found by name
    where the dataset has an end-effector position)"""
    boundaries: Path | None = None
    """manual: JSON {"demo_0": [40, 95], …}, the first frame of each further segment; or a file
    that `strap segment` wrote"""

    def segmentation(self) -> Segmentation:
        """These options, checked."""
        return Segmentation(**vars(self))


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(value, indent=1, ensure_ascii=False))
