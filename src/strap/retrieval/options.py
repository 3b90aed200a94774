"""The options that determine which matches are found and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError, unknown

Method = Literal["strap", "d-t", "d-s", "br", "fr", "random", "language"]
"""What is retrieved, and how.

`strap`: segments, by dynamic time warping. `d-t`: whole trajectories, by dynamic time warping.
`d-s`: single states, by the encoder's features. `br`, `fr`: single states, by features learned from
states and actions (`br`) or from optical flow (`fr`). `random`: random segments of the queries'
lengths. `language`: whole trajectories whose instruction is nearest in meaning."""

Rule = Literal["even", "released"]
"""The rule for how many matches each query keeps (`strap.retrieval.selection.quotas`)."""

Shared = Literal["self", "all", "keep"]
"""How to treat trajectories that are in both target and prior. They are recognised by their
content. `self` hides them from their own queries, `all` from every query, `keep` from none."""

TopK = int | Literal["auto"]
"""How many matches to keep. `auto` keeps those that cost no more than their query costs in the
other demonstrations of the target (`strap.retrieval.demonstration_costs`)."""

TOP_K = 100

USED_BY: Mapping[str, Sequence[Method]] = {
    "fuse": ("strap", "d-t", "d-s", "br", "fr"),
    "steps": ("strap", "d-t"),
    "metric": ("strap", "d-t", "d-s", "br", "fr"),
    "rule": ("strap", "d-t", "language"),
    "max_cost": ("strap", "d-t", "d-s", "br", "fr", "language"),
    "matches_per_trajectory": ("strap",),
    "length_ratio": ("strap",),
    "padding": ("d-s", "br", "fr"),
    "learning_steps": ("br", "fr"),
    "seed": ("random",),
}
"""Option -> the methods that use it; options that are not listed are used by every method."""
WORDS = {"steps": "--step-set"}
"""Options that have another name on the command line."""


@dataclass(frozen=True)
class MatchOptions:
    """The options of a search for matches. With the data, they determine its result."""

    top_k: TopK | None = TOP_K
    """how many matches to keep in all, or `auto`; None if `fraction` or `threshold` is given"""
    steps: str = "strap"
    metric: str = "l2"
    backend: str = "auto"
    rule: Rule = "even"
    shared: Shared = "self"
    matches_per_trajectory: int = 1
    length_ratio: tuple[float, float] | None = None
    """the least and the greatest length of a match, as multiples of its query's"""
    method: Method = "strap"
    fraction: float | None = None
    """keep this share of all candidates, the cheapest"""
    threshold: float | None = None
    """keep matches of at least this similarity: 1 is the lowest cost of all, 0 the highest"""
    max_cost: float | None = None
    """drop matches that cost more than this per frame of their query"""
    padding: int = 5
    """state methods: frames kept before a retrieved state, and the same number from it on"""
    text_encoder: str = TEXT_ENCODER
    """language: the model that embeds instructions"""
    seed: int = 0
    """random: seed of the draw"""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise unknown("retrieval method", self.method, get_args(Method))
        if self.shared not in get_args(Shared):
            raise unknown("treatment of shared trajectories", self.shared, get_args(Shared))
        amounts = {"top_k": self.top_k, "fraction": self.fraction, "threshold": self.threshold}
        given = [name for name, value in amounts.items() if value is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise StrapError(f"give exactly one of top_k, fraction and threshold (given: {said})")
        if self.top_k == "auto":
            if self.method not in ("strap", "d-t"):
                raise StrapError(
                    f"top_k is auto, which compares DTW costs, but method '{self.method}' has "
                    "none: give a number"
                )
        elif self.top_k is not None and not (isinstance(self.top_k, int) and self.top_k >= 1):
            raise StrapError(f"top_k is {self.top_k}: it must be at least 1, or auto")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise StrapError(f"fraction is {self.fraction}: it must be above 0 and at most 1")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise StrapError(f"threshold is {self.threshold}: it must be between 0 and 1")
        if self.max_cost is not None and not self.max_cost >= 0:
            raise StrapError(f"max_cost is {self.max_cost}: it must be at least 0")
        if self.seed < 0:
            raise StrapError(f"seed is {self.seed}: it must be at least 0")
        if self.matches_per_trajectory < 1:
            raise StrapError(
                f"matches_per_trajectory is {self.matches_per_trajectory}: it must be at least 1"
            )
        if self.padding < 1:
            raise StrapError(f"padding is {self.padding}: it must be at least 1 frame")
        require_used_options(self)

    @classmethod
    def of(cls, options: Any) -> MatchOptions:
        """Return the match options of any object that has fields of the same names."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


def require_used_options(options: Any) -> None:
    """Raise if an option is given that the method does not use.

    Args:
        options: any object with a `method` and fields that `USED_BY` names.
    """
    for name, methods in USED_BY.items():
        value = getattr(options, name, None)
        is_given = value not in (None, (), getattr(MatchOptions, name, None))
        if is_given and options.method not in methods:
            word = WORDS.get(name, f"--{name.replace('_', '-')}")
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise StrapError(
                f"{name} is {shown}, but method '{options.method}' does not use it: leave {word} "
                f"out, or choose --method {' or '.join(methods)}"
            )
