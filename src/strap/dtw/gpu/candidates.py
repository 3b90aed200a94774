"""The k best matches of every query on one device; aligns candidates in order of lower bounds.

This module decides when a candidate is dropped: when its lower bound exceeds the query's threshold,
the cost of its k-th best match so far. A candidate whose bound equals the threshold is kept: it
could be a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from strap.cpus import count_cpus
from strap.dtw.batching import find_excluded
from strap.dtw.cpu.pair_alignment import best_match
from strap.dtw.gpu.bound_kernels import MAX_QUERY_FRAMES
from strap.dtw.gpu.exact import ExactAligner, LocatedFrames
from strap.dtw.gpu.queries import DeviceQueries, SearchRequest
from strap.dtw.types import Floats, Ints, TopK

Locate: TypeAlias = Callable[[Ints], Iterator[LocatedFrames]]
"""Ascending positions of trajectories -> their frames' addresses on the device, in chunks."""

FLOAT32_MAX, FLOAT32_TINY = float(np.finfo(np.float32).max), 1e-37


@dataclass(frozen=True, eq=False)
class TrajectoryTable:
    """The addresses of all trajectories, if all are on the device."""

    locations: torch.Tensor  # [2, trajectory] int64: addresses and lengths
    longest: int  # the largest length
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class DeviceTopK:
    """Each query's k best matches among the trajectories of one device."""

    tops: list[TopK]  # [query]
    n_aligned: Ints  # [query] pairs that were aligned exactly
    n_pairs: Ints  # [query] pairs with a path; 0 if not counted, as that would wait for the device

    @classmethod
    def empty(cls, n_queries: int) -> DeviceTopK:
        """Return the selection of a device without trajectories."""
        zeros = np.zeros(n_queries, np.int64)
        return cls([TopK.of([])] * n_queries, zeros, zeros)


def merge_selections(selections: Sequence[DeviceTopK], k: int) -> list[TopK]:
    """Return each query's k best matches from all devices."""
    by_query = zip(*(selection.tops for selection in selections), strict=True)
    return [TopK.best_of(tops, k) for tops in by_query]


class TopKSelector:
    """The search for the k best on one device: aligns candidates until no other one can win."""

    def __init__(
        self, request: SearchRequest, queries: DeviceQueries, ids: Ints, locate: Locate
    ) -> None:
        """Take the request and the trajectories of this device: ids [trajectory]."""
        self._request, self._options, self._queries = request, request.options, queries
        self._ids, self._locate = ids, locate
        self._tops = [TopK.of([])] * len(request.queries)
        self._n_aligned = np.zeros(len(request.queries), np.int64)

    def select(
        self, lower_bounds: torch.Tensor, table: TrajectoryTable | None = None
    ) -> DeviceTopK:
        """Return the k best by lower bounds [query, trajectory]: a shortlist first, then the rest.

        With a table of all trajectories, the shortlist is aligned without involving the host,
        which saves two waits.
        """
        request, options, total = self._request, self._options, len(self._ids)
        n_pairs = np.zeros(len(request.queries), np.int64)
        if request.exclude is not None and any(map(len, request.exclude)):
            excluded = torch.as_tensor(find_excluded(self._ids, request.exclude))
            lower_bounds = lower_bounds.masked_fill(excluded.to(lower_bounds.device), np.inf)
        size = n_listed = min(total, request.tuning.get_shortlist_size(options.k))
        if options.metric == "cosine" or self._queries.longest > MAX_QUERY_FRAMES:
            table = None
        if table is not None:
            n_listed = min(total, size + request.tuning.n_reserve)
        # The choice of the shortlist affects only the time, so float32 is precise enough.
        listed = torch.topk(lower_bounds.to(torch.float32), n_listed, largest=False).indices
        bounds = lower_bounds.gather(1, listed)
        if table is not None:
            largest = self._align_shortlist(listed, bounds, size, table)
        else:
            host_bounds, positions = bounds.cpu().numpy(), listed.cpu().numpy()
            query, column = np.nonzero(np.isfinite(host_bounds))
            self._align(query, positions[query, column])
            largest = host_bounds[:, -1]
            n_pairs = torch.isfinite(lower_bounds).sum(dim=1).cpu().numpy()
        # Rounded to float32, all other bounds are at least the largest listed one. So in float64
        # they are at least this number.
        others = np.minimum(largest, FLOAT32_MAX) * (1 - 2.0**-23) - FLOAT32_TINY
        if n_listed < total and np.any(self._get_thresholds() >= others):
            self._align_remaining(lower_bounds, listed)
        return DeviceTopK(self._tops, self._n_aligned, n_pairs)

    def _get_thresholds(self) -> Floats:
        """Return each query's threshold [query]; ∞ while it has fewer than k matches."""
        k = self._options.k
        return np.array([top.cost[-1] if len(top) == k else np.inf for top in self._tops])

    def _align_shortlist(
        self, listed: torch.Tensor, bounds: torch.Tensor, size: int, table: TrajectoryTable
    ) -> Floats:
        """Align the shortlist, then those candidates of the reserve that can still win.

        Args:
            listed: positions of the candidates [query, candidate] among the trajectories.
            bounds: their lower bounds, ascending.
            size: the length of the shortlist; the candidates after it are the reserve.
            table: the addresses of the trajectories.

        Returns:
            The largest bound of each query [query].
        """
        is_possible = torch.isfinite(bounds)
        first = self._align_listed(listed[:, :size], is_possible[:, :size], table)
        found = [first]
        if listed.shape[1] > size:  # then the shortlist has at least k
            thresholds = torch.sort(first[0]).values[:, self._options.k - 1, None]
            may_win = (is_possible & (bounds <= thresholds))[:, size:]
            found.append(self._align_listed(listed[:, size:], may_win, table))
        packed = torch.cat([*torch.cat(found, dim=2), bounds, listed.to(torch.float64)])
        cost, start, stop, host_bounds, positions = packed.cpu().numpy().reshape(5, len(bounds), -1)
        query = np.repeat(np.arange(len(cost)), cost.shape[1])
        position, start, stop = np.stack([positions, start, stop]).reshape(3, -1).astype(np.int64)
        self._count(query[start >= 0])
        self._add(query, position, cost.flatten(), start, stop)
        return np.asarray(host_bounds[:, -1])

    def _align_listed(
        self, listed: torch.Tensor, is_wanted: torch.Tensor, table: TrajectoryTable
    ) -> torch.Tensor:
        """Return cost, start and stop [3, query, candidate]: ∞, −1 and 0 if not wanted.

        Unwanted candidates are aligned as trajectories without frames.
        """
        n_queries, count = listed.shape
        query = torch.arange(n_queries, device=listed.device).repeat_interleave(count)
        pairs = torch.cat([query[None], table.locations[:, listed.flatten()]])
        pairs[2] *= is_wanted.flatten()
        found = self._aligner.align_on_device(pairs, table.longest, table.dtype)
        found = found.view(3, n_queries, count)
        found[1].masked_fill_(~is_wanted, -1)
        return found

    def _align_remaining(self, lower_bounds: torch.Tensor, listed: torch.Tensor) -> None:
        """Align the candidates that are not listed and can win, the smallest bounds first."""
        thresholds = torch.as_tensor(self._get_thresholds(), device=lower_bounds.device)
        may_win = torch.isfinite(lower_bounds) & (lower_bounds <= thresholds[:, None])
        pairs = torch.nonzero(may_win.scatter_(1, listed, False))
        bounds = lower_bounds[pairs[:, 0], pairs[:, 1]].cpu().numpy()
        order = np.argsort(bounds, kind="stable")
        bounds, (query, position) = bounds[order], pairs.cpu().numpy()[order].T
        size = 4 * self._options.k * len(self._tops)
        for first in range(0, len(order), size):
            chunk = slice(first, first + size)
            may_still_win = bounds[chunk] <= self._get_thresholds()[query[chunk]]
            self._align(query[chunk][may_still_win], position[chunk][may_still_win])

    def _align(self, query: Ints, position: Ints) -> None:
        """Align pairs [pair], on the host if the kernels cannot, and keep the k best."""
        self._count(query)
        on_host = self._queries.lengths[query] > MAX_QUERY_FRAMES
        if self._options.metric == "cosine":
            on_host[:] = True
        if not on_host.all():
            self._align_on_device(query[~on_host], position[~on_host])
        if on_host.any():
            self._align_on_host(query[on_host], position[on_host])

    def _count(self, query: Ints) -> None:
        """Add pairs [pair] to their queries' numbers of aligned pairs."""
        self._n_aligned += np.bincount(query, minlength=len(self._n_aligned))

    def _align_on_device(self, query: Ints, position: Ints) -> None:
        unique, which = np.unique(position, return_inverse=True)
        first = 0
        for located in self._locate(unique):
            last = first + len(located.lengths)
            in_chunk = (which >= first) & (which < last)
            index = which[in_chunk] - first
            locations = located.addresses[index], located.lengths[index]
            found = self._aligner.align(query[in_chunk], *locations, located.dtype)
            self._add(query[in_chunk], position[in_chunk], *found)
            first = last

    def _align_on_host(self, query: Ints, position: Ints) -> None:
        request, options = self._request, self._options
        align_pair = partial(best_match, steps=options.steps, metric=options.metric)

        def align(q: int, p: int) -> tuple[float, int, int]:
            frames = request.fetch(int(self._ids[p]))
            match = align_pair(request.queries[q], frames)
            return (np.inf, 0, 0) if match is None else (match.cost, match.start, match.stop)

        with ThreadPoolExecutor(count_cpus()) as pool:
            found = np.array(list(pool.map(align, query, position)))
        self._add(query, position, found[:, 0], *found[:, 1:].T.astype(np.int64))

    def _add(self, query: Ints, position: Ints, cost: Floats, start: Ints, stop: Ints) -> None:
        """Sort the matches [pair] of all queries at once, and keep each query's k best."""
        k, trajectory = self._options.k, self._ids[position]
        order = np.lexsort((-start, stop, trajectory, cost, query))
        order = order[cost[order] < np.inf]
        borders = np.searchsorted(query[order], np.arange(len(self._tops) + 1))
        for q, (first, last) in enumerate(pairwise(borders)):
            best = order[first:last][:k]
            top = TopK(trajectory[best], start[best], stop[best], cost[best])
            self._tops[q] = TopK.best_of([self._tops[q], top], k) if len(self._tops[q]) else top

    @cached_property
    def _aligner(self) -> ExactAligner:
        return ExactAligner(self._queries, self._options.steps)
