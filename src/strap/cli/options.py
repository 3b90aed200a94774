"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tyro

from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.segments import Segmentation

Json: TypeAlias = Annotated[bool, tyro.conf.arg(name="json")]


def make_opening(
    format: str | None = None,
    orientation: Literal["upright", "flipped"] | None = None,
    missing: Literal["error", "skip"] = "error",
    rlds_camera: tuple[str, ...] = (),
    rlds_language: tuple[str, ...] = (),
    rlds_action: tuple[str, ...] = (),
) -> OpenOptions:
    """Read how datasets are opened.

    Args:
        format: name the format instead of looking: lerobot, rlds, zarr, libero, robomimic
        orientation: how images lie on disk, flipped: bottom row first (default: as the format
            says; LIBERO: flipped)
        missing: episodes whose video or shard is absent: an error when they are read, or left out
        rlds_camera: the step's fields that are cameras, where their kind does not tell
        rlds_language: the step's field (or fields) with the instruction
        rlds_action: the step's fields that make the action
    """
    return OpenOptions(format, orientation, missing, rlds_camera, rlds_language, rlds_action)


Opening: TypeAlias = Annotated[OpenOptions, tyro.conf.arg(name="", constructor=make_opening)]
DEFAULT = Segmentation()


def make_selection(tasks: tuple[str, ...] = (), episodes: str = "") -> Selection:
    """Read which trajectories of a dataset are used.

    Args:
        tasks: use only trajectories with one of these instructions (or, where none is equal, with
            one that contains the text)
        episodes: of those, use only the ones at these positions: 0:5 or 0:10,17
    """
    return Selection(tasks, episodes)


Choosing: TypeAlias = Annotated[Selection, tyro.conf.arg(name="", constructor=make_selection)]


def make_segmentation(
    segmentation: Literal["stops", "window", "full", "manual"] = "stops",
    epsilon: float | Literal["auto"] | None = DEFAULT.epsilon,
    unit: Literal["step", "second"] = DEFAULT.unit,
    norm: Literal["l1", "l2"] = DEFAULT.norm,
    min_length: int = DEFAULT.min_length,
    window: int = DEFAULT.window,
    position: str | None = None,
    boundaries: Path | None = None,
) -> Segmentation:
    """Read how demonstrations are cut.

    Args:
        segmentation: how to cut. stops: where the end effector (or, where the dataset has none,
            the joints) rest; window: equal spans; full: whole demonstrations; manual: boundaries
            from a file
        epsilon: stops: a frame whose movement to the next is below this is a stop; auto: chosen
            from the demonstrations (default: 0.005, as in the released code; for joints auto)
        unit: epsilon is a movement per step, or per second (then the dataset's frame rate is used)
        norm: how a movement is measured over the position columns
        min_length: stops: shorter segments are merged with the next one
        window: window: frames of a segment
        position: which proprioception is the position: NAME, NAME[0:3], NAME[1:] or NAME[0,2,5],
            with columns as Python counts them
        boundaries: manual: a JSON file, {trajectory id: [first frame of each further segment, …]},
            or one that `strap segment` wrote
    """
    return Segmentation(segmentation, epsilon, unit, norm, min_length, window, position, boundaries)


Cutting: TypeAlias = Annotated[Segmentation, tyro.conf.arg(name="", constructor=make_segmentation)]


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; what a terminal would act on is written as \\uXXXX."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    shown = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print("".join(shown))
