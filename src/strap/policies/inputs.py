"""Checks of observations: a policy refuses those on which it would act wrongly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strap.errors import StrapError, printable, shorten
from strap.policies.settings import Interface
from strap.types import Array

RATE_TOLERANCE = 0.05
"""largest difference between a robot's rate and the training data's, as a share of the latter"""
MAX_INSTRUCTION = 4096
"""largest number of characters in an instruction"""
FORMAT = "give an image of uint8 [height width 3], upright"


@dataclass(frozen=True, eq=False)
class Observation:
    """What a robot sees at one moment."""

    images: Mapping[str, Array]
    """camera -> uint8 [h w 3], upright, RGB"""
    proprioception: Mapping[str, Array]
    """key -> [d]"""
    instruction: str
    rate: float | None = None
    """actions per second that the robot executes; None if unknown"""


def require_observation(observation: Observation, interface: Interface) -> None:
    """Raise unless an observation has the cameras, shapes and rate the policy was trained on."""
    _require_cameras(observation.images, interface)
    for name in interface.cameras:
        _require_image(name, _as_array(f"camera '{name}'", observation.images[name]), interface)
    for key, size in interface.proprioception.items():
        if key not in observation.proprioception:
            known = ", ".join(observation.proprioception) or "none"
            raise StrapError(f"this policy needs proprioception '{key}'; there is: {known}")
        _require_state(
            key, _as_array(f"proprioception '{key}'", observation.proprioception[key]), size
        )
    _require_instruction(observation.instruction)
    _require_rate(observation.rate, interface.fps)


def frame_sizes(name: str, interface: Interface) -> tuple[tuple[int, int], ...]:
    """Return the (height, width) that a camera's images may have."""
    square = (interface.image_size, interface.image_size)
    recorded = interface.frame_sizes.get(name, square)
    return (square,) if recorded == square else (recorded, square)


def _as_array(what: str, value: object) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise StrapError(f"{what} is not an array: give an array of numbers") from error


def _require_cameras(images: Mapping[str, Array], interface: Interface) -> None:
    for name in interface.cameras:
        if name not in images:
            known = ", ".join(printable(shorten(str(other))) for other in images) or "none"
            raise StrapError(f"this policy needs camera '{name}'; there is: {known}")
    if extra := [str(name) for name in images if name not in interface.cameras]:
        known = ", ".join(interface.cameras) or "none"
        raise StrapError(
            f"camera '{printable(shorten(extra[0]))}' is not an input of this policy, whose "
            f"cameras are: {known}; leave it out, or train with it"
        )


def _require_image(name: str, image: Array, interface: Interface) -> None:
    given = f"camera '{name}' gives {image.dtype} {image.shape}"
    if image.ndim == 3 and image.shape[0] == 3 and image.shape[2] != 3:
        raise StrapError(f"{given}, channels first: {FORMAT}, as image.transpose(1, 2, 0) does")
    if image.dtype.kind == "f" and image.size:
        spread = f"values {np.min(image):g} to {np.max(image):g}"
        raise StrapError(
            f"{given} with {spread}: {FORMAT}; if 1 is white, send (255 * "
            "image).round().astype('uint8')"
        )
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise StrapError(f"{given}: {FORMAT}")
    allowed = frame_sizes(name, interface)
    if image.shape[:2] not in allowed:
        sizes = " or ".join(f"{height}×{width}" for height, width in allowed)
        raise StrapError(
            f"camera '{name}' gives an image of {image.shape[0]}×{image.shape[1]} (height×width): "
            f"this policy takes {sizes}, as in its training; set the camera to that size, or "
            "resize the image"
        )


def _require_state(key: str, values: Array, size: int) -> None:
    if values.ndim != 1 or len(values) != size:
        count = len(values) if values.ndim == 1 else f"shape {values.shape} of"
        raise StrapError(
            f"proprioception '{key}' has {count} numbers; this policy was trained with {size}"
        )
    # The policy computes in float32, in which 1e300 is infinite.
    with np.errstate(over="ignore"):
        is_finite = values.dtype.kind in "fiub" and np.isfinite(values.astype(np.float32)).all()
    if not is_finite:
        raise StrapError(
            f"proprioception '{key}' is {shorten(str(values.tolist()))}: it must hold finite "
            "numbers; check that sensor, or send its last good reading"
        )


def _require_instruction(text: object) -> None:
    if not isinstance(text, str):
        raise StrapError(
            f"the instruction is {shorten(repr(text))}, not text: give an instruction like those "
            "in training, as 'put the mug on the plate'"
        )
    if len(text) > MAX_INSTRUCTION:
        raise StrapError(
            f"the instruction has {len(text)} characters, more than the maximum of "
            f"{MAX_INSTRUCTION}; give one sentence"
        )


def _require_rate(rate: object, fps: float | None) -> None:
    if rate is None:
        return
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not is_number or not math.isfinite(rate) or rate <= 0:  # type: ignore[arg-type, operator]
        raise StrapError(
            f"the rate is {shorten(repr(rate))}: it must be a number above 0, the robot's actions "
            "per second; or leave it out"
        )
    if fps and abs(rate - fps) > RATE_TOLERANCE * fps:  # type: ignore[operator]
        given = f"{round(rate, 2):g}"  # type: ignore[call-overload]
        raise StrapError(
            f"the robot executes {given} actions per second, but this policy was trained on data "
            f"with {fps:g} per second: act at that rate, or train on data with {given}"
        )
