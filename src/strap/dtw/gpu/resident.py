"""Trajectories kept on GPUs for search after search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from strap.dtw import validation as checks
from strap.dtw.batching import Batch as Piece
from strap.dtw.batching import cut_batches as pieces
from strap.dtw.gpu.asked import Asked
from strap.dtw.gpu.bounds import FRAME_TILE, Filter, programs
from strap.dtw.gpu.devices import find_devices
from strap.dtw.gpu.frames import Loaded, Space, load
from strap.dtw.gpu.overlap import Scratch, foreground
from strap.dtw.gpu.search import (
    NOTHING,
    PIECE_BYTES,
    Found,
    Refinement,
    Shared,
    Table,
    Task,
    merge,
    on_each,
)
from strap.dtw.gpu.staging import AHEAD, Staged, ahead, send, staged
from strap.dtw.types import Frames, Ints, TopK

WAVES = 60  # tiles of a piece for each multiprocessor: pieces end with a wave of tiles
SPARE = 4 * 2**30  # bytes of a device that are left free: cells, costs, others


class Resident:
    """Trajectories on one or several GPUs, and in page-locked memory what doesn't fit there.

    >>> library = Resident(trajectories)                    # doctest: +SKIP
    >>> library.search(queries, k=10)                       # doctest: +SKIP
    """

    def __init__(
        self,
        trajectories: Iterable[Frames],
        *,
        metric: str = "l2",
        devices: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> None:
        """Check the trajectories and send them to the devices.

        Args:
            trajectories: arrays [m d] of one dtype; their order gives their numbers.
            metric: "l2" or "cosine".
            devices: such as ["cuda:0", "cuda:1"]; by default all GPUs.
            limit: bytes to keep on each device, the rest goes to page-locked memory; by default
                all but 4 GiB of what is free.
        """
        checks.check_names("strap", metric)
        self.metric = metric
        self._cards = [_Card(device, metric, limit) for device in find_devices(devices)]
        stream = (
            (i, checks.check_shape(own, f"trajectory {i}")) for i, own in enumerate(trajectories)
        )
        first = next(stream, None)
        if first is None:
            self.dim = 0
            return
        self.dim = first[1].shape[1]

        def checked() -> Iterator[tuple[int, Frames]]:
            yield first
            for index, frames in stream:
                yield index, checks.check_shape(frames, f"trajectory {index}", self.dim)

        size = max(1, PIECE_BYTES // (2 * self.dim))
        shared = Shared(pieces(checked(), size))
        on_each(self._cards, lambda card: card.take(shared))

    def __len__(self) -> int:
        return sum(len(card.ids) for card in self._cards)

    @property
    def on_device(self) -> int:
        """Bytes of frames that are kept on the devices."""
        return sum(p.frames.nbytes for card in self._cards for p in card.here)

    @property
    def on_host(self) -> int:
        """Bytes of frames that are kept in page-locked memory and sent in every search."""
        return sum(p.frames.nbytes for card in self._cards for p in card.away)

    def search(
        self,
        queries: Sequence[Frames],
        *,
        k: int,
        steps: str = "strap",
        exclude: Sequence[Collection[int]] | None = None,
    ) -> list[TopK]:
        """As `strap.dtw.search`, over the trajectories kept here."""
        checks.check_names(steps, self.metric)
        checks.check_count(k)
        checks.check_excluded(exclude, len(queries))
        if len(queries) == 0:
            return []
        queries = [
            checks.check_shape(query, f"query {q}", self.dim or None)
            for q, query in enumerate(queries)
        ]
        sizes = [
            checks.check_numbers(own, f"query {q}", self.metric) for q, own in enumerate(queries)
        ]
        task = Task(queries, k, steps, self.metric, exclude, str, self._fetch, largest=max(sizes))
        results = on_each(self._cards, lambda card: card.search(task))
        return [merge([found[q] for found in results], k) for q in range(len(queries))]

    def _fetch(self, index: int) -> Frames:
        for card in self._cards:
            if index in card.places:
                return np.asarray(card.frames[card.places[index]].cpu().numpy())
        raise KeyError(index)


@dataclass(eq=False)
class _Card:
    """One device's share of the trajectories."""

    device: torch.device
    metric: str
    limit: int | None
    here: list[Loaded] = field(default_factory=list)
    away: list[Loaded] = field(default_factory=list)
    """their frames lie in page-locked memory"""
    ids: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    places: dict[int, int] = field(default_factory=dict)
    """id -> position in `ids`"""

    def take(self, shared: Iterable[Piece]) -> None:
        """Keep the pieces that this device gets."""
        self.scratch = Scratch(self.device)
        full = programs(self.device) * FRAME_TILE * WAVES
        waiting: list[Staged] = []
        with torch.inference_mode(), foreground(self.device):
            for item in staged(shared, self.device):
                frames = sum(len(other.frames) for other in waiting) + len(item.frames)
                if waiting and (frames > full or not self._fits(0)):
                    self._keep(waiting)
                    waiting = []
                waiting.append(item)
            # A walk runs beside the next piece's cells, the last one's beside nothing: so the last
            # pieces become shorter and shorter.
            while waiting:
                half = len(waiting) // 2 or 1
                self._keep(waiting[:half])
                waiting = waiting[half:]
        self._number()

    def _number(self) -> None:
        """Tables over all trajectories: those on the device, then those that aren't."""
        pieces = [*self.here, *self.away]
        self.ids = np.array([index for piece in pieces for index in piece.ids], np.int64)
        self.places = {int(index): place for place, index in enumerate(self.ids)}
        self.lengths = np.array([m for piece in pieces for m in piece.lengths], np.int64)
        addresses = [address for piece in self.here for address in piece.addresses()]
        self.addresses = np.array(addresses, np.int64)
        self.table: Table | None = None
        if not self.away and self.here:
            table = torch.as_tensor(np.stack([self.addresses, self.lengths]), device=self.device)
            self.table = Table(table, int(self.lengths.max()), self.here[0].frames.dtype)
        self.frames = [
            own for piece in pieces for own in torch.split(piece.frames, list(piece.lengths))
        ]

    def _fits(self, size: int) -> bool:
        if self.limit is not None:
            return sum(piece.frames.nbytes for piece in self.here) + size < self.limit
        if self.device.type != "cuda":
            return True
        return bool(torch.cuda.mem_get_info(self.device)[0] - size > SPARE)

    def _keep(self, items: Sequence[Staged]) -> None:
        arrived = [item.wait() for item in items]
        frames = torch.cat(arrived) if len(items) > 1 else arrived[0]
        piece = Piece(
            [index for item in items for index in item.piece.ids],
            [own for item in items for own in item.piece.frames],
        )
        if not hasattr(self, "space"):
            rounded = self.metric == "cosine" or frames.dtype != torch.float16
            self.space = Space.of(piece.frames[0], self.metric, rounded=rounded)
        loaded = load(piece, frames, self.space, self.metric, self.scratch, _name)
        if self._fits(frames.nbytes):
            self.here.append(loaded)
            return
        pinned = self.device.type == "cuda"
        host = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=pinned).copy_(frames)
        self.away.append(replace(loaded, frames=host, halves=frames[:0]))

    def search(self, task: Task) -> list[Found]:
        """The k best of this device's trajectories."""
        if not len(self.ids):
            return [NOTHING] * len(task.queries)
        with torch.inference_mode(), foreground(self.device):
            asked = Asked.of(task.queries, self.device)
            chosen = Filter(task.queries, task.steps, self.metric, self.space, asked, task.largest)
            shape = len(task.queries), len(self.ids)
            lows = torch.empty(shape, dtype=torch.float64, device=self.device)
            first = 0
            for piece in self._at_hand():
                last = first + len(piece.ids)
                chosen.bounds(piece, lows[:, first:last])
                first = last
            self.scratch.join()
            return Refinement(task, self.ids, lows, asked, self._locate, self.table).run()

    def _at_hand(self) -> Iterator[Loaded]:
        """All pieces on the device; those in page-locked memory are sent ahead."""
        yield from self.here
        if not self.away:
            return
        if self.device.type != "cuda":
            yield from (piece.again(piece.frames, self.space, self.metric) for piece in self.away)
            return
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        sent = ((piece, Staged(_NOTHING, *send(piece.frames, stream))) for piece in self.away)
        for piece, item in ahead(sent, AHEAD):
            yield piece.again(item.wait(), self.space, self.metric)

    def _locate(self, positions: Ints) -> Iterator[tuple[Ints, Ints, torch.dtype]]:
        """Addresses of those on the device; the others are sent first."""
        split = int(np.searchsorted(positions, len(self.addresses)))
        dtype = self.frames[0].dtype
        if split:
            some = positions[:split]
            yield self.addresses[some], self.lengths[some], dtype
        if split < len(positions):
            some = positions[split:]
            starts = np.cumsum([0, *self.lengths[some]])
            dim = self.frames[0].shape[1]
            frames = torch.empty((int(starts[-1]), dim), dtype=dtype, device=self.device)
            for place, first, last in zip(some, starts[:-1], starts[1:], strict=True):
                frames[first:last].copy_(self.frames[place], non_blocking=True)
            starts = starts[:-1]
            size = frames.element_size() * dim
            yield frames.data_ptr() + starts * size, self.lengths[some], dtype


_NOTHING = Piece([], [])


def _name(index: int) -> str:
    return f"trajectory {index}"
