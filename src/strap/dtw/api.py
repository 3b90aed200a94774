"""The public functions: they validate and document; the backends assume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from strap.dtw import reference, validation
from strap.dtw.constraints import Align, search_constrained
from strap.dtw.gpu import devices
from strap.dtw.types import (
    Alignment,
    Backend,
    Block,
    Constraints,
    Excluded,
    Fetch,
    Frames,
    Lengths,
    Library,
    Name,
    SearchOptions,
    SearchResult,
    TopK,
    WarpingPath,
)
from strap.errors import StrapError, unknown

if TYPE_CHECKING:
    from strap.dtw.cpu.tuning import CpuTuning
    from strap.dtw.sketches.sketcher import Sketches

PlainBackend: TypeAlias = Callable[
    [Sequence[Frames], Library, SearchOptions, Excluded], SearchResult
]
BACKENDS = ("auto", "cpu", "gpu", "reference")


def resolve_backend(name: str = "auto") -> Backend:
    """Return which backend a name stands for on this machine, and why."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    if name == "reference":
        return Backend("reference", "asked for: the definition in plain NumPy, slow")
    if name == "gpu":
        devices.require_gpu()
        return Backend("gpu", "asked for")
    missing = devices.missing() if name == "auto" else None
    if name == "auto" and missing is None and not devices.is_interpreted():
        return Backend("gpu", "torch sees a GPU")
    if find_spec("numba") is not None:
        reason = f"numba is installed, {missing or 'no GPU'}"
        return Backend("cpu", "asked for" if name == "cpu" else reason)
    if name == "cpu":
        raise StrapError('backend "cpu" needs numba: pip install numba, or use "reference"')
    return Backend("reference", "numba is not installed: slow; pip install numba")


def best_match(
    query: Frames,
    trajectory: Frames,
    *,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    lengths: Lengths | None = None,
    path: bool = False,
) -> Alignment | None:
    """Return the cheapest match of a query inside one trajectory.

    Args:
        query: [n d].
        trajectory: [m d].
        steps: "strap", "fmp" or "classic": the moves of the warping path.
        metric: "l2", or "cosine" (1 − cos).
        backend: "auto" (a GPU where there is one), "cpu", "gpu" or "reference"; one pair is aligned
            on the CPU whichever it is.
        lengths: the least and the greatest number of frames of a match, where that matters.
        path: whether the alignment's `path` is filled in, as the function `path` gives it.

    Returns:
        Alignment(cost, start, stop), stop half-open; None when no path fits.
        Equal costs: the smaller stop, then the larger start.
    """
    options = SearchOptions(1, steps, metric, backend)
    query, trajectory = _check_pair(query, trajectory, options)
    if lengths is not None:
        validation.check_lengths(lengths, "query")
    match = align_with(options)(query, trajectory, lengths)
    if match is None or not path:
        return match
    return replace(match, path=_trace(query, trajectory, match, options))


def path(
    query: Frames,
    trajectory: Frames,
    alignment: Alignment,
    *,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
) -> WarpingPath:
    """Return the warping path of an alignment: which frame meets which, and what each pair costs.

    Args:
        query: [n d].
        trajectory: [m d], the whole of it.
        alignment: what `best_match` or `search` found for them; its cost, start and stop are used.
        steps: those with which it was found.
        metric: the one with which it was found.
        backend: any; all find the same path.

    Returns:
        The cheapest path from (0, start) to (n − 1, stop − 1). Its costs, added in order, are the
        alignment's cost to the last bit. Equal costs: traced back from the end, the predecessor by
        the move (1, 1), by which both go on together; else the one of the later trajectory frame,
        as alignments prefer the later start; then the one of the later query frame.
    """
    options = SearchOptions(1, steps, metric, backend)
    query, trajectory = _check_pair(query, trajectory, options)
    validation.check_borders(alignment, len(trajectory))
    return _trace(query, trajectory, alignment, options)


def _check_pair(query: Frames, trajectory: Frames, options: SearchOptions) -> tuple[Frames, Frames]:
    """Return a query and a trajectory as arrays; check names, shapes and numbers."""
    validation.check_names(options.steps, options.metric)
    query = validation.check_shape(query, "query")
    trajectory = validation.check_shape(trajectory, "trajectory", query.shape[1])
    validation.check_numbers(query, "query", options.metric)
    validation.check_numbers(trajectory, "trajectory", options.metric)
    return query, trajectory


def _trace(
    query: Frames, trajectory: Frames, alignment: Alignment, options: SearchOptions
) -> WarpingPath:
    """Return the path of an alignment inside the trajectory: by the definition, or compiled."""
    window = trajectory[alignment.start : alignment.stop]
    aligner = _load_pair_aligner(options.backend)
    cells, costs = aligner.find_cells(query, window, options.steps, options.metric)
    validation.check_path(costs, alignment, len(query), options)
    return WarpingPath(cells[:, 0], alignment.start + cells[:, 1], costs)


def align_with(options: SearchOptions) -> Align:
    """Return what aligns one query with one trajectory exactly: the definition, or compiled."""
    best_match = _load_pair_aligner(options.backend).best_match
    return partial(best_match, steps=options.steps, metric=options.metric)


def _load_pair_aligner(backend: str) -> ModuleType:
    """Return the module that aligns one pair; on the CPU, whichever backend searches."""
    if resolve_backend(backend).name == "reference":
        return reference
    from strap.dtw.cpu import pair_alignment  # numba loads here, not with the package

    return pair_alignment


def search(
    queries: Sequence[Frames],
    trajectories: Sequence[Frames],
    *,
    k: int,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    exclude: Excluded = None,
    per_trajectory: int = 1,
    lengths: Sequence[Lengths] | None = None,
    tuning: CpuTuning | None = None,
) -> list[TopK]:
    """Return for each query its k best matches, at most one in each trajectory unless asked.

    Args:
        queries: arrays [n d].
        trajectories: arrays [m d]; memory-maps are read batch by batch, never all at once.
        k: how many matches for each query.
        steps: as in `best_match`.
        metric: as in `best_match`.
        backend: as in `best_match`.
        exclude: for each query the indices of trajectories that it must not match.
        per_trajectory: how many matches of a query may lie in one trajectory; they don't overlap:
            the best, then the best clear of it, and so on.
        lengths: for each query the least and the greatest number of frames of a match.
        tuning: how the CPU backend goes about it, which decides the time alone; others ignore it.

    Returns:
        One TopK for each query: trajectory, start, stop, cost, each [min(k, those that fit)].
        Sorted by cost; ties: smaller trajectory index, smaller stop, larger start. Exact.
    """

    def stream(dim: int) -> Iterator[tuple[int, Frames]]:
        for index in range(len(trajectories)):
            name = validation.name_trajectory(index)
            yield index, validation.check_shape(trajectories[index], name, dim)

    def fetch(index: int) -> Frames:
        return np.asanyarray(trajectories[index])

    constraints = Constraints(per_trajectory, lengths)
    options = SearchOptions(k, steps, metric, backend, constraints)
    library = Library(stream, fetch, validation.name_trajectory)
    return search_library(queries, library, options, exclude, tuning).tops


def search_blocks(
    queries: Sequence[Frames],
    blocks: Iterable[Block],
    *,
    k: int,
    fetch: Fetch,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    exclude: Excluded = None,
    name: Name | None = None,
    sketches: Sequence[Sequence[Sketches]] = (),
) -> list[TopK]:
    """Return what `search` does, over trajectories in blocks: for stores larger than memory.

    Args:
        queries, k, steps, metric, backend, exclude: as in `search`; indices are global ones.
        blocks: read once, in any order; the result does not depend on how they are cut.
        fetch: global index -> frames [m d]; called for the few that are evaluated exactly.
        name: global index -> what an error message calls it ("trajectory 7" unless given).
        sketches: sketches of all trajectories, of one or more kinds for each part of them, those
            that are bounded fastest first; with them, the CPU backend under l2 reads only what
            they don't rule out. They never change a result.

    Returns:
        One TopK for each query, as `search` does.
    """
    library = Library(stream_blocks(blocks), fetch, name or validation.name_trajectory, sketches)
    return search_library(queries, library, SearchOptions(k, steps, metric, backend), exclude).tops


def stream_blocks(blocks: Iterable[Block]) -> Callable[[int], Iterator[tuple[int, Frames]]]:
    """Return the trajectories of blocks, as a `Library` streams them."""

    def stream(dim: int) -> Iterator[tuple[int, Frames]]:
        for block in blocks:
            validation.check_block(block, dim)
            for i, index in enumerate(block.ids):
                yield int(index), block.frames[block.offsets[i] : block.offsets[i + 1]]

    return stream


def search_library(
    queries: Sequence[Frames],
    library: Library,
    options: SearchOptions,
    exclude: Excluded = None,
    tuning: CpuTuning | None = None,
) -> SearchResult:
    """Return what `search` does, over any library, and how many pairs each step removed.

    Args:
        queries: arrays [n d].
        library: the trajectories, and where they have sketches those.
        options: what is searched for.
        exclude, tuning: as in `search`.
    """
    validation.check_options(options, len(queries))
    validation.check_excluded(exclude, len(queries))
    backend = resolve_backend(options.backend).name
    if len(queries) == 0:
        return SearchResult([], [])
    queries = validation.check_queries(queries, options.metric)
    search_backend = _load_search(backend, tuning)

    def search_plain(query_indices: Sequence[int], k: int) -> SearchResult:
        chosen = [queries[q] for q in query_indices]
        excluded = exclude and [exclude[q] for q in query_indices]
        return search_backend(chosen, library, replace(options, k=k), excluded)

    return search_constrained(queries, options, search_plain, library.fetch, align_with(options))


def _load_search(backend: str, tuning: CpuTuning | None) -> PlainBackend:
    """Return a backend's search, one match in each trajectory; numba, torch, triton load here."""
    if backend == "reference":
        return reference.search
    if backend == "cpu":
        from strap.dtw.cpu import search as cpu
        from strap.dtw.cpu.tuning import CpuTuning

        return partial(cpu.search, tuning=tuning or CpuTuning())
    from strap.dtw.gpu import search as gpu

    return gpu.search
