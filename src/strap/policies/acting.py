"""Run a trained policy: it turns observations into actions, for one stream or many at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from strap.encoders.language import embed_instructions
from strap.errors import StrapError
from strap.policies.checkpoints import Checkpoint, Which, load_checkpoint
from strap.policies.frozen_vision import FrozenVision
from strap.policies.images import centre_crop_start, resize_square
from strap.policies.inputs import Observation, require_observation

Action = npt.NDArray[np.float64]

MAX_FEATURE = 1e12
"""largest feature; float32 products of larger ones overflow"""
MAX_LANGUAGE = 1000
"""number of instructions, in addition to those of the training, whose vectors are kept"""


@dataclass(eq=False)
class _Stream:
    """The recent past of one robot."""

    generator: torch.Generator
    features: deque[Tensor]
    plans: deque[Action]
    """the last predictions [c a], each from the moment of its prediction on, the newest first"""
    pending: list[Action] = field(default_factory=list)
    instruction: str = ""

    def copy_for(self, instruction: str) -> _Stream:
        """Return a copy; its history is empty if the instruction is a new one."""
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())
        if instruction == self.instruction:
            features, plans, pending = self.features.copy(), self.plans.copy(), [*self.pending]
            return _Stream(generator, features, plans, pending, instruction)
        features, plans = deque(maxlen=self.features.maxlen), deque(maxlen=self.plans.maxlen)
        return _Stream(generator, features, plans, [], instruction)


class Policy:
    """Acts on observations: `policy.act(observation)` returns the next action [a].

    A policy keeps the frames it has seen: call `reset` when an episode begins. It refuses
    observations on which it would act wrongly (`policies/inputs.py`) and then changes no stream.
    """

    def __init__(self, checkpoint: Checkpoint, device: str | torch.device = "cpu") -> None:
        self.interface, self.settings = checkpoint.interface, checkpoint.settings
        self.device = torch.device(device)
        module: Any = checkpoint.policy.eval()
        # Convolutions are fastest with channels last on every device.
        self.module: Any = module.to(self.device, memory_format=torch.channels_last)
        self._projection = checkpoint.projection
        self._encoder = checkpoint.instructions.encoder
        trained_on = checkpoint.instructions
        self.instructions = trained_on.texts
        """the instructions it was trained on"""
        self._language: dict[str, Tensor] = dict(
            zip(trained_on.texts, trained_on.vectors, strict=True)
        )
        self._frozen: FrozenVision | None = None
        self._streams: dict[int, _Stream] = {}

    def reset(self, stream: int = 0, *, seed: int = 0) -> None:
        """Forget what a stream has seen; the seed determines its random choices."""
        generator = torch.Generator().manual_seed(seed)
        seen = deque[Tensor](maxlen=self.settings.history)
        self._streams[stream] = _Stream(generator, seen, deque(maxlen=self.settings.blend))

    def forget(self, stream: int) -> None:
        """Drop a stream that will not come back."""
        self._streams.pop(stream, None)

    def check(self, observation: Observation) -> None:
        """Raise if the policy would act wrongly on an observation; change nothing."""
        require_observation(observation, self.interface)
        self.language(observation.instruction)

    def change(self, **settings: Any) -> None:
        """Change how the policy acts: `execute`, `acting`, `blend`, `acting_std`.

        The change applies to episodes that begin afterwards.
        """
        self.settings = replace(self.settings, **settings)
        if hasattr(self.module, "settings"):
            self.module.settings = self.settings

    def act(self, observation: Observation) -> Action:
        """Return the next action [a] of stream 0."""
        return self.act_many({0: observation})[0]

    @torch.inference_mode()
    def act_many(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """Return the next action of each stream, computed in one batch."""
        for seen in observations.values():
            self.check(seen)
        # Change copies of the streams and keep them only if everything succeeds.
        streams = {number: self._copy_stream(number, seen) for number, seen in observations.items()}
        self._add_frames(list(streams.values()), list(observations.values()))
        if waiting := [stream for stream in streams.values() if not stream.pending]:
            self._predict(waiting)
        actions = {number: stream.pending.pop(0) for number, stream in streams.items()}
        self._streams.update(streams)
        return actions

    def _copy_stream(self, number: int, seen: Observation) -> _Stream:
        if number not in self._streams:
            self.reset(number)
        return self._streams[number].copy_for(seen.instruction)

    def _add_frames(self, streams: Sequence[_Stream], seen: Sequence[Observation]) -> None:
        images = self._images(seen)
        state = torch.stack([self._state(one) for one in seen]).to(self.device)
        language = torch.stack([self.language(one.instruction) for one in seen]).to(self.device)
        features = self.module.observation(images, state[:, None], language)[:, 0]
        # Non-finite features would stay in the history and spoil later actions, too.
        _require_finite(features, MAX_FEATURE)
        for stream, vector in zip(streams, features, strict=True):
            # The first frame is repeated to fill the history, as in training.
            count = 1 if stream.features else self.settings.history
            stream.features.extend([vector] * count)

    def _predict(self, streams: Sequence[_Stream]) -> None:
        features = torch.stack([torch.stack(tuple(stream.features)) for stream in streams])
        actions = self.module.predict(features, [stream.generator for stream in streams])
        _require_finite(actions, math.inf)
        begin, count = -self.settings.first_action, self.settings.execute
        for stream, plan in zip(streams, actions[:, begin:].double().cpu().numpy(), strict=True):
            stream.plans.appendleft(plan)
            for j in range(count):
                # Plan i is i * count actions old.
                steps = [(i * count + j, p) for i, p in enumerate(stream.plans)]
                predicted = [p[step] for step, p in steps if step < len(p)]
                stream.pending.append(np.mean(predicted, axis=0))

    def _images(self, seen: Sequence[Observation]) -> dict[str, Tensor]:
        """Return each camera's images, or their feature maps, [stream 1 …]."""
        cameras, size = self.interface.cameras, self.interface.image_size
        if not cameras:
            return {}
        images = np.concatenate(
            [
                resize_square(np.asarray(one.images[name])[None], size)
                for name in cameras
                for one in seen
            ]
        )
        if self.settings.vision == "frozen":
            assert self._projection is not None  # the checkpoint of a frozen policy holds one
            self._frozen = self._frozen or FrozenVision(self.device)
            maps = self._frozen.project(images, self._projection)
            frames = torch.from_numpy(maps).to(self.device).float()
        else:
            crop = self.interface.crop
            begin = centre_crop_start(size, crop)
            middle = images[:, begin : begin + crop, begin : begin + crop]
            frames = torch.from_numpy(np.ascontiguousarray(middle)).to(self.device)
        return dict(zip(cameras, frames[:, None].chunk(len(cameras)), strict=True))

    def _state(self, seen: Observation) -> Tensor:
        parts = [seen.proprioception[key] for key in self.interface.proprioception]
        # Concatenating copies them: arrays from a network are read-only, which torch warns about.
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(np.float32))

    def knows(self, instruction: object) -> bool:
        """Return whether an instruction's vector is known, so that it need not be embedded."""
        return isinstance(instruction, str) and instruction in self._language

    def language(self, instruction: str) -> Tensor:
        """Return an instruction's vector; embed it on first use if the training did not have it."""
        if instruction not in self._language:
            vector = embed_instructions([instruction], self._encoder)[0]
            if len(vector) != self.interface.language_size:
                raise StrapError(
                    f"language encoder '{self._encoder}' gives {len(vector)} numbers for "
                    f"{instruction!r}; this policy was trained with "
                    f"{self.interface.language_size}: give one of its own instructions"
                )
            if len(self._language) >= len(self.instructions) + MAX_LANGUAGE:
                self._language.pop(list(self._language)[len(self.instructions)], None)
            self._language[instruction] = torch.from_numpy(vector)
        return self._language[instruction]


def _require_finite(numbers: Tensor, limit: float) -> None:
    if not (numbers.abs() < limit).all():
        raise StrapError(
            "the policy's action is not finite: its weights are damaged, or its inputs are far "
            "from its training data; train again, or check the inputs"
        )


def load_policy(
    path: str | Path,
    *,
    device: str = "auto",
    which: Which = "last",
    module: nn.Module | None = None,
) -> Policy:
    """Load a trained policy that is ready to act.

    Args:
        path: a checkpoint folder that `strap train` wrote.
        device: `auto`, `cpu` or `cuda`.
        which: `last` or `best`, the one with the highest likelihood of held-out demonstrations.
        module: your own module, if the checkpoint holds the weights of one.
    """
    from strap.encoders.network import choose_device

    checkpoint = load_checkpoint(path, which=which, policy=module)
    return Policy(checkpoint, choose_device(device))
