"""Matching against a trajectory that is still being recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strap.dtw.alignment import accumulate
from strap.dtw.batching import as_doubles, as_floats
from strap.dtw.local_costs import compute_local_costs
from strap.dtw.steps import MAX_COLUMN_STEP, StepSet, step_set
from strap.dtw.types import Alignment, Floats, Frames, Ints
from strap.dtw.validation import check_names, check_numbers, check_queries, check_shape


class Stream:
    """Queries that are matched against frames as they arrive.

    After every `append`, `best` equals, bit by bit, what `best_match` returns for all frames so
    far, and `newest` is the cost of the cheapest match that ends with the newest frame. Time and
    memory per frame are constant: only the last two columns of D are kept, and no frames.

    >>> import numpy as np
    >>> stream = Stream([np.array([[1.0], [2.0]])])
    >>> stream.append(np.array([[5.0], [1.0], [2.0], [9.0]]))
    >>> stream.best
    [Alignment(cost=0.0, start=1, stop=3)]
    """

    def __init__(
        self, queries: Sequence[Frames], *, steps: str = "strap", metric: str = "l2"
    ) -> None:
        """Take queries [n d]; steps and metric are those of `best_match`."""
        check_names(steps, metric)
        self.metric = metric
        self.frames = 0
        self._steps = step_set(steps)
        checked = check_queries(queries, metric)
        self._queries = [_StreamedQuery(as_doubles(query, metric)) for query in checked]
        self._dim = checked[0].shape[1] if checked else None

    def append(self, frames: Frames) -> None:
        """Append new frames [m d], one or many."""
        frames = check_shape(frames, f"what follows frame {self.frames}", self._dim)
        check_numbers(frames, f"what follows frame {self.frames}", self.metric)
        values = np.ascontiguousarray(as_floats(frames, self.metric))
        for query in self._queries:
            costs = compute_local_costs(query.frames, values, self.metric == "cosine")
            query.extend(costs, self._steps, self.frames)
        self.frames += len(frames)

    @property
    def best(self) -> list[Alignment | None]:
        """Each query's best match so far."""
        return [query.best for query in self._queries]

    @property
    def newest(self) -> list[float]:
        """Each query's cost of the best match that ends with the newest frame; ∞ if none does."""
        return [query.newest for query in self._queries]


class _StreamedQuery:
    """One query, and the last MAX_COLUMN_STEP columns of its D."""

    def __init__(self, frames: Floats) -> None:
        self.frames = frames  # [n d]
        self.best: Alignment | None = None
        self.newest = float("inf")
        self._D = np.full((len(frames), MAX_COLUMN_STEP), np.inf)
        self._starts: Ints = np.zeros((len(frames), MAX_COLUMN_STEP), np.int64)

    def extend(self, costs: Floats, steps: StepSet, n_seen: int) -> None:
        """Extend D by the local costs [n m] of new frames, which follow `n_seen` others."""
        first = n_seen - MAX_COLUMN_STEP  # the frame of the first kept column
        D = np.concatenate([self._D, np.empty_like(costs)], axis=1)
        starts = np.concatenate([self._starts - first, np.empty_like(costs, np.int64)], axis=1)
        # The local costs of the kept columns are not read.
        costs = np.concatenate([np.empty_like(self._D), costs], axis=1)
        accumulate(costs, steps, MAX_COLUMN_STEP, True, D, starts)
        starts += first
        self._D, self._starts = (kept[:, -MAX_COLUMN_STEP:].copy() for kept in (D, starts))
        end = MAX_COLUMN_STEP + int(np.argmin(D[-1, MAX_COLUMN_STEP:]))
        cost, self.newest = float(D[-1, end]), float(D[-1, -1])
        if cost < (self.best.cost if self.best else np.inf):
            self.best = Alignment(cost, int(starts[-1, end]), first + end + 1)
