"""`strap cache`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Json, OpenArgument, SelectionArgument, print_json
from strap.cli.progress import show_progress
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.encoders.language import TEXT_ENCODER


@dataclass(frozen=True)
class Command:
    """Decode datasets once, for many training runs: `strap train … --frames CACHE`.

    If it is interrupted, run the same command again to resume.
    """

    EXAMPLES: ClassVar = ("strap cache demonstrations big-dataset --out frames",)
    data: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """one or more datasets, or names of datasets on the hub"""
    out: Path
    """the cache folder; 20,000 frames of two cameras at 128×128 take 2 GB"""
    choosing: SelectionArgument = field(default_factory=Selection)
    vision: Literal["resnet", "frozen"] = "resnet"
    """what to store, for `strap train --vision`: resnet: images; frozen: feature maps"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: all)"""
    proprioception: tuple[str, ...] = ()
    """which proprioception keys (default: all, except `state` if it only repeats the others)"""
    image_size: int = 128
    """height and width of the stored images; other sizes are resized"""
    text_encoder: str = TEXT_ENCODER
    """the model that embeds instructions: minilm, clip, words (no model), a hub id or a local
    folder"""
    workers: int | None = None
    """how many threads or processes decode at the same time (default: depends on the number of CPU
    cores)"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Decode, then print what the cache holds."""
        from strap.training.cache_builder import CacheOptions, build_cache
        from strap.training.data import open_whole_datasets

        options = CacheOptions(
            vision=self.vision,
            image_size=self.image_size,
            cameras=self.cameras,
            proprioception=self.proprioception,
            language=self.text_encoder,
        )
        with show_progress(quiet=self.json) as progress:
            data = open_whole_datasets(self.data, self.opening, self.choosing, progress)
            cache = build_cache(data, self.out, options, workers=self.workers, progress=progress)
        found = {"trajectories": len(cache.clips), "frames": cache.rows}
        if self.json:
            print_json({"path": str(cache.path), **found, "cameras": cache.interface.cameras})
        else:
            counts = ", ".join(f"{count} {name}" for name, count in found.items())
            print(f"{counts}, cameras {', '.join(cache.interface.cameras)} → {cache.path}")
