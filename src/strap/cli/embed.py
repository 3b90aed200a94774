"""`strap embed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import tyro

from strap.cli.options import Choosing, Json, Opening, print_json
from strap.cli.progress import showing
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.embeddings import Compile, Dtype, Engine, embed
from strap.encoders import EncoderSpec


@dataclass(frozen=True)
class Command:
    """Turn every frame of a dataset into a vector, once.

    The store can be interrupted and taken up again, and grows with its dataset: only what it lacks
    is embedded. The same command in several terminals, or on machines with a common file system,
    shares the work.
    """

    EXAMPLES: ClassVar = (
        "strap embed big-dataset --encoder dinov2-base --out stores/big",
        "strap embed big-dataset --encoder dinov2-base --engine ray --out stores/big",
        "strap embed lerobot/droid_100 --episodes 0:50 --encoder dinov2-base --out stores/droid",
    )
    GROUPS: ClassVar = {
        "what is given, what is made": ("dataset", "out", "dtype", "json"),
        "which trajectories and cameras": ("tasks", "episodes", "cameras", "part"),
        "the model": ("encoder", "pooling", "layer", "preset", "precision"),
        "where it runs": (*("devices", "batch", "workers", "compile", "engine", "address"),),
        "how the dataset is read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    dataset: tyro.conf.Positional[Path]
    """HDF5 (robomimic, LIBERO), LeRobot, RLDS or Zarr: a file or a folder; or the name of a LeRobot
    dataset on the Hugging Face hub, OWNER/NAME[@REVISION]"""
    encoder: str
    """which model: dinov2-base, clip-vit-b16, …, efficientnet-lite0, pixels (none), a hub id, a
    local folder, or module:name for your own (docs/encoders.md)"""
    out: Path
    """the store's folder, new or begun before"""
    choosing: Choosing = field(default_factory=Selection)
    cameras: tuple[str, ...] = ()
    """which cameras (default: the agent view where there is one, else all; reading averages)"""
    dtype: Dtype = "float16"
    """how vectors are stored"""
    pooling: Literal["mean", "cls", "patches"] | None = None
    """what is taken of the model's tokens: the mean of all (default), the CLS token, or the mean
    of the patches"""
    layer: int | None = None
    """which hidden layer (default: the last; CLIP: the one before)"""
    preset: Literal["released"] | None = None
    """released: embed as the authors' code does (images squashed to 224×224 first, mean of all
    tokens)"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """what the model computes in; auto: bfloat16 where the hardware multiplies it fast"""
    opening: Opening = field(default_factory=OpenOptions)
    batch: int | None = None
    """images per forward pass (default: 256 on a GPU, 32 on a CPU)"""
    workers: int | None = None
    """threads that read and decode frames (processes, where there are many videos to decode; with
    --engine ray, worker processes; default: one per core, at most 8; one process for two cores;
    with --address, one per GPU of the cluster, or per core where it has none)"""
    devices: tuple[str, ...] = ("auto",)
    """where the model runs, one process each: cuda:0 cuda:1 …, cpu (default: every GPU, else the
    CPU)"""
    compile: Compile = "auto"
    """compile the model; auto: for jobs of millions of frames on a GPU"""
    engine: Engine = "local"
    """ray: spread the work over a cluster"""
    address: str | None = None
    """of a running Ray cluster (default: one is started on this machine)"""
    part: str | None = None
    """2/4: the second of four parts, for machines without a common file system (join the stores
    with strap store merge)"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Embed, then say what the store holds."""
        spec = EncoderSpec(self.encoder, self.pooling, self.layer, self.preset, self.precision)
        with showing() as progress:
            dataset = self.choosing.apply(self.opening.open(self.dataset, progress))
            store = embed(
                dataset,
                spec,
                self.out,
                cameras=self.cameras or None,
                dtype=self.dtype,
                batch=self.batch,
                workers=self.workers,
                devices=self.devices,
                compile=self.compile,
                engine=self.engine,
                address=self.address,
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
