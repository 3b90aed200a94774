"""The settings of a representation's training; importing them needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from strap.errors import StrapError

Kind = Literal["br", "fr"]
"""`br`: BehaviorRetrieval, on images and actions; `fr`: FlowRetrieval, on optical flow."""
LEARNING_RATES: Mapping[Kind, float] = {"br": 1e-3, "fr": 3e-4}
"""Adam's learning rates in BehaviorRetrieval and in FlowRetrieval"""
GRID = 32
"""the factor by which the encoder's last feature map is smaller than a picture"""
LIMITS = {
    "steps": 100_000_000,
    "batch": 65_536,
    "latent": 8_192,
    "features": 8_192,
    "keypoints": 8_192,
    "image_size": 1_024,
    "horizon": 100_000,
    "save_every": 100_000_000,
    "log_every": 100_000_000,
}
"""the maximum of each setting; the minimum is 1"""


@dataclass(frozen=True)
class RepresentationSettings:
    """The settings of a training, with the methods' own defaults except for the steps."""

    steps: int = 30_000
    """number of training steps. By default 77,000 frames are each used about 19 times; one H200
    does 150 steps of `br` a second"""
    batch: int = 50
    learning_rate: float | None = None
    """by default 1e-3 for `br`, 3e-4 for `fr`"""
    kl_weight: float = 1e-4
    latent: int = 128
    """length of a code"""
    features: int = 128
    """length of a picture's features, which are then joined with the action"""
    keypoints: int = 32
    """`br`: keypoints of the spatial softmax; `fr`: channels kept at each position of the map"""
    hidden: tuple[int, ...] = (300, 400)
    """widths of the layers between features and code"""
    image_size: int = 128
    """side of the pictures in pixels: a multiple of 32, at least 64"""
    horizon: int = 8
    """`fr`: distance in frames of the two images of a flow"""
    camera: str | None = None
    """by default the agent view"""
    seed: int = 0
    save_every: int = 2_000
    log_every: int = 100

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            require_whole(getattr(self, name), name, 1, most)
        require_whole(self.seed, "seed", 0, 2**63 - 1)
        if not self.hidden or len(self.hidden) > 16:
            raise StrapError(f"hidden is {self.hidden}: give 1 to 16 widths, as (300, 400)")
        for width in self.hidden:
            require_whole(width, "a width of hidden", 1, 8_192)
        if self.image_size % GRID or self.image_size == GRID:  # a 1×1 map has no keypoints
            raise StrapError(
                f"image_size is {self.image_size}: it must be a multiple of {GRID}, at least "
                f"{2 * GRID}"
            )
        rate = self.learning_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise StrapError(f"learning_rate is {rate}: it must be above 0")
        if not (math.isfinite(self.kl_weight) and self.kl_weight >= 0):
            raise StrapError(f"kl_weight is {self.kl_weight}: it must be 0 or more")

    def rate(self, kind: Kind) -> float:
        """Return the learning rate for a kind of representation."""
        return LEARNING_RATES[kind] if self.learning_rate is None else self.learning_rate

    def identity(self) -> dict[str, Any]:
        """Return the settings that the weights depend on: all but `save_every` and `log_every`."""
        values = asdict(self)
        return {k: v for k, v in values.items() if k not in ("save_every", "log_every")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RepresentationSettings:
        """Return the settings in a representation's JSON; raise if a name is unknown."""
        known = {entry.name for entry in fields(cls)}
        if odd := sorted(set(values) - known):
            raise StrapError(f"representation settings have unknown names: {', '.join(odd)}")
        return cls(**{**values, "hidden": tuple(values.get("hidden", cls.hidden))})


def require_whole(value: object, name: str, least: int, most: int) -> None:
    """Raise unless the value is a whole number within the limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise StrapError(f"{name} is {value!r:.60}: give a whole number from {least} to {most}")
