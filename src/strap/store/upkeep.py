"""Maintenance of stores: verify, describe, merge, and remove what is not needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strap.atomic import write_json
from strap.errors import StrapError
from strap.locks import hold_lock, is_held
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.store.journal import read_journal, unpack
from strap.store.layout import (
    PARTIAL,
    SHARD_BYTES,
    SHARDS,
    Entry,
    Shard,
    StoreConfig,
    begin_store,
    list_partials,
    list_shards,
    missing_shards,
    read_identity,
    read_manifest,
    read_shard,
    write_shard,
)
from strap.store.partial import PendingTrajectory
from strap.store.reading import EmbeddingStore, is_store, open_store
from strap.store.verification import Damage, verify_shard
from strap.store.writing import Session

SMALL_SHARD_BYTES = SHARD_BYTES // 8
"""smaller shards are joined if there are several"""


def verify_path(path: str | Path, progress: Progress = silent) -> list[Damage]:
    """Verify every byte of a store, even of one that is too damaged to open."""
    path = Path(path).expanduser()
    if not (path / "store.json").is_file():
        open_store(path)  # raises the error
    config, _ = read_identity(path)
    found: list[Damage] = []
    files = list_shards(path)
    for name in missing_shards(read_manifest(path), (file.stem for file in files)):
        message = f"shard '{path / SHARDS / name}.json' is gone: embed again to create it again"
        found.append(Damage(name, None, message))
    for done, file in enumerate(files):
        progress("verifying", done, len(files))
        try:
            found += verify_shard(path, config, read_shard(file, config))
        except StrapError as error:
            found.append(Damage(file.stem, None, str(error)))
    progress("verifying", len(files), len(files))
    return found


def drop_damaged(path: Path, damages: Sequence[Damage]) -> None:
    """Remove damaged trajectories and shards, so that the next `strap embed` embeds them again."""
    with hold_lock(path / "lock"):
        for name in dict.fromkeys(damage.shard for damage in damages):
            damaged = [damage.entry for damage in damages if damage.shard == name]
            file = path / SHARDS / f"{name}.json"
            remaining: tuple[Entry, ...] = ()
            if None not in damaged:
                shard = read_shard(file, read_identity(path)[0])
                remaining = tuple(entry for entry in shard.entries if entry not in damaged)
            if remaining:
                write_shard(path, replace(shard, entries=remaining))
            else:
                _delete_shard(path, name)
        (path / "manifest.json").unlink(missing_ok=True)


def _delete_shard(path: Path, name: str) -> None:
    """Delete a shard: its JSON file first, without which its data files are ignored."""
    (path / SHARDS / f"{name}.json").unlink(missing_ok=True)
    for file in (path / SHARDS).glob(f"{name}.*.npy"):
        file.unlink()


@dataclass(frozen=True)
class Unfinished:
    """An unfinished shard."""

    name: str
    alive: bool
    """whether its writer is running"""
    trajectories: int
    """the number of complete trajectories"""
    frames: int
    """the number of rows written, of the camera with the most"""


def list_unfinished(path: Path) -> list[Unfinished]:
    """Return the unfinished shards of a store."""
    found = []
    for name in list_partials(path):
        folder = path / PARTIAL / name
        lines = [line for line, _ in unpack(read_journal(folder / "journal"))]
        rows = max((first + count for _, first, count, _ in _rows(lines)), default=0)
        alive = is_held(folder / "lock")
        found.append(Unfinished(name, alive, sum("entry" in line for line in lines), rows))
    return found


def _rows(lines: Sequence[Any]) -> Iterator[tuple[int, int, int, int]]:
    return (tuple(line["rows"]) for line in lines if "rows" in line)


def describe_store(path: str | Path) -> dict[str, Any]:
    """Return a summary of a store as JSON values: what `strap store info` prints."""
    store = open_store(path)
    config = store.config
    width = config.row_bytes * len(config.cameras)
    n_current = sum(len(store.current_entries(shard)) for shard in store.shards.values())
    return {
        "store": str(store.path),
        "dataset": store.dataset,
        "complete": store.complete,
        "encoder": dict(config.encoder),
        "encoder_fingerprint": fingerprint_json(dict(config.encoder)),
        "cameras": list(config.cameras),
        "dtype": config.dtype,
        "dim": config.dim,
        "trajectories": len(store),
        "frames": store.frames,
        "shards": len(store.shards),
        "bytes": store.frames * width,
        "replaced_trajectories": sum(len(s.entries) for s in store.shards.values()) - n_current,
        "replaced_bytes": sum(_replaced_rows(store, s) for s in store.shards.values()) * width,
        "unfinished": [vars(shard) for shard in list_unfinished(store.path)],
    }


def _replaced_rows(store: EmbeddingStore, shard: Shard) -> int:
    return shard.frames - sum(entry.length for entry in store.current_entries(shard))


@dataclass(frozen=True)
class GarbageReport:
    """The result of `collect_garbage`: what it removed, or would remove."""

    files: tuple[str, ...]
    """files of killed writers"""
    rewritten: tuple[str, ...]
    """shards with replaced trajectories, and small shards that were joined"""
    freed: int
    """bytes"""


def collect_garbage(path: str | Path, *, dry_run: bool = False) -> GarbageReport:
    """Remove data that no reader needs, and join small shards.

    Such data are files of killed writers, and trajectories that later shards replace or that the
    dataset no longer has. Unfinished shards and unknown files are kept.
    """
    path = Path(path).expanduser()
    store = open_store(path)
    _require_unwritten(path)
    width = store.config.row_bytes * len(store.config.cameras)
    leftovers = _leftovers(path)
    freed = sum(file.stat().st_size for file in leftovers)
    outdated = [s for s in store.shards.values() if _replaced_rows(store, s)]
    small = [
        s
        for s in store.shards.values()
        if s.frames * width < SMALL_SHARD_BYTES and s not in outdated
    ]
    untidy = outdated + (small if len(small) + len(outdated) > 1 else [])
    freed += sum(_replaced_rows(store, shard) for shard in outdated) * width
    if not dry_run:
        for file in leftovers:
            file.unlink(missing_ok=True)
        _rewrite(store, untidy)
    names = tuple(file.relative_to(path).as_posix() for file in leftovers)
    return GarbageReport(names, tuple(sorted(shard.name for shard in untidy)), freed)


def _leftovers(path: Path) -> list[Path]:
    temporary = [*path.glob(".*.tmp"), *(path / SHARDS).glob(".*.tmp")]
    named = {file.stem for file in list_shards(path)} | set(list_partials(path))
    orphans = [f for f in (path / SHARDS).glob("*.npy") if f.name.partition(".")[0] not in named]
    return sorted(temporary + orphans)


def _rewrite(store: EmbeddingStore, shards: Sequence[Shard]) -> None:
    """Move the current trajectories of these shards to new shards, in natural order."""
    names = {shard.name for shard in shards}
    session = Session(store.path, store.config)
    _copy(store, [key for key in store.ids if store.places[key][0] in names], session)
    with session.hold():
        for name in sorted(names):
            _delete_shard(store.path, name)
    if store.complete:
        shards_now = [file.stem for file in list_shards(store.path)]
        manifest = {**store.manifest, "shards": shards_now, "dropped": []}
        write_json(store.path / "manifest.json", manifest)


def _copy(
    source: EmbeddingStore, ids: Sequence[str], session: Session, progress: Progress = silent
) -> None:
    """Copy trajectories of one store to another, verifying each one."""
    for done, key in enumerate(ids):
        progress(f"merging {source.path.name}", done, len(ids))
        entry = source.entry(key)
        rows = [source.of_camera(key, camera) for camera in source.config.cameras]
        begun = PendingTrajectory(entry.id, entry.length, entry.instruction, entry.stamp)
        session.add(begun, rows, entry.fingerprint)
        if session.nbytes > SHARD_BYTES:
            session.flush()
    session.flush()


def merge(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    dataset: str | None = None,
    progress: Progress = silent,
) -> EmbeddingStore:
    """Merge several stores of one dataset, for example from several machines.

    Args:
        sources: stores with the same encoder, dtype and cameras.
        out: the merged store; if it exists, only the trajectories that it lacks are copied.
        dataset: the dataset's path for the merged store; required if the sources' paths differ.
        progress: called with (what, trajectories done, of how many).
    """
    stores = [open_store(source) for source in sources]
    if not stores:
        raise StrapError("no store to merge: give at least one")
    out = Path(out).expanduser()
    merged = open_store(out) if is_store(out) else None
    name = _one_dataset([*([merged] if merged else []), *stores], dataset)
    config, source = (merged or stores[0]).config, (merged or stores[0]).source
    for store in stores:
        _require_same_config(store, config, out if merged else stores[0].path)
    _require_same_content([*([merged] if merged else []), *stores])
    _require_unwritten(out)
    begin_store(out, config, replace(source, dataset=name))
    (out / "manifest.json").unlink(missing_ok=True)
    session = Session(out, config)
    try:
        for partial in session.adopt():
            session.discard(partial)
        for store in stores:
            lacking = [key for key in store.ids if key not in session.places]
            _copy(store, lacking, session, progress)
    finally:
        session.close()
    before = [merged] if merged and _has_others(merged, stores) else []
    with session.hold():
        if all(store.complete for store in (*before, *stores)):
            _write_merged_manifest([*before, *stores], out, name)
    return open_store(out)


def _require_unwritten(path: Path) -> None:
    if any(shard.alive for shard in list_unfinished(path)):
        raise StrapError(
            f"another process is writing to store '{path}': wait until it has ended, then try again"
        )


def _one_dataset(stores: Sequence[EmbeddingStore], dataset: str | None) -> str:
    names = list(dict.fromkeys(store.dataset for store in stores))
    if dataset is None and len(names) > 1:
        raise StrapError(
            f"the stores are of different datasets ({', '.join(names)}): a store holds one; if "
            "they are parts of one dataset, name it with --dataset"
        )
    return str(Path(dataset).expanduser().resolve()) if dataset else names[0]


def _require_same_config(store: EmbeddingStore, config: StoreConfig, other: Path) -> None:
    for field in ("encoder", "dtype", "dim", "cameras"):
        theirs, ours = getattr(store.config, field), getattr(config, field)
        if theirs != ours:
            raise StrapError(
                f"store '{store.path}' differs from '{other}' in its {field} ({theirs} against "
                f"{ours}): only stores with the same encoder, dtype and cameras can be merged"
            )


def _require_same_content(stores: Sequence[EmbeddingStore]) -> None:
    """Raise if two stores have embedded a trajectory from different content."""
    first: dict[str, tuple[str, EmbeddingStore]] = {}
    for store in stores:
        for key in store.ids:
            fingerprint = store.entry(key).fingerprint
            known, holder = first.setdefault(key, (fingerprint, store))
            if known != fingerprint:
                raise StrapError(
                    f"trajectory '{key}' of store '{store.path}' was embedded from other data than "
                    f"in '{holder.path}': leave one of the stores out, or embed it again"
                )


def _has_others(merged: EmbeddingStore, stores: Sequence[EmbeddingStore]) -> bool:
    """Return whether a merged store has trajectories that were not copied from these."""
    copied = {(key, store.entry(key).stamp) for store in stores for key in store.ids}
    return any((key, merged.entry(key).stamp) not in copied for key in merged.ids)


def _write_merged_manifest(stores: Sequence[EmbeddingStore], out: Path, name: str) -> None:
    """Write the merged store's manifest; it has a dataset fingerprint only if all stores agree."""
    merged = open_store(out)
    decisive = ("fingerprint", "orientation", "fields")
    made_from = {tuple(str(store.manifest.get(key, "")) for key in decisive) for store in stores}
    unchecked = {key for store in stores for key in store.manifest.get("unchecked", ())}
    dropped = {key for store in stores for key in store.manifest.get("dropped", ())}
    dropped = dropped - {key for store in stores for key in store.ids}
    manifest = {
        **stores[0].manifest,
        "dataset": name,
        "fingerprint": made_from.pop()[0] if len(made_from) == 1 else "",
        "trajectories": len(merged.ids) - len(dropped & set(merged.ids)),
        "frames": sum(merged.entry(key).length for key in merged.ids if key not in dropped),
        "shards": sorted(merged.shards),
        "dropped": [key for key in merged.ids if key in dropped],
        "unchecked": [key for key in merged.ids if key in unchecked - dropped],
        "versions": versions(),
    }
    write_json(out / "manifest.json", manifest)
