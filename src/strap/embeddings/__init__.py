"""Embedding a dataset into a store: resumable, shared by several writers, nothing done twice."""

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
from strap.locks import locked
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
"""Cameras the paper retrieves by alone (LIBERO); where none of them is there, all are averaged."""


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
    """Embed every frame of a dataset into a store; only what the store lacks is embedded.

    Several processes may embed into one store at the same time, on one machine or over a shared
    file system: they share the work. A killed one loses the batch in flight.

    Args:
        dataset: what to embed.
        encoder: an `Encoder`, the name of one, or an `EncoderSpec`.
        out: the store's folder, new or begun before with the same encoder and cameras.
        cameras: which cameras; each is kept, reading averages them. By default the agent view
            alone where there is one (as the paper does in LIBERO), else all of them.
        dtype: `float16` or `float32`.
        batch: images per forward pass; by default what the encoder likes on its device.
        workers: threads that read frames, by default one per core, at most 8; or processes that
            decode many videos, by default one for two cores, at most 16; or Ray's actors, on a
            given cluster by default one for each of its GPUs, or cores where it has none.
        devices: where a named encoder runs: `auto` (all GPUs there are, else the CPU), `cpu`,
            `cuda:0`, …; several run in a process each.
        compile: compile the model: `auto` does for long jobs on a GPU.
        engine: `local`, or `ray` for a cluster.
        address: of a running Ray cluster; by default one is started on this machine's loopback.
        part: `2/4` embeds the second of four parts; `strap store merge` joins their stores.
        progress: called with (what, images done, images in all).
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
    if part is None:  # which trajectories a part has is found while it is embedded
        lacking = dataset.select([key for key in dataset.ids if key not in store])
        lacking.fetch(config.cameras, progress)
    session = Session(store.path, config)
    if isinstance(spec, EncoderSpec) and len(places) > 1:
        del model  # each process loads its own
        embed_on_devices(dataset, spec, store, places, settings, progress)
    elif engine == "ray":
        embed_on_ray(dataset, spec, session, settings.batch_for(model), settings, progress)
    else:
        embed_here(dataset, model, session, settings, progress)
    whole = settings.part[1] == 1
    checked = dataset.ids if whole else _list_current(dataset, open_store(store.path))
    return finish_store(dataset, store.path, start, checked=checked)


def _list_current(dataset: Dataset, store: EmbeddingStore) -> list[str]:
    """Return the trajectories of files that are as they were when the store took them in."""
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
    """What held when an embedding began."""

    fingerprint: str
    """the dataset's: what changes from here on is noticed by the next call"""
    manifest: Mapping[str, Any]
    """the store's; empty where it was not complete"""


def begin_embedding(store: EmbeddingStore, dataset: Dataset) -> EmbeddingStart:
    """Take the store's manifest away until `finish_store` writes the next one."""
    (store.path / "manifest.json").unlink(missing_ok=True)
    return EmbeddingStart(dataset.fingerprint(), store.manifest)


def finish_store(
    dataset: Dataset,
    out: Path,
    start: EmbeddingStart,
    *,
    checked: Collection[str] | None = None,
) -> EmbeddingStore:
    """Return the store, with its manifest where nothing is lacking (one part alone is not all).

    Args:
        dataset: what was embedded, perhaps a selection of what the store holds.
        out: the store's folder.
        start: what held when the embedding began.
        checked: the trajectories that the store holds as they are now; by default the dataset's.
    """
    with locked(out / "lock"):
        found = read_manifest(out)  # another writer's, where there is one
        (out / "manifest.json").unlink(missing_ok=True)  # what it says was dropped is looked for
        store = open_store(out)
        if store.source.opening != dataset.opening:  # the store is of what was read now
            source = replace(store.source, opening=dataset.opening)
            create_store(out, store.config, source)
        if all(key in store for key in dataset.ids):
            checked = dataset.ids if checked is None else checked
            _write_manifest(dataset, store, start.fingerprint, found or start.manifest, checked)
    return open_store(out)


def choose_cameras(dataset: Dataset, cameras: Sequence[str] | None) -> tuple[str, ...]:
    """Return the cameras to embed: those named, else the agent view, else all."""
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
    """Open the dataset's store, or begin it; one of another dataset or encoder is refused."""
    if len({slug(camera) for camera in config.cameras}) < len(config.cameras):
        raise StrapError(f"cameras {', '.join(config.cameras)} differ only in punctuation")
    begin_store(out, config, StoreSource(dataset.name, dataset.opening))
    store = open_store(out)
    for name in ("encoder", "dtype", "dim", "cameras"):
        old, new = getattr(store.config, name), getattr(config, name)
        if old != new:
            raise StrapError(
                f"store '{out}' was made with {name} {_short(old)}, not {_short(new)}; "
                "choose another output folder, or delete that store to make it anew"
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
    """Return whether a manifest speaks of the dataset's files as they are, read as they are."""
    same_way_up = manifest.get("orientation") == dataset[dataset.ids[0]].orientation
    same_fields = manifest.get("fields", {}) == dataset.opening.get("fields", {})
    return same_way_up and same_fields and manifest.get("fingerprint") == fingerprint


def _write_manifest(
    dataset: Dataset,
    store: EmbeddingStore,
    fingerprint: str,
    before: Mapping[str, Any],
    checked: Collection[str],
) -> None:
    """Write what the store holds, and which of it nobody has looked at since the files changed."""
    present = set(dataset.whole.ids) & set(store.ids)
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
