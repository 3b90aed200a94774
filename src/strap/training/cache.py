"""The frame cache: everything a training reads, decoded once, as plain arrays that are mapped.

CACHE/
  frames-<camera>.npy    uint8 [rows s s 3], upright (absent where only feature maps are kept)
  maps-<camera>.npy      float16 [rows places channels] of the frozen vision
  actions.npy            float32 [rows a]
  states.npy             float32 [rows d], the proprioception side by side
  language.npy           float32 [instructions l]
  tensors.safetensors    the frozen vision's projection
  content.json           clips, segments, instructions, interface
  manifest.json          arguments and fingerprints; written last

Rows of all clips lie end to end. Training needs nothing else: no dataset, no video decoder.
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
    """Frames start … stop−1 of a trajectory, at rows row … row + length − 1 of the cache."""

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
        """How many frames."""
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
    """Where a training finds its clips in the arrays of a cache that many trainings share."""

    rows: tuple[int, ...]
    """of each clip's first frame in the arrays"""
    columns: tuple[int, ...]
    """of states.npy"""
    language: Array
    """float32 [instructions l]"""


@dataclass(frozen=True, eq=False)
class FrameCache:
    """A finished cache, its arrays mapped into memory; or a part of one (`select_clips`).

    Rows count the frames of its clips end to end. Pictures are not copied for a part: the frames of
    clip i begin at row `picture_rows[i]` of `frames` and `maps`.
    """

    path: Path
    interface: Interface
    clips: tuple[CachedClip, ...]
    retrieved: tuple[RetrievedSpan, ...]
    instructions: tuple[str, ...]
    language_encoder: str
    has_frames: bool
    context: tuple[int, int] | None = None
    """(history, chunk): real frames that retrieved segments have around them; None: all"""
    shared: SharedArrays | None = None
    """of a part of a larger cache"""
    origin: str = ""
    """a hash of the stamps of what was decoded"""

    @property
    def rows(self) -> int:
        """Frames in all."""
        return sum(clip.length for clip in self.clips)

    @property
    def picture_rows(self) -> tuple[int, ...]:
        """The row of each clip's first frame in the pictures' arrays."""
        return self.shared.rows if self.shared else tuple(clip.row for clip in self.clips)

    def frames(self, camera: str) -> Array:
        """Return a camera's images, uint8 [picture rows s s 3]."""
        return self._array(f"frames-{camera}.npy")

    def maps(self, camera: str) -> Array:
        """Return a camera's feature maps, float16 [picture rows places channels]."""
        return self._array(f"maps-{camera}.npy")

    @cached_property
    def actions(self) -> Array:
        """float32 [rows a]"""
        return self._clip_rows(self._array("actions.npy"))

    @cached_property
    def states(self) -> Array:
        """float32 [rows d]"""
        states = self._clip_rows(self._array("states.npy"))
        return states[:, self.shared.columns] if self.shared else states

    @cached_property
    def language(self) -> Array:
        """float32 [instructions l]"""
        return self.shared.language if self.shared else self._array("language.npy")

    def _clip_rows(self, array: Array) -> Array:
        if self.shared is None:
            return array
        found = zip(self.shared.rows, self.clips, strict=True)
        return np.concatenate([array[row : row + clip.length] for row, clip in found])

    def to_json(self) -> dict[str, Any]:
        """Return what content.json says of it."""
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
            f"'{path}' is no finished frame cache (it has no manifest.json): `strap train` builds "
            "one, and goes on with one that was interrupted"
        )
    return read_content(path)


def read_content(path: Path) -> FrameCache:
    """Return what content.json says, whether or not the arrays are complete."""
    content: Mapping[str, Any] = read_json(path / "content.json")
    if content.get("format") != FORMAT:
        raise StrapError(f"'{path}' is no frame cache")
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
