"""The retrieval pipeline, from datasets to a finished run; an interrupted call can be resumed."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from strap.atomic import (
    explain_write_errors,
    read_json,
    remove_folder,
    remove_leftovers,
    write_json,
)
from strap.augmentation import (
    augment,
    estimate_size,
    fetch_augmented,
    require_same_actions,
    writable_format,
)
from strap.datasets import Dataset
from strap.dtw import resolve_backend
from strap.errors import StrapError
from strap.features import RetrievalInput, fingerprint_features, prepare_features
from strap.folders import cache_folder, require_separate_output
from strap.locks import LOCK, exclusive_lock
from strap.progress import Clock, Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.retrieval import MatchOptions, retrieve_matches
from strap.retrieval.roughness import drop_rough
from strap.run_options import RetrievalOptions
from strap.runs import AUGMENTED, REPORT, Run, find_finished, fingerprint_results, open_run
from strap.search import Engine, Execution
from strap.segments import cut_dataset, with_default_epsilon, write_segments
from strap.types import Matches

__all__ = ["RetrievalOptions", "run_retrieval"]

LARGE_DATASET_BYTES = 10**9
"""Size of an augmented dataset from which a warning is printed before it is written."""


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
    """Embed, segment and search; write the matches and the augmented dataset.

    Args:
        target: the demonstrations of the new task.
        prior: one or more big datasets.
        out: the run folder. The same call again does nothing. If a dataset has changed, the run is
            made again. Other options need `overwrite` or another folder.
        options: what to retrieve and how.
        stores: the folder of embedding stores; by default in the user's cache.
        overwrite: replace a run made with other options.
        device: where the encoder's model runs.
        engine: where to search: `local`, or `ray` for a cluster.
        workers: tasks at the same time on a Ray cluster that is started on this machine.
        address: a Ray cluster's address; by default one is started on this machine's loopback.
        progress: called with (what, done, total).
    """
    out, options = Path(out).expanduser(), options.resolved()
    resolve_backend(options.backend)  # raises before anything is embedded
    ours = RetrievalInput.open(target, options.opening, options.target_selection, progress)
    opening, chosen = options.opening, options.prior_selection
    priors = _distinct([RetrievalInput.open(path, opening, chosen, progress) for path in prior])
    if not priors:
        raise StrapError("no prior dataset: give at least one with --prior")
    _require_one_reading([ours, *priors])
    require_separate_output(out, [source.dataset.path for source in (ours, *priors)])
    ours.dataset.fetch(cameras=(), progress=progress)
    cutting = with_default_epsilon(options.segmentation, ours.dataset)
    options = replace(options, segmentation=cutting)
    if options.augmented != "none":
        require_same_actions(ours.dataset, [prior.dataset for prior in priors])
    _warn_if_shared(ours.dataset, [prior.dataset for prior in priors], options)
    arguments = _arguments(ours, priors, options)
    inputs = {s.dataset.name: s.dataset.fingerprint() for s in (ours, *priors)}
    if options.segmentation.method == "manual" and (file := options.segmentation.boundaries):
        inputs[str(file)] = fingerprint_json(read_json(file))
    folder = Path(stores).expanduser() if stores else cache_folder() / "stores"
    inputs |= fingerprint_features([ours, *priors], options.method, options.features(), folder)
    with explain_write_errors(out), exclusive_lock(out / LOCK, f"retrieving into '{out}'"):
        remove_leftovers(out)
        if done := find_finished(out, arguments, inputs, overwrite=overwrite):
            return done
        (out / "manifest.json").unlink(missing_ok=True)
        (out / REPORT).unlink(missing_ok=True)
        execution = Execution(engine, workers, address)
        report = _write_run(out, ours, priors, options, folder, device, execution, progress)
        manifest = {"format": "strap-run", "arguments": arguments, "inputs": inputs, **report}
        write_json(out / "manifest.json", manifest)
        return replace(open_run(out), reused=False)


def _distinct(priors: Sequence[RetrievalInput]) -> list[RetrievalInput]:
    """Return each prior once, and warn about one that is given twice (by any path)."""
    found: dict[str, RetrievalInput] = {}
    for prior in priors:
        if found.setdefault(prior.dataset.name, prior) is not prior:
            warnings.warn(
                f"prior '{prior.dataset.path}' is given twice: it is used once", stacklevel=3
            )
    return list(found.values())


def _require_one_reading(sources: Sequence[RetrievalInput]) -> None:
    """Raise if one dataset is read in two ways: a run records one way for each dataset."""
    first: dict[str, Dataset] = {}
    for dataset in [source.dataset for source in sources]:
        other = first.setdefault(dataset.name, dataset)
        if other.read_as != dataset.read_as:
            raise StrapError(
                f"'{dataset.path}' is target and prior, but read in two ways (images "
                f"{_describe_reading(other)}, and {_describe_reading(dataset)}): name the dataset, "
                "or its store, for both"
            )


def _describe_reading(dataset: Dataset) -> str:
    orientation, fields = dataset.read_as
    return ", ".join([str(orientation), *(f"{role} {name}" for role, name in fields.items())])


def _warn_if_shared(target: Dataset, priors: Sequence[Dataset], options: RetrievalOptions) -> None:
    """Warn if the target is also searched, which is seldom intended."""
    same_path = [prior for prior in priors if prior.path.resolve() == target.path.resolve()]
    shared = {key for prior in same_path for key in prior.ids} & set(target.ids)
    if shared and options.shared != "all":
        warnings.warn(
            f"'{target.path}' is target and prior: {len(shared)} of its demonstrations are "
            "searched for the others' segments; choose with --target-episodes and "
            "--prior-episodes, or give --shared all",
            stacklevel=3,
        )


def _write_run(
    out: Path,
    ours: RetrievalInput,
    priors: Sequence[RetrievalInput],
    options: RetrievalOptions,
    stores: Path,
    device: str,
    execution: Execution,
    progress: Progress,
) -> dict[str, Any]:
    """Write segments, matches and the augmented dataset; return their part of the manifest."""
    clock, datasets = Clock(), [prior.dataset for prior in priors]
    reasons: dict[str, str | None] = {}
    with clock("segment"):
        cuts = cut_dataset(ours.dataset, options.segmentation)
        queries = cuts.segments
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
    write_segments(
        out / "segments.json", queries, dataset=ours.dataset, segmentation=cuts.segmentation
    )
    with clock("search"):
        found = retrieve_matches(
            queries, prepared.target, prepared.priors, MatchOptions.of(options), execution, progress
        )
        matches = found.matches
        if options.max_roughness is not None:
            position = options.segmentation.position
            matches = drop_rough(matches, ours.dataset, datasets, options.max_roughness, position)
            reasons["max_roughness"] = f"{len(matches)} of {len(found.matches)} are smooth enough"
        matches.to_parquet(out / "matches.parquet")
    with clock("augment"):
        _augment(out, ours.dataset, datasets, matches, options, progress)
    reasons |= {"encoder": prepared.encoder_reason, "fuse": prepared.fusion_reason}
    reasons["top_k"] = found.reason
    used = {c.dataset: c.store for c in (prepared.target, *prepared.priors) if c.store}
    return {
        "stores": {dataset: store.path.resolve().as_posix() for dataset, store in used.items()},
        "store_cameras": {dataset: list(store.cameras) for dataset, store in used.items()},
        "encoder": dict(prepared.target.store.config.encoder) if prepared.target.store else {},
        "queries": len(queries),
        "matches": len(matches),
        "files": fingerprint_results(out),
        "search": asdict(found.statistics),
        "reasons": {name: reason for name, reason in reasons.items() if reason},
        "versions": versions(),
        "seconds": clock.seconds,
    }


def _augment(
    out: Path,
    target: Dataset,
    priors: Sequence[Dataset],
    matches: Matches,
    options: RetrievalOptions,
    progress: Progress,
) -> None:
    """Replace the augmented dataset; raise if it does not fit on the disk."""
    (out / AUGMENTED["robomimic"]).unlink(missing_ok=True)
    remove_folder(out / AUGMENTED["lerobot"])
    if options.augmented == "none":
        return
    format = writable_format(target) if options.augmented == "auto" else options.augmented
    context = {"history": options.history, "chunk": options.chunk}
    size = estimate_size(target, priors, matches, format=format, **context)
    free = shutil.disk_usage(out).free
    if size.nbytes > free:
        raise StrapError(
            f"the augmented dataset as {format} has {size}, and only {free / 1e9:.1f} GB are free: "
            "retrieve with --augmented none (`strap train` then reads the original datasets), "
            "--augmented lerobot (video), or a smaller --top-k"
        )
    if size.nbytes > LARGE_DATASET_BYTES:
        warnings.warn(
            f"the augmented dataset as {format} has {size}"
            + ("; --augmented lerobot writes video" if format == "robomimic" else "")
            + "; --augmented none writes nothing",
            stacklevel=2,
        )
    fetch_augmented(target, priors, matches, progress)

    def sized(what: str, done: int, total: int) -> None:
        progress(f"{what} {size}", done, total)

    folder = out / AUGMENTED[format]
    augment(target, priors, matches, folder, format=format, progress=sized, **context)


def _arguments(
    target: RetrievalInput, priors: Sequence[RetrievalInput], options: RetrievalOptions
) -> dict[str, Any]:
    plain: dict[str, Any] = asdict(options)
    boundaries = plain["segmentation"]["boundaries"]
    plain["segmentation"]["boundaries"] = str(boundaries) if boundaries else None
    sources = (target, *priors)
    stores = [source.store for source in sources]
    given = options.opening.arguments()
    # The dataset of a store is read by the options that the store was made with.
    others = {s.dataset.name: s.dataset.opening for s in sources if s.dataset.opening != given}
    return {
        "target": target.dataset.name,
        "prior": [prior.dataset.name for prior in priors],
        "named_stores": [str(store.path) if store else "" for store in stores],
        "openings": others,
        **json.loads(json.dumps(plain)),  # so that it equals what is read back
    }
