"""The frame cache: everything a training reads, decoded once, as memory-mapped arrays.

CACHE/
  frames-<camera>.npy    uint8 [rows s s 3], upright (absent if the cache holds feature maps)
  maps-<camera>.npy      float16 [rows cells channels], feature maps of frozen vision
  actions.npy            float32 [rows a]
  states.npy             float32 [rows d], the proprioception keys concatenated
  language.npy           float32 [instructions l]
  tensors.safetensors    the projection of frozen vision
  content.json           clips, segments, instructions, interface
  manifest.json          arguments and fingerprints; written last

The rows of all clips follow each other. Training needs no other data and no video decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from strap.atomic import read_json
from strap.errors import StrapError
from strap.policies.settings import Interface
from strap.types import Array

FORMAT = "strap-frames-3"


@dataclass(frozen=True)
class CachedClip:
    """Frames start … stop−1 of a trajectory, in rows row … row + length − 1 of the cache."""

    id: str
    dataset: str
    role: str
    """target or prior"""
    instruction: int
    start: int
    stop: int
    row: int

    @property
    def length(self) -> int:
        """The number of frames."""
        return self.stop - self.start


@dataclass(frozen=True)
class RetrievedSpan:
    """A retrieved segment: frames start … stop−1 of its clip's trajectory."""

    clip: int
    start: int
    stop: int
    cost: float
    query: str
    """the demonstration it was found for"""
    query_start: int
    query_stop: int
    """the query is frames query_start … query_stop−1 of that demonstration"""


@dataclass(frozen=True, eq=False)
class SharedArrays:
    """The location of one training's clips in the arrays of a cache that many trainings share."""

    rows: tuple[int, ...]
    """row of each clip's first frame in the arrays"""
    columns: tuple[int, ...]
    """columns of states.npy that the training uses"""
    language: Array
    """float32 [instructions l]"""


@dataclass(frozen=True, eq=False)
class FrameCache:
    """A finished cache with memory-mapped arrays, or a part of one (`select_clips`).

    Rows number the frames of all clips in order. A part does not copy images: the frames of clip i
    begin at row `image_rows[i]` of `frames` and `maps`.
    """

    path: Path
    interface: Interface
    clips: tuple[CachedClip, ...]
    retrieved: tuple[RetrievedSpan, ...]
    instructions: tuple[str, ...]
    language_encoder: str
    has_frames: bool
    context: tuple[int, int] | None = None
    """(history, chunk): frames kept before and after retrieved segments; None: all"""
    shared: SharedArrays | None = None
    """set for a part of a larger cache"""
    origin: str = ""
    """a hash of the stamps of the decoded clips"""

    @property
    def rows(self) -> int:
        """The total number of frames."""
        return sum(clip.length for clip in self.clips)

    @property
    def image_rows(self) -> tuple[int, ...]:
        """The row of each clip's first frame in the arrays of images."""
        return self.shared.rows if self.shared else tuple(clip.row for clip in self.clips)

    def frames(self, camera: str) -> Array:
        """Return a camera's images, uint8 [image rows s s 3]."""
        return self._array(f"frames-{camera}.npy")

    def maps(self, camera: str) -> Array:
        """Return a camera's feature maps, float16 [image rows cells channels]."""
        return self._array(f"maps-{camera}.npy")

    @cached_property
    def actions(self) -> Array:
        """The actions, float32 [rows a]."""
        return self._clip_rows(self._array("actions.npy"))

    @cached_property
    def states(self) -> Array:
        """The proprioception, float32 [rows d]."""
        states = self._clip_rows(self._array("states.npy"))
        return states[:, self.shared.columns] if self.shared else states

    @cached_property
    def language(self) -> Array:
        """The instructions' vectors, float32 [instructions l]."""
        return self.shared.language if self.shared else self._array("language.npy")

    def _clip_rows(self, array: Array) -> Array:
        if self.shared is None:
            return array
        found = zip(self.shared.rows, self.clips, strict=True)
        return np.concatenate([array[row : row + clip.length] for row, clip in found])

    def to_json(self) -> dict[str, Any]:
        """Return the content of content.json."""
        return {
            "format": FORMAT,
            "interface": asdict(self.interface),
            "clips": [asdict(clip) for clip in self.clips],
            "retrieved": [asdict(found) for found in self.retrieved],
            "context": list(self.context) if self.context else None,
            "instructions": list(self.instructions),
            "language": self.language_encoder,
            "frames": self.has_frames,
            "origin": self.origin,
        }

    def _array(self, name: str) -> Array:
        try:
            array: Array = np.load(self.path / name, mmap_mode="r", allow_pickle=False)
            return array
        except FileNotFoundError as error:
            raise StrapError(
                f"the cache '{self.path}' has no {name}: it was built for another --vision"
            ) from error
        except (OSError, ValueError) as error:
            raise StrapError(
                f"'{self.path / name}' is damaged ({error}): build it again"
            ) from error


def open_cache(path: str | Path) -> FrameCache:
    """Open a finished cache."""
    path = Path(path).expanduser()
    if not (path / "manifest.json").is_file():
        raise StrapError(
            f"'{path}' is not a finished frame cache (it has no manifest.json): `strap train` "
            "builds one, and resumes an interrupted one"
        )
    return read_content(path)


def read_content(path: Path) -> FrameCache:
    """Read content.json, even if the arrays are not complete yet."""
    content: Mapping[str, Any] = read_json(path / "content.json")
    if content.get("format") != FORMAT:
        raise StrapError(f"'{path}' is not a frame cache")
    return FrameCache(
        path,
        Interface.from_json(content["interface"]),
        tuple(CachedClip(**row) for row in content["clips"]),
        tuple(RetrievedSpan(**row) for row in content["retrieved"]),
        tuple(content["instructions"]),
        str(content["language"]),
        bool(content["frames"]),
        tuple(content["context"]) if content["context"] else None,
        origin=str(content.get("origin", "")),
    )
