"""A trained representation: it is opened from disk, embeds datasets, and reconstructs frames.

OUT/
  representation.safetensors   weights, and the spread of codes and actions
  config.json                  kind, settings, training data, losses; written last
  resume.safetensors           state of an unfinished training: weights, optimiser, losses
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from strap.atomic import read_json
from strap.datasets.base import Dataset
from strap.datasets.untrusted import describe_error
from strap.embeddings import begin_embedding, finish_store, is_embedded, open_or_create
from strap.embeddings.work import EmbeddingJob, EmbeddingQueue
from strap.encoders.network import choose_device, weights_fingerprint
from strap.errors import StrapError, unknown
from strap.policies.checkpoints import read_tensors
from strap.progress import Progress, silent
from strap.representations.model import RepresentationVAE, to_channels
from strap.representations.samples import (
    Samples,
    choose_camera,
    read_trajectories,
    require_actions,
)
from strap.representations.settings import Kind, RepresentationSettings, require_whole
from strap.store import EmbeddingStore, Session, StoreConfig
from strap.store.layout import SHARD_BYTES
from strap.types import Array

FORMAT = "strap-representation"
WEIGHTS, CONFIG = "representation.safetensors", "config.json"
BATCH = 256
"""frames encoded at a time"""
MAX_ACTION_SIZE = 8_192


@dataclass(frozen=True, eq=False, repr=False)
class Representation:
    """A trained representation of single frames; `embed` makes a store of their vectors."""

    path: Path
    model: RepresentationVAE
    """in evaluation mode, on its device"""
    losses: tuple[dict[str, float], ...] = ()
    """the log of the training: step, loss and its parts"""

    def __repr__(self) -> str:
        return f"Representation('{self.path}', {self.kind}, {self.dim}-d)"

    @property
    def kind(self) -> Kind:
        """`br` or `fr`."""
        return self.model.kind

    @property
    def settings(self) -> RepresentationSettings:
        """The settings of its training."""
        return self.model.settings

    @property
    def dim(self) -> int:
        """Length of a frame's vector."""
        return self.settings.latent + self.model.action_size

    @cached_property
    def config(self) -> dict[str, Any]:
        """The identity of the vectors in a store; its name changes with the weights."""
        weights = weights_fingerprint(self.model)
        return {"name": f"{self.kind}-{weights[:8]}", "kind": self.kind, "weights": weights}

    def embed(
        self, dataset: Dataset, out: str | Path, *, progress: Progress = silent
    ) -> EmbeddingStore:
        """Embed a dataset into a store, one vector per frame; existing vectors are kept.

        For `br` a vector is the posterior mean and the action, each divided by its spread in the
        training data so that both weigh the same (`RepresentationVAE.keys`); for `fr` it is the
        posterior mean. The store's one camera is named after the kind. Ids, instructions and
        fingerprints are those of a vision store of the same camera.

        Args:
            dataset: the dataset to embed.
            out: the store's folder: a new one, or one made with the same representation.
            progress: called with (what, frames done, frames in total).
        """
        out, camera = Path(out).expanduser(), choose_camera(dataset, self.settings)
        config = StoreConfig(self.config, "float32", self.dim, (self.kind,))
        store = open_or_create(out, config, dataset)
        if is_embedded(store, dataset):
            return store
        start = begin_embedding(store, dataset)
        session = Session(out, config)
        dataset.fetch([camera], progress)
        work = EmbeddingQueue(dataset, session, (camera,), resume=False)
        done = 0
        try:
            for jobs in work.rounds():
                for job in jobs:
                    done += self._embed_job(job, dataset, camera, session)
                    progress("embedding", done, max(work.images, done))
        finally:
            session.close()
        return finish_store(dataset, out, start)

    def _embed_job(self, job: EmbeddingJob, dataset: Dataset, camera: str, session: Session) -> int:
        if self.kind == "br":
            for trajectory in job.trajectories:
                require_actions(trajectory, self.model.action_size, dataset)
        read = read_trajectories(job.trajectories, camera, self.kind, self.settings)
        count = 0
        for one, samples in zip(job.begun, read, strict=True):
            session.add(one, [self.encode(samples)], samples.fingerprint)
            count += len(samples)
        if session.nbytes > SHARD_BYTES:
            session.flush()
        return count

    @torch.no_grad()
    def encode(self, samples: Samples) -> Array:
        """Return the vectors [n d] of frames."""
        keys = [self.model.keys(*batch).cpu().numpy() for batch in self._batches(samples)]
        return np.concatenate(keys)

    @torch.no_grad()
    def reconstruct(self, samples: Samples) -> Array:
        """Return the decoded posterior means: images uint8 [n s s 3] or flows float32 [n s s 2]."""
        pictures = []
        for batch in self._batches(samples):
            decoded = self.model.picture_decoder(self.model.encode(*batch)[0])
            pictures.append(decoded.permute(0, 2, 3, 1).cpu().numpy())
        values = np.concatenate(pictures)
        if self.kind == "fr":
            return values
        return np.asarray((values * 255).round().clip(0, 255), np.uint8)

    def _batches(self, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
        device = self.model.latent_spread.device
        for start in range(0, len(samples), BATCH):
            pictures = torch.from_numpy(samples.pictures[start : start + BATCH]).to(device)
            actions = torch.from_numpy(samples.actions[start : start + BATCH]).to(device)
            yield to_channels(pictures), actions


def open_representation(path: str | Path, *, device: str = "auto") -> Representation:
    """Open a representation that `train_representation` finished.

    Args:
        path: its folder.
        device: `auto`, `cpu` or `cuda`.
    """
    path = Path(path).expanduser()
    if not (path / CONFIG).is_file():
        raise StrapError(
            f"'{path}' is not a finished representation (it has no {CONFIG}): run its training "
            "again, which resumes where it stopped"
        )
    config = read_json(path / CONFIG)
    try:
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError("it does not describe a representation")
        if config["kind"] not in get_args(Kind):
            raise unknown("kind of representation", config["kind"], get_args(Kind))
        settings = RepresentationSettings.from_json(config["settings"])
        require_whole(config["action_size"], "action_size", 0, MAX_ACTION_SIZE)
        losses = tuple(dict(row) for row in config["losses"])
    except (AttributeError, KeyError, TypeError, ValueError, StrapError) as error:
        wrong = error if isinstance(error, StrapError) else describe_error(error)
        raise StrapError(
            f"'{path / CONFIG}' is damaged ({wrong}): copy it again, or train again"
        ) from error
    model = RepresentationVAE(config["kind"], settings, config["action_size"])
    _load_weights(model, path / WEIGHTS)
    return Representation(path, model.to(choose_device(device)).eval(), losses)


def _load_weights(model: RepresentationVAE, file: Path) -> None:
    tensors = read_tensors(file)
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    try:
        if bad:
            raise ValueError(f"'{bad[0]}' holds values that are not finite")
        model.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        raise StrapError(
            f"'{file}' does not fit its {CONFIG} ({describe_error(error)}): copy both again, or "
            "train again"
        ) from error
