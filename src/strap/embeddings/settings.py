"""The options of an embedding that do not change the vectors."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, get_args

from strap.cpus import count_cpus
from strap.datasets.base import Dataset
from strap.encoders import Encoder
from strap.errors import StrapError, unknown

Engine = Literal["local", "ray"]
Compile = Literal["auto", "on", "off"]
BATCH = 64
"""batch size of encoders that have no attribute `batch`"""
MAX_WORKERS = 8
"""default limit of Ray workers on one machine, and of reading threads for all devices together"""
COMPILE_IMAGES = 3_000_000
"""the number of images from which on compiling, which takes a minute, saves time on a fast GPU"""


@dataclass(frozen=True)
class EmbeddingSettings:
    """The arguments of `embed` that decide how it runs, not what it computes."""

    batch: int | None = None
    workers: int | None = None
    compile: Compile = "auto"
    engine: Engine = "local"
    address: str | None = None
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("choice for compile", self.compile, get_args(Compile)),
            ("engine", self.engine, get_args(Engine)),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        for name, number in (("batch", self.batch), ("workers", self.workers)):
            if number is not None and number < 1:
                raise StrapError(f"{name} is {number}: give at least 1")

    @property
    def n_workers(self) -> int:
        """The number of workers: as given, or else one for each core, at most MAX_WORKERS."""
        return self.workers or min(MAX_WORKERS, count_cpus())

    def batch_for(self, encoder: Encoder) -> int:
        """Return the batch size for an encoder."""
        return self.batch or int(getattr(encoder, "batch", BATCH))

    def tune(self, encoder: Any, dataset: Dataset, n_cameras: int) -> Encoder:
        """Return the encoder with this batch size and compilation, if it has such settings."""
        changes: dict[str, Any] = {}
        if not is_dataclass(encoder):
            return encoder  # type: ignore[no-any-return]
        if self.batch and hasattr(encoder, "batch"):
            changes["batch"] = self.batch
        if hasattr(encoder, "compiled"):
            n_images = len(dataset) * dataset[dataset.ids[0]].length * n_cameras
            on_gpu = getattr(getattr(encoder, "device", None), "type", "") == "cuda"
            is_worthwhile = on_gpu and n_images >= COMPILE_IMAGES
            changes["compiled"] = is_worthwhile if self.compile == "auto" else self.compile == "on"
        plain: Any = encoder
        return replace(plain, **changes) if changes else plain  # type: ignore[no-any-return]


def parse_part(text: str | None) -> tuple[int, int]:
    """Parse a part: `2/4`, the second of four, is (1, 4)."""
    if text is None:
        return 0, 1
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise StrapError(f"part is '{text}': give it as 1/4 … 4/4 for four machines")
    return int(index) - 1, int(count)
