"""Stores made from arrays, and a dataset with what embedding it must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from strap.atomic import write_json
from strap.store import (
    EmbeddingStore,
    PendingTrajectory,
    Session,
    StoreConfig,
    create_store,
    open_store,
)

LENGTHS = (70, 1, 90, 33, 128, 40, 64, 25, 100, 57, 80, 19, 110, 46, 60, 77)
IMAGES = 2 * sum(LENGTHS)


def write_dataset(file: Path, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Path:
    """Two cameras of different sizes."""
    rng = np.random.default_rng(seed)
    with h5py.File(file, "w") as handle:
        for index, length in enumerate(lengths):
            demo = handle.create_group(f"data/demo_{index}")
            demo["actions"] = rng.random((length, 7))
            demo["obs/left"] = rng.integers(0, 255, (length, 8, 8, 3), dtype=np.uint8)
            demo["obs/right"] = rng.integers(0, 255, (length, 12, 8, 3), dtype=np.uint8)
    return file


def assert_same(one: EmbeddingStore, other: EmbeddingStore) -> None:
    assert one.ids == other.ids
    assert (one.config, one.complete) == (other.config, other.complete)
    for key in one:
        assert replace(one.entry(key), offset=0) == replace(other.entry(key), offset=0)
        for camera in one.config.cameras:
            assert np.array_equal(one.of_camera(key, camera), other.of_camera(key, camera))
    assert one.verify() == other.verify() == []


def make_store(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: str = "float32",
    name: str = "made",
    per_shard: int | None = None,
    fingerprints: Mapping[str, str] | None = None,
    fused: Sequence[Sequence[object]] | None = None,
) -> EmbeddingStore:
    first = next(iter(arrays.values()))
    encoder = {"name": name} if fused is None else {"name": name, "fused": fused}
    config = StoreConfig(encoder, dtype, first.shape[1], ("camera",))
    create_store(path, config)
    session = Session(path, config)
    for index, (key, array) in enumerate(arrays.items(), 1):
        fingerprint = (fingerprints or {}).get(key, f"{path}/{key}")
        session.add(PendingTrajectory(key, len(array), f"do {key}", ""), [array], fingerprint)
        if per_shard and index % per_shard == 0:
            session.flush()
    session.flush()
    write_json(path / "manifest.json", {"dataset": f"{path}.data"})
    return open_store(path)
