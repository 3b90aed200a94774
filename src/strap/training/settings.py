"""The settings of a training, and the values of the presets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from strap.errors import StrapError, unknown
from strap.policies.settings import Kind, Preset, Vision
from strap.training.windows import Anchors, Recipe

Precision = Literal["auto", "float32", "bfloat16"]
Compile = Literal["auto", "on", "off"]
Crop = Literal["window", "frame"]
MAX_SEED = 2**63 - 1
USED_BY = {
    "alpha": ("mt", "strap"),
    "pretrain_steps": ("ft",),
    "finetune_steps": ("mt", "strap"),
}
"""setting -> the recipes that use it"""


@dataclass(frozen=True)
class TrainingSettings:
    """The defaults are the paper's, but for the warm-up."""

    recipe: Recipe = "strap"
    """bc: target; ft: prior, then target; mt: prior ∪ target; strap: target ∪ retrieved"""
    steps: int = 60_000
    batch: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 1e-5
    warmup: int = 1_000
    """steps over which the learning rate rises"""
    decay: bool = False
    """let the learning rate fall to nothing by half a cosine; --steps can't be raised later"""
    gradient_clip: float = 100.0
    """largest norm of the gradient"""
    alpha: float | None = None
    """the target's share of every batch; by default every frame is as likely as any other"""
    pretrain_steps: int | None = None
    """ft: steps on the prior (default: half of all)"""
    finetune_steps: int = 0
    """mt and strap: the last so many steps draw from the target alone, after a warm-up"""
    ema: bool = False
    """keep an exponential average of the weights, and run that"""
    seed: int = 1234
    crop: Crop = "window"
    """one random crop for all frames of a window, or one each, as robomimic has it (frame)"""
    windows: Anchors = "segment"
    """act on the frames of a retrieved segment, the trajectory around them; or on all that have
    their history and actions among the frames kept around it, where actions that are repeated
    behind a trajectory's end are learned too, as from the authors' files (context)"""
    holdout: int = 0
    """target demonstrations kept aside; their likelihood is logged"""
    eval_every: int = 1_000
    save_every: int = 5_000
    log_every: int = 100
    precision: Precision = "auto"
    """auto: bfloat16 products on a GPU, float32 elsewhere"""
    graphs: bool = True
    """GPU: record a step once and replay it, so that it does not wait for Python"""
    compile: Compile = "auto"
    """fuse the network's operations, which takes more than a minute to begin; auto: convolutions
    on a GPU, from 20,000 steps on"""

    def __post_init__(self) -> None:
        if self.recipe not in get_args(Recipe):
            raise unknown("recipe", self.recipe, get_args(Recipe))
        if self.precision not in get_args(Precision):
            raise unknown("precision", self.precision, get_args(Precision))
        if self.compile not in get_args(Compile):
            raise unknown("choice for compile", self.compile, get_args(Compile))
        if self.crop not in get_args(Crop):
            raise unknown("choice for crop", self.crop, get_args(Crop))
        if self.windows not in get_args(Anchors):
            raise unknown("choice for windows", self.windows, get_args(Anchors))
        for name in ("steps", "batch", "eval_every", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise StrapError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.warmup < 0:
            raise StrapError(f"warmup is {self.warmup}: it must be at least 0")
        if not 0 <= self.seed <= MAX_SEED:
            raise StrapError(f"seed is {self.seed}: it must be 0 to {MAX_SEED}")
        if not 0 <= self.weight_decay < math.inf:
            raise StrapError(
                f"weight_decay is {self.weight_decay}: it must be at least 0 and finite"
            )
        if not 0 < self.learning_rate < math.inf:
            raise StrapError(
                f"learning_rate is {self.learning_rate}: it must be above 0 and finite"
            )
        for name, recipes in USED_BY.items():
            if getattr(self, name) and self.recipe not in recipes:
                raise StrapError(
                    f"{name} is {getattr(self, name)}: the recipe {self.recipe} does not use it; "
                    f"leave it out, or choose the recipe {' or '.join(recipes)}"
                )
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise StrapError(
                f"alpha is {self.alpha}: the target's share must be above 0 and below 1"
            )
        if self.pretrain_steps is not None and not 0 < self.pretrain_steps < self.steps:
            raise StrapError(
                f"pretrain_steps is {self.pretrain_steps}: it must be above 0 and below the "
                f"{self.steps} steps in all"
            )
        if self.finetune_steps and not 0 < self.finetune_steps < self.steps:
            raise StrapError(
                f"finetune_steps is {self.finetune_steps}: it must be above 0 and below the "
                f"{self.steps} steps in all"
            )

    @property
    def first_phase(self) -> int:
        """Number of steps before the phase on the target alone; 0 if there is only one phase."""
        if self.recipe != "ft":
            return self.steps - self.finetune_steps if self.finetune_steps else 0
        return self.steps // 2 if self.pretrain_steps is None else self.pretrain_steps

    def rate(self, step: int) -> float:
        """Return the learning rate of a step; each phase warms up."""
        is_second = step >= self.first_phase
        phase_step = step - self.first_phase if is_second else step
        length = self.steps - self.first_phase if is_second else self.first_phase
        rate = self.learning_rate * min(1.0, (phase_step + 1) / max(self.warmup, 1))
        return rate * (0.5 + 0.5 * math.cos(math.pi * phase_step / length)) if self.decay else rate


def training_preset(
    name: Preset = "fixed", *, kind: Kind = "transformer", vision: Vision = "resnet"
) -> TrainingSettings:
    """Return the training settings of a preset.

    `paper` and `released` warm up over 10,000 steps, crop every frame independently, and draw
    complete windows from the frames kept around a match. Their diffusion policies have no warm-up
    and no weight decay.
    """
    if name not in get_args(Preset):
        raise unknown("preset", name, get_args(Preset))
    base = TrainingSettings()
    if name != "fixed":
        base = replace(base, warmup=10_000, crop="frame", windows="context")
    if kind == "diffusion":
        base = replace(base, steps=25_000, batch=256, ema=True, warmup=500)
        if name != "fixed":
            base = replace(base, warmup=0, weight_decay=0.0)
    if vision == "frozen":
        # A small network: fewer and larger steps, and no large batches on a CPU.
        base = replace(base, steps=6_000, batch=32, learning_rate=1e-3, warmup=100)
        base = replace(base, eval_every=500, ema=True, decay=True)
    return base
