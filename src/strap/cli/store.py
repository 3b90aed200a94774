"""`strap store`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress
from strap.store import open_store
from strap.store.sketches import SketchKind, sketch_store
from strap.store.upkeep import collect_garbage, describe_store, drop_damaged, merge, verify_path


@dataclass(frozen=True)
class Verify:
    """Read every byte of a store and compare it with its checksums.

    Exit code 0: the store is sound. 2: it is damaged; each damage is printed on its own line.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    drop: bool = False
    """remove what is damaged, so that the next `strap embed` embeds it again"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> int:
        """Check the store, and remove what is damaged if `drop` is set."""
        with show_progress() as progress:
            damages = verify_path(self.store, progress)
        if self.json:
            rows = [
                {"shard": d.shard, "trajectory": d.entry and d.entry.id, "message": d.message}
                for d in damages
            ]
            print_json({"store": str(self.store), "sound": not damages, "damages": rows})
        else:
            for damage in damages:
                print(damage.message)
            print(f"{self.store}: {f'{len(damages)} damaged' if damages else 'sound'}")
        if damages and self.drop:
            drop_damaged(self.store, damages)
            if not self.json:
                print("removed; run `strap embed` again to replace it")
            return 0
        return 2 if damages else 0


@dataclass(frozen=True)
class Info:
    """Show what a store holds: encoder, cameras, trajectories, sizes, unfinished shards."""

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    json: Json = False
    """print the description as JSON"""

    def run(self) -> None:
        """Print the store's description."""
        found = describe_store(self.store)
        if self.json:
            print_json(found)
            return
        state = "complete" if found["complete"] else "not complete: embed again to continue"
        print(f"{found['store']}: {state}")
        print(f"  dataset       {found['dataset']}")
        print(f"  encoder       {found['encoder'].get('name')} ({found['encoder_fingerprint']})")
        print(f"  cameras       {', '.join(found['cameras'])}")
        print(f"  vectors       {found['frames']} frames × {found['dim']}, {found['dtype']}")
        print(f"  trajectories  {found['trajectories']}")
        print(f"  shards        {found['shards']}, {_size(found['bytes'])}")
        if found["replaced_bytes"]:
            print(f"  replaced      {_size(found['replaced_bytes'])} (free it: strap store gc)")
        for shard in found["unfinished"]:
            state = "being written now" if shard["alive"] else "left by a writer that died"
            print(
                f"  unfinished    {shard['name']}: {shard['trajectories']} trajectories, "
                f"{shard['frames']} frames, {state}"
            )


@dataclass(frozen=True)
class Merge:
    """Merge several stores of one dataset, for example from several machines, into one.

    Trajectories that the output already has are not copied again. If two stores embedded different
    contents for one trajectory, that is an error.
    """

    stores: tyro.conf.Positional[tuple[Path, ...]]
    """the stores to merge, with the same encoder, dtype and cameras"""
    out: Path
    """the merged store: a new folder, or one to add to"""
    dataset: str | None = None
    """the dataset's path in the merged store, if the stores name different paths"""

    def run(self) -> None:
        """Merge, then print what the merged store holds."""
        with show_progress() as progress:
            store = merge(self.stores, self.out, dataset=self.dataset, progress=progress)
        print(f"{store.path}: {len(store)} trajectories, {store.frames} frames")
        if not store.complete:
            print(
                f"not marked complete yet: `strap embed {store.dataset} --encoder "
                f"{store.config.encoder['name']} --out {store.path}` embeds what is missing, if "
                "anything, and marks it"
            )


@dataclass(frozen=True)
class Gc:
    """Free the disk space that no reader of the store needs.

    Removes files of killed writers and trajectories that were replaced or are no longer in the
    dataset, and joins many small shards into few. Unfinished shards are kept.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    dry_run: bool = False
    """print what would be done, and change nothing"""

    def run(self) -> None:
        """Free the space, then print what was removed."""
        found = collect_garbage(self.store, dry_run=self.dry_run)
        for name in found.files:
            print(f"{'would remove' if self.dry_run else 'removed'} {name}")
        if found.rewritten:
            verb = "would rewrite" if self.dry_run else "rewrote"
            print(f"{verb} {len(found.rewritten)} shards ({', '.join(found.rewritten)})")
        print(f"{self.store}: {_size(found.freed)} {'to free' if self.dry_run else 'freed'}")


@dataclass(frozen=True)
class Sketch:
    """Add sketches to a store: short vectors with which a search excludes most trajectories.

    Searches use the sketches if they exist; results do not change. After adding trajectories to the
    store, run the command again: only the new trajectories are sketched.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    sizes: tuple[str, ...] = ()
    """sizes of the sketches, coarsest first: 64x4 is a vector of 64 numbers for every 4 frames, 512
    one of 512 numbers for each frame (default: 64x4 256x2 512, less for short vectors)"""
    cameras: tuple[str, ...] = ()
    """the cameras to average, the same as in the search (default: all)"""

    def run(self) -> None:
        """Write the sketches, then print their sizes."""
        store = open_store(self.store, cameras=self.cameras or None)
        with show_progress() as progress:
            kinds = [SketchKind.parse(size) for size in self.sizes]
            sketches = sketch_store(store, kinds=kinds, progress=progress)
        for sketch in sketches:
            share = sketch.sketcher.size / sketch.sketcher.every / store.dim
            print(
                f"{sketch.folder}: {len(store)} trajectories, {100 * share:.0f} % of their vectors"
            )


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


@dataclass(frozen=True)
class Command:
    """Maintain embedding stores."""

    do: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Merge, tyro.conf.subcommand("merge")]
        | Annotated[Gc, tyro.conf.subcommand("gc")]
        | Annotated[Sketch, tyro.conf.subcommand("sketch")]
    ]

    def run(self) -> int:
        """Run the chosen subcommand."""
        return int(self.do.run() or 0)
