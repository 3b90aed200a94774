"""Train a policy on a frame cache, with any recipe; on a CPU, resuming is exact to the bit."""

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
from strap.locks import LOCK, exclusive_lock
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
from strap.training.phases import plan_phases, warn_of_few_target_draws
from strap.training.resume import (
    identify_training,
    require_same_training,
    restore_training,
    training_state,
)
from strap.training.settings import TrainingSettings
from strap.training.updates import Updater, avoid_onednn_on_arm, make_optimizer
from strap.training.windows import (
    Windows,
    choose_held_out,
    held_out_windows,
    require_context,
    training_windows,
    weigh_by_cost,
)

EMA_POWER = 0.75
"""exponent by which the decay of the exponential average approaches 1"""
RESUME = "resume.safetensors"
"""the state of an unfinished training, beside its checkpoint"""
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Trained:
    """The result of a training."""

    path: Path
    step: int
    loss: float
    held_out: float | None
    """mean −log π of the held-out demonstrations' actions at the end of the training"""
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
    """Train a policy; the same call resumes an interrupted training, and skips a finished one.

    Args:
        cache: the data, from `build_cache`.
        out: the checkpoint folder.
        policy: the policy's settings.
        training: the training's settings.
        module: your own policy (`strap.policies.Trainable`) instead of one that `policy` describes;
            `policy` then only sets the history, chunk and vision of its batches.
        match_weights: for the recipe strap: one weight per match, in the order of matches.parquet;
            or `cost`: cheaper matches weigh more (`weigh_by_cost`).
        init: a checkpoint whose weights and normalisation the training starts from.
        imagenet: ResNet-18 weights to start from: a file, a folder or a hub id.
        about: more facts about the data to store in the checkpoint; for a run: the hash of its
            `matches`, and the `choices` among them that the cache was made with.
        device: `auto`, `cpu` or `cuda`.
        quiet: print nothing on the terminal.
    """
    policy, training = policy or PolicySettings(), training or TrainingSettings()
    folder = Path(out).expanduser()
    trainer = _Trainer(cache, folder, policy, training, choose_device(device), about)
    with (
        exclusive_lock(trainer.out / LOCK, f"training into '{trainer.out}'"),
        avoid_onednn_on_arm(trainer.device, policy),
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
        """Create windows, network and optimiser; restore the state of an interrupted training."""
        settings, cache = self.settings, self.cache
        if init is not None and imagenet is not None:
            raise StrapError("--init and --imagenet both name the initial weights: give one")
        if match_weights == "cost":
            match_weights = weigh_by_cost(cache.retrieved)
        require_context(cache, settings.recipe, self.policy_settings)
        held_out = choose_held_out(cache, settings.holdout, settings.seed)
        complete = self.policy_settings if settings.windows == "context" else None
        windows = training_windows(
            cache,
            settings.recipe,
            held_out=held_out,
            match_weights=match_weights,
            complete=complete,
        )
        self.origin = describe_origin(init) if init is not None else None
        self.identity = identify_training(
            cache,
            self.policy_settings,
            settings,
            type(module).__name__ if module is not None else None,
            list(match_weights) if match_weights is not None else None,
            sorted(held_out),
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
        evaluated = held_out_windows(cache, held_out) if held_out else None
        self.loader = Loader(
            cache,
            table,
            self.policy_settings,
            self.device,
            evaluated=evaluated,
            learns_repeated=settings.windows == "context",
        )
        crops = len(cache.interface.cameras)
        crops *= self.policy_settings.history if settings.crop == "frame" else 1
        self.sampler = Sampler(phases, settings.batch, self.loader.places, crops, settings.seed)
        self.held_out_loader = (
            self.loader.with_windows(evaluated) if evaluated is not None else None
        )
        self.optimizer = make_optimizer(self.policy, settings, self.device)
        self.average = copy.deepcopy(self.policy) if settings.ema else None
        torch.manual_seed(settings.seed + 1)
        self._resume()
        if self.step < settings.steps:
            warn_of_few_target_draws(phases, table, settings)
        self.updater = Updater(self.policy, self.optimizer, self.loader, settings)

    def _initialise(
        self, table: Windows, imagenet: str | Path | None, init: str | Path | None
    ) -> None:
        """Load a checkpoint's weights; without one, set the normalisation and ImageNet weights."""
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
        """Run the training loop."""
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
                _update_average(self.average, self.policy, self.step)
            last = self.step == settings.steps
            if last or self.step % settings.log_every == 0:
                loss, norm = self.updater.mean_loss()
                if not np.isfinite(loss):
                    raise StrapError(
                        f"the loss is {loss} at step {self.step}: lower --learning-rate"
                    )
                rate = settings.rate(self.step - 1)
                log.write(self.step, loss=loss, gradient=norm, rate=rate)
            if self.held_out_loader is not None and (last or self.step % settings.eval_every == 0):
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
        """Log −log π of the held-out demonstrations, for the weights that would be saved."""
        assert self.held_out_loader is not None
        model: Any = self._runnable()
        model.eval()
        total, count = 0.0, 0.0
        numbers = torch.arange(len(self.held_out_loader.table))
        # A diffusion policy's random draws here must not change those of the training.
        devices = [self.device] if self.device.type == "cuda" and not self.updater.recording else []
        with torch.random.fork_rng(devices=devices), self.updater.autocast():
            # not torch.manual_seed, which would restart the dropout of a recorded step
            torch.default_generator.manual_seed(0)
            for start in range(0, len(numbers), EVALUATION_BATCH):
                draw = self.held_out_loader.centred(numbers[start : start + EVALUATION_BATCH])
                images = None if self.held_out_loader.resident else self.held_out_loader.fetch(draw)
                batch = self.held_out_loader.gather(draw.to(self.device), images)
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
        for averaged, current in zip(self.average.buffers(), self.policy.buffers(), strict=True):
            averaged.copy_(current)
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
            # left by a training, perhaps with other settings, that was killed before it saved
            (self.out / WEIGHT_FILES["best"]).unlink(missing_ok=True)
            return
        about = read_about(file)
        require_same_training(self.out, about.get("identity"), self.identity)
        tensors = read_tensors(file)
        restore_training(tensors, self.policy, self.average, self.optimizer, self.device)
        self.step = int(about["step"])
        self.held_out, self.best = about["held_out"], about["best"]
        self.best_step = about["best_step"]


def _update_average(average: nn.Module, policy: nn.Module, step: int) -> None:
    """Update the exponential average of the weights; its decay grows with the step."""
    decay = min(1 - (1 + step) ** -EMA_POWER, 0.9999)
    blend = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    blend(list(average.parameters()), [p.detach() for p in policy.parameters()], step)
