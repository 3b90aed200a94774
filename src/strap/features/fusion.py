"""Further features beside an encoder's: gripper, end effector, instruction, any proprioception.

Features are concatenated, each divided by its spread over the prior, so the squared distance
of two frames is the sum of the features' squared distances, and every search stays as it is:

    fused = encoder's vector ‖ w₁ · (s / s₁) · gripper ‖ w₂ · (s / s₂) · position ‖ …

with s the spread of the encoder's vectors, sᵢ that of a feature, and wᵢ its weight (1 by default:
as much spread as the encoder's).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strap.datasets import Dataset
from strap.embeddings import finish_store, is_embedded, open_or_create
from strap.encoders.language import embed_instructions
from strap.errors import StrapError
from strap.positions import positions
from strap.provenance import fingerprint_json
from strap.store import Begun, EmbeddingStore, Session, StoreConfig, slug
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
"""Names under which datasets keep the gripper's opening, tried in this order."""


@dataclass(frozen=True)
class WeightedFeature:
    """A feature and how much it weighs."""

    name: str
    weight: float

    def __str__(self) -> str:
        return f"{self.name}={self.weight:g}"

    @classmethod
    def parse(cls, text: str) -> WeightedFeature:
        """Read `gripper`, `position=0.5` or `joint_states[0:3]=2`."""
        name, equals, number = text.rpartition("=")
        if not equals:
            return cls(text, 1.0)
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not (weight > 0 and math.isfinite(weight)):
            raise StrapError(
                f"feature '{text}': its weight must be a number above 0, as in gripper=0.5"
            )
        return cls(name, weight)

    def read(self, trajectory: Trajectory) -> Floats:
        """Return its values [t d] of a trajectory."""
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
    """Return how the end effector moves to the next frame; nothing at the last."""
    places = positions(trajectory)
    return np.diff(places, axis=0, append=places[-1:])


def _language(trajectory: Trajectory) -> Floats:
    """Return the instruction's vector for every frame."""
    if not trajectory.instruction:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no instruction: leave 'language' out of --fuse"
        )
    return np.repeat(_instruction_vector(trajectory.instruction), trajectory.length, axis=0)


@lru_cache(maxsize=65_536)
def _instruction_vector(instruction: str) -> Floats:
    return embed_instructions([instruction]).astype(np.float64)  # [1 d]


READERS: dict[str, Callable[[Trajectory], Floats]] = {
    "gripper": _gripper,
    "position": positions,
    "movement": _movement,
    "language": _language,
}
"""features that are computed or looked for; any other name is a proprioception"""


def fuse(
    stores: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    features: Sequence[str],
    folder: Path,
) -> list[EmbeddingStore]:
    """Return stores of fused features, made beside the given ones where they are missing.

    Args:
        stores: the encoder's features of the target and of each prior.
        datasets: the target and the priors, in the same order.
        features: what to add, as `WeightedFeature.parse` reads it.
        folder: where the fused stores are kept.
    """
    parsed = [WeightedFeature.parse(text) for text in features]
    spread = encoder_spread(stores, datasets)
    ratios = {feature.name: spread_ratio(feature.name, datasets, spread) for feature in parsed}
    return fuse_scaled(stores, datasets, parsed, ratios, folder)


def encoder_spread(stores: Sequence[EmbeddingStore], datasets: Sequence[Dataset]) -> float:
    """Return how much the encoder's features spread over the prior, all but the first store."""
    priors = list(zip(stores, datasets, strict=True))[1:]
    return _spread(store[key] for store, dataset in priors for key in dataset.ids)


def spread_ratio(name: str, datasets: Sequence[Dataset], spread: float) -> float:
    """Return a spread divided by that of a feature over the prior, all but the first dataset."""
    feature = WeightedFeature(name, 1.0)
    feature_spread = _spread(
        feature.read(trajectory) for prior in datasets[1:] for trajectory in prior
    )
    if not feature_spread:
        raise StrapError(f"feature '{name}' never changes in the prior: leave it out")
    return spread / feature_spread


def fuse_scaled(
    stores: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    features: Sequence[WeightedFeature],
    ratios: Mapping[str, float],
    folder: Path,
) -> list[EmbeddingStore]:
    """Return stores of fused features as `fuse` does, by spreads that are known already."""
    scales = {f: float(np.float32(f.weight * ratios[f.name])) for f in features}
    return [
        _fuse_store(store, dataset, scales, folder)
        for store, dataset in zip(stores, datasets, strict=True)
    ]


def _spread(arrays: Iterable[Array]) -> float:
    """Return the root of the mean squared distance of all rows [t d] from their mean."""
    count, total, squares = 0, np.zeros(1), 0.0
    origin: Floats | None = None  # the first row: what never changes has a spread of exactly 0
    for array in arrays:
        origin = np.asarray(array[0], np.float64) if origin is None else origin
        offsets = np.asarray(array, np.float64) - origin
        count += len(offsets)
        total = total + offsets.sum(axis=0)
        squares += float((offsets**2).sum())
    mean = total / max(count, 1)
    return math.sqrt(max(squares / max(count, 1) - float((mean**2).sum()), 0.0))


def _fuse_store(
    store: EmbeddingStore, dataset: Dataset, scales: dict[WeightedFeature, float], folder: Path
) -> EmbeddingStore:
    first = dataset[dataset.ids[0]]
    width = sum(feature.read(first).shape[1] for feature in scales)
    fused = [[feature.name, scale] for feature, scale in scales.items()]  # in their columns' order
    encoder = {**store.config.encoder, "fused": fused}
    config = StoreConfig(encoder, store.config.dtype, store.dim + width, ("fused",))
    identity = [dataset.name, encoder, store.cameras, store.config.dtype]
    out = folder / f"{slug(Path(dataset.label).stem)}-fused-{fingerprint_json(identity)[:12]}"
    made = open_or_create(out, config, dataset)
    if is_embedded(made, dataset):
        return made
    session = Session(out, config)
    try:
        for partial in session.adopt():
            session.discard(partial)
        missing = [key for key in dataset.ids if key not in session.places]
        for key in session.claim(dict.fromkeys(missing)):
            trajectory, entry = dataset[key], store.entry(key)
            begun = Begun(key, entry.length, entry.instruction, entry.stamp)
            session.add(begun, [_fused(store[key], trajectory, scales)], entry.fingerprint)
        session.flush()
    finally:
        session.close()
    return finish_store(dataset, out)


def _fused(vectors: Array, trajectory: Trajectory, scales: dict[WeightedFeature, float]) -> Array:
    columns = [feature.read(trajectory) * scale for feature, scale in scales.items()]
    return np.concatenate([np.asarray(vectors, np.float32), *columns], axis=1, dtype=np.float32)
