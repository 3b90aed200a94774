"""The retrieval methods by name, and what each one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from strap.errors import unknown
from strap.retrieval.catalogue import Problem, Retrieved
from strap.retrieval.dtw_methods import retrieve_segments, retrieve_trajectories
from strap.retrieval.language import retrieve_by_language
from strap.retrieval.options import Method
from strap.retrieval.random_segments import retrieve_random
from strap.retrieval.states import retrieve_states

Features = Literal["encoder", "br", "fr", "none"]
"""The features that a method compares: an encoder's, those learned by BR or FR, or none."""


@dataclass(frozen=True)
class MethodTraits:
    """The function of a retrieval method, and the method's defaults."""

    retrieve: Callable[[Problem], Retrieved]
    features: Features = "encoder"
    has_whole_queries: bool = False
    """its queries are whole demonstrations"""
    steps: str = "strap"
    metric: str = "l2"


METHODS: Mapping[Method, MethodTraits] = {
    "strap": MethodTraits(retrieve_segments),
    # A demonstration is often longer than a prior trajectory, which only classic steps allow.
    "d-t": MethodTraits(retrieve_trajectories, has_whole_queries=True, steps="classic"),
    "d-s": MethodTraits(retrieve_states, has_whole_queries=True, metric="cosine"),
    "br": MethodTraits(retrieve_states, features="br", has_whole_queries=True, metric="cosine"),
    "fr": MethodTraits(retrieve_states, features="fr", has_whole_queries=True, metric="cosine"),
    "random": MethodTraits(retrieve_random, features="none"),
    "language": MethodTraits(retrieve_by_language, features="none", has_whole_queries=True),
}
"""name -> function and defaults"""


def resolve_defaults(method: Method, steps: str | None, metric: str | None) -> tuple[str, str]:
    """Return the steps and the metric; None stands for the method's own default."""
    if method not in METHODS:
        raise unknown("retrieval method", method, METHODS)
    traits = METHODS[method]
    return steps or traits.steps, metric or traits.metric
