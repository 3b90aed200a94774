"""The public functions of `strap.dtw`. They check arguments; backends assume valid input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
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
"""A search without constraints: at most one match of a query per trajectory."""
BACKENDS = ("auto", "cpu", "gpu", "reference")


def resolve_backend(name: str = "auto") -> Backend:
    """Return the backend that a name selects on this machine, and why."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    if name == "reference":
        return Backend("reference", "requested: the definition in plain NumPy, slow")
    if name == "gpu":
        devices.require_gpu()
        return Backend("gpu", "requested")
    missing = devices.missing() if name == "auto" else None
    if name == "auto" and missing is None and not devices.is_interpreted():
        return Backend("gpu", "torch sees a GPU")
    if find_spec("numba") is not None:
        reason = f"numba is installed, {missing or 'no GPU'}"
        return Backend("cpu", "requested" if name == "cpu" else reason)
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
        backend: "auto" (a GPU if there is one), "cpu", "gpu" or "reference"; a single pair is
            always aligned on the CPU.
        lengths: the minimum and the maximum number of frames of a match; by default any.
        path: whether to fill in the alignment's `path`, as the function `path` does.

    Returns:
        Alignment(cost, start, stop), stop exclusive; None when no path fits. Of equal costs, the
        smaller stop wins, then the larger start.
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
    """Return the warping path of an alignment: its pairs of frames and their local costs.

    Steps and metric are as in the search that found the alignment. All backends find the same path.

    Args:
        query: [n d].
        trajectory: [m d], the whole trajectory.
        alignment: the result of `best_match` or `search`; its cost, start and stop are used.

    Returns:
        The cheapest path from (0, start) to (n − 1, stop − 1). Its costs, summed in order, give the
        alignment's cost bit by bit. It is traced back from the end; of equally cheap predecessors
        the move (1, 1) wins, then the later trajectory frame, then the later query frame.
    """
    options = SearchOptions(1, steps, metric, backend)
    query, trajectory = _check_pair(query, trajectory, options)
    validation.check_borders(alignment, len(trajectory))
    return _trace(query, trajectory, alignment, options)


def _check_pair(query: Frames, trajectory: Frames, options: SearchOptions) -> tuple[Frames, Frames]:
    """Check names, shapes and numbers; return the query and the trajectory as arrays."""
    validation.check_names(options.steps, options.metric)
    query = validation.check_shape(query, "query")
    trajectory = validation.check_shape(trajectory, "trajectory", query.shape[1])
    validation.check_numbers(query, "query", options.metric)
    validation.check_numbers(trajectory, "trajectory", options.metric)
    return query, trajectory


def _trace(
    query: Frames, trajectory: Frames, alignment: Alignment, options: SearchOptions
) -> WarpingPath:
    """Return the path of an alignment; arguments are checked already, except the cost."""
    window = trajectory[alignment.start : alignment.stop]
    aligner = _load_pair_aligner(options.backend)
    cells, costs = aligner.find_cells(query, window, options.steps, options.metric)
    validation.check_path(costs, alignment, len(query), options)
    return WarpingPath(cells[:, 0], alignment.start + cells[:, 1], costs)


def align_with(options: SearchOptions) -> Align:
    """Return the function (query, trajectory, lengths) -> best match under these options."""
    best_match = _load_pair_aligner(options.backend).best_match
    return partial(best_match, steps=options.steps, metric=options.metric)


def _load_pair_aligner(backend: str) -> ModuleType:
    """Import the module that aligns a single pair (numba loads here, not with the package)."""
    is_reference = resolve_backend(backend).name == "reference"
    return reference if is_reference else import_module("strap.dtw.cpu.pair_alignment")


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
    """Return the k best matches of each query, by default at most one per trajectory.

    Steps, metric and backend are as in `best_match`.

    Args:
        queries: arrays [n d].
        trajectories: arrays [m d]; memory maps are read batch by batch, never all at once.
        k: the number of matches for each query.
        exclude: for each query the indices of trajectories that it must not match.
        per_trajectory: the maximum number of matches of a query in one trajectory: the best, then
            the best that does not overlap it, and so on.
        lengths: for each query the minimum and the maximum number of frames of a match.
        tuning: settings of the CPU backend that affect its speed, never the result.

    Returns:
        One TopK for each query: trajectory, start, stop, cost, each [min(k, number of matches)].
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
    """Search like `search`, in blocks of trajectories: for data larger than memory.

    Args:
        queries, k, steps, metric, backend, exclude: as in `search`, with global indices.
        blocks: read once, in any order; the result does not depend on how they are cut.
        fetch: global index -> frames [m d]; called for the candidates that are aligned exactly.
        name: global index -> the trajectory's name in error messages; by default "trajectory 7".
        sketches: as in `Library`, of all trajectories. With sketches and metric "l2", the CPU
            backend reads only the frames that they don't rule out. They never change a result.

    Returns:
        One TopK for each query.
    """
    library = Library(stream_blocks(blocks), fetch, name or validation.name_trajectory, sketches)
    return search_library(queries, library, SearchOptions(k, steps, metric, backend), exclude).tops


def stream_blocks(blocks: Iterable[Block]) -> Callable[[int], Iterator[tuple[int, Frames]]]:
    """Return a function that yields the trajectories of blocks: the `stream` of a `Library`."""

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
    """Search any library like `search`; also return how many pairs each stage ruled out.

    Args:
        queries: arrays [n d].
        library: the trajectories, and their sketches if there are any.
        options: what to search for.
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
    """Import a backend (numba, or torch and triton) and return its search function."""
    if backend == "reference":
        return reference.search
    search = partial(import_module(f"strap.dtw.{backend}.search").search)
    return partial(search, tuning=tuning) if backend == "cpu" else search
