"""Draw batches by step number, and gather them on the device from the frame cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from strap.policies.batch import Batch
from strap.policies.images import centre_crop_start, crop_clips
from strap.policies.settings import PolicySettings
from strap.training.cache import FrameCache
from strap.training.device_frames import clip_numbers, load_frames
from strap.training.windows import Floats, Windows

BLOCK = 64
"""number of steps that are drawn at once"""


class Sampler:
    """Draws the windows and crops of step n, which depend on the seed and n alone.

    So a resumed training draws the same as an uninterrupted one, without saved state.
    """

    def __init__(
        self, phases: Sequence[tuple[int, Floats]], batch: int, places: int, crops: int, seed: int
    ) -> None:
        """Store the probabilities and sizes of draws.

        Args:
            phases: (first step, probabilities of windows).
            batch: number of windows per step.
            places: number of positions of a crop along one side.
            crops: number of crops per window: one per camera, or one per camera and frame.
            seed: determines all draws.
        """
        self.phases = [(first, np.cumsum(p) / np.sum(p)) for first, p in phases]
        self.batch, self.places, self.crops, self.seed = batch, places, crops, seed
        self._block = lru_cache(maxsize=4)(self._draw_block)

    def draw(self, step: int) -> Tensor:
        """Return int64 [batch 1+2·crops]: the window, then (top, left) of the crops, by camera."""
        phase = max(i for i, (first, _) in enumerate(self.phases) if first <= step)
        return self._block(phase, step // BLOCK)[step % BLOCK]

    def _draw_block(self, phase: int, block: int) -> Tensor:
        rng = np.random.default_rng([self.seed, 0, phase, block])
        cumulative = self.phases[phase][1]
        uniform = rng.random((BLOCK, self.batch))
        window = np.searchsorted(cumulative, uniform, side="right").clip(max=len(cumulative) - 1)
        corners = rng.integers(0, self.places, (BLOCK, self.batch, 2 * self.crops))
        return torch.from_numpy(np.concatenate([window[..., None], corners], axis=-1))


class Loader:
    """Gathers batches from data that is on the device, if it fits there."""

    def __init__(
        self,
        cache: FrameCache,
        windows: Windows,
        settings: PolicySettings,
        device: torch.device,
        *,
        evaluated: Windows | None = None,
        learns_repeated: bool = False,
    ) -> None:
        """Move the windows and the data they need to the device.

        Args:
            cache: the data.
            windows: the windows that batches are drawn from.
            settings: the policy's settings.
            device: the device on which batches are gathered.
            evaluated: windows that another loader (`with_windows`) gathers from the same images.
            learns_repeated: count the actions that are repeated at a clip's end as valid.
        """
        self.cache, self.interface = cache, cache.interface
        self.settings, self.device = settings, device
        self.learns_repeated = learns_repeated
        self.frozen = settings.vision == "frozen"
        used = [windows] if evaluated is None else [windows, evaluated]
        self.frames = load_frames(cache, used, maps=self.frozen, device=device)
        self.actions = torch.from_numpy(np.array(cache.actions)).to(device)
        self.states = torch.from_numpy(np.array(cache.states)).to(device)
        self.language = torch.from_numpy(np.array(cache.language)).to(device)
        self.table = self._table(windows)
        self.past = torch.arange(1 - settings.history, 1, device=device)
        self.future = torch.arange(settings.chunk, device=device) + settings.first_action

    def with_windows(self, windows: Windows) -> Loader:
        """Return a loader of other windows that shares this one's data.

        Repeated actions count as invalid in it.
        """
        other = copy.copy(self)
        other.learns_repeated = False
        other.table = self._table(windows)
        return other

    def _table(self, windows: Windows) -> Tensor:
        """Return the windows on the device [n 5].

        The last column is the difference between a frame's row in `frames` and its cache row.
        """
        clip = clip_numbers(self.cache, windows)
        begins = np.array([cached.row for cached in self.cache.clips])
        shift = self.frames.rows[clip] - begins[clip]
        columns = (windows.anchor, windows.first, windows.last, windows.instruction, shift)
        return torch.from_numpy(np.stack(columns, axis=1)).to(self.device)

    @property
    def resident(self) -> bool:
        """Whether the images are on the device."""
        return self.frames.is_resident

    @property
    def places(self) -> int:
        """The number of positions of a crop along one side."""
        return 1 if self.frozen else self.interface.image_size - self.interface.crop + 1

    def centred(self, windows: Tensor) -> Tensor:
        """Return a draw of the given windows [b] with centre crops."""
        corner = (
            0 if self.frozen else centre_crop_start(self.interface.image_size, self.interface.crop)
        )
        corners = torch.full((len(windows), 2 * len(self.interface.cameras)), corner)
        return torch.cat([windows[:, None], corners.to(windows)], dim=1)

    def gather(self, draw: Tensor, images: dict[str, Tensor] | None = None) -> Batch:
        """Return the batch of a draw that is on the device."""
        anchor, first, last, instruction, shift = self.table[draw[:, 0]].unbind(1)
        future = anchor[:, None] + self.future
        rows = torch.minimum(torch.maximum(future, first[:, None]), last[:, None])
        seen = torch.maximum(anchor[:, None] + self.past, first[:, None])
        return Batch(
            images=self.images(seen + shift[:, None], draw) if images is None else images,
            proprioception=self.states[seen],
            language=self.language[instruction],
            actions=self.actions[rows],
            valid=(future == rows) | self.learns_repeated,
        )

    def images(self, rows: Tensor, draw: Tensor) -> dict[str, Tensor]:
        """Return each camera's images of the given image rows [b h], cropped as drawn."""
        found = {}
        cameras = max(len(self.interface.cameras), 1)
        crops = (draw.shape[1] - 1) // (2 * cameras)
        corners = draw[:, 1:].reshape(len(draw), cameras, crops, 2)  # crops: 1 or h
        for number, name in enumerate(self.interface.cameras):
            source = self.frames.images[name]
            if self.frozen:
                clips = source.index_select(0, rows.flatten())
                found[name] = clips.view(*rows.shape, *source.shape[1:]).float()
            else:
                found[name] = crop_clips(source, rows, corners[:, number], self.interface.crop)
        return found

    def fetch(self, draw: Tensor) -> dict[str, Tensor]:
        """Copy a draw's images from host memory to the device."""
        table = self.table.cpu() if self.table.device.type != "cpu" else self.table
        anchor, first, _, _, shift = table[draw[:, 0]].unbind(1)
        seen = torch.maximum(anchor[:, None] + self.past.cpu(), first[:, None])
        images = self.images(seen + shift[:, None], draw)
        return {
            name: clips.pin_memory().to(self.device, non_blocking=True)
            for name, clips in images.items()
        }
