"""`strap embed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import tyro

from strap.cli.options import Json, OpenArgument, SelectionArgument, print_json
from strap.cli.progress import show_progress
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.embeddings import Compile, Dtype, Engine, embed
from strap.encoders import EncoderSpec


@dataclass(frozen=True)
class Command:
    """Turn every frame of a dataset into a vector, once.

    Only trajectories that the store does not have yet are embedded, so the same command resumes an
    interrupted job and extends a store whose dataset has grown. To share the work, run the same
    command in several terminals, or on several machines with a common file system.
    """

    EXAMPLES: ClassVar = (
        "strap embed big-dataset --encoder dinov2-base --out stores/big",
        "strap embed big-dataset --encoder dinov2-base --engine ray --out stores/big",
        "strap embed lerobot/droid_100 --episodes 0:50 --encoder dinov2-base --out stores/droid",
    )
    GROUPS: ClassVar = {
        "input and output": ("dataset", "out", "dtype", "json"),
        "which trajectories and cameras": ("tasks", "episodes", "cameras", "part"),
        "the model": ("encoder", "pooling", "layer", "preset", "precision"),
        "hardware": ("devices", "batch", "workers", "compile", "engine", "address"),
        "how the dataset is read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    dataset: tyro.conf.Positional[Path]
    """HDF5 (robomimic, LIBERO), LeRobot, RLDS or Zarr: a file or a folder; or the name of a LeRobot
    dataset on the Hugging Face hub, OWNER/NAME[@REVISION]"""
    encoder: str
    """the model: dinov2-base, clip-vit-b16, …, efficientnet-lite0, pixels (no model), a hub id, a
    local folder, or module:name for your own encoder (docs/encoders.md)"""
    out: Path
    """the store's folder: a new one, or a store to resume or extend"""
    choosing: SelectionArgument = field(default_factory=Selection)
    cameras: tuple[str, ...] = ()
    """which cameras (default: the agent view if the dataset has one, else all cameras; a search
    averages them)"""
    dtype: Dtype = "float16"
    """number format of the stored vectors"""
    pooling: Literal["mean", "cls", "patches"] | None = None
    """how the model's tokens become one vector: mean: of all tokens (default); cls: the CLS token;
    patches: the mean of the patch tokens"""
    layer: int | None = None
    """which hidden layer (default: the last; for CLIP the one before the last)"""
    preset: Literal["released"] | None = None
    """released: embed as the authors' code does (images squashed to 224×224 first, mean of all
    tokens)"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """number format in which the model computes; auto: bfloat16 on hardware that multiplies it
    fast"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    batch: int | None = None
    """images per forward pass (default: 256 on a GPU, 32 on a CPU)"""
    workers: int | None = None
    """how many threads read and decode frames; for many videos: how many processes; with --engine
    ray: how many worker processes (default: one thread per core, at most 8; one process per two
    cores; with --address one per GPU of the cluster, or one per core if it has no GPU)"""
    devices: tuple[str, ...] = ("auto",)
    """where the model runs, one process per device: cuda:0 cuda:1 …, cpu (default: every GPU, else
    the CPU)"""
    compile: Compile = "auto"
    """compile the model; auto: for jobs of millions of frames on a GPU"""
    engine: Engine = "local"
    """ray: spread the work over a Ray cluster"""
    address: str | None = None
    """address of a running Ray cluster (default: start one on this machine)"""
    part: str | None = None
    """embed one part: 2/4 is the second of four; for machines without a common file system (join
    the stores with `strap store merge`)"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Embed, then print what the store holds."""
        spec = EncoderSpec(self.encoder, self.pooling, self.layer, self.preset, self.precision)
        with show_progress() as progress:
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
