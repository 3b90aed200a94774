"""New borders of a run's segments: a draft with the new matches, and the run repeated with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from strap.atomic import replacing, write_json
from strap.choices import carry_over
from strap.datasets import Dataset
from strap.errors import StrapError, printable, shorten, unknown
from strap.features import reopen_stores
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.progress import Progress, silent
from strap.retrieval import (
    METHODS,
    Catalogue,
    MatchOptions,
    list_catalogues,
    retrieve_matches,
)
from strap.retrieval.roughness import drop_rough
from strap.runs import Run
from strap.search.reuse import SearchMemory
from strap.segments import is_tiled, read_segments
from strap.types import Matches, Segment

BOUNDARIES = "boundaries.json"
"""the file in a run that says where its demonstrations are cut, once new borders were kept"""

Boundaries = Mapping[str, Sequence[int]]
"""trajectory id of a demonstration -> first frames of all its segments but the first"""


@dataclass(frozen=True)
class Draft:
    """The segments and matches of a run with other borders; nothing of a draft is on disk."""

    boundaries: Mapping[str, tuple[int, ...]]
    """new boundaries of the demonstrations that are cut differently"""
    segments: list[Segment]
    """the queries of all demonstrations, in order"""
    matches: Matches


@dataclass(frozen=True)
class BorderSearch:
    """A run whose demonstrations can be cut differently and searched for again."""

    run: Run
    target: Dataset
    priors: Sequence[Dataset]
    options: RetrievalOptions
    demonstrations: Catalogue
    catalogues: Sequence[Catalogue]
    memory: SearchMemory
    """the matches of queries that were searched for before"""

    @classmethod
    def of(cls, run: Run) -> BorderSearch:
        """Open the datasets and stores of a run; raise if it has no borders to move."""
        options = RetrievalOptions.of_run(run).resolved()
        if METHODS[options.method].has_whole_queries:
            raise StrapError(
                f"method '{options.method}' compares whole demonstrations, which have no borders "
                "to move: retrieve with --method strap"
            )
        target, priors = run.datasets()
        datasets = [target, *priors]
        has_stores = METHODS[options.method].features != "none"
        stores = reopen_stores(run.manifest, datasets) if has_stores else None
        catalogues = list_catalogues(datasets, stores)
        return cls(run, target, priors, options, catalogues[0], catalogues[1:], SearchMemory())


def draft_borders(
    search: BorderSearch, boundaries: Boundaries, *, progress: Progress = silent
) -> Draft:
    """Return the segments and matches that a run would have with other borders.

    The matches are those of a retrieval with the run's options. Queries of an earlier draft are not
    searched for again. The first draft searches for all queries, which takes as long as the
    retrieval took. So make one with the present borders beforehand, and the next drafts are fast.

    Args:
        search: the run, and the results of earlier searches.
        boundaries: new boundaries; demonstrations without any keep theirs.
        progress: called with (what, done, total).
    """
    options = search.options
    segments = _cut_segments(search.run, search.target, boundaries)
    retrieved = retrieve_matches(
        segments,
        search.demonstrations,
        search.catalogues,
        MatchOptions.of(options),
        progress=progress,
        searcher=search.memory,
    )
    matches = retrieved.matches
    if options.max_roughness is not None:
        position = options.segmentation.position
        matches = drop_rough(matches, search.target, search.priors, options.max_roughness, position)
    return Draft({key: tuple(frames) for key, frames in boundaries.items()}, segments, matches)


def keep_borders(run: Run, boundaries: Boundaries, *, progress: Progress = silent) -> Run:
    """Repeat a run with other borders, in its folder, and return it.

    Its segmentation becomes `manual`, with RUN/boundaries.json. All other options stay the same,
    and so do choices among matches that are found again. With `--fuse auto`, the features to fuse
    are chosen again. If the retrieval fails, the run is restored, except its augmented dataset.

    Args:
        run: the run to replace.
        boundaries: new boundaries; demonstrations without any keep theirs.
        progress: called with (what, done, total).
    """
    target, priors = run.datasets()
    segments = _cut_segments(run, target, boundaries)
    file = run.path.resolve() / BOUNDARIES
    rows = [{"trajectory": s.trajectory_id, "start": s.start, "stop": s.stop} for s in segments]
    options = RetrievalOptions.of_run(run)
    cut = replace(options.segmentation, method="manual", boundaries=file)
    target_path, *prior_paths = _input_paths(run.manifest["arguments"])
    with _restore_on_error(run.path):
        write_json(file, {"segments": rows})
        repeated = run_retrieval(
            target_path,
            prior_paths,
            run.path,
            replace(options, segmentation=cut),
            stores=_stores_folder(run, [target, *priors]),
            overwrite=True,
            progress=progress,
        )
    carry_over(run.path, run.matches, repeated.matches)
    return repeated


@contextmanager
def _restore_on_error(folder: Path) -> Iterator[None]:
    """Restore the files of a run if repeating it fails, its manifest last."""
    names = (BOUNDARIES, "segments.json", "matches.parquet", "manifest.json")
    before = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    try:
        yield
    except BaseException:
        (folder / "manifest.json").unlink(missing_ok=True)
        if BOUNDARIES not in before:
            (folder / BOUNDARIES).unlink(missing_ok=True)
        for name, content in before.items():
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)
        raise


def _cut_segments(run: Run, target: Dataset, boundaries: Boundaries) -> list[Segment]:
    """Return the queries of a run, with new boundaries for some demonstrations."""
    present: dict[str, list[Segment]] = {key: [] for key in target.ids}
    for segment in read_segments(run.path / "segments.json"):
        present.setdefault(segment.trajectory_id, []).append(segment)
    for key, frames in boundaries.items():
        if key not in target.ids:
            raise unknown("demonstration", printable(shorten(str(key))), target.ids)
        length = target[key].length
        if not is_tiled(present[key], length):
            raise StrapError(
                f"the segments of '{key}' leave frames out or overlap, so it has no borders to "
                "move: change its segments in a file, and retrieve with --segmentation manual "
                "--boundaries FILE"
            )
        _require_boundaries(key, frames, length)
        present[key] = [Segment(key, *ends) for ends in pairwise([0, *frames, length])]
    return [segment for segments in present.values() for segment in segments]


def _require_boundaries(key: str, frames: Any, length: int) -> None:
    is_list = isinstance(frames, list | tuple) and all(type(frame) is int for frame in frames)
    if (
        not is_list
        or list(frames) != sorted(set(frames))
        or any(not 0 < frame < length for frame in frames)
    ):
        raise StrapError(
            f"boundaries of '{key}' are {shorten(repr(frames))}: give the first frame of each "
            f"further segment, increasing, from 1 to {length - 1}"
        )


def _input_paths(arguments: Mapping[str, Any]) -> list[str]:
    """Return the paths that the user gave as target and priors: of datasets, or of stores."""
    datasets = [arguments["target"], *arguments["prior"]]
    stores = arguments.get("named_stores") or [""] * len(datasets)
    return [store or dataset for store, dataset in zip(stores, datasets, strict=True)]


def _stores_folder(run: Run, datasets: Sequence[Dataset]) -> Path | None:
    """Return the folder of the run's stores; None if it is not known.

    The path of a store does not reveal that folder if the user named the store, or perhaps if it is
    beside its dataset; such stores are found again without the folder.
    """
    stores = run.manifest.get("stores") or {}
    named = [Path(place).resolve() for place in run.manifest["arguments"].get("named_stores", ())]
    beside = {dataset.name: dataset.path.parent.resolve() for dataset in datasets}
    unnamed = {name: Path(place) for name, place in stores.items() if Path(place) not in named}
    folders = {name: place.parent for name, place in unnamed.items()}
    apart = [folder for name, folder in folders.items() if folder != beside.get(name)]
    return next(iter([*apart, *folders.values()]), None)
