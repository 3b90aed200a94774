"""Embedding a dataset into a store: resumable, shared by several writers, nothing done twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from strap.atomic import write_json
from strap.datasets.base import Dataset
from strap.embeddings.cluster import embed_on_ray
from strap.embeddings.devices import embed_on_devices
from strap.embeddings.local import embed_here
from strap.embeddings.settings import Compile, EmbeddingSettings, Engine, parse_part
from strap.embeddings.work import is_same_place
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
    create_store,
    open_store,
    slug,
)
from strap.store.layout import list_partials

__all__ = [
    "Compile",
    "Dtype",
    "EmbeddingStore",
    "Engine",
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
    (store.path / "manifest.json").unlink(missing_ok=True)
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
    return finish_store(dataset, store.path)


def _validate(dataset: Dataset, dtype: str) -> None:
    if dtype not in get_args(Dtype):
        raise unknown("dtype", dtype, get_args(Dtype))
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")


def finish_store(dataset: Dataset, out: Path) -> EmbeddingStore:
    """Return the store, with its manifest where nothing is lacking (one part alone is not all)."""
    with locked(out / "lock"):
        store = open_store(out)
        if all(key in store for key in dataset.ids):
            _write_manifest(dataset, store)
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
    if not (out / "store.json").is_file():
        if _has_other_files(out):
            raise StrapError(
                f"'{out}' exists and is no embedding store; choose another output folder"
            )
        with locked(out / "lock"):  # two that begin one store at the same moment agree on it
            if not (out / "store.json").is_file():
                for leftover in out.glob(".*.tmp"):
                    leftover.unlink()
                create_store(out, config, dataset=dataset.name)
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


def _has_other_files(out: Path) -> bool:
    if not out.exists():
        return False
    if not out.is_dir():
        return True
    names = [file.name for file in out.iterdir()]
    others = [n for n in names if n != "lock" and not (n.startswith(".") and n.endswith(".tmp"))]
    return bool(others) and not (out / "store.json").is_file()  # another writer has just begun it


def _short(value: object) -> str:
    return str(value.get("name", value) if isinstance(value, dict) else value)


def is_embedded(store: EmbeddingStore, dataset: Dataset) -> bool:
    """Return whether the store holds every trajectory of the dataset as it is now."""
    if not store.complete or any(list_partials(store.path)):
        return False
    is_same = store.manifest.get("fingerprint") == dataset.fingerprint()
    is_upright = store.manifest.get("orientation") == dataset[dataset.ids[0]].orientation
    return is_same and is_upright and all(key in store for key in dataset.ids)


def _write_manifest(dataset: Dataset, store: EmbeddingStore) -> None:
    present = set(dataset.whole.ids) & set(store.ids)
    manifest = {
        "dataset": dataset.name,
        "format": dataset.format,
        "fingerprint": dataset.fingerprint(),
        "orientation": dataset[dataset.ids[0]].orientation,
        "encoder_fingerprint": fingerprint_json(dict(store.config.encoder)),
        "trajectories": len(present),
        "frames": sum(store.entry(key).length for key in present),
        "shards": sorted(store.shards),
        "dropped": [key for key in store.ids if key not in present],
        "versions": versions(),
    }
    write_json(store.path / "manifest.json", manifest)
