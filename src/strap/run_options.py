"""The options of a retrieval run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.datasets.slicing import FRAMES_AFTER, FRAMES_BEFORE
from strap.embeddings import Dtype
from strap.encoders.language import TEXT_ENCODER, require_text_encoder
from strap.errors import StrapError, unknown
from strap.features import FeatureOptions
from strap.retrieval import METHODS, MatchOptions, Method, Rule, Shared, TopK
from strap.retrieval.methods import resolve_defaults
from strap.retrieval.options import require_used_options
from strap.retrieval.states import retrieve_states
from strap.runs import Run
from strap.segments import Segmentation

Augmented = Literal["auto", "lerobot", "robomimic", "none"]
"""Format of the augmented dataset: the target's own (`auto`), a named one, or `none` at all."""


@dataclass(frozen=True)
class RetrievalOptions:
    """The options of a retrieval run. With the data, they determine its result."""

    encoder: str = ""
    top_k: TopK | None = 100
    """how many matches to keep in all, or `auto`; None if `fraction` or `threshold` is given"""
    segmentation: Segmentation = field(default_factory=Segmentation)
    """how the target is cut, for methods whose queries are not whole demonstrations"""
    method: Method = "strap"
    cameras: tuple[str, ...] = ()
    steps: str | None = None
    """step set; None: the method's default"""
    metric: str | None = None
    """distance between two frames; None: the method's default"""
    backend: str = "auto"
    rule: Rule = "even"
    shared: Shared = "self"
    matches_per_trajectory: int = 1
    length_ratio: tuple[float, float] | None = None
    fraction: float | None = None
    threshold: float | None = None
    max_cost: float | None = None
    max_roughness: float | None = None
    """drop matches that are more than this many times as jerky as their query"""
    padding: int = 5
    text_encoder: str = TEXT_ENCODER
    seed: int = 0
    fuse: tuple[str, ...] = ()
    """the features to compare in addition to the encoder's"""
    learning_steps: int | None = None
    """br, fr: optimiser steps for learning the features; None: the default number"""
    dtype: Dtype = "float16"
    opening: OpenOptions = field(default_factory=OpenOptions)
    target_selection: Selection = field(default_factory=Selection)
    prior_selection: Selection = field(default_factory=Selection)
    """applies to each prior dataset"""
    history: int = FRAMES_BEFORE
    chunk: int = FRAMES_AFTER
    augmented: Augmented = "auto"

    @classmethod
    def of_run(cls, run: Run) -> RetrievalOptions:
        """Return the options that a run was made with."""
        arguments = run.manifest["arguments"]
        saved = {name: arguments[name] for name in cls.__dataclass_fields__ if name in arguments}
        try:
            cut = dict(saved.get("segmentation", {}))
            cut["boundaries"] = Path(cut["boundaries"]) if cut.get("boundaries") else None
            saved["segmentation"] = Segmentation(**cut)
            saved["opening"] = OpenOptions(**_with_tuples(saved["opening"]))
            for name in ("target_selection", "prior_selection"):
                saved[name] = Selection(**_with_tuples(saved.get(name, {})))
            return cls(**_with_tuples(saved))
        except TypeError as error:
            raise StrapError(
                f"'{run.path / 'manifest.json'}' does not say how the run was made ({error}): run "
                "`strap retrieve` again with --overwrite"
            ) from error

    def resolved(self) -> RetrievalOptions:
        """Return the options with the method's defaults filled in; raise for invalid values."""
        if self.method not in METHODS:
            raise unknown("retrieval method", self.method, METHODS)
        for name in ("history", "chunk"):
            if getattr(self, name) < 0:
                raise StrapError(f"{name} is {getattr(self, name)}: it must be at least 0")
        if self.max_roughness is not None and not self.max_roughness > 0:
            raise StrapError(f"max_roughness is {self.max_roughness}: it must be above 0")
        if self.augmented not in get_args(Augmented):
            raise unknown("form of the augmented dataset", self.augmented, get_args(Augmented))
        require_text_encoder(self.text_encoder)
        has_texts = self.method == "language" or self.features().fuses_instructions
        if self.text_encoder != TEXT_ENCODER and not has_texts:
            raise StrapError(
                f"text_encoder is {self.text_encoder}, but no instructions are compared: leave "
                "--text-encoder out, or give --fuse language or --method language"
            )
        traits = METHODS[self.method]
        if traits.has_whole_queries:
            self._require_no_cuts()
        if self.max_roughness is not None and traits.retrieve is retrieve_states:
            raise StrapError(
                f"max_roughness compares a match with its query, but a query of '{self.method}' is "
                "a single frame: leave --max-roughness out"
            )
        cut = self.segmentation
        if traits.has_whole_queries:
            cut = replace(cut, method="full")
        steps, metric = resolve_defaults(self.method, self.steps, self.metric)
        options = replace(self, segmentation=cut, steps=steps, metric=metric)
        MatchOptions.of(options)  # raises for invalid values
        require_used_options(options)
        self.features().require_judgeable(self.method, cut.method, metric)
        return options

    def _require_no_cuts(self) -> None:
        """Raise if an option says how to cut, which the method does not do."""
        cut = self.segmentation
        if cut.method == "full":  # as a run records it, with the other options unused
            return
        unused = Segmentation()
        if self.max_roughness is not None:  # the roughness is that of the position
            unused = replace(unused, position=cut.position)
        for name in Segmentation.__dataclass_fields__:
            if (value := getattr(cut, name)) != getattr(unused, name):
                option = "segmentation" if name == "method" else name
                raise StrapError(
                    f"{option} is {value}, but the queries of method '{self.method}' are whole "
                    f"demonstrations: leave --{option.replace('_', '-')} out, or choose --method "
                    "strap or random"
                )

    def features(self) -> FeatureOptions:
        """Return the options of the features by which frames are compared."""
        names = FeatureOptions.__dataclass_fields__
        return FeatureOptions(**{name: getattr(self, name) for name in names})


def _with_tuples(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
