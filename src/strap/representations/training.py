"""Training of a representation; on a CPU, a resumed training gives exactly the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from strap.atomic import read_json, remove_leftovers, write_json
from strap.cuda_graphs import RecordedStep
from strap.datasets.base import Dataset
from strap.datasets.untrusted import describe_error
from strap.encoders.network import choose_device
from strap.errors import StrapError, unknown
from strap.locks import LOCK, exclusive_lock
from strap.policies.checkpoints import read_about, read_tensors, write_tensors
from strap.policies.learning_state import collect_learning, restore_learning
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.representations.model import RepresentationVAE, to_channels
from strap.representations.representation import (
    BATCH,
    CONFIG,
    FORMAT,
    WEIGHTS,
    Representation,
    open_representation,
)
from strap.representations.samples import Samples, choose_camera, read_samples
from strap.representations.settings import Kind, RepresentationSettings

RESUME = "resume.safetensors"
LOSSES = ("picture", "action", "divergence")
LEAST_SPREAD = 1e-6
"""values with a smaller standard deviation count as constant"""


def train_representation(
    kind: Kind,
    datasets: Sequence[Dataset],
    out: str | Path,
    settings: RepresentationSettings | None = None,
    *,
    device: str = "auto",
    progress: Progress = silent,
) -> Representation:
    """Train a representation; the same call again resumes the training, or opens its result.

    Both kinds are variational autoencoders. The frames of all datasets are in the device's memory
    during the training (77,000 of 128×128 take 4 GB as images, 5 GB as flow).

    Args:
        kind: `br` (BehaviorRetrieval: image and action) or `fr` (FlowRetrieval: optical flow).
        datasets: the training data; both methods use the prior.
        out: the representation's folder.
        settings: settings of the training; by default those of the two methods' authors, except
            for the steps.
        device: `auto`, `cpu` or `cuda`.
        progress: called with (what, done, total), for frames read and for training steps.
    """
    if kind not in get_args(Kind):
        raise unknown("kind of representation", kind, get_args(Kind))
    if not datasets:
        raise StrapError("there is no dataset to train a representation on: give at least one")
    settings, out = settings or RepresentationSettings(), Path(out).expanduser()
    torch_device = choose_device(device)
    identity = _identity(kind, datasets, settings)
    if not _is_trained(out, identity):
        with exclusive_lock(out / LOCK, f"training into '{out}'"):
            remove_leftovers(out)
            _require_same_training(out, identity)
            samples = read_samples(kind, datasets, settings, progress)
            trainer = _Trainer(kind, samples, out, settings, torch_device, identity)
            trainer.run(progress)
            trainer.finish([dataset.name for dataset in datasets])
    return open_representation(out, device=device)


def _identity(kind: Kind, datasets: Sequence[Dataset], settings: RepresentationSettings) -> str:
    """Return a hash of everything that must stay the same if a training is to be resumed."""
    data = [
        [
            *(dataset.fingerprint(), list(dataset.ids)),
            *(choose_camera(dataset, settings), dataset[dataset.ids[0]].orientation),
        ]
        for dataset in datasets
    ]
    return fingerprint_json([kind, settings.identity(), data])


def _is_trained(out: Path, identity: str) -> bool:
    if not (out / CONFIG).is_file():
        return False
    config = read_json(out / CONFIG)
    _require_same(out, identity, config.get("identity") if isinstance(config, dict) else None)
    (out / RESUME).unlink(missing_ok=True)  # left by a process killed just before it deleted it
    return True


def _require_same_training(out: Path, identity: str) -> None:
    """Raise if the folder has another unfinished training, before any frame is read."""
    if (out / RESUME).is_file():
        _require_same(out, identity, read_about(out / RESUME).get("identity"))


def _require_same(out: Path, identity: str, found: object) -> None:
    if found != identity:
        raise StrapError(
            f"'{out}' holds a representation with other settings or data: choose another output "
            "folder, or remove it"
        )


class _Trainer:
    def __init__(
        self,
        kind: Kind,
        samples: Samples,
        out: Path,
        settings: RepresentationSettings,
        device: torch.device,
        identity: str,
    ) -> None:
        self.out, self.settings, self.device, self.identity = out, settings, device, identity
        self.pictures = torch.from_numpy(samples.pictures).to(device)
        self.actions = torch.from_numpy(samples.actions).to(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            self.model = RepresentationVAE(kind, settings, samples.actions.shape[1])
        self.model.to(device)
        if device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        mean, spread = (f(samples.actions, 0, np.float64) for f in (np.mean, np.std))
        self.model.action_mean.copy_(torch.from_numpy(mean))
        self.model.action_std.copy_(_divisor(torch.from_numpy(spread)))
        rate = settings.rate(kind)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=rate, fused=True, capturable=device.type == "cuda"
        )
        self._recorded = RecordedStep(self._compute, self.optimizer, device)
        self.sums = torch.zeros(len(LOSSES), device=device)
        self.step = 0
        self.losses: list[dict[str, float]] = []
        self._resume()

    def run(self, progress: Progress) -> None:
        """Train until the last step."""
        settings = self.settings
        count = 0
        self.model.train()
        while self.step < settings.steps:
            self._update()
            self.step, count = self.step + 1, count + 1
            last = self.step == settings.steps
            saves = last or self.step % settings.save_every == 0
            if saves or self.step % settings.log_every == 0:
                self._log(self.sums / count)
                self.sums.zero_()
                count = 0
            if saves and not last:
                self._save()
            if last or self.step % settings.log_every == 0:
                progress("training", self.step, settings.steps)

    def _update(self) -> None:
        # Sampled from seed and step, so that a resumed training needs no generator's state.
        rng = np.random.default_rng([self.settings.seed, self.step])
        rows = torch.from_numpy(rng.integers(0, len(self.pictures), self.settings.batch))
        shape = (self.settings.batch, self.settings.latent)
        noise = torch.from_numpy(rng.standard_normal(shape, np.float32))
        if self.device.type == "cuda":
            self._recorded(rows, noise)
        else:
            self._compute(rows.to(self.device), noise.to(self.device))

    def _compute(self, rows: Tensor, noise: Tensor) -> None:
        with self._autocast():
            losses = self.model.losses(to_channels(self.pictures[rows]), self.actions[rows], noise)
        loss = losses[0] + losses[1] + self.settings.kl_weight * losses[2]
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.sums += losses.detach()

    def _autocast(self) -> AbstractContextManager[object]:
        if self.device.type != "cuda":
            return nullcontext()
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    def _log(self, means: Tensor) -> None:
        parts = dict(zip(LOSSES, means.tolist(), strict=True))
        loss = parts["picture"] + parts["action"] + self.settings.kl_weight * parts["divergence"]
        if not np.isfinite(loss):
            raise StrapError(f"the loss is {loss} at step {self.step}: lower learning_rate")
        self.losses.append({"step": self.step, "loss": loss, **parts})

    def _save(self) -> None:
        tensors = collect_learning(self.model, self.optimizer, "model")
        about = {"identity": self.identity, "step": self.step, "losses": self.losses}
        write_tensors(self.out / RESUME, tensors, about)

    def _resume(self) -> None:
        file = self.out / RESUME
        if not file.is_file():
            return
        about, tensors = read_about(file), read_tensors(file)
        try:
            restore_learning(tensors, self.model, self.optimizer, "model")
            self.step, self.losses = int(about["step"]), list(about["losses"])
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise StrapError(
                f"'{file}' is damaged ({describe_error(error)}): remove it to train again "
                "from step 0"
            ) from error

    @torch.no_grad()
    def finish(self, datasets: Sequence[str]) -> None:
        """Measure the spread of the codes, then write the weights and config.json."""
        self.model.eval()
        starts = range(0, len(self.pictures), BATCH)
        batches = [slice(start, start + BATCH) for start in starts]
        means = torch.cat(
            [
                self.model.encode(to_channels(self.pictures[rows]), self.actions[rows])[0]
                for rows in batches
            ]
        )
        self.model.latent_spread.copy_(_divisor(means.var(0, correction=0).sum().sqrt()))
        write_tensors(self.out / WEIGHTS, self.model.state_dict())
        config = {
            "format": FORMAT,
            "kind": self.model.kind,
            "settings": asdict(self.settings),
            "action_size": self.model.action_size,
            "identity": self.identity,
            "datasets": list(datasets),
            "losses": self.losses,
            "versions": versions(),
        }
        write_json(self.out / CONFIG, config)
        (self.out / RESUME).unlink(missing_ok=True)


def _divisor(spread: Tensor) -> Tensor:
    """Return standard deviations to divide by: 1 in place of those that are nearly 0."""
    return torch.where(spread > LEAST_SPREAD, spread, 1)
