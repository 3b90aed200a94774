"""`strap store`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.store import open_store
from strap.store.sketches import Kind, sketch_store
from strap.store.upkeep import collect_garbage, describe, drop_damaged, merge, verify_path


@dataclass(frozen=True)
class Verify:
    """Read every byte of a store and compare it with its checksums.

    Exit code 0: sound; 2: something is damaged, each thing on a line of its own.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    drop: bool = False
    """take what is damaged out, so that the next `strap embed` makes it anew, and only that"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> int:
        """Check, and drop if asked."""
        with showing() as progress:
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
                print("taken out; embed again to make it anew")
            return 0
        return 2 if damages else 0


@dataclass(frozen=True)
class Info:
    """Say what a store holds: encoder, cameras, trajectories, sizes, what is unfinished."""

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    json: Json = False
    """print it as JSON"""

    def run(self) -> None:
        """Print it."""
        found = describe(self.store)
        if self.json:
            print_json(found)
            return
        state = "complete" if found["complete"] else "not complete: embed again to go on"
        print(f"{found['store']}: {state}")
        print(f"  dataset       {found['dataset']}")
        print(f"  encoder       {found['encoder'].get('name')} ({found['encoder_fingerprint']})")
        print(f"  cameras       {', '.join(found['cameras'])}")
        print(f"  vectors       {found['frames']} frames × {found['dim']}, {found['dtype']}")
        print(f"  trajectories  {found['trajectories']}")
        print(f"  shards        {found['shards']}, {_size(found['bytes'])}")
        if found["replaced_bytes"]:
            print(f"  replaced      {_size(found['replaced_bytes'])} (free it: strap store gc)")
        for one in found["unfinished"]:
            who = "being written now" if one["alive"] else "left by a writer that died"
            print(
                f"  unfinished    {one['name']}: {one['trajectories']} trajectories, "
                f"{one['frames']} frames, {who}"
            )


@dataclass(frozen=True)
class Merge:
    """Put several stores of one dataset into one: embedded on several machines, say.

    What the output has already is not copied again. A trajectory embedded from different contents
    is an error.
    """

    stores: tyro.conf.Positional[tuple[Path, ...]]
    """the stores to merge, with the same encoder, dtype and cameras"""
    out: Path
    """the merged store, new or begun before"""
    dataset: str | None = None
    """the dataset's path for the merged store, where the stores name different ones"""

    def run(self) -> None:
        """Merge, then say what there is."""
        with showing() as progress:
            store = merge(self.stores, self.out, dataset=self.dataset, progress=progress)
        print(f"{store.path}: {len(store)} trajectories, {store.frames} frames")
        if not store.complete:
            print(f"not complete yet: strap embed {store.dataset} --out {store.path} goes on")


@dataclass(frozen=True)
class Gc:
    """Free what no reader needs.

    That is files of killed writers, trajectories that were replaced or are no longer in the
    dataset, and many small shards (joined into few). Unfinished shards stay.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    dry_run: bool = False
    """say what would be done, do nothing"""

    def run(self) -> None:
        """Clear out, then say what was freed."""
        found = collect_garbage(self.store, dry_run=self.dry_run)
        for name in found.files:
            print(f"{'would remove' if self.dry_run else 'removed'} {name}")
        if found.rewritten:
            verb = "would rewrite" if self.dry_run else "rewrote"
            print(f"{verb} {len(found.rewritten)} shards ({', '.join(found.rewritten)})")
        print(f"{self.store}: {_size(found.freed)} {'to free' if self.dry_run else 'freed'}")


@dataclass(frozen=True)
class Sketch:
    """Put short vectors beside a store's, from which a search rules most of it out.

    Searches use them where they are there; they never change a result. After adding to the store
    run it again: only what is new is sketched.
    """

    store: tyro.conf.Positional[Path]
    """the store's folder"""
    sizes: tuple[str, ...] = ()
    """numbers in a sketch, or numbers and the frames it stands for, several one after the other
    (default: 64x4 256x2 512, fewer for short vectors)"""
    cameras: tuple[str, ...] = ()
    """average these cameras (default: all), as the search will"""

    def run(self) -> None:
        """Sketch, then say what there is."""
        store = open_store(self.store, cameras=self.cameras or None)
        with showing() as progress:
            kinds = [Kind.parse(size) for size in self.sizes]
            found = sketch_store(store, kinds=kinds, progress=progress)
        for own in found:
            share = own.sketcher.size / own.sketcher.every / store.dim
            print(f"{own.folder}: {len(store)} trajectories, {100 * share:.0f} % of their vectors")


def _size(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


@dataclass(frozen=True)
class Command:
    """Look after embedding stores."""

    do: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Merge, tyro.conf.subcommand("merge")]
        | Annotated[Gc, tyro.conf.subcommand("gc")]
        | Annotated[Sketch, tyro.conf.subcommand("sketch")]
    ]

    def run(self) -> int:
        """Do it."""
        return int(self.do.run() or 0)
