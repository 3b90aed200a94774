"""A retrieval run on disk: from two datasets to matches and an augmented dataset, restartable.

RUN/
  segments.json      the queries and how they were cut
  matches.parquet    what was found
  augmented.hdf5     target ∪ retrieved, where it was asked for
  manifest.json      arguments, fingerprints of the inputs, versions, timings; written last
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from strap.atomic import read_json, remove_leftovers, write_json, writing
from strap.augmentation import augment
from strap.datasets import Dataset, OpenOptions
from strap.datasets.selection import Selection
from strap.datasets.slicing import CHUNK, HISTORY
from strap.embeddings import Dtype
from strap.errors import StrapError, unknown
from strap.features import FeatureOptions, prepare_features
from strap.folders import cache_folder
from strap.locks import LOCK, alone, is_free
from strap.progress import Progress, silent
from strap.provenance import versions
from strap.retrieval import METHODS, MatchOptions, Method, Rule, Shared, TopK, retrieve_matches
from strap.retrieval.roughness import drop_rough
from strap.retrieval.states import retrieve_states
from strap.search import Engine, Execution
from strap.segments import Segmentation, segment, write_segments
from strap.types import Matches

Augmented = Literal["robomimic", "none"]
"""How the augmented dataset is written: as robomimic HDF5, or not at all."""


AUGMENTED = "augmented.hdf5"


@dataclass(frozen=True)
class RetrievalOptions:
    """Everything that decides the outcome of a retrieval, besides the data."""

    encoder: str = ""
    top_k: TopK | None = 100
    """how many matches to keep in all, or `auto`; None where a fraction or a threshold says it"""
    segmentation: Segmentation = field(default_factory=Segmentation)
    """how the target is cut, for methods whose queries are not whole demonstrations"""
    method: Method = "strap"
    cameras: tuple[str, ...] = ()
    steps: str | None = None
    """None: the method's"""
    metric: str | None = None
    """None: the method's"""
    backend: str = "auto"
    rule: Rule = "even"
    shared: Shared = "self"
    matches_per_trajectory: int = 1
    length_ratio: tuple[float, float] | None = None
    fraction: float | None = None
    threshold: float | None = None
    max_cost: float | None = None
    max_roughness: float | None = None
    """drop matches that move more than so many times as jerkily as their query"""
    padding: int = 5
    text_encoder: str = "minilm"
    seed: int = 0
    fuse: tuple[str, ...] = ()
    """what is compared besides the encoder's features"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: as many as they take by default"""
    dtype: Dtype = "float16"
    opening: OpenOptions = field(default_factory=OpenOptions)
    target_selection: Selection = field(default_factory=Selection)
    prior_selection: Selection = field(default_factory=Selection)
    """of each prior dataset"""
    history: int = HISTORY
    chunk: int = CHUNK
    augmented: Augmented = "robomimic"

    def resolved(self) -> RetrievalOptions:
        """Return these options with what the method decides where nothing was said."""
        if self.method not in METHODS:
            raise unknown("retrieval method", self.method, METHODS)
        if self.max_roughness is not None and not self.max_roughness > 0:
            raise StrapError(f"max_roughness is {self.max_roughness}: it must be above 0")
        if self.augmented not in get_args(Augmented):
            raise unknown("form of the augmented dataset", self.augmented, get_args(Augmented))
        traits = METHODS[self.method]
        if self.max_roughness is not None and traits.find is retrieve_states:
            raise StrapError(
                f"max_roughness compares a match with its query, but a query of '{self.method}' is "
                "a single frame: leave --max-roughness out"
            )
        cut = self.segmentation
        if traits.has_whole_queries:
            cut = replace(cut, method="full")
        steps, metric = self.steps or traits.steps, self.metric or traits.metric
        return replace(self, segmentation=cut, steps=steps, metric=metric)

    def features(self) -> FeatureOptions:
        """Return what the frames are compared by."""
        return FeatureOptions(
            self.encoder, self.cameras, self.dtype, self.fuse, self.learning_steps
        )


@dataclass(frozen=True)
class Run:
    """A finished run folder."""

    path: Path
    matches: Matches
    manifest: Mapping[str, Any]
    reused: bool
    """nothing had changed since the run was made, so nothing was done"""

    @property
    def augmented(self) -> Path:
        """The augmented dataset."""
        return self.path / AUGMENTED

    def datasets(self) -> tuple[Dataset, list[Dataset]]:
        """The target and the priors, opened as they were for the run, and unchanged since."""
        arguments = self.manifest["arguments"]
        saved: dict[str, Any] = dict(arguments["opening"])
        saved |= {name: tuple(saved[name]) for name in ("camera", "language", "action")}
        opening = OpenOptions(**saved)
        target = _selection(arguments, "target").apply(opening.open(arguments["target"]))
        chosen = _selection(arguments, "prior")
        priors = [chosen.apply(opening.open(path)) for path in arguments["prior"]]
        for dataset in (target, *priors):
            if dataset.fingerprint() != self.manifest["inputs"].get(dataset.name):
                raise StrapError(
                    f"'{dataset.path}' has changed since '{self.path}' was made: run "
                    "`strap retrieve` again"
                )
        return target, priors

    def has_datasets(self) -> bool:
        """Whether the datasets that the run was made from are still where they were."""
        arguments = self.manifest["arguments"]
        return all(Path(place).exists() for place in (arguments["target"], *arguments["prior"]))


def run_retrieval(
    target: str | Path,
    prior: Sequence[str | Path],
    out: str | Path,
    options: RetrievalOptions,
    *,
    stores: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
    progress: Progress = silent,
) -> Run:
    """Embed what is missing, segment, search, write matches and the augmented dataset.

    Args:
        target: the demonstrations of the new task.
        prior: one or more big datasets.
        out: the run folder. The same call again does nothing; a changed dataset is noticed and
            the run made anew; other options need `overwrite` or another folder.
        options: what to retrieve and how.
        stores: where embedding stores are kept and looked for; by default the user's cache.
        overwrite: replace a run made with other options.
        device: where the encoder's model runs.
        engine: where to search: `local`, or `ray` for a cluster.
        workers: how many tasks at a time on a Ray cluster of this machine's own.
        address: a Ray cluster's address; by default one is started on this machine's loopback.
        progress: called with (what, done, total).
    """
    out, options = Path(out).expanduser(), options.resolved()
    MatchOptions.of(options)  # what is wrong in them is wrong before anything is embedded
    cut, metric = options.segmentation.method, options.metric or "l2"
    options.features().require_judgeable(options.method, cut, metric)
    ours = options.target_selection.apply(options.opening.open(target))
    priors = [options.prior_selection.apply(options.opening.open(path)) for path in prior]
    if not priors:
        raise StrapError("no prior dataset: give at least one with --prior")
    arguments = _arguments(ours, priors, options)
    inputs = {dataset.name: dataset.fingerprint() for dataset in (ours, *priors)}
    with writing(out), alone(out / LOCK, f"retrieving into '{out}'"):
        remove_leftovers(out)
        if done := _finished(out, arguments, inputs, overwrite=overwrite):
            return done
        (out / "manifest.json").unlink(missing_ok=True)
        folder = Path(stores).expanduser() if stores else cache_folder() / "stores"
        execution = Execution(engine, workers, address)
        report = _fill(out, ours, priors, options, folder, device, execution, progress)
        manifest = {"format": "strap-run", "arguments": arguments, "inputs": inputs, **report}
        write_json(out / "manifest.json", manifest)
        return replace(open_run(out), reused=False)


def _fill(
    out: Path,
    ours: Dataset,
    priors: Sequence[Dataset],
    options: RetrievalOptions,
    stores: Path,
    device: str,
    execution: Execution,
    progress: Progress,
) -> dict[str, Any]:
    """Write segments, matches and the augmented dataset; return what the manifest says of them."""
    clock = _Clock()
    reasons: dict[str, str | None] = {}
    with clock("segment"):
        queries = segment(ours, **_fields(options.segmentation))
        write_segments(
            out / "segments.json", queries, dataset=ours, segmentation=options.segmentation
        )
    with clock("embed"):
        prepared = prepare_features(
            ours,
            priors,
            options.method,
            options.features(),
            stores,
            queries=queries,
            steps=options.steps or "strap",
            device=device,
            progress=progress,
        )
    with clock("search"):
        found = retrieve_matches(
            queries, prepared.target, prepared.priors, MatchOptions.of(options), execution, progress
        )
        matches = found.matches
        if options.max_roughness is not None:
            position = options.segmentation.position
            matches = drop_rough(matches, ours, priors, options.max_roughness, position)
            kept = f"{len(matches)} of {len(found.matches)} matches are smooth enough"
            reasons["max_roughness"] = kept
        matches.to_parquet(out / "matches.parquet")
    with clock("augment"):
        (out / AUGMENTED).unlink(missing_ok=True)
        if options.augmented == "robomimic":
            history, chunk = options.history, options.chunk
            place = out / AUGMENTED
            augment(ours, priors, matches, place, history=history, chunk=chunk, progress=progress)
    reasons |= {"fuse": prepared.fusion_reason, "top_k": found.reason}
    used = [catalogue.store for catalogue in (prepared.target, *prepared.priors) if catalogue.store]
    return {
        "stores": {store.dataset: store.path.as_posix() for store in used},
        "queries": len(queries),
        "matches": len(matches),
        "search": asdict(found.statistics),
        "reasons": {name: reason for name, reason in reasons.items() if reason},
        "versions": versions(),
        "seconds": clock.seconds,
    }


def open_run(path: str | Path) -> Run:
    """Open a finished run."""
    path = Path(path).expanduser()
    if not (path / "manifest.json").is_file():
        raise StrapError(
            f"'{path}' is no finished run (it has no manifest.json): make it with `strap retrieve`"
        )
    manifest = read_json(path / "manifest.json")
    if wrong := _wrong_in(manifest):
        raise StrapError(
            f"'{path / 'manifest.json'}' is damaged ({wrong}): put back a copy of it, or run "
            "`strap retrieve` again with --overwrite"
        )
    return Run(path, Matches.from_parquet(path / "matches.parquet"), manifest, reused=True)


def _wrong_in(manifest: Any) -> str | None:
    """What of a manifest is not as runs write it, where some command would stumble over it."""
    if not isinstance(manifest, dict) or manifest.get("format") != "strap-run":
        return "it is no manifest of a run"
    arguments: Any = manifest.get("arguments")
    inputs: Any = manifest.get("inputs")
    seconds: Any = manifest.get("seconds")
    if not all(isinstance(value, dict) for value in (arguments, inputs, seconds)):
        return "arguments, inputs or seconds are missing"
    opening = arguments.get("opening")
    if not isinstance(opening, dict) or not set(opening) <= set(OpenOptions.__dataclass_fields__):
        return "'opening' does not say how the datasets were opened"
    chosen = [arguments.get(f"{which}_selection", {}) for which in ("target", "prior")]
    if not all(isinstance(saved, dict) for saved in chosen):
        return "which trajectories were chosen is not said"
    reasons = manifest.get("reasons", {})
    if not isinstance(reasons, dict):
        return "'reasons' does not say why something was chosen"
    texts = [arguments.get("target"), *inputs.values(), *reasons.values()]
    texts += [saved.get("episodes", "") for saved in chosen]
    texts += [opening.get(name) or "" for name in ("format", "orientation", "missing")]
    lists = [arguments.get("prior"), arguments.get("cameras")]
    lists += [opening.get(name) for name in ("camera", "language", "action")]
    lists += [saved.get("tasks", []) for saved in chosen]
    if not all(isinstance(own, list) for own in lists) or not arguments["prior"]:
        return "'prior' or another list is missing"
    if not all(isinstance(text, str) for text in (*texts, *(t for own in lists for t in own))):
        return "a path or name is no text"
    counts = [manifest.get("queries"), arguments.get("history"), arguments.get("chunk")]
    if not all(type(n) is int for n in counts) or not all(
        isinstance(n, int | float) for n in seconds.values()
    ):
        return "'queries', 'history', 'chunk' or a duration is no number"
    return None


def _selection(arguments: Mapping[str, Any], which: str) -> Selection:
    """Return which trajectories of the target or of each prior a run was made from."""
    saved = arguments.get(f"{which}_selection", {})
    return Selection(tuple(saved.get("tasks", ())), saved.get("episodes", ""))


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _arguments(
    target: Dataset, priors: Sequence[Dataset], options: RetrievalOptions
) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(options)
    boundaries = plain["segmentation"]["boundaries"]
    plain["segmentation"]["boundaries"] = str(boundaries) if boundaries else None
    plain = json.loads(json.dumps(plain))  # as it will be read back
    return {"target": target.name, "prior": [dataset.name for dataset in priors], **plain}


def _finished(
    out: Path, arguments: Mapping[str, Any], inputs: Mapping[str, str], *, overwrite: bool
) -> Run | None:
    """The run that lies there, when it is what would be made; None when it must be made."""
    if not (out / "manifest.json").is_file():
        if out.is_dir() and not (out / "segments.json").is_file() and not is_free(out):
            raise StrapError(f"'{out}' holds other files; choose a new folder for the run")
        return None
    try:
        run = open_run(out)
    except StrapError:
        if overwrite:  # whatever it was
            return None
        raise
    old = run.manifest.get("arguments", {})
    changed = [key for key in arguments if old.get(key) != arguments[key]]
    if changed and not overwrite:
        what = "; ".join(f"{key} {old.get(key)} → {arguments[key]}" for key in changed)
        raise StrapError(
            f"'{out}' holds a run with other arguments ({what}): choose another --out, or pass "
            "--overwrite to replace it"
        )
    if changed or dict(run.manifest.get("inputs", {})) != dict(inputs):
        return None
    return run if run.augmented.is_file() or arguments["augmented"] == "none" else None


class _Clock:
    """Seconds spent in each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - start, 3)
