"""Opening of the subject that paths name: runs, evaluations or a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from strap.datasets import open_dataset
from strap.datasets.hub import find_hub_name
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.progress import Progress, silent
from strap.store import is_store
from strap.view.films import Films
from strap.view.read_only_views import ComparisonView, DatasetView, EvaluationView
from strap.view.run_views import RunView
from strap.view.side_by_side import is_evaluation
from strap.view.subjects import Subject

Kind = Literal["run", "evaluation", "dataset"]


def open_subject(
    paths: Sequence[Path], *, against: Path | None = None, progress: Progress = silent
) -> Subject:
    """Open the subject to view.

    Args:
        paths: one or more runs, one or more evaluations, or a dataset.
        against: another run or evaluation to compare with.
        progress: called with (what, done, total) while a dataset is downloaded from the hub.
    """
    given = [path.expanduser() for path in (*paths, *([against] if against else []))]
    if double := next((path for path in given if given.count(path) > 1), None):
        raise StrapError(f"'{double}' is named twice: name each once")
    if not given:
        raise StrapError("nothing to view: name a run, an evaluation or a dataset")
    kinds = {path: _kind(path) for path in given}
    kind = kinds[given[0]]
    if other := next((path for path in given if kinds[path] != kind), None):
        raise StrapError(
            f"'{given[0]}' and '{other}' cannot be viewed side by side ({kind} and "
            f"{kinds[other]}): name runs alone, or evaluations alone"
        )
    films = Films(cache_folder() / "films")
    if kind == "evaluation":
        return EvaluationView.open(given)
    if kind == "run":
        many = len(given) > 1
        return ComparisonView.open(given, films) if many else RunView.open(given[0], films)
    if len(given) > 1:
        raise StrapError(f"{len(given)} datasets are named: view them one at a time")
    if find_hub_name(given[0]):
        return DatasetView.open(open_dataset(given[0], progress=progress), films)
    try:
        dataset = open_dataset(given[0])
    except StrapError as error:
        raise StrapError(f"'{given[0]}' is neither a run nor an evaluation, and {error}") from error
    return DatasetView.open(dataset, films)


def _kind(path: Path) -> Kind:
    """Return the kind of subject at a path, from its files; by default it may be a dataset."""
    if find_hub_name(path):
        return "dataset"
    if not path.exists():
        raise StrapError(
            f"there is nothing at '{path}': name a folder that `strap retrieve` or `strap "
            "evaluate` wrote, or a dataset"
        )
    if is_evaluation(path):
        return "evaluation"
    if is_store(path):
        raise StrapError(f"'{path}' holds embeddings, no images: view the dataset itself")
    if any((path / name).is_file() for name in ("matches.parquet", "manifest.json")):
        return "run"
    if (path / "segments.json").is_file():
        raise StrapError(
            f"the retrieval into '{path}' was not finished: run the same `strap retrieve` again"
        )
    return "dataset"
