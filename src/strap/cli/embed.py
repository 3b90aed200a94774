"""`strap embed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from strap.cli.options import Json, Opening, print_json
from strap.cli.progress import showing
from strap.datasets import OpenOptions
from strap.embeddings import Dtype, embed
from strap.encoders import load_encoder


@dataclass(frozen=True)
class Command:
    """Turn every frame of a dataset into a vector, once.

    The store can be interrupted and taken up again, and grows with its dataset: only what it lacks
    is embedded.
    """

    dataset: tyro.conf.Positional[Path]
    """HDF5 (robomimic, LIBERO), LeRobot, RLDS or Zarr: a file or a folder"""
    encoder: str
    """which model: dinov2-base, clip-vit-b16, …, efficientnet-lite0, pixels (none), a hub id or a
    local folder"""
    out: Path
    """the store's folder, new or begun before"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: the agent view where there is one, else all; reading averages)"""
    dtype: Dtype = "float16"
    """how vectors are stored"""
    opening: Opening = field(default_factory=OpenOptions)
    device: str = "auto"
    """where a model runs: auto, cpu, cuda"""
    part: str | None = None
    """2/4: the second of four parts, for machines without a common file system (join the stores
    with strap store merge)"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Embed, then say what the store holds."""
        dataset = self.opening.open(self.dataset)
        encoder = load_encoder(self.encoder, device=self.device)
        with showing() as progress:
            store = embed(
                dataset,
                encoder,
                self.out,
                cameras=self.cameras or None,
                dtype=self.dtype,
                part=self.part,
                progress=progress,
            )
        summary = {
            "store": str(store.path),
            "dataset": store.dataset,
            "encoder": self.encoder,
            "cameras": list(store.config.cameras),
            "trajectories": len(store),
            "frames": store.frames,
            "dim": store.dim,
        }
        if self.json:
            print_json(summary)
        else:
            print(
                f"{store.path}: {len(store)} trajectories, {store.frames} frames of {store.dim}-d "
                f"({self.encoder}, {', '.join(store.config.cameras)})"
            )
