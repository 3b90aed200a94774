"""Matching against a trajectory that is still being recorded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strap.dtw import checks, kernels
from strap.dtw.pieces import as_values
from strap.dtw.refinement import exact
from strap.dtw.types import Alignment, Floats, Frames


class Stream:
    """Queries matched against frames as they come.

    After every `append`, `best` is what `best_match` would give for all frames so far, to the last
    bit, and `newest` the cost of the cheapest match that ends with the newest frame. A frame costs
    the same whether it is the first or the millionth: two columns of the recurrence are kept, no
    frames.

    >>> import numpy as np
    >>> stream = Stream([np.array([[1.0], [2.0]])])
    >>> stream.append(np.array([[5.0], [1.0], [2.0], [9.0]]))
    >>> stream.best
    [Alignment(cost=0.0, start=1, stop=3)]
    """

    def __init__(
        self, queries: Sequence[Frames], *, steps: str = "strap", metric: str = "l2"
    ) -> None:
        """Queries are arrays [n d]; steps and metric as in `best_match`."""
        checks.options(steps, metric)
        self.metric = metric
        self.frames = 0
        self._code = kernels.CODES[steps]
        self._queries: list[Floats] = []
        dim = None
        for q, query in enumerate(queries):
            checked = checks.shape(query, f"query {q}", dim)
            checks.values(checked, f"query {q}", metric)
            self._queries.append(exact(checked, metric))
            dim = checked.shape[1]
        self._dim = dim
        self._costs = [np.full((len(query), 3), np.inf) for query in self._queries]
        self._starts = [np.zeros((len(query), 3), np.int64) for query in self._queries]
        self._best = [np.array([np.inf, 0, 0, np.inf]) for _ in self._queries]

    def append(self, frames: Frames) -> None:
        """Take in new frames [m d], one or many."""
        frames = checks.shape(frames, f"what follows frame {self.frames}", self._dim)
        checks.values(frames, f"what follows frame {self.frames}", self.metric)
        columns = kernels.transposed(as_values(frames, self.metric))
        half = self.metric == "cosine"
        for query, D, S, best in zip(
            self._queries, self._costs, self._starts, self._best, strict=True
        ):
            costs = kernels.all_costs(query, columns, half)
            kernels.extend(costs, self._code, D, S, self.frames, best)
        self.frames += len(frames)

    @property
    def best(self) -> list[Alignment | None]:
        """Each query's best match so far."""
        return [
            Alignment(float(cost), int(start), int(stop)) if cost < np.inf else None
            for cost, start, stop, _ in self._best
        ]

    @property
    def newest(self) -> list[float]:
        """Each query's cost of the best match that ends with the newest frame (inf: none fits)."""
        return [float(best[3]) for best in self._best]
