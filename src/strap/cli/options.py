"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tyro

from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.errors import StrapError
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
        format: the dataset's format, if it is not recognised: lerobot, rlds, zarr, libero,
            robomimic
        orientation: how images are stored; flipped: bottom row first (default: by the format;
            LIBERO is flipped)
        missing: how to treat episodes whose video or shard is missing: error: reading them is an
            error; skip: they are left out
        rlds_camera: the step's fields that are cameras, if not recognised by type
        rlds_language: the step's field (or fields) with the instruction
        rlds_action: the step's fields that form the action
    """
    return OpenOptions(format, orientation, missing, rlds_camera, rlds_language, rlds_action)


OpenArgument: TypeAlias = Annotated[OpenOptions, tyro.conf.arg(name="", constructor=make_opening)]
DEFAULT = Segmentation()


def make_selection(tasks: tuple[str, ...] = (), episodes: str = "") -> Selection:
    """Read which trajectories of a dataset are used.

    Args:
        tasks: use only trajectories with one of these instructions (a text that equals no
            instruction selects those that contain it)
        episodes: of these trajectories, use only those at these positions: 0:5 or 0:10,17
    """
    return Selection(tasks, episodes)


SelectionArgument: TypeAlias = Annotated[
    Selection, tyro.conf.arg(name="", constructor=make_selection)
]


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
        segmentation: where to cut. stops: where the end effector rests (or the joints, if the
            dataset has no end-effector position); window: segments of equal length; full: nowhere;
            manual: at the boundaries in a file
        epsilon: stops: a frame that moves less than this to the next frame is a stop; auto: chosen
            from the demonstrations (default: 0.005, as in the released code; for joints auto)
        unit: whether epsilon is a movement per step, or per second (by the dataset's frame rate)
        norm: the norm of a movement over the position columns
        min_length: stops: shorter segments are merged with the next one
        window: window: frames per segment
        position: the proprioception to use as position: NAME, NAME[0:3], NAME[1:] or NAME[0,2,5],
            columns as in a Python index
        boundaries: manual: a JSON file, {trajectory id: [first frame of each segment after the
            first, …]}, or one that `strap segment` wrote
    """
    return Segmentation(segmentation, epsilon, unit, norm, min_length, window, position, boundaries)


SegmentationArgument: TypeAlias = Annotated[
    Segmentation, tyro.conf.arg(name="", constructor=make_segmentation)
]
USED_BY: Mapping[str, str] = {
    "boundaries": "manual",
    "window": "window",
    **dict.fromkeys(("epsilon", "unit", "norm", "min_length", "position"), "stops"),
}
"""Option of a segmentation -> the one --segmentation that uses it."""


def require_used_cuts(cut: Segmentation, used_elsewhere: Collection[str] = ()) -> None:
    """Raise if an option is given that the segmentation does not use.

    Args:
        cut: the segmentation.
        used_elsewhere: options that the command uses whatever the segmentation is.
    """
    for name, method in USED_BY.items():
        value = getattr(cut, name)
        if value == getattr(DEFAULT, name) or name in used_elsewhere or cut.method == method:
            continue
        word = f"--{name.replace('_', '-')}"
        raise StrapError(
            f"{name} is {value}, but --segmentation {cut.method} does not use it: give "
            f"--segmentation {method}, or leave {word} out"
        )


def print_json(value: Mapping[str, Any]) -> None:
    """Print a JSON object; control characters are escaped as \\uXXXX."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    shown = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    print("".join(shown))
