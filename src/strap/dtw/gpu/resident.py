"""Trajectories that are kept on GPUs for many searches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import torch

from strap.dtw import validation
from strap.dtw.batching import TrajectoryBatch, cut_batches
from strap.dtw.gpu.bounds import FRAME_TILE, CostBounds, count_multiprocessors
from strap.dtw.gpu.candidates import DeviceTopK, TopKSelector, TrajectoryTable, merge_selections
from strap.dtw.gpu.devices import find_devices
from strap.dtw.gpu.exact import LocatedFrames, locate_frames
from strap.dtw.gpu.quantize import Quantization, QuantizedBatch, fit_quantization, quantize_batch
from strap.dtw.gpu.queries import GpuTuning, SearchRequest, upload_queries
from strap.dtw.gpu.search import SharedIterator
from strap.dtw.gpu.streams import CostWorkspace, Upload, run_on_devices, send_ahead, upload_batches
from strap.dtw.types import Excluded, Frames, Ints, SearchOptions, TopK
from strap.errors import StrapError

TILES_PER_MULTIPROCESSOR = 60  # in a batch; an integer, so that all multiprocessors end together
SPARE_BYTES = 4 * 2**30  # left free on a device, for local costs and other programs


class Resident:
    """Trajectories on one or several GPUs; those that don't fit are in page-locked host memory.

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
        tuning: GpuTuning | None = None,
    ) -> None:
        """Check the trajectories and send them to the devices.

        Args:
            trajectories: arrays [m d] of one dtype; their indices are their positions.
            metric: "l2" or "cosine".
            devices: such as ["cuda:0", "cuda:1"]; by default all GPUs.
            limit: bytes to keep on each device, the rest goes to page-locked memory; by default
                all free memory but 4 GiB.
            tuning: settings that affect the speed, never the result.
        """
        validation.check_names("strap", metric)
        self.metric = metric
        self._tuning, self._devices = tuning or GpuTuning(), find_devices(devices)
        stream = _check_trajectories(trajectories)
        first = next(stream, None)
        self.dim = 0 if first is None else first[1].shape[1]
        checked = () if first is None else chain([first], stream)
        batches = SharedIterator(
            cut_batches(checked, self._tuning.get_batch_frames(max(1, self.dim)))
        )
        tasks = [partial(_load_share, batches, device, metric, limit) for device in self._devices]
        self._shares = run_on_devices(self._devices, tasks)

    def __len__(self) -> int:
        return sum(len(share.ids) for share in self._shares)

    @property
    def on_device(self) -> int:
        """Bytes of frames that are kept on the devices."""
        return sum(batch.frames.nbytes for share in self._shares for batch in share.on_device)

    @property
    def on_host(self) -> int:
        """Bytes of frames that are kept in page-locked memory and sent in every search."""
        return sum(batch.frames.nbytes for share in self._shares for batch in share.on_host)

    def search(
        self,
        queries: Sequence[Frames],
        *,
        k: int,
        steps: str = "strap",
        exclude: Excluded = None,
    ) -> list[TopK]:
        """Search these trajectories like `strap.dtw.search`."""
        options = SearchOptions(k, steps, self.metric)
        validation.check_options(options, len(queries))
        validation.check_excluded(exclude, len(queries))
        if len(queries) == 0:
            return []
        queries = validation.check_queries(queries, self.metric, self.dim or None)
        request = SearchRequest(queries, options, exclude, self._fetch, self._tuning)
        tasks = [partial(share.search, request) for share in self._shares]
        return merge_selections(run_on_devices(self._devices, tasks), k)

    def _fetch(self, index: int) -> Frames:
        for share in self._shares:
            if index in share.positions:
                return np.asarray(share.frames[share.positions[index]].cpu().numpy())
        raise KeyError(index)


def _check_trajectories(trajectories: Iterable[Frames]) -> Iterator[tuple[int, Frames]]:
    """Yield (index, trajectory); each must have the dimensions and the dtype of the first."""
    dim = dtype = None
    for index, trajectory in enumerate(trajectories):
        frames = validation.check_shape(trajectory, validation.name_trajectory(index), dim)
        if dtype is not None and frames.dtype != dtype:
            raise StrapError(
                f"trajectory {index} has dtype {frames.dtype} but trajectory 0 has {dtype}: "
                "convert all trajectories to one dtype"
            )
        dim, dtype = frames.shape[1], frames.dtype
        yield index, frames


def _load_share(
    batches: Iterable[TrajectoryBatch], device: torch.device, metric: str, limit: int | None
) -> _Share:
    """Load the batches that this device takes."""
    loader = _Loader(device, metric, limit)
    max_frames = count_multiprocessors(device) * FRAME_TILE * TILES_PER_MULTIPROCESSOR
    waiting: list[Upload] = []
    for upload in upload_batches(batches, device):
        n_frames = sum(len(sent.frames) for _, sent in [*waiting, upload])
        if waiting and (n_frames > max_frames or not loader.has_space(0)):
            loader.keep(waiting)
            waiting = []
        waiting.append(upload)
    # In a search, a batch's recurrence overlaps with the next batch's local costs. Nothing overlaps
    # with the last recurrence, so the last batches become shorter and shorter.
    while waiting:
        half = len(waiting) // 2 or 1
        loader.keep(waiting[:half])
        waiting = waiting[half:]
    return _Share(loader)


class _Loader:
    """A device that is filled with batches; when it is full, they are kept on the host."""

    def __init__(self, device: torch.device, metric: str, limit: int | None) -> None:
        self.device, self._metric, self._limit = device, metric, limit
        self.quantization: Quantization | None = None  # fitted to the first trajectory
        self.on_device: list[QuantizedBatch] = []
        self.on_host: list[QuantizedBatch] = []

    def has_space(self, size: int) -> bool:
        """Return whether `size` more bytes fit on the device."""
        if self._limit is not None:
            return sum(batch.frames.nbytes for batch in self.on_device) + size < self._limit
        if self.device.type != "cuda":
            return True
        return bool(torch.cuda.mem_get_info(self.device)[0] - size > SPARE_BYTES)

    def keep(self, uploads: Sequence[Upload]) -> None:
        """Join some uploads to one batch, and keep it."""
        arrived = [sent.wait() for _, sent in uploads]
        frames = torch.cat(arrived) if len(arrived) > 1 else arrived[0]
        batch = TrajectoryBatch(
            [index for part, _ in uploads for index in part.ids],
            [trajectory for part, _ in uploads for trajectory in part.frames],
        )
        if self.quantization is None:
            sample = batch.frames[0]
            self.quantization = fit_quantization(sample, frames.dtype, self._metric, self.device)
        quantized = quantize_batch(batch, frames, self.quantization, validation.name_trajectory)
        if self.has_space(frames.nbytes):
            self.on_device.append(quantized)
            return
        host = torch.empty(frames.shape, dtype=frames.dtype, pin_memory=self.device.type == "cuda")
        # Not a view of the frames, which would keep their memory on the device.
        nothing = torch.empty(0, dtype=torch.float16)
        self.on_host.append(replace(quantized, frames=host.copy_(frames), quantized=nothing))


class _Share:
    """One device's share of the trajectories: those on the device first, then those on the host."""

    def __init__(self, loaded: _Loader) -> None:
        """Take the batches and index their trajectories."""
        self._device, self._quantization = loaded.device, loaded.quantization
        self.on_device, self.on_host = loaded.on_device, loaded.on_host
        self._workspace = CostWorkspace(self._device)
        batches = [*self.on_device, *self.on_host]
        self.ids = np.array([index for batch in batches for index in batch.ids], np.int64)
        self.positions = {int(index): position for position, index in enumerate(self.ids)}
        split = (torch.split(batch.frames, batch.lengths) for batch in batches)
        self.frames = list(chain.from_iterable(split))
        self._lengths = np.array([len(frames) for frames in self.frames], np.int64)
        located = [locate_frames(batch.frames, batch.lengths).addresses for batch in self.on_device]
        self._addresses = np.concatenate([np.empty(0, np.int64), *located])
        self._table: TrajectoryTable | None = None
        if self.on_device and not self.on_host:
            both = np.stack([self._addresses, self._lengths])
            locations = torch.as_tensor(both, device=self._device)
            longest, dtype = int(self._lengths.max()), self.frames[0].dtype
            self._table = TrajectoryTable(locations, longest, dtype)

    def search(self, request: SearchRequest) -> DeviceTopK:
        """Select the k best of this share."""
        if self._quantization is None:
            return DeviceTopK.empty(len(request.queries))
        queries = upload_queries(request.queries, self._device)
        bounds = CostBounds(request, queries, self._quantization, self._workspace)
        lower_bounds = [bounds.bound_batch(batch) for batch in self.on_device]
        on_host = ((batch, batch.frames) for batch in self.on_host)
        for batch, sent in send_ahead(on_host, self._device) if self.on_host else ():
            quantized = batch.requantize(sent.wait(), self._quantization)
            lower_bounds.append(bounds.bound_batch(quantized))
        self._workspace.join_background()
        selector = TopKSelector(request, queries, self.ids, self._locate)
        return selector.select(torch.cat(lower_bounds, dim=1), self._table)

    def _locate(self, positions: Ints) -> Iterator[LocatedFrames]:
        """Yield the trajectories' addresses on the device; those on the host are sent to it."""
        split = int(np.searchsorted(positions, len(self._addresses)))
        here, away = positions[:split], positions[split:]
        if len(here):
            dtype = self.frames[0].dtype
            yield LocatedFrames(self._addresses[here], self._lengths[here], dtype, self.on_device)
        if len(away):
            lengths = self._lengths[away]
            shape = int(lengths.sum()), self.frames[0].shape[1]
            sent = torch.empty(shape, dtype=self.frames[0].dtype, device=self._device)
            for target, position in zip(torch.split(sent, lengths.tolist()), away, strict=True):
                target.copy_(self.frames[position], non_blocking=True)
            yield locate_frames(sent, lengths)
