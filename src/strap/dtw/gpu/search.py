"""Exact top-k on GPUs: lower bounds of all pairs on tensor cores, then exact alignments."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from strap.dtw.batching import TrajectoryBatch, cut_batches
from strap.dtw.gpu.bounds import CostBounds
from strap.dtw.gpu.candidates import DeviceTopK, TopKSelector, merge_selections
from strap.dtw.gpu.devices import find_devices
from strap.dtw.gpu.exact import LocatedFrames, locate_frames
from strap.dtw.gpu.quantize import fit_quantization, quantize_batch
from strap.dtw.gpu.queries import GpuTuning, SearchRequest, upload_queries
from strap.dtw.gpu.streams import CostWorkspace, run_on_devices, upload_batches
from strap.dtw.types import (
    Excluded,
    Fetch,
    Frames,
    Ints,
    Library,
    Name,
    SearchOptions,
    SearchResult,
    SearchStatistics,
)

ItemT = TypeVar("ItemT")
REREAD_FRAMES = 2**15  # frames in a batch that is read again for the exact alignment


def search(
    queries: Sequence[Frames],
    library: Library,
    options: SearchOptions,
    exclude: Excluded,
    *,
    devices: Sequence[str] | None = None,
    tuning: GpuTuning | None = None,
) -> SearchResult:
    """Return each query's k best matches in a library, and how many pairs were aligned.

    Each device takes the next batch when it is ready, and selects the k best of its own batches;
    frames are fetched again for the exact alignment. The selections are merged at the end.
    """
    tuning, dim = tuning or GpuTuning(), queries[0].shape[1]
    request = SearchRequest(queries, options, exclude, library.fetch, tuning)
    batches = SharedIterator(cut_batches(library.stream(dim), tuning.get_batch_frames(dim)))
    found_devices = find_devices(devices)
    tasks = [
        partial(_search_device, request, batches, library.name, device) for device in found_devices
    ]
    selections = run_on_devices(found_devices, tasks)
    n_pairs = np.sum([selection.n_pairs for selection in selections], axis=0)
    n_aligned = np.sum([selection.n_aligned for selection in selections], axis=0)
    statistics = [
        SearchStatistics(pairs=int(pairs), by_bounds=int(pairs - aligned), evaluated=int(aligned))
        for pairs, aligned in zip(n_pairs, n_aligned, strict=True)
    ]
    return SearchResult(merge_selections(selections, options.k), statistics)


class SharedIterator(Iterator[ItemT]):
    """An iterator that several threads can share."""

    def __init__(self, items: Iterable[ItemT]) -> None:
        self._items, self._lock = iter(items), threading.Lock()

    def __next__(self) -> ItemT:
        with self._lock:
            return next(self._items)


def _search_device(
    request: SearchRequest, batches: Iterable[TrajectoryBatch], name: Name, device: torch.device
) -> DeviceTopK:
    """Select the k best of the batches that this device takes."""
    queries, workspace = upload_queries(request.queries, device), CostWorkspace(device)
    sample = np.concatenate([np.asarray(query, np.float64) for query in request.queries])
    bounds_by_dtype: dict[torch.dtype, CostBounds] = {}
    ids: list[int] = []
    lower_bounds: list[torch.Tensor] = []
    for batch, sent in upload_batches(batches, device):
        frames = sent.wait()
        if frames.dtype not in bounds_by_dtype:
            quantization = fit_quantization(sample, frames.dtype, request.options.metric, device)
            bounds_by_dtype[frames.dtype] = CostBounds(request, queries, quantization, workspace)
        bounds = bounds_by_dtype[frames.dtype]
        ids += batch.ids
        quantized = quantize_batch(batch, frames, bounds.quantization, name)
        lower_bounds.append(bounds.bound_batch(quantized))
    if not ids:
        return DeviceTopK.empty(len(request.queries))
    workspace.join_background()
    locate = partial(_upload_again, request.fetch, np.array(ids), device)
    selector = TopKSelector(request, queries, np.array(ids), locate)
    return selector.select(torch.cat(lower_bounds, dim=1))


def _upload_again(
    fetch: Fetch, ids: Ints, device: torch.device, positions: Ints
) -> Iterator[LocatedFrames]:
    """Read trajectories again and send them to the device, batch by batch."""
    stream = ((int(ids[p]), fetch(int(ids[p]))) for p in positions)
    for chunk, sent in upload_batches(cut_batches(stream, REREAD_FRAMES), device):
        yield locate_frames(sent.wait(), np.diff(chunk.offsets))
