"""A trained policy that acts: observations in, actions out, one stream or many at once."""

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
from strap.policies.frozen import FrozenVision
from strap.policies.images import centre, fit
from strap.policies.inputs import Observation, require_observation

Action = npt.NDArray[np.float64]

MAX_FEATURE = 1e12
"""beyond which float32 products of features overflow"""
MAX_LANGUAGE = 1000
"""instructions, besides those of the training, whose vectors are kept"""


@dataclass(eq=False)
class _Stream:
    """One robot's recent past."""

    generator: torch.Generator
    features: deque[Tensor]
    plans: deque[Action]
    """what was predicted [c a] from the moment of each of the last looks on, the newest first"""
    pending: list[Action] = field(default_factory=list)
    instruction: str = ""

    def continued(self, instruction: str) -> _Stream:
        """Return a copy that goes on; empty where the robot is told something else than before."""
        generator = torch.Generator()
        generator.set_state(self.generator.get_state())
        if instruction == self.instruction:
            features, plans, pending = self.features.copy(), self.plans.copy(), [*self.pending]
            return _Stream(generator, features, plans, pending, instruction)
        features, plans = deque(maxlen=self.features.maxlen), deque(maxlen=self.plans.maxlen)
        return _Stream(generator, features, plans, [], instruction)


class Policy:
    """Acts on observations: `policy.act(observation)` gives the next action [a].

    Keeps the frames it has seen; call `reset` when an episode begins. An observation on which it
    would act wrongly is refused (`policies/inputs.py`), and every stream stays as it was.
    """

    def __init__(self, checkpoint: Checkpoint, device: str | torch.device = "cpu") -> None:
        self.interface, self.settings = checkpoint.interface, checkpoint.settings
        self.device = torch.device(device)
        module: Any = checkpoint.policy.eval()
        # Convolutions like channels last everywhere.
        self.module: Any = module.to(self.device, memory_format=torch.channels_last)
        self._projection = checkpoint.projection
        self._encoder = checkpoint.instructions.encoder
        told = checkpoint.instructions
        self.instructions = told.texts
        """those it was trained on"""
        self._language: dict[str, Tensor] = dict(zip(told.texts, told.vectors, strict=True))
        self._frozen: FrozenVision | None = None
        self._streams: dict[int, _Stream] = {}

    def reset(self, stream: int = 0, *, seed: int = 0) -> None:
        """Forget what a stream has seen; its random choices follow from the seed."""
        generator = torch.Generator().manual_seed(seed)
        seen = deque[Tensor](maxlen=self.settings.history)
        self._streams[stream] = _Stream(generator, seen, deque(maxlen=self.settings.blend))

    def forget(self, stream: int) -> None:
        """Drop a stream that will not come back."""
        self._streams.pop(stream, None)

    def check(self, observation: Observation) -> None:
        """Raise where the policy would act wrongly on an observation; nothing is changed."""
        require_observation(observation, self.interface)
        self.language(observation.instruction)

    def change(self, **settings: Any) -> None:
        """Act otherwise than it was trained to: `execute`, `acting`, `blend`, `acting_std`.

        For episodes that begin afterwards.
        """
        self.settings = replace(self.settings, **settings)
        if hasattr(self.module, "settings"):
            self.module.settings = self.settings

    def act(self, observation: Observation) -> Action:
        """The next action [a] of stream 0."""
        return self.act_many({0: observation})[0]

    @torch.inference_mode()
    def act_many(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        """The next action of each stream, all in one batch."""
        for seen in observations.values():
            self.check(seen)
        # Streams are changed as copies, kept once all has gone well.
        streams = {number: self._continue(number, seen) for number, seen in observations.items()}
        self._look(list(streams.values()), list(observations.values()))
        if waiting := [stream for stream in streams.values() if not stream.pending]:
            self._plan(waiting)
        actions = {number: stream.pending.pop(0) for number, stream in streams.items()}
        self._streams.update(streams)
        return actions

    def _continue(self, number: int, seen: Observation) -> _Stream:
        if number not in self._streams:
            self.reset(number)
        return self._streams[number].continued(seen.instruction)

    def _look(self, streams: Sequence[_Stream], seen: Sequence[Observation]) -> None:
        images = self._images(seen)
        state = torch.stack([self._state(one) for one in seen]).to(self.device)
        language = torch.stack([self.language(one.instruction) for one in seen]).to(self.device)
        features = self.module.observation(images, state[:, None], language)[:, 0]
        # Kept in the history, such a frame would spoil later actions, too.
        _require_finite(features, MAX_FEATURE)
        for stream, vector in zip(streams, features, strict=True):
            # The first frame stands for those before it, as in training.
            count = 1 if stream.features else self.settings.history
            stream.features.extend([vector] * count)

    def _plan(self, streams: Sequence[_Stream]) -> None:
        features = torch.stack([torch.stack(tuple(own.features)) for own in streams])
        actions = self.module.predict(features, [own.generator for own in streams])
        _require_finite(actions, math.inf)
        begin, count = -self.settings.first_action, self.settings.execute
        for own, plan in zip(streams, actions[:, begin:].double().cpu().numpy(), strict=True):
            own.plans.appendleft(plan)
            for j in range(count):
                says = [p[i * count + j] for i, p in enumerate(own.plans) if i * count + j < len(p)]
                own.pending.append(np.mean(says, axis=0))

    def _images(self, seen: Sequence[Observation]) -> dict[str, Tensor]:
        """Return each camera's pictures, or their maps, [stream 1 …]; all of them in one batch."""
        cameras, size = self.interface.cameras, self.interface.image_size
        if not cameras:
            return {}
        images = np.concatenate(
            [fit(np.asarray(one.images[name])[None], size) for name in cameras for one in seen]
        )
        if self.settings.vision == "frozen":
            assert self._projection is not None  # a frozen policy's checkpoint holds one
            self._frozen = self._frozen or FrozenVision(self.device)
            maps = self._frozen.project(images, self._projection)
            frames = torch.from_numpy(maps).to(self.device).float()
        else:
            crop = self.interface.crop
            begin = centre(size, crop)
            middle = images[:, begin : begin + crop, begin : begin + crop]
            frames = torch.from_numpy(np.ascontiguousarray(middle)).to(self.device)
        return dict(zip(cameras, frames[:, None].chunk(len(cameras)), strict=True))

    def _state(self, seen: Observation) -> Tensor:
        parts = [seen.proprioception[key] for key in self.interface.proprioception]
        # Concatenated, they are a copy: what came over a network can't be written to.
        return torch.from_numpy(np.concatenate([np.zeros(0), *parts]).astype(np.float32))

    def knows(self, instruction: object) -> bool:
        """Whether an instruction needs not be embedded any more."""
        return isinstance(instruction, str) and instruction in self._language

    def language(self, instruction: str) -> Tensor:
        """The instruction's vector, embedded on first use where training did not have it."""
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
            "the policy's action is not finite: its weights are damaged, or what it sees is far "
            "from anything it was trained on; train again, or check what goes in"
        )


def load_policy(
    path: str | Path,
    *,
    device: str = "auto",
    which: Which = "last",
    module: nn.Module | None = None,
) -> Policy:
    """A trained policy, ready to act.

    Args:
        path: a checkpoint folder that `strap train` wrote.
        device: `auto`, `cpu` or `cuda`.
        which: `last`, or `best` by the likelihood of held-out demonstrations.
        module: a policy of one's own, where one was trained.
    """
    from strap.encoders.network import choose_device

    checkpoint = load_checkpoint(path, which=which, policy=module)
    return Policy(checkpoint, choose_device(device))
