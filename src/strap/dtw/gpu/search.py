"""Exact top-k on GPUs: bound everything on tensor cores, then evaluate exactly what may win."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any as Tally
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from strap.dtw.batching import Batch as Piece
from strap.dtw.batching import cut_batches as pieces
from strap.dtw.cpu import search as cpu
from strap.dtw.gpu.asked import Asked
from strap.dtw.gpu.bounds import Filter
from strap.dtw.gpu.devices import find_devices
from strap.dtw.gpu.exact import Exact, Pairs
from strap.dtw.gpu.frames import Space, as_tensor, load
from strap.dtw.gpu.kernels import LONGEST
from strap.dtw.gpu.overlap import Scratch, foreground
from strap.dtw.gpu.staging import staged
from strap.dtw.types import Fetch, Floats, Frames, Ints, Name, TopK
from strap.processors import processors

CardT = TypeVar("CardT")
ResultT = TypeVar("ResultT")
PIECE_BYTES = 2**28  # on their way to a device at a time
LEAST_MORE, MORE = 4, 0.1  # evaluated at once beyond k, at least and as a share of k
NEXT = 64  # whose bounds come along: mostly none but some of these are left then
# Numbers whose nearest float32 ones are in order are in order themselves, but for this.
LARGEST, BELOW, LEAST = float(np.finfo(np.float32).max), 1 - 2.0**-23, 1e-37
EVALUATED_BYTES = 2**30  # read again for the exact evaluation at a time
Found: TypeAlias = NDArray[np.float64]
"""[4 r]: cost, trajectory, stop and −start of one query's best, cheapest first."""
Locate = Callable[[Ints], Iterator[tuple[Ints, Ints, torch.dtype]]]
"""Positions [p] of trajectories -> in runs, their (addresses, lengths, dtype) on the device."""


@dataclass(eq=False)
class Task:
    """What is asked of every device."""

    queries: Sequence[Frames]
    k: int
    steps: str
    metric: str
    exclude: Sequence[Collection[int]] | None
    name: Name
    fetch: Fetch
    largest: float | None = None
    """absolute value in the queries, where it is known"""
    counted: bool = False
    """whether `pairs` is asked for"""
    pairs: int = 0
    evaluated: int = 0


def search(
    queries: Sequence[Frames],
    stream: Iterable[tuple[int, Frames]],
    fetch: Fetch,
    *,
    k: int,
    steps: str,
    metric: str,
    exclude: Sequence[Collection[int]] | None,
    name: Name,
    devices: Sequence[str] | None = None,
    tally: Tally | None = None,
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream; `fetch(id)` reads frames again.

    Every device takes the next piece as soon as it is done with its last one, and finds the k best
    among those it took.
    """
    task = Task(queries, k, steps, metric, exclude, name, fetch, counted=tally is not None)
    dim = queries[0].shape[1]
    shared = Shared(pieces(stream, max(1, PIECE_BYTES // (2 * dim))))
    cards = find_devices(devices)
    results = on_each(cards, lambda device: _stream(task, shared, device))
    if tally is not None:
        tally.pairs, tally.evaluated = task.pairs, task.evaluated
        tally.by_bounds = tally.pairs - tally.evaluated
    return [merge([found[q] for found in results], k) for q in range(len(queries))]


def on_each(cards: Sequence[CardT], work: Callable[[CardT], ResultT]) -> list[ResultT]:
    """What `work` returns for each card, each in a thread of its own."""
    if len(cards) == 1:
        return [work(cards[0])]
    with ThreadPoolExecutor(len(cards)) as pool:
        return list(pool.map(work, cards))


class Shared(Iterator[Piece]):
    """One iterator for several threads; pieces of one dtype each."""

    def __init__(self, items: Iterable[Piece]) -> None:
        self._items = (part for piece in items for part in by_dtype(piece))
        self._lock = threading.Lock()

    def __next__(self) -> Piece:
        with self._lock:
            return next(self._items)


def by_dtype(piece: Piece) -> Iterator[Piece]:
    """A piece cut into runs of one dtype."""
    first = 0
    for i in range(1, len(piece.ids) + 1):
        if i == len(piece.ids) or piece.frames[i].dtype != piece.frames[first].dtype:
            yield Piece(piece.ids[first:i], piece.frames[first:i])
            first = i


NOTHING = np.empty((4, 0))


def best(found: Found, k: int) -> Found:
    """The k best columns, in the order of the tie rule."""
    return found[:, np.lexsort(found[::-1])[:k]]


def merge(found: Sequence[Found], k: int) -> TopK:
    """The k best of what several devices found."""
    one = len(found) == 1  # in order already
    cost, trajectory, stop, start = found[0] if one else best(np.concatenate(found, axis=1), k)
    return TopK(
        trajectory.astype(np.int64), -start.astype(np.int64), stop.astype(np.int64), cost.copy()
    )


def _stream(task: Task, shared: Iterable[Piece], device: torch.device) -> list[Found]:
    """The k best on one device, of the pieces that it gets."""
    with torch.inference_mode(), foreground(device):
        asked = Asked.of(task.queries, device)
        scratch, filters = Scratch(device), _Filters(task, asked)
        ids: list[int] = []
        parts: list[torch.Tensor] = []
        for item in staged(shared, device):
            chosen = filters.of(item.piece.frames[0])
            frames = item.wait()
            loaded = load(item.piece, frames, chosen.space, task.metric, scratch, task.name)
            lows = torch.empty(
                len(task.queries), len(loaded.ids), dtype=torch.float64, device=device
            )
            chosen.bounds(loaded, lows)
            ids += loaded.ids
            parts.append(lows)
        if not ids:
            return [NOTHING] * len(task.queries)
        scratch.join()
        numbers = np.array(ids, np.int64)
        locate = _Fetched(task.fetch, numbers, device)
        return Refinement(task, numbers, torch.cat(parts, dim=1), asked, locate).run()


class _Filters:
    """One filter for float16 frames, one for those that are converted."""

    def __init__(self, task: Task, asked: Asked) -> None:
        self._task, self._asked = task, asked
        self._made: dict[bool, Filter] = {}

    def of(self, frames: Frames) -> Filter:
        task, half = self._task, frames.dtype == np.float16
        if half not in self._made:
            sample = np.concatenate([np.asarray(own, np.float64) for own in task.queries])
            space = Space.of(sample, task.metric, rounded=not half or task.metric == "cosine")
            self._made[half] = Filter(task.queries, task.steps, task.metric, space, self._asked)
        return self._made[half]


@dataclass(frozen=True, eq=False)
class _Fetched:
    """Frames that are read again and sent to the device."""

    fetch: Fetch
    ids: Ints
    device: torch.device

    def __call__(self, positions: Ints) -> Iterator[tuple[Ints, Ints, torch.dtype]]:
        pieces_of = pieces(
            ((int(p), self.fetch(int(self.ids[p]))) for p in positions), EVALUATED_BYTES // 8192
        )
        for piece in (part for whole in pieces_of for part in by_dtype(whole)):
            frames = as_tensor(np.concatenate(piece.frames)).to(self.device)
            size = frames.element_size() * frames.shape[1]
            yield (
                frames.data_ptr() + piece.offsets[:-1] * size,
                np.diff(piece.offsets),
                frames.dtype,
            )
            del frames


@dataclass(frozen=True, eq=False)
class Table:
    """Where all trajectories lie, when all are on the device."""

    places: torch.Tensor  # [2 t] int64: addresses and lengths
    longest: int
    dtype: torch.dtype


@dataclass(eq=False)
class Refinement:
    """Every query's k best so far, evaluated exactly in order of their lower bounds."""

    task: Task
    ids: Ints  # [t]
    lows: torch.Tensor  # [q t]
    asked: Asked
    locate: Locate
    table: Table | None = None

    def run(self) -> list[Found]:
        """Evaluate until the least bound left exceeds the k-th best cost found."""
        task, total = self.task, len(self.ids)
        self.found = [NOTHING] * len(task.queries)
        self._hide()
        # Some more than k: then there is not much left to be looked at. Which ones decides
        # nothing but the time, so float32 will do.
        count = min(total, task.k + max(LEAST_MORE, int(MORE * task.k)))
        known = min(total, count + NEXT)
        places = torch.topk(self.lows.to(torch.float32), known, largest=False).indices
        bounds = self.lows.gather(1, places)
        direct = task.metric == "l2" and self.asked.longest <= LONGEST
        if self.table is not None and direct:
            lows = self._evaluate_there(places, bounds, count, self.table)
        else:
            lows, positions = bounds.cpu().numpy(), places.cpu().numpy()
            query, column = np.nonzero(np.isfinite(lows[:, :count]))
            self._evaluate(query, positions[query, column])
            query, column = np.nonzero(np.isfinite(lows) & (lows <= self._worst()[:, None]))
            later = column >= count
            self._evaluate(query[later], positions[query[later], column[later]])
        # What wasn't among them has at least this bound.
        edge = np.minimum(lows[:, -1], LARGEST) * BELOW - LEAST
        if known < total and np.any(self._worst() >= edge):
            self._rest(places)
        if task.counted:
            task.pairs += int(torch.isfinite(self.lows).sum())
        return self.found

    def _evaluate_there(
        self, places: torch.Tensor, bounds: torch.Tensor, count: int, table: Table
    ) -> Floats:
        """Of those at places [q n] the first `count`, then of the others those that may win.

        The host isn't asked in between: what can't win goes as a trajectory without frames.

        Returns:
            All the bounds [q n], on the host.
        """
        first = self._found_there(places[:, :count], torch.isfinite(bounds[:, :count]), table)
        parts = [first]
        if places.shape[1] > count:
            # There are more than `count` only where that is at least k.
            worst = torch.sort(first[0]).values[:, self.task.k - 1, None]
            later = bounds[:, count:]
            wanted = torch.isfinite(later) & (later <= worst)
            parts.append(self._found_there(places[:, count:], wanted, table))
        packed = torch.cat([*torch.cat(parts, dim=2), bounds, places.to(torch.float64)])
        cost, start, stop, lows, positions = packed.cpu().numpy().reshape(5, *bounds.shape)
        query = np.repeat(np.arange(len(cost)), cost.shape[1])
        self.task.evaluated += int((start.flatten() >= 0).sum())
        self._add(
            query,
            positions.flatten().astype(np.int64),
            cost.flatten(),
            start.flatten().astype(np.int64),
            stop.flatten().astype(np.int64),
        )
        return np.asarray(lows)

    def _found_there(
        self, places: torch.Tensor, wanted: torch.Tensor, table: Table
    ) -> torch.Tensor:
        """[3 q n] cost, start and stop at places [q n]: ∞, −1 and 0 where it isn't wanted."""
        queries, count = places.shape
        query = torch.arange(queries, device=places.device).repeat_interleave(count)
        pairs = torch.cat([query[None], table.places[:, places.flatten()]])
        pairs[2] *= wanted.flatten()
        found = self._exact.found(pairs, table.longest, table.dtype).view(3, queries, count)
        found[1].masked_fill_(~wanted, -1)
        return found

    def _hide(self) -> None:
        """Excluded trajectories are out of reach."""
        if self.task.exclude is None:
            return
        for q, own in enumerate(self.task.exclude):
            if len(own):
                hidden = np.flatnonzero(np.isin(self.ids, list(own)))
                self.lows[q, torch.as_tensor(hidden, device=self.lows.device)] = torch.inf

    def _rest(self, seen: torch.Tensor) -> None:
        """Those unseen that don't exceed the cost to beat: an equal one may hide a tie."""
        worst = torch.as_tensor(self._worst(), device=self.lows.device)
        left = torch.isfinite(self.lows) & (self.lows <= worst[:, None])
        places = torch.nonzero(left.scatter_(1, seen, False))
        if not len(places):
            return
        lows = self.lows[places[:, 0], places[:, 1]].cpu().numpy()
        order = np.argsort(lows, kind="stable")
        lows, (query, position) = lows[order], places.cpu().numpy()[order].T
        batch = 4 * self.task.k * len(self.task.queries)
        for first in range(0, len(lows), batch):
            some = slice(first, first + batch)
            still = lows[some] <= self._worst()[query[some]]
            self._evaluate(query[some][still], position[some][still])

    def _worst(self) -> Floats:
        """The cost to beat, for each query: that of its k-th best."""
        k = self.task.k
        return np.array([own[0, k - 1] if own.shape[1] == k else np.inf for own in self.found])

    def _evaluate(self, query: Ints, position: Ints) -> None:
        """Align exactly and keep the k best."""
        if not len(query):
            return
        self.task.evaluated += len(query)
        long = np.array([len(own) > LONGEST for own in self.task.queries])[query]
        on_host = np.ones_like(long) if self.task.metric == "cosine" else long
        self._on_device(query[~on_host], position[~on_host])
        self._on_host(query[on_host], position[on_host])

    def _add(self, query: Ints, position: Ints, cost: Floats, start: Ints, stop: Ints) -> None:
        rows = np.stack([cost, self.ids[position], stop, -start])
        order = np.lexsort((*rows[::-1], query))  # all queries' at once
        order = order[cost[order] < np.inf]
        borders = np.searchsorted(query[order], np.arange(len(self.found) + 1))
        for q, (first, last) in enumerate(pairwise(borders)):
            own = rows[:, order[first:last]]
            if self.found[q].shape[1]:
                own = best(np.concatenate([self.found[q], own], axis=1), self.task.k)
            self.found[q] = own[:, : self.task.k]

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self.asked, self.task.steps)

    def _on_device(self, query: Ints, position: Ints) -> None:
        if not len(query):
            return
        unique, where = np.unique(position, return_inverse=True)
        first = 0
        for address, length, dtype in self.locate(unique):
            own = (where >= first) & (where < first + len(length))
            index = where[own] - first
            pairs = Pairs(query[own], address[index], length[index])
            self._add(query[own], position[own], *self._exact.align(pairs, dtype))
            first += len(length)

    def _on_host(self, query: Ints, position: Ints) -> None:
        if not len(query):
            return
        task = self.task

        def align(q: int, p: int) -> tuple[float, int, int]:
            frames = task.fetch(int(self.ids[p]))
            match = cpu.best_match(task.queries[q], frames, task.steps, task.metric)
            return (np.inf, 0, 0) if match is None else (match.cost, match.start, match.stop)

        with ThreadPoolExecutor(processors()) as pool:
            found = np.array(list(pool.map(align, query, position)))
        self._add(query, position, found[:, 0], *found[:, 1:].T.astype(np.int64))
