"""The public functions: they validate and document; the backends assume."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from strap.dtw import checks, matches, reference
from strap.dtw.gpu import devices
from strap.dtw.matches import Align, Plain, Wish
from strap.dtw.types import Alignment, Backend, Block, Fetch, Frames, Lengths, Name, Tally, TopK
from strap.errors import StrapError, unknown

if TYPE_CHECKING:
    from strap.dtw.sketches import Sketches

BACKENDS = ("auto", "cpu", "gpu", "reference")


def resolve_backend(name: str = "auto") -> Backend:
    """Which backend a name stands for on this machine, and why."""
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    if name == "reference":
        return Backend("reference", "asked for: the definition in plain NumPy, slow")
    lack = devices.missing() if name != "cpu" else None
    if name == "gpu":
        if lack is not None:
            raise StrapError(f'backend "gpu": {lack}; or use backend "cpu"')
        return Backend("gpu", "asked for")
    if name == "auto" and lack is None and not devices.is_interpreted():
        return Backend("gpu", "torch sees a GPU")
    if find_spec("numba") is not None:
        reason = f"numba is installed, {lack or 'no GPU'}"
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
    backend: str = "cpu",
    lengths: Lengths | None = None,
) -> Alignment | None:
    """The cheapest match of a query inside one trajectory.

    Args:
        query: [n d].
        trajectory: [m d].
        steps: "strap", "fmp" or "classic": the moves of the warping path.
        metric: "l2", or "cosine" (1 − cos).
        backend: "cpu", "gpu", "reference", or "auto" (a GPU where there is one).
        lengths: the least and the greatest number of frames of a match, where that matters.

    Returns:
        Alignment(cost, start, stop), stop half-open; None when no path fits.
        Equal costs: the smaller stop, then the larger start.
    """
    checks.options(steps, metric)
    chosen = resolve_backend(backend).name
    query = checks.shape(query, "query")
    trajectory = checks.shape(trajectory, "trajectory", query.shape[1])
    checks.values(query, "query", metric)
    checks.values(trajectory, "trajectory", metric)
    if lengths is not None:
        checks.length(lengths, "query")
    if chosen == "gpu" and lengths is None:
        (best,) = search([query], [trajectory], k=1, steps=steps, metric=metric, backend="gpu")
        if len(best) == 0:
            return None
        return Alignment(float(best.cost[0]), int(best.start[0]), int(best.stop[0]))
    return _one_by_one(chosen, steps, metric)(query, trajectory, lengths)


def _one_by_one(backend: str, steps: str, metric: str) -> Align:
    """What aligns one query with one trajectory exactly: the definition, or compiled."""

    def align(query: Frames, trajectory: Frames, lengths: Lengths | None) -> Alignment | None:
        if backend == "reference":
            return reference.best_match(query, trajectory, steps, metric, lengths)
        from strap.dtw import cpu  # numba loads here, not with the package

        return cpu.best_match(query, trajectory, steps, metric, lengths)

    return align


def search(
    queries: Sequence[Frames],
    trajectories: Sequence[Frames],
    *,
    k: int,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "cpu",
    exclude: Sequence[Collection[int]] | None = None,
    per_trajectory: int = 1,
    lengths: Sequence[Lengths] | None = None,
) -> list[TopK]:
    """For each query its k best matches, at most one in each trajectory unless asked for more.

    Args:
        queries: arrays [n d].
        trajectories: arrays [m d]; memory-maps are read piece by piece, never all at once.
        k: how many matches for each query.
        steps, metric, backend: as in `best_match`.
        exclude: for each query the indices of trajectories that it must not match.
        per_trajectory: how many matches of a query may lie in one trajectory; they don't overlap:
            the best, then the best clear of it, and so on.
        lengths: for each query the least and the greatest number of frames of a match.

    Returns:
        One TopK for each query: trajectory, start, stop, cost, each [min(k, those that fit)].
        Sorted by cost; ties: smaller trajectory index, smaller stop, larger start. Exact.
    """

    def fetch(index: int) -> Frames:
        return np.asanyarray(trajectories[index])

    def plain(some: Sequence[int], count: int) -> list[TopK]:
        return _search(
            [queries[q] for q in some],
            lambda dim: _listed(trajectories, dim),
            fetch,
            k=count,
            steps=steps,
            metric=metric,
            backend=backend,
            exclude=exclude and [exclude[q] for q in some],
            name=_plain_name,
        )

    checks.count(k)
    checks.excluded(exclude, len(queries))
    wish = Wish(k, per_trajectory, lengths)
    return search_wish(queries, wish, plain, fetch, backend=backend, steps=steps, metric=metric)


def search_wish(
    queries: Sequence[Frames],
    wish: Wish,
    plain: Plain,
    fetch: Fetch,
    *,
    backend: str = "cpu",
    steps: str = "strap",
    metric: str = "l2",
) -> list[TopK]:
    """Several matches a trajectory and limits of length on top of any plain search.

    Args:
        queries: arrays [n d].
        wish: what is asked for.
        plain: (which queries, k) -> their k best, one in each trajectory; any of the searches
            here, over anything. It is asked again with a larger k where limits of length bind.
        fetch: trajectory index -> frames [m d].
        backend, steps, metric: as in `search`.
    """
    checks.wish(wish.per_trajectory, wish.lengths, len(queries))
    align = _one_by_one(resolve_backend(backend).name, steps, metric)
    return matches.search([np.asanyarray(q) for q in queries], wish, plain, fetch, align)


def search_blocks(
    queries: Sequence[Frames],
    blocks: Iterable[Block],
    *,
    k: int,
    fetch: Fetch,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "cpu",
    exclude: Sequence[Collection[int]] | None = None,
    name: Name | None = None,
    sketched: Sequence[Sequence[Sketches]] = (),
    tally: Tally | None = None,
) -> list[TopK]:
    """As `search`, over trajectories laid end to end in blocks: for stores larger than memory.

    Args:
        queries, k, steps, metric, backend, exclude: as in `search`; indices are global ones.
        blocks: read once, in any order; the result does not depend on how they are cut.
        fetch: global index -> frames [m d]; called for the few that are evaluated exactly.
        name: global index -> what an error message calls it ("trajectory 7" unless given).
        sketched: sketches of all trajectories, of one or more kinds for each part of them, those
            that are bounded fastest first; with them, the CPU backend under l2 reads only what
            they don't rule out. They never change a result.
        tally: filled with how many pairs each bound removed.

    Returns:
        As `search`.
    """
    return _search(
        queries,
        lambda dim: _unpacked(blocks, dim),
        fetch,
        k=k,
        steps=steps,
        metric=metric,
        backend=backend,
        exclude=exclude,
        name=name or _plain_name,
        sketched=sketched,
        tally=tally,
    )


def _plain_name(index: int) -> str:
    return f"trajectory {index}"


def _listed(trajectories: Sequence[Frames], dim: int) -> Iterator[tuple[int, Frames]]:
    for index in range(len(trajectories)):
        yield index, checks.shape(trajectories[index], _plain_name(index), dim)


def _unpacked(blocks: Iterable[Block], dim: int) -> Iterator[tuple[int, Frames]]:
    for block in blocks:
        checks.block(block, dim)
        for i, index in enumerate(block.ids):
            yield int(index), block.frames[block.offsets[i] : block.offsets[i + 1]]


def _search(
    queries: Sequence[Frames],
    open_stream: Callable[[int], Iterator[tuple[int, Frames]]],
    fetch: Fetch,
    *,
    k: int,
    steps: str,
    metric: str,
    backend: str,
    exclude: Sequence[Collection[int]] | None,
    name: Name,
    sketched: Sequence[Sequence[Sketches]] = (),
    tally: Tally | None = None,
) -> list[TopK]:
    checks.options(steps, metric)
    checks.count(k)
    chosen = resolve_backend(backend).name
    checks.excluded(exclude, len(queries))
    if len(queries) == 0:
        return []
    dim = checks.shape(queries[0], "query 0").shape[1]
    queries = [checks.shape(query, f"query {q}", dim) for q, query in enumerate(queries)]
    for q, query in enumerate(queries):
        checks.values(query, f"query {q}", metric)
    stream = open_stream(dim)
    if chosen == "reference":
        return reference.search(queries, stream, k, steps, metric, exclude, name)
    # numba, torch and triton load here, not with the package.
    options = {"k": k, "steps": steps, "metric": metric, "exclude": exclude, "name": name}
    if chosen == "gpu":
        found: list[TopK]
        found, counts = import_module("strap.dtw.gpu.search").search(
            queries, stream, fetch, **options
        )
        if tally is not None:
            tally.add(counts)
    else:
        found = import_module("strap.dtw.cpu").search(
            queries, stream, fetch, **options, sketched=sketched, tally=tally
        )
    return found
