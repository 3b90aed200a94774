"""Training a policy on a frame cache: any mixture, resumable to the bit on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from strap.atomic import remove_leftovers
from strap.encoders.network import choose_device
from strap.errors import StrapError
from strap.locks import LOCK, alone
from strap.policies.checkpoints import (
    WEIGHT_FILES,
    Checkpoint,
    Instructions,
    Which,
    build_policy,
    read_about,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from strap.policies.observation import ObservationEncoder
from strap.policies.settings import PolicySettings
from strap.provenance import fingerprint_content
from strap.training.batches import Loader, Sampler
from strap.training.cache import FrameCache
from strap.training.initialisation import (
    describe_origin,
    load_imagenet_weights,
    load_initial_weights,
    locate_imagenet,
    normalise,
    read_projection,
)
from strap.training.logs import Log
from strap.training.phases import plan_phases
from strap.training.resume import (
    identify_training,
    require_same_training,
    restore_training,
    training_state,
)
from strap.training.settings import TrainingSettings
from strap.training.updates import Updater, make_optimizer, small_products
from strap.training.windows import (
    Windows,
    choose_held_out,
    held_out_windows,
    require_context,
    training_windows,
    weigh_by_cost,
)

EMA_POWER = 0.75
RESUME = "resume.safetensors"
"""the state of an unfinished training, beside its checkpoint"""
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Trained:
    """What came of a training."""

    path: Path
    step: int
    loss: float
    held_out: float | None
    """mean −log π of the held-out demonstrations' actions at the end"""
    best: float | None
    best_step: int | None


def train(
    cache: FrameCache,
    out: str | Path,
    *,
    policy: PolicySettings | None = None,
    training: TrainingSettings | None = None,
    module: nn.Module | None = None,
    match_weights: Sequence[float] | Literal["cost"] | None = None,
    init: str | Path | None = None,
    imagenet: str | Path | None = None,
    about: Mapping[str, Any] | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> Trained:
    """Train; the same call again goes on where it was, or does nothing where it had finished.

    Args:
        cache: the data, from `build_cache`.
        out: the checkpoint folder.
        policy: the policy's settings.
        training: the training's settings.
        module: a policy of your own (`strap.policies.Trainable`) instead of one that `policy`
            describes; `policy` then says which history, chunk and vision its batches have.
        match_weights: for the recipe strap: one weight per match, in the order of matches.parquet;
            or `cost`: cheaper ones weigh more (`weigh_by_cost`).
        init: a checkpoint to begin with: its weights and its normalisation.
        imagenet: ResNet-18 weights to begin with: a file, a folder or a hub id.
        about: what the checkpoint says of the data besides: of a run, its `matches` (a hash), and
            which `choices` among them the cache was made by.
        device: `auto`, `cpu` or `cuda`.
        quiet: say nothing on the terminal.
    """
    policy, training = policy or PolicySettings(), training or TrainingSettings()
    place, where = Path(out).expanduser(), choose_device(device)
    trainer = _Trainer(cache, place, policy, training, where, about)
    with (
        alone(trainer.out / LOCK, f"training into '{trainer.out}'"),
        small_products(trainer.device, policy),
    ):
        remove_leftovers(trainer.out)
        trainer.prepare(module, match_weights, imagenet, init)
        return trainer.run(quiet=quiet)


class _Trainer:
    def __init__(
        self,
        cache: FrameCache,
        out: Path,
        policy: PolicySettings,
        training: TrainingSettings,
        device: torch.device,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.cache, self.out, self.policy_settings, self.settings = cache, out, policy, training
        self.device, self.about = device, dict(about or {})
        self.step = 0
        self.best: float | None = None
        self.best_step: int | None = None
        self.held_out: float | None = None

    def prepare(
        self,
        module: nn.Module | None,
        match_weights: Sequence[float] | Literal["cost"] | None,
        imagenet: str | Path | None,
        init: str | Path | None = None,
    ) -> None:
        """Windows, network, optimiser; and the state of an earlier call."""
        settings, cache = self.settings, self.cache
        if init is not None and imagenet is not None:
            raise StrapError("--init and --imagenet both say what to begin with: give one")
        if match_weights == "cost":
            match_weights = weigh_by_cost(cache.retrieved)
        require_context(cache, settings.recipe, self.policy_settings)
        held = choose_held_out(cache, settings.holdout, settings.seed)
        complete = self.policy_settings if settings.windows == "context" else None
        windows = training_windows(
            cache, settings.recipe, held_out=held, match_weights=match_weights, complete=complete
        )
        self.origin = describe_origin(init) if init is not None else None
        self.identity = identify_training(
            cache,
            self.policy_settings,
            settings,
            type(module).__name__ if module is not None else None,
            list(match_weights) if match_weights is not None else None,
            sorted(held),
            self.origin["fingerprint"] if self.origin else None,
            fingerprint_content(locate_imagenet(imagenet)) if imagenet is not None else None,
        )
        phases, table = plan_phases(cache, windows, settings)
        torch.manual_seed(settings.seed)
        self.policy = module or build_policy(cache.interface, self.policy_settings)
        self._initialise(table, imagenet, init)
        self.policy.to(self.device)
        if self.device.type == "cuda":
            self.policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        watched = held_out_windows(cache, held) if held else None
        self.loader = Loader(
            cache,
            table,
            self.policy_settings,
            self.device,
            evaluated=watched,
            learns_repeated=settings.windows == "context",
        )
        crops = len(cache.interface.cameras)
        crops *= self.policy_settings.history if settings.crop == "frame" else 1
        self.sampler = Sampler(phases, settings.batch, self.loader.places, crops, settings.seed)
        self.watch = self.loader.beside(watched) if watched is not None else None
        self.optimizer = make_optimizer(self.policy, settings, self.device)
        self.average = copy.deepcopy(self.policy) if settings.ema else None
        torch.manual_seed(settings.seed + 1)
        self._resume()
        self.updater = Updater(self.policy, self.optimizer, self.loader, settings)

    def _initialise(
        self, table: Windows, imagenet: str | Path | None, init: str | Path | None
    ) -> None:
        """Set what a policy begins with: a checkpoint's weights, or the data's normalisation."""
        if init is not None:
            load_initial_weights(
                self.policy, init, self.cache, self.policy_settings, read_projection(self.cache)
            )
            return
        observation = getattr(self.policy, "observation", None)
        if isinstance(observation, ObservationEncoder):
            normalise(observation, self.cache, table, self.policy_settings)
            if imagenet is not None and not (self.out / RESUME).is_file():
                load_imagenet_weights(observation, imagenet)

    def run(self, *, quiet: bool) -> Trained:
        """The loop."""
        settings = self.settings
        if self.step >= settings.steps:
            return self._trained(float("nan"))
        log = Log(self.out, first_step=self.step, steps=settings.steps, quiet=quiet)
        loss = float("nan")
        self.policy.train()
        while self.step < settings.steps:
            self.updater.update(self.sampler.draw(self.step), settings.rate(self.step))
            self.step += 1
            if self.average is not None:
                _average(self.average, self.policy, self.step)
            last = self.step == settings.steps
            if last or self.step % settings.log_every == 0:
                loss, norm = self.updater.mean_loss()
                if not np.isfinite(loss):
                    raise StrapError(
                        f"the loss is {loss} at step {self.step}: lower --learning-rate"
                    )
                rate = settings.rate(self.step - 1)
                log.write(self.step, loss=loss, gradient=norm, rate=rate)
            if self.watch is not None and (last or self.step % settings.eval_every == 0):
                self._evaluate(log)
            if last or self.step % settings.save_every == 0:
                log.flush()
                self._save("last")
                log.pause()
        log.close()
        return self._trained(loss)

    def _trained(self, loss: float) -> Trained:
        return Trained(self.out, self.step, loss, self.held_out, self.best, self.best_step)

    @torch.no_grad()
    def _evaluate(self, log: Log) -> None:
        """−log π of the held-out demonstrations, on the weights that would be run."""
        assert self.watch is not None
        model: Any = self._runnable()
        model.eval()
        total, count = 0.0, 0.0
        numbers = torch.arange(len(self.watch.table))
        # Its random draws (a diffusion policy's) must not shift those of the training.
        devices = [self.device] if self.device.type == "cuda" and not self.updater.recording else []
        with torch.random.fork_rng(devices=devices), self.updater.autocast():
            # not torch.manual_seed: that would start a recorded step's dropout anew
            torch.default_generator.manual_seed(0)
            for start in range(0, len(numbers), EVALUATION_BATCH):
                draw = self.watch.centred(numbers[start : start + EVALUATION_BATCH])
                images = None if self.watch.resident else self.watch.fetch(draw)
                batch = self.watch.gather(draw.to(self.device), images)
                valid = float(batch.valid.sum())
                total += float(model.loss(batch)) * valid
                count += valid
        self.policy.train()
        self.held_out = total / count
        log.write(self.step, held_out=self.held_out)
        log.pause()
        if self.best is None or self.held_out < self.best:
            self.best, self.best_step = self.held_out, self.step
            self._save("best")

    def _runnable(self) -> nn.Module:
        if self.average is None:
            return self.policy
        for ours, theirs in zip(self.average.buffers(), self.policy.buffers(), strict=True):
            ours.copy_(theirs)
        return self.average

    def _save(self, which: Which) -> None:
        checkpoint = Checkpoint(
            self._runnable(),
            self.cache.interface,
            self.policy_settings,
            Instructions(
                self.cache.instructions,
                torch.from_numpy(np.array(self.cache.language)),
                self.cache.language_encoder,
            ),
            read_projection(self.cache),
            {
                "step": self.step,
                **({"init": self.origin} if self.origin else {}),
                **self.about,
                "training": {
                    **asdict(self.settings),
                    "held_out": self.held_out,
                    "best": self.best,
                    "best_step": self.best_step,
                },
            },
        )
        save_checkpoint(self.out, checkpoint, which)
        if which == "last":
            self._save_state()

    def _save_state(self) -> None:
        tensors = training_state(self.policy, self.average, self.optimizer, self.device)
        about = {
            "step": self.step,
            "identity": self.identity,
            "held_out": self.held_out,
            "best": self.best,
            "best_step": self.best_step,
        }
        write_tensors(self.out / RESUME, tensors, about)

    def _resume(self) -> None:
        file = self.out / RESUME
        if not file.is_file():
            # of a training with perhaps other settings that was killed before it saved its state
            (self.out / WEIGHT_FILES["best"]).unlink(missing_ok=True)
            return
        about = read_about(file)
        require_same_training(self.out, about.get("identity"), self.identity)
        tensors = read_tensors(file)
        restore_training(tensors, self.policy, self.average, self.optimizer, self.device)
        self.step = int(about["step"])
        self.held_out, self.best = about["held_out"], about["best"]
        self.best_step = about["best_step"]


def _average(average: nn.Module, policy: nn.Module, step: int) -> None:
    """Move the average towards the weights: fast at first, slower and slower."""
    decay = min(1 - (1 + step) ** -EMA_POWER, 0.9999)
    blend = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    blend(list(average.parameters()), [p.detach() for p in policy.parameters()], step)
