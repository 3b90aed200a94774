"""Stores made from arrays, without a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from strap.artifacts import write_json
from strap.store import EmbeddingStore, ShardWriter, StoreConfig, create_store, open_store


def make_store(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: str = "float32",
    name: str = "made",
    per_shard: int | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> EmbeddingStore:
    first = next(iter(arrays.values()))
    config = StoreConfig({"name": name}, dtype, first.shape[1], ("camera",))
    create_store(path, config)
    writer = ShardWriter(path, config)
    for index, (key, array) in enumerate(arrays.items(), 1):
        writer.add(
            [array],
            id=key,
            instruction=f"do {key}",
            fingerprint=(fingerprints or {}).get(key, f"{path}/{key}"),
            stamp="",
        )
        if per_shard and index % per_shard == 0:
            writer.flush()
    writer.flush()
    write_json(path / "manifest.json", {"dataset": f"{path}.data"})
    return open_store(path)
