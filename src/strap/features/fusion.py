"""Fusion of an encoder's features with others: gripper, position, instruction, proprioception.

Features are scaled to a common spread over the prior and concatenated:

    fused = encoder's vector ‖ w₁ · (s / s₁) · gripper ‖ w₂ · (s / s₂) · position ‖ …

with s the spread of the encoder's vectors, sᵢ the spread of feature i, and wᵢ its weight (1 by
default: the same spread as the encoder's vectors). So the squared distance of two frames is the sum
of the features' squared distances, and the search needs no change.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strap.datasets import Dataset
from strap.embeddings import begin_embedding, finish_store, is_embedded, open_or_create
from strap.encoders.language import TEXT_ENCODER, embed_instructions
from strap.errors import StrapError
from strap.position_columns import positions
from strap.provenance import fingerprint_json
from strap.store import EmbeddingStore, Entry, PendingTrajectory, Session, StoreConfig, slug
from strap.types import Array, Trajectory

Floats = npt.NDArray[np.float64]
GRIPPERS = (
    "gripper_states",
    "robot0_gripper_qpos",
    "gripper_qpos",
    "gripper_position",
    "gripper",
    "observation.gripper_states",
    "observation.gripper_position",
    "observation.gripper",
    "observation.state.gripper_position",
)
"""Names under which datasets store the gripper's opening, tried in this order."""
LANGUAGE = "language"
"""the name of the feature that is the text embedding of the instruction"""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class WeightedFeature:
    """A feature and its weight."""

    name: str
    weight: float
    text_encoder: str = TEXT_ENCODER
    """the text encoder of `language`; other features ignore it"""

    def __str__(self) -> str:
        return f"{self.name}={self.weight:g}"

    @property
    def identity(self) -> list[str]:
        """The name, and for `language` the text encoder."""
        return [self.name, self.text_encoder] if self.name == LANGUAGE else [self.name]

    @classmethod
    def parse(cls, text: str, text_encoder: str = TEXT_ENCODER) -> WeightedFeature:
        """Parse a text such as `gripper`, `position=0.5` or `joint_states[0:3]=2`."""
        name, equals, number = text.rpartition("=")
        if not equals:
            return cls(text, 1.0, text_encoder)
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not (weight > 0 and math.isfinite(weight)):
            raise StrapError(
                f"feature '{text}': its weight must be a number above 0, as in gripper=0.5"
            )
        return cls(name, weight, text_encoder)

    def read(self, trajectory: Trajectory) -> Floats:
        """Return the feature's values [t d] in a trajectory."""
        if self.name == LANGUAGE:
            return _language(trajectory, self.text_encoder)
        reader = READERS.get(self.name)
        return reader(trajectory) if reader else positions(trajectory, self.name)


def _gripper(trajectory: Trajectory) -> Floats:
    for name in GRIPPERS:
        if name in trajectory.proprioception:
            return positions(trajectory, name)
    raise StrapError(
        f"trajectory '{trajectory.id}' has no gripper among its proprioception "
        f"({', '.join(trajectory.proprioception) or 'none'}): name its columns instead, as in "
        "--fuse 'NAME[7]'"
    )


def _movement(trajectory: Trajectory) -> Floats:
    """Return the end effector's displacement to the next frame [t p]; 0 at the last frame."""
    places = positions(trajectory)
    return np.diff(places, axis=0, append=places[-1:])


def _language(trajectory: Trajectory, text_encoder: str) -> Floats:
    """Return the instruction's embedding, repeated for every frame [t d]."""
    if not trajectory.instruction:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no instruction: leave 'language' out of --fuse"
        )
    vector = _instruction_vector(trajectory.instruction, text_encoder)
    return np.repeat(vector, trajectory.length, axis=0)


@lru_cache(maxsize=65_536)
def _instruction_vector(instruction: str, text_encoder: str) -> Floats:
    return embed_instructions([instruction], text_encoder).astype(np.float64)  # [1 d]


READERS: dict[str, Callable[[Trajectory], Floats]] = {
    "gripper": _gripper,
    "position": positions,
    "movement": _movement,
}
"""feature name -> function that reads it; every name but these and `language` is looked up in the
proprioception"""


def fuse(
    stores: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    features: Sequence[str],
    folder: Path,
    *,
    text_encoder: str = TEXT_ENCODER,
) -> list[EmbeddingStore]:
    """Return stores of fused features; write those that are missing or outdated.

    Args:
        stores: the encoder's features of the target and of each prior.
        datasets: the target and the priors, in the same order.
        features: the features to add, as texts for `WeightedFeature.parse`.
        folder: where the fused stores are written.
        text_encoder: the text encoder of `language`.
    """
    parsed = [WeightedFeature.parse(text, text_encoder) for text in features]
    spread = encoder_spread(stores, datasets)
    ratios = {feature.name: spread_ratio(feature, datasets, spread) for feature in parsed}
    return fuse_scaled(stores, datasets, parsed, ratios, folder)


def encoder_spread(stores: Sequence[EmbeddingStore], datasets: Sequence[Dataset]) -> float:
    """Return the spread of the encoder's features over the priors (all stores but the first)."""
    priors = list(zip(stores, datasets, strict=True))[1:]
    return _spread(store[key] for store, dataset in priors for key in dataset.ids)


def spread_ratio(feature: WeightedFeature, datasets: Sequence[Dataset], spread: float) -> float:
    """Return `spread` / the spread of a feature over the priors (all datasets but the first)."""
    feature_spread = _spread(
        feature.read(trajectory) for prior in datasets[1:] for trajectory in prior
    )
    if not feature_spread:
        raise StrapError(f"feature '{feature.name}' never changes in the prior: leave it out")
    return spread / feature_spread


def fuse_scaled(
    stores: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    features: Sequence[WeightedFeature],
    ratios: Mapping[str, float],
    folder: Path,
) -> list[EmbeddingStore]:
    """Return stores of fused features as `fuse` does, with spread ratios computed before.

    Args:
        stores: the encoder's features of the target and of each prior.
        datasets: the target and the priors, in the same order.
        features: the features to add.
        ratios: feature name -> `spread_ratio`.
        folder: where the fused stores are written.
    """
    scales = {f: float(np.float32(f.weight * ratios[f.name])) for f in features}
    return [
        _fuse_store(store, dataset, scales, folder)
        for store, dataset in zip(stores, datasets, strict=True)
    ]


def _spread(arrays: Iterable[Array]) -> float:
    """Return the root mean squared distance of all rows [t d] from their mean."""
    count, total, squares = 0, np.zeros(1), 0.0
    origin: Floats | None = None  # the first row, so that constant rows have a spread of exactly 0
    for array in arrays:
        origin = np.asarray(array[0], np.float64) if origin is None else origin
        offsets = np.asarray(array, np.float64) - origin
        count += len(offsets)
        total = total + offsets.sum(axis=0)
        squares += float((offsets**2).sum())
    mean = total / max(count, 1)
    return math.sqrt(max(squares / max(count, 1) - float((mean**2).sum()), 0.0))


def _fuse_store(
    store: EmbeddingStore,
    dataset: Dataset,
    scales: Mapping[WeightedFeature, float],
    folder: Path,
) -> EmbeddingStore:
    """Return the store of a dataset's fused features; write what is missing or outdated."""
    first = dataset[dataset.ids[0]]
    width = sum(feature.read(first).shape[1] for feature in scales)
    fused = [[*feature.identity, scale] for feature, scale in scales.items()]  # in column order
    encoder = {**store.config.encoder, "fused": fused}
    config = StoreConfig(encoder, store.config.dtype, store.dim + width, ("fused",))
    identity = [dataset.name, encoder, store.cameras, store.config.dtype, dataset.read_as]
    out = folder / f"{slug(Path(dataset.label).stem)}-fused-{fingerprint_json(identity)[:12]}"
    fused_store = open_or_create(out, config, dataset)
    stamps = {t.id: _stamp(store.entry(t.id), _columns(t, scales)) for t in dataset}
    entries = {key: fused_store.entry(key) for key in fused_store}
    if is_embedded(fused_store, dataset) and not _find_stale(stamps, entries):
        return fused_store
    start = begin_embedding(fused_store, dataset)
    session, written = Session(out, config), set[str]()
    try:
        while stale := _find_stale(stamps, session.places, written):
            for partial in session.adopt():
                session.discard(partial)
            claimed = session.claim(stale)
            for key in claimed:
                _add_fused(session, store, dataset[key], scales, stamps[key])
            written.update(claimed)
            session.flush()
            if not claimed:  # another process is writing them
                time.sleep(POLL_SECONDS)
    finally:
        session.close()
    return finish_store(dataset, out, start)


def _add_fused(
    session: Session,
    store: EmbeddingStore,
    trajectory: Trajectory,
    scales: Mapping[WeightedFeature, float],
    stamp: str,
) -> None:
    entry, columns = store.entry(trajectory.id), _columns(trajectory, scales)
    vectors = np.concatenate([np.asarray(store[entry.id], np.float32), columns], axis=1)
    begun = PendingTrajectory(entry.id, entry.length, entry.instruction, stamp)
    session.add(begun, [vectors], entry.fingerprint)


def _columns(trajectory: Trajectory, scales: Mapping[WeightedFeature, float]) -> Array:
    """Return the columns that are appended to a trajectory's vectors, float32 [t d]."""
    columns = [feature.read(trajectory) * scale for feature, scale in scales.items()]
    return np.concatenate(columns, axis=1, dtype=np.float32)


def _stamp(entry: Entry, columns: Array) -> str:
    """Return a hash of everything that a trajectory's fused vectors depend on."""
    vectors = [entry.fingerprint, entry.instruction, list(entry.checksums)]
    return fingerprint_json([*vectors, zlib.crc32(columns.tobytes())])


def _find_stale(
    stamps: Mapping[str, str], entries: Mapping[str, Entry], written: Collection[str] = ()
) -> dict[str, Entry | None]:
    """Return the missing and outdated trajectories, each with its entry if it has one.

    Args:
        stamps: trajectory -> the stamp that its entry should have.
        entries: the entries of the store.
        written: trajectories that this process has written. They are left out: if another process
            has replaced one since, that process is right.
    """
    found = {key: entries.get(key) for key in stamps if key not in written}
    return {
        key: entry for key, entry in found.items() if entry is None or entry.stamp != stamps[key]
    }
