"""Embedding a dataset into a store: resumable, and nothing is embedded twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from strap.artifacts import Progress, fingerprint_json, is_free, silent, versions, write_json
from strap.datasets.base import Dataset
from strap.encoders import Encoder, checked_encode, load_encoder
from strap.errors import StrapError, unknown
from strap.store import (
    EmbeddingStore,
    ShardWriter,
    StoreConfig,
    create_store,
    open_store,
    slug,
)
from strap.types import Array, ContentHasher, Trajectory

__all__ = ["EmbeddingStore", "embed", "open_store"]

Dtype = Literal["float16", "float32"]
AGENT_VIEWS = ("agentview_rgb", "agentview_image", "observation.images.agentview")
"""Cameras the paper retrieves by alone (LIBERO); where none of them is there, all are averaged."""
BATCH = 64
SHARD_BYTES = 128 << 20
SHARD_SECONDS = 30.0


def embed(
    dataset: Dataset,
    encoder: Encoder | str,
    out: str | Path,
    *,
    cameras: Sequence[str] | None = None,
    dtype: Dtype = "float16",
    progress: Progress = silent,
) -> EmbeddingStore:
    """Embed every frame of a dataset into a store; only what the store lacks is embedded.

    Args:
        dataset: what to embed.
        encoder: an `Encoder`, or the name of one.
        out: the store's folder, new or begun before with the same encoder and cameras.
        cameras: which cameras; each is kept, reading averages them. By default the agent view
            alone where there is one (as the paper does in LIBERO), else all of them.
        dtype: `float16` or `float32`.
        progress: called with (what, frames done, frames in all).
    """
    if dtype not in get_args(Dtype):
        raise unknown("dtype", dtype, get_args(Dtype))
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    encoder = load_encoder(encoder) if isinstance(encoder, str) else encoder
    out = Path(out).expanduser()
    config = StoreConfig(dict(encoder.config), dtype, encoder.dim, choose_cameras(dataset, cameras))
    store = _open_or_create(out, config)
    if store.complete and store.manifest["fingerprint"] == dataset.fingerprint():
        return store
    (out / "manifest.json").unlink(missing_ok=True)
    _embed_missing(dataset, encoder, store, progress)
    _write_manifest(dataset, out)
    return open_store(out)


def choose_cameras(dataset: Dataset, cameras: Sequence[str] | None) -> tuple[str, ...]:
    """The cameras to embed: as asked, else the agent view, else all."""
    first = dataset[dataset.ids[0]]
    if cameras:
        for name in cameras:
            first.camera(name)
        return tuple(dict.fromkeys(cameras))
    if not first.cameras:
        raise StrapError(
            f"dataset '{dataset.path}' has no camera images in '{first.id}', so there is nothing "
            "to embed; record it with images, or render them first"
        )
    for name in AGENT_VIEWS:
        if name in first.cameras:
            return (name,)
    return tuple(first.cameras)


def _open_or_create(out: Path, config: StoreConfig) -> EmbeddingStore:
    if len({slug(camera) for camera in config.cameras}) < len(config.cameras):
        raise StrapError(f"cameras {', '.join(config.cameras)} differ only in punctuation")
    if not (out / "store.json").is_file():
        if not is_free(out):
            raise StrapError(
                f"'{out}' exists and is no embedding store; choose another output folder"
            )
        create_store(out, config)
        return open_store(out)
    store = open_store(out)
    for name in ("encoder", "dtype", "dim", "cameras"):
        old, new = getattr(store.config, name), getattr(config, name)
        if old != new:
            raise StrapError(
                f"store '{out}' was made with {name} {_short(old)}, not {_short(new)}; "
                "choose another output folder, or delete that store to make it anew"
            )
    return store


def _short(value: object) -> str:
    return str(value.get("name", value) if isinstance(value, dict) else value)


def _embed_missing(
    dataset: Dataset, encoder: Encoder, store: EmbeddingStore, progress: Progress
) -> None:
    writer = ShardWriter(store.path, store.config)
    started = time.monotonic()
    for done, trajectory in enumerate(dataset):
        progress("embedding", done, len(dataset))
        if _is_current(trajectory, store):
            continue
        vectors, fingerprint = embed_trajectory(trajectory, encoder, store.config.cameras)
        writer.add(
            vectors,
            id=trajectory.id,
            instruction=trajectory.instruction,
            fingerprint=fingerprint,
            stamp=trajectory.source.stamp(),
        )
        # A kill loses at most this much work.
        if writer.nbytes > SHARD_BYTES or time.monotonic() - started > SHARD_SECONDS:
            writer.flush()
            started = time.monotonic()
    writer.flush()
    progress("embedding", len(dataset), len(dataset))


def _is_current(trajectory: Trajectory, store: EmbeddingStore) -> bool:
    """Whether the store holds this very content: by the files' stamp, else by reading it."""
    if trajectory.id not in store:
        return False
    entry = store.entry(trajectory.id)
    if entry.length != trajectory.length or entry.instruction != trajectory.instruction:
        return False
    if entry.stamp == trajectory.source.stamp():
        return True
    return entry.fingerprint == trajectory.fingerprint(store.config.cameras)


def embed_trajectory(
    trajectory: Trajectory, encoder: Encoder, cameras: Sequence[str]
) -> tuple[list[Array], str]:
    """Vectors [t d] for each camera, and the content's fingerprint."""
    if trajectory.length == 0:
        raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
    vectors, hasher = [], ContentHasher(trajectory)
    for camera in cameras:
        parts = []
        for start in range(0, trajectory.length, BATCH):
            images = trajectory.frames(camera, start, min(start + BATCH, trajectory.length))
            hasher.update(images)
            where = f"trajectory '{trajectory.id}', camera '{camera}', from frame {start}"
            parts.append(checked_encode(encoder, images, where))
        vectors.append(np.concatenate(parts))
    return vectors, hasher.finish()


def _write_manifest(dataset: Dataset, out: Path) -> None:
    store = open_store(out)
    present = set(dataset.ids)
    manifest = {
        "dataset": dataset.name,
        "format": dataset.format,
        "fingerprint": dataset.fingerprint(),
        "encoder_fingerprint": fingerprint_json(dict(store.config.encoder)),
        "trajectories": len(present),
        "frames": sum(store.entry(key).length for key in present),
        "shards": sorted(store.shards),
        "dropped": [key for key in store.ids if key not in present],
        "versions": versions(),
    }
    write_json(out / "manifest.json", manifest)
