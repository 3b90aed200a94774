"""Embedding a dataset into a store: resumable, shared by several writers, nothing done twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from strap.artifacts import Progress, fingerprint_json, silent, versions, write_json
from strap.datasets.base import Dataset
from strap.embeddings.cluster import embed_on_ray
from strap.embeddings.local import embed_here
from strap.embeddings.processes import embed_on_devices
from strap.embeddings.work import parse_part, same_place
from strap.encoders import Encoder, EncoderSpec, resolve_devices
from strap.errors import StrapError, unknown
from strap.locks import locked
from strap.processors import processors
from strap.store import (
    EmbeddingStore,
    Session,
    StoreConfig,
    create_store,
    open_store,
    slug,
)
from strap.store.layout import list_partials

__all__ = ["EmbeddingStore", "embed", "open_store"]

Dtype = Literal["float16", "float32"]
Engine = Literal["local", "ray"]
Compile = Literal["auto", "on", "off"]
AGENT_VIEWS = ("agentview_rgb", "agentview_image", "observation.images.agentview")
"""Cameras the paper retrieves by alone (LIBERO); where none of them is there, all are averaged."""
BATCH = 64
"""for encoders that do not say how many images they like at a time"""
MAX_WORKERS = 8
"""of Ray on one machine, or threads of all devices' processes together"""
RAY_THREADS = 2
"""that read frames, in each of Ray's workers"""
COMPILE_IMAGES = 3_000_000
"""from here on a minute of compiling is less than it saves on a fast GPU"""


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
        workers: threads that read and decode frames, or processes where there are many videos to
            decode (with Ray: worker processes); by default one thread per core, at most 8, or
            one process for two cores, at most 16.
        devices: where a named encoder runs: `auto` (all GPUs there are, else the CPU), `cpu`,
            `cuda:0`, …; several run in a process each.
        compile: compile the model: `auto` does for long jobs on a GPU.
        engine: `local`, or `ray` for a cluster.
        address: of a running Ray cluster; by default one is started on this machine's loopback.
        part: `2/4` embeds the second of four parts, for machines without a common file system;
            `strap store merge` joins their stores.
        progress: called with (what, images done, images in all).
    """
    settings = _Settings(dtype, batch, workers, compile, engine, address, part, progress)
    settings.check()
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    out = Path(out).expanduser()
    spec = EncoderSpec(encoder) if isinstance(encoder, str) else encoder
    places = resolve_devices(spec, devices) if engine == "local" else ("cpu",)
    model = spec.load(places[0]) if isinstance(spec, EncoderSpec) else spec
    chosen = choose_cameras(dataset, cameras)
    config = StoreConfig(dict(model.config), dtype, model.dim, chosen)
    store = open_or_create(out, config, dataset)
    if is_embedded(store, dataset):
        return store
    (out / "manifest.json").unlink(missing_ok=True)
    if len(places) > 1:
        assert isinstance(spec, EncoderSpec)
        del model  # each process loads its own
        options = settings.for_child(chosen, len(places))
        embed_on_devices(dataset, spec, out, places, options, progress)
    elif engine == "ray":
        _on_ray(dataset, spec, model, Session(out, config), settings)
    else:
        _here(dataset, model, Session(out, config), settings)
    return finish_store(dataset, out)


@dataclass(frozen=True)
class _Settings:
    """The arguments of `embed` that decide how, not what."""

    dtype: Dtype
    batch: int | None
    workers: int | None
    compile: Compile
    engine: Engine
    address: str | None
    part: str | None
    progress: Progress

    def check(self) -> None:
        for kind, value, known in (
            ("dtype", self.dtype, get_args(Dtype)),
            ("choice for compile", self.compile, get_args(Compile)),
            ("engine", self.engine, get_args(Engine)),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        for name, number in (("batch", self.batch), ("workers", self.workers)):
            if number is not None and number < 1:
                raise StrapError(f"{name} is {number}: give at least 1")
        parse_part(self.part)

    @property
    def count(self) -> int:
        return self.workers or min(MAX_WORKERS, processors())

    def batch_of(self, encoder: Encoder) -> int:
        return self.batch or int(getattr(encoder, "batch", BATCH))

    def for_child(self, cameras: Sequence[str], children: int) -> dict[str, Any]:
        """What a process of its own is told; together they use as many threads."""
        names = ("dtype", "batch", "compile", "part")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        return {**options, "cameras": cameras, "workers": max(1, self.count // children)}


def _here(dataset: Dataset, model: Encoder, session: Session, settings: _Settings) -> None:
    cameras = session.config.cameras
    embed_here(
        dataset,
        _tuned(model, settings.batch, _should_compile(settings.compile, dataset, cameras)),
        session,
        batch=settings.batch_of(model),
        workers=settings.workers,
        part=parse_part(settings.part),
        progress=settings.progress,
    )


def _on_ray(
    dataset: Dataset,
    spec: Encoder | EncoderSpec,
    model: Encoder,
    session: Session,
    settings: _Settings,
) -> None:
    embed_on_ray(
        dataset,
        spec,
        session,
        batch=settings.batch_of(model),
        workers=settings.count,
        threads=RAY_THREADS,
        address=settings.address,
        part=parse_part(settings.part),
        progress=settings.progress,
    )


def finish_store(dataset: Dataset, out: Path) -> EmbeddingStore:
    """Return the store, with its manifest where nothing is lacking (one part alone is not all)."""
    with locked(out / "lock"):
        store = open_store(out)
        if all(key in store for key in dataset.ids):
            _write_manifest(dataset, store)
    return open_store(out)


def _should_compile(compile: Compile, dataset: Dataset, cameras: Sequence[str]) -> bool | None:
    """None: leave it to the encoder's device."""
    if compile != "auto":
        return compile == "on"
    about = len(dataset) * dataset[dataset.ids[0]].length * len(cameras)
    return None if about >= COMPILE_IMAGES else False


def _tuned(encoder: Any, batch: int | None, compiled: bool | None) -> Encoder:
    """An encoder that has such settings, with these."""
    changes: dict[str, Any] = {}
    if not is_dataclass(encoder):
        return encoder  # type: ignore[no-any-return]
    if batch and hasattr(encoder, "batch"):
        changes["batch"] = batch
    if hasattr(encoder, "compiled"):
        on_gpu = getattr(getattr(encoder, "device", None), "type", "") == "cuda"
        changes["compiled"] = on_gpu if compiled is None else compiled
    plain: Any = encoder
    return replace(plain, **changes) if changes else plain  # type: ignore[no-any-return]


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


def open_or_create(out: Path, config: StoreConfig, dataset: Dataset) -> EmbeddingStore:
    """Open the store at `out`, or begin it; an error where it holds other vectors or data."""
    if len({slug(camera) for camera in config.cameras}) < len(config.cameras):
        raise StrapError(f"cameras {', '.join(config.cameras)} differ only in punctuation")
    if not (out / "store.json").is_file():
        if _has_other_files(out):
            raise StrapError(
                f"'{out}' exists and is no embedding store; choose another output folder"
            )
        with locked(out / "lock"):  # two that begin one store at the same moment agree on it
            if not (out / "store.json").is_file():
                for left in out.glob(".*.tmp"):
                    left.unlink()
                create_store(out, config, dataset=dataset.name)
    store = open_store(out)
    for name in ("encoder", "dtype", "dim", "cameras"):
        old, new = getattr(store.config, name), getattr(config, name)
        if old != new:
            raise StrapError(
                f"store '{out}' was made with {name} {_short(old)}, not {_short(new)}; "
                "choose another output folder, or delete that store to make it anew"
            )
    if not same_place(store.dataset, dataset.name):
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
    """Whether a store holds all of a dataset as it is."""
    if not store.complete or any(list_partials(store.path)):
        return False
    same = store.manifest.get("fingerprint") == dataset.fingerprint()
    upright = store.manifest.get("orientation") == dataset[dataset.ids[0]].orientation
    return same and upright and all(key in store for key in dataset.ids)


def _write_manifest(dataset: Dataset, store: EmbeddingStore) -> None:
    present = set(dataset.ids)
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
