"""Batches: drawn by step number alone, gathered on the device from the resident cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from strap.policies.batch import Batch
from strap.policies.images import centre, crop_clips
from strap.policies.settings import PolicySettings
from strap.training.cache import FrameCache
from strap.training.windows import Floats, Windows
from strap.types import Array

BLOCK = 64
"""Steps whose draws are made at once."""
WIDENED = 1 << 30
"""Bytes of feature maps up to which a processor keeps them as float32, converted once."""
FREE_SHARE = 0.6
"""Of the GPU's free memory, what the cache may take."""


class Sampler:
    """Which windows and crops step n trains on: a function of the seed and n, nothing else.

    So a resumed training draws what an uninterrupted one would have, and no state is kept.
    """

    def __init__(
        self, phases: Sequence[tuple[int, Floats]], batch: int, places: int, cameras: int, seed: int
    ) -> None:
        """`phases` are (first step, probabilities of windows); `places` corners along a side."""
        self.phases = [(first, np.cumsum(p) / np.sum(p)) for first, p in phases]
        self.batch, self.places, self.cameras, self.seed = batch, places, cameras, seed
        self._block = lru_cache(maxsize=4)(self._draw_block)

    def draw(self, step: int) -> Tensor:
        """int64 [batch 1+2·cameras]: the window, then (top, left) of each camera's crop."""
        phase = max(i for i, (first, _) in enumerate(self.phases) if first <= step)
        return self._block(phase, step // BLOCK)[step % BLOCK]

    def _draw_block(self, phase: int, block: int) -> Tensor:
        rng = np.random.default_rng([self.seed, 0, phase, block])
        cumulative = self.phases[phase][1]
        uniform = rng.random((BLOCK, self.batch))
        window = np.searchsorted(cumulative, uniform, side="right").clip(max=len(cumulative) - 1)
        corners = rng.integers(0, self.places, (BLOCK, self.batch, 2 * self.cameras))
        return torch.from_numpy(np.concatenate([window[..., None], corners], axis=-1))


class Loader:
    """Gathers batches; everything it reads lies on the device where it fits there."""

    def __init__(
        self,
        cache: FrameCache,
        windows: Windows,
        settings: PolicySettings,
        device: torch.device,
    ) -> None:
        self.interface, self.settings, self.device = cache.interface, settings, device
        self.frozen = settings.vision == "frozen"
        read = cache.maps if self.frozen else cache.frames
        pictures = {name: _tensor(read(name)) for name in cache.interface.cameras}
        size = sum(t.numel() * t.element_size() for t in pictures.values())
        if self.frozen and device.type == "cpu" and size < WIDENED:
            pictures = {name: maps.float() for name, maps in pictures.items()}
        self.resident = device.type == "cpu" or size < FREE_SHARE * torch.cuda.mem_get_info()[0]
        self.pictures = (
            {k: v.to(device) for k, v in pictures.items()} if self.resident else pictures
        )
        self.actions = _tensor(cache.actions).to(device)
        self.states = _tensor(cache.states).to(device)
        self.language = _tensor(cache.language).to(device)
        columns = (windows.anchor, windows.first, windows.last, windows.instruction)
        self.table = torch.from_numpy(np.stack(columns, axis=1)).to(device)  # [n 4]
        self.past = torch.arange(1 - settings.history, 1, device=device)
        self.future = torch.arange(settings.chunk, device=device) + settings.first_action

    @property
    def places(self) -> int:
        """How many corners a crop may have along one side."""
        return 1 if self.frozen else self.interface.image_size - self.interface.crop + 1

    def centred(self, windows: Tensor) -> Tensor:
        """A draw of these windows [b] with the middle crop."""
        corner = 0 if self.frozen else centre(self.interface.image_size, self.interface.crop)
        corners = torch.full((len(windows), 2 * len(self.interface.cameras)), corner)
        return torch.cat([windows[:, None], corners.to(windows)], dim=1)

    def gather(self, draw: Tensor, images: dict[str, Tensor] | None = None) -> Batch:
        """The batch of a draw that lies on the device."""
        anchor, first, last, instruction = self.table[draw[:, 0]].unbind(1)
        wanted = anchor[:, None] + self.future
        rows = torch.minimum(torch.maximum(wanted, first[:, None]), last[:, None])
        seen = torch.maximum(anchor[:, None] + self.past, first[:, None])
        return Batch(
            images=self.images(seen, draw) if images is None else images,
            proprioception=self.states[seen],
            language=self.language[instruction],
            actions=self.actions[rows],
            valid=wanted == rows,
        )

    def images(self, rows: Tensor, draw: Tensor) -> dict[str, Tensor]:
        """Each camera's pictures of these rows [b h], cropped as drawn."""
        found = {}
        for number, name in enumerate(self.interface.cameras):
            source = self.pictures[name]
            if self.frozen:
                clips = source.index_select(0, rows.flatten())
                found[name] = clips.view(*rows.shape, *source.shape[1:]).float()
            else:
                corner = draw[:, 1 + 2 * number : 3 + 2 * number]
                found[name] = crop_clips(source, rows, corner, self.interface.crop)
        return found

    def fetch(self, draw: Tensor) -> dict[str, Tensor]:
        """Where the cache lies in host memory: a draw's pictures, brought to the device."""
        table = self.table.cpu() if self.table.device.type != "cpu" else self.table
        anchor, first = table[draw[:, 0], 0], table[draw[:, 0], 1]
        seen = torch.maximum(anchor[:, None] + self.past.cpu(), first[:, None])
        pictures = self.images(seen, draw)
        return {
            name: clips.pin_memory().to(self.device, non_blocking=True)
            for name, clips in pictures.items()
        }


def _tensor(array: Array) -> Tensor:
    # Copy-on-write: torch wants memory it may write to, and nothing writes.
    if isinstance(array, np.memmap) and array.filename is not None:
        array = np.load(array.filename, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array)
