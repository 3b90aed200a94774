"""Embedding of a dataset into a store: resumable, and shared by several processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from strap.atomic import write_json
from strap.datasets.base import Dataset
from strap.embeddings.cluster import embed_on_ray
from strap.embeddings.devices import embed_on_devices
from strap.embeddings.local import embed_here
from strap.embeddings.settings import Compile, EmbeddingSettings, Engine, parse_part
from strap.embeddings.work import is_same_place, stamp_trajectory
from strap.encoders import Encoder, EncoderSpec, resolve_devices
from strap.errors import StrapError, unknown
from strap.locks import hold_lock
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.ray import require_ray
from strap.store import (
    EmbeddingStore,
    Session,
    StoreConfig,
    StoreSource,
    begin_store,
    create_store,
    open_store,
    slug,
)
from strap.store.layout import list_partials, read_manifest

__all__ = [
    "Compile",
    "Dtype",
    "EmbeddingStore",
    "Engine",
    "begin_embedding",
    "choose_cameras",
    "embed",
    "finish_store",
    "is_embedded",
    "open_or_create",
    "open_store",
]

Dtype = Literal["float16", "float32"]
AGENT_VIEWS = ("agentview_rgb", "agentview_image", "observation.images.agentview")
"""Names of the agent view, the only camera that the paper compares in LIBERO. In a dataset without
any of them, the embeddings of all cameras are averaged."""


def embed(
    dataset: Dataset,
    encoder: Encoder | EncoderSpec | str,
    out: str | Path,
    *,
    cameras: Sequence[str] | None = None,
    dtype: Dtype = "float16",
    batch: int | None = None,
    workers: int | None = None,
    devices: Sequence[str] = ("auto",),
    compile: Compile = "auto",
    engine: Engine = "local",
    address: str | None = None,
    part: str | None = None,
    progress: Progress = silent,
) -> EmbeddingStore:
    """Embed the frames of a dataset into a store; frames that the store already has are skipped.

    Several processes may embed into one store at the same time, on one machine or over a shared
    file system: they share the work. A killed process loses only its current batch.

    Args:
        dataset: the dataset to embed.
        encoder: an `Encoder`, the name of one, or an `EncoderSpec`.
        out: the store's folder: a new one, or one made with the same encoder and cameras.
        cameras: the cameras to embed. The store has the vectors of each, and reading averages
            them. By default the agent view alone if there is one (as the paper does in LIBERO),
            else all cameras.
        dtype: `float16` or `float32`.
        batch: images per forward pass; by default the encoder's choice for its device.
        workers: number of threads that read frames (default: one per core, at most 8); or of
            processes that decode many videos (default: one per two cores, at most 16); or of Ray
            actors (default on a given cluster: one per GPU, or one per core if it has none).
        devices: where a named encoder runs: `auto` (all GPUs, or else the CPU), `cpu`, `cuda:0`, …;
            each of several devices gets its own process.
        compile: whether to compile the model; `auto` does so for long jobs on a GPU.
        engine: `local`, or `ray` for a cluster.
        address: address of a running Ray cluster; by default one is started on this machine's
            loopback interface.
        part: `2/4` embeds the second of four parts; `strap store merge` joins their stores.
        progress: called with (what, images done, images in total).
    """
    _validate(dataset, dtype)
    settings = EmbeddingSettings(batch, workers, compile, engine, address, parse_part(part))
    if engine == "ray":
        require_ray()
    spec = EncoderSpec(encoder) if isinstance(encoder, str) else encoder
    places = resolve_devices(spec, devices) if engine == "local" else ("cpu",)
    model = spec.load(places[0]) if isinstance(spec, EncoderSpec) else spec
    config = StoreConfig(dict(model.config), dtype, model.dim, choose_cameras(dataset, cameras))
    store = open_or_create(Path(out).expanduser(), config, dataset)
    if is_embedded(store, dataset):
        return store
    start = begin_embedding(store, dataset)
    if part is None:  # the trajectories of a part are known only while it is embedded
        missing = dataset.select([key for key in dataset.ids if key not in store])
        missing.fetch(config.cameras, progress)
    session = Session(store.path, config)
    if isinstance(spec, EncoderSpec) and len(places) > 1:
        del model  # each process loads its own
        embed_on_devices(dataset, spec, store, places, settings, progress)
    elif engine == "ray":
        embed_on_ray(dataset, spec, session, settings.batch_for(model), settings, progress)
    else:
        embed_here(dataset, model, session, settings, progress)
    is_whole = settings.part[1] == 1
    checked = dataset.ids if is_whole else _list_current(dataset, open_store(store.path))
    return finish_store(dataset, store.path, start, checked=checked)


def _list_current(dataset: Dataset, store: EmbeddingStore) -> list[str]:
    """Return the trajectories whose files have not changed since the store embedded them.

    The list is empty if the store lacks any trajectory of the dataset.
    """
    if not all(key in store for key in dataset.ids):
        return []
    return [t.id for t in dataset if store.entry(t.id).stamp == stamp_trajectory(t)]


def _validate(dataset: Dataset, dtype: str) -> None:
    if dtype not in get_args(Dtype):
        raise unknown("dtype", dtype, get_args(Dtype))
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")


@dataclass(frozen=True)
class EmbeddingStart:
    """The state of dataset and store when an embedding started."""

    fingerprint: str
    """the dataset's fingerprint; the next call notices any change after it was taken"""
    manifest: Mapping[str, Any]
    """the store's manifest; empty if the store was not complete"""


def begin_embedding(store: EmbeddingStore, dataset: Dataset) -> EmbeddingStart:
    """Delete the store's manifest, which `finish_store` writes again, and return the old state."""
    (store.path / "manifest.json").unlink(missing_ok=True)
    return EmbeddingStart(dataset.fingerprint(), store.manifest)


def finish_store(
    dataset: Dataset,
    out: Path,
    start: EmbeddingStart,
    *,
    checked: Collection[str] | None = None,
) -> EmbeddingStore:
    """Return the finished store; write its manifest unless trajectories are missing (other parts).

    Args:
        dataset: the embedded dataset, which may be a selection of the store's trajectories.
        out: the store's folder.
        start: what `begin_embedding` returned.
        checked: the trajectories whose vectors are known to be current; by default the dataset's.
    """
    with hold_lock(out / "lock"):
        found = read_manifest(out)  # written by another process, if there is one
        (out / "manifest.json").unlink(missing_ok=True)  # so that dropped trajectories are read
        store = open_store(out)
        if store.source.opening != dataset.opening:  # record the options of this reading
            source = replace(store.source, opening=dataset.opening)
            create_store(out, store.config, source)
        if all(key in store for key in dataset.ids):
            checked = dataset.ids if checked is None else checked
            _write_manifest(dataset, store, start.fingerprint, found or start.manifest, checked)
    return open_store(out)


def choose_cameras(dataset: Dataset, cameras: Sequence[str] | None) -> tuple[str, ...]:
    """Return the cameras to embed: those that are named, or else the agent view, or else all."""
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


def open_or_create(out: Path, config: StoreConfig, dataset: Dataset) -> EmbeddingStore:
    """Open or create the dataset's store; raise if it is of another dataset or encoder."""
    if len({slug(camera) for camera in config.cameras}) < len(config.cameras):
        raise StrapError(f"cameras {', '.join(config.cameras)} differ only in punctuation")
    begin_store(out, config, StoreSource(dataset.name, dataset.opening))
    store = open_store(out)
    for name in ("encoder", "dtype", "dim", "cameras"):
        old, new = getattr(store.config, name), getattr(config, name)
        if old != new:
            raise StrapError(
                f"store '{out}' was made with {name} {_short(old)}, not {_short(new)}; choose "
                "another output folder, or delete that store to create it again"
            )
    if not is_same_place(store.dataset, dataset.name):
        raise StrapError(
            f"store '{out}' holds dataset '{store.dataset}', not '{dataset.name}': choose another "
            "output folder (a store holds one dataset)"
        )
    return store


def _short(value: object) -> str:
    return str(value.get("name", value) if isinstance(value, dict) else value)


def is_embedded(store: EmbeddingStore, dataset: Dataset) -> bool:
    """Return whether the store holds every trajectory of the dataset as it is now."""
    if not store.complete or any(list_partials(store.path)):
        return False
    if not _is_made_from(store.manifest, dataset, dataset.fingerprint()):
        return False
    unchecked = set(store.manifest.get("unchecked", ()))
    return all(key in store and key not in unchecked for key in dataset.ids)


def _is_made_from(manifest: Mapping[str, Any], dataset: Dataset, fingerprint: str) -> bool:
    """Return whether a manifest describes the dataset's current files, read in the same way."""
    is_same_orientation = manifest.get("orientation") == dataset[dataset.ids[0]].orientation
    has_same_fields = manifest.get("fields", {}) == dataset.opening.get("fields", {})
    is_same_files = manifest.get("fingerprint") == fingerprint
    return is_same_orientation and has_same_fields and is_same_files


def _write_manifest(
    dataset: Dataset,
    store: EmbeddingStore,
    fingerprint: str,
    before: Mapping[str, Any],
    checked: Collection[str],
) -> None:
    """Write the manifest, which also lists the trajectories not checked since files changed."""
    present = set(dataset.full_dataset.ids) & set(store.ids)
    is_same = _is_made_from(before, dataset, fingerprint)
    unchecked = (set(before.get("unchecked", ())) if is_same else present) - set(checked)
    manifest = {
        "dataset": dataset.name,
        "format": dataset.format,
        "fingerprint": fingerprint,
        "orientation": dataset[dataset.ids[0]].orientation,
        "fields": dataset.opening.get("fields", {}),
        "encoder_fingerprint": fingerprint_json(dict(store.config.encoder)),
        "trajectories": len(present),
        "frames": sum(store.entry(key).length for key in present),
        "shards": sorted(store.shards),
        "dropped": [key for key in store.ids if key not in present],
        "unchecked": [key for key in store.ids if key in unchecked & present],
        "versions": versions(),
    }
    write_json(store.path / "manifest.json", manifest)
