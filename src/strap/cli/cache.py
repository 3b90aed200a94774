"""`strap cache`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Choosing, Json, Opening, print_json
from strap.cli.progress import showing
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.encoders.language import TEXT_ENCODER


@dataclass(frozen=True)
class Command:
    """Decode datasets once, for many trainings: `strap train … --frames CACHE`.

    Interrupted, the same command goes on where it was.
    """

    EXAMPLES: ClassVar = ("strap cache demonstrations big-dataset --out frames",)
    data: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """one dataset or more, or names of datasets on the hub"""
    out: Path
    """the cache's folder: 2 GB for 20,000 frames of two cameras at 128×128"""
    choosing: Choosing = field(default_factory=Selection)
    vision: Literal["resnet", "frozen"] = "resnet"
    """what `strap train --vision` will need: resnet: images; frozen: feature maps"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: all)"""
    proprioception: tuple[str, ...] = ()
    """which proprioception keys (default: all, but `state` where it only repeats the others)"""
    image_size: int = 128
    """side of the images; others are resized"""
    text_encoder: str = TEXT_ENCODER
    """what embeds instructions: minilm, clip, words (no model), a hub id or a local folder"""
    workers: int | None = None
    """threads or processes that decode at a time (default: by the processors there are)"""
    opening: Opening = field(default_factory=OpenOptions)
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Decode, then say what there is."""
        from strap.training.cache_builder import CacheOptions, build_cache
        from strap.training.data import open_whole_datasets

        options = CacheOptions(
            vision=self.vision,
            image_size=self.image_size,
            cameras=self.cameras,
            proprioception=self.proprioception,
            language=self.text_encoder,
        )
        with showing(quiet=self.json) as progress:
            data = open_whole_datasets(self.data, self.opening, self.choosing, progress)
            cache = build_cache(data, self.out, options, workers=self.workers, progress=progress)
        found = {"trajectories": len(cache.clips), "frames": cache.rows}
        if self.json:
            print_json({"path": str(cache.path), **found, "cameras": cache.interface.cameras})
        else:
            told = ", ".join(f"{count} {name}" for name, count in found.items())
            print(f"{told}, cameras {', '.join(cache.interface.cameras)} → {cache.path}")
