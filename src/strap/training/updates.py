"""Take optimiser steps: eagerly on any device, or recorded once as a CUDA graph and replayed."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.backends import mkldnn

from strap.cuda_graphs import RecordedStep
from strap.policies.batch import Batch
from strap.policies.settings import PolicySettings
from strap.training.batches import Loader
from strap.training.settings import TrainingSettings

COMPILE_STEPS = 20_000
"""number of steps from which compiling saves more time than it takes"""
COMPILERS = ("cc", "gcc", "clang")


def make_optimizer(
    policy: nn.Module, settings: TrainingSettings, device: torch.device
) -> torch.optim.AdamW:
    """Return a fused AdamW; on a GPU its learning rate is a tensor, which a graph can read."""
    rate: float | Tensor = settings.rate(0)
    if device.type == "cuda":
        rate = torch.tensor(rate, device=device)
    return torch.optim.AdamW(
        policy.parameters(),
        lr=rate,
        weight_decay=settings.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )


@contextmanager
def avoid_onednn_on_arm(device: torch.device, settings: PolicySettings) -> Iterator[None]:
    """Disable oneDNN for small networks on ARM: its products take four times as long as BLAS."""
    by_blas = device.type == "cpu" and settings.vision == "frozen"
    by_blas = by_blas and platform.machine() == "aarch64"
    before = bool(mkldnn.enabled)
    setattr(mkldnn, "enabled", before and not by_blas)  # noqa: B010 (a property of the module)
    try:
        yield
    finally:
        setattr(mkldnn, "enabled", before)  # noqa: B010


def should_compile(policy: nn.Module, settings: TrainingSettings, device: torch.device) -> bool:
    """Return whether to compile, which takes about a minute at first (benchmarks/README.md)."""
    if settings.compile != "auto":
        return settings.compile == "on"
    can_compile = device.type == "cuda" and any(map(shutil.which, COMPILERS))
    convolves = any(isinstance(module, nn.Conv2d) for module in policy.modules())
    return can_compile and convolves and settings.steps >= COMPILE_STEPS


class Updater:
    """Updates parameters from draws; the loss stays on the device until `mean_loss` reads it."""

    def __init__(
        self,
        policy: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: Loader,
        settings: TrainingSettings,
    ) -> None:
        self.policy, self.optimizer, self.loader = policy, optimizer, loader
        self.settings, self.device = settings, loader.device
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        loss: Callable[[Batch], Tensor] = policy.loss  # type: ignore[assignment]
        compiles = should_compile(policy, settings, self.device)
        self.loss = torch.compile(loss, dynamic=False) if compiles else loss
        self.total = torch.zeros((), device=self.device)
        self.norm = torch.zeros((), device=self.device)
        self.count = 0
        self._recorded = RecordedStep(self._compute, optimizer, self.device)

    @property
    def recording(self) -> bool:
        """Whether steps are recorded as a CUDA graph."""
        return self.settings.graphs and self.device.type == "cuda" and self.loader.resident

    def update(self, draw: Tensor, rate: float) -> None:
        """Take one step on a draw that is in host memory."""
        self._set_rate(rate)
        self.count += 1
        if not self.loader.resident:
            images = self.loader.fetch(draw)
            self._compute(draw.to(self.device), images)
        elif not self.recording:
            self._compute(draw.to(self.device))
        else:
            self._recorded(draw)

    def mean_loss(self) -> tuple[float, float]:
        """Return the mean loss and gradient norm since the last call."""
        count = max(self.count, 1)
        loss, norm = float(self.total) / count, float(self.norm) / count
        self.total.zero_()
        self.norm.zero_()
        self.count = 0
        return loss, norm

    def _compute(self, draw: Tensor, images: dict[str, Tensor] | None = None) -> None:
        batch = self.loader.gather(draw, images)
        with self.autocast():
            loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.gradient_clip, foreach=True)
        self.optimizer.step()
        self.total += loss.detach()
        self.norm += norm.detach()

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context of bfloat16 products, if the settings and the device call for them."""
        precision = self.settings.precision
        if precision == "float32" or (precision == "auto" and self.device.type != "cuda"):
            return nullcontext()
        # Weights are used once per step: a cache of casts saves nothing, and outlives the graph.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
