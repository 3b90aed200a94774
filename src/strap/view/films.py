"""Films: the frames of a segment on one JPEG sheet, made on request and cached on disk.

    frames 0 … 6 of a segment      | 0 1 2 |
                                   | 3 4 5 |      ceil(√n) columns, row by row
                                   | 6     |

Every frame of a sheet can be shown exactly, so two sheets can be played in step, which two videos
cannot.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from strap.atomic import TEMPORARY, remove_leftovers, replacing
from strap.errors import StrapError, unknown
from strap.provenance import fingerprint_json
from strap.types import Array, Trajectory
from strap.view.errors import BadRequestError, NotThereError

SIZES = (96, 192, 384)
"""pixels of a frame's longer side"""
MAX_FRAMES = 400
"""maximum number of frames on one sheet"""
QUALITY = 85
MAX_FOLDER_BYTES = 2 * 10**9
"""maximum size of all sheets on disk; the least recently used are removed first"""
REMAINING_SHARE = 0.9
"""the share of MAX_FOLDER_BYTES that remains after a removal"""
BATCH_BYTES = 1 << 26
"""maximum size of the full-size frames that are in memory at a time"""
SHEET_VERSION = 1
"""version of the sheets' layout; a new one makes all cached sheets invalid"""


@dataclass(frozen=True)
class FilmRequest:
    """A request for frames of a trajectory in one size."""

    place: str
    """`target`, or the number of a prior dataset"""
    trajectory: str
    start: int
    stop: int
    camera: str
    size: int
    """one of `SIZES`"""
    count: int | None = None
    """the number of frames, evenly spaced from the first to the last; None: all"""
    run: int = 0
    """index of the run, if there are several"""

    def frames(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the requested frames, each once."""
        total = self.stop - self.start
        count = total if self.count is None else min(self.count, total)
        spaced = np.linspace(self.start, self.stop - 1, count).round().astype(np.int64)
        return np.unique(spaced)


@dataclass(frozen=True)
class FilmSheet:
    """A sheet of frames as JPEG, with its layout."""

    jpeg: bytes
    frames: int
    columns: int
    rows: int


class Films:
    """A cache of sheets in a folder; a sheet that several threads request at once is made once."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_FOLDER_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._pending: dict[str, Future[bytes]] = {}
        self._bytes: int | None = None  # on disk; None: not counted yet

    def get(self, trajectory: Trajectory, request: FilmRequest) -> FilmSheet:
        """Return the sheet of a trajectory's frames, from disk if it was made before."""
        require_drawable(trajectory, request)
        count = len(request.frames())
        columns = math.ceil(math.sqrt(count))
        jpeg = self._get(trajectory, request)
        return FilmSheet(jpeg, count, columns, math.ceil(count / columns))

    def _get(self, trajectory: Trajectory, request: FilmRequest) -> bytes:
        key = _key(trajectory, request)
        with self._lock:
            pending = self._pending.get(key)
            future: Future[bytes] = Future()
            if pending is None:
                self._pending[key] = future
        if pending is not None:
            return pending.result()
        try:
            jpeg = self._read(key) or self._make(key, trajectory, request)
            future.set_result(jpeg)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._pending[key]
        return jpeg

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key[2:]}.jpg"

    def _read(self, key: str) -> bytes | None:
        file = self._file(key)
        try:
            jpeg = file.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(file)  # marks it as just used
        return jpeg

    def _make(self, key: str, trajectory: Trajectory, request: FilmRequest) -> bytes:
        jpeg = draw_sheet(trajectory, request)
        with suppress(StrapError):  # on a full or read-only disk, sheets are not cached
            with replacing(self._file(key), sweep=False) as temporary:
                temporary.write_bytes(jpeg)
            self._count(len(jpeg))
        return jpeg

    def _count(self, added: int) -> None:
        """Count the bytes that were written; clean up the folder at first and above the limit."""
        with self._lock:
            if self._bytes is not None and self._bytes + added <= self._max_bytes:
                self._bytes += added
                return
            self._bytes = _clean_up(self._folder, self._max_bytes)


def require_drawable(trajectory: Trajectory, request: FilmRequest) -> None:
    """Raise if a trajectory does not have these frames, or there are too many for a sheet."""
    if request.camera not in trajectory.cameras:
        missing = unknown("camera", request.camera, trajectory.cameras)
        raise NotThereError(f"trajectory '{trajectory.id}': {missing}")
    if request.size not in SIZES:
        raise BadRequestError(
            f"size is {request.size}: it must be one of {', '.join(map(str, SIZES))}"
        )
    if not 0 <= request.start < request.stop <= trajectory.length:
        raise BadRequestError(
            f"frames {request.start} to {request.stop} are requested: '{trajectory.id}' has 0 to "
            f"{trajectory.length}"
        )
    shown = request.stop - request.start if request.count is None else request.count
    if not 1 <= shown <= MAX_FRAMES:
        raise BadRequestError(
            f"{shown} frames are requested: a sheet has 1 to {MAX_FRAMES}; request fewer, or the "
            "rest as another sheet"
        )


def draw_sheet(trajectory: Trajectory, request: FilmRequest) -> bytes:
    """Return the sheet as JPEG; frames are read in batches, to save memory."""
    chosen = request.frames()
    height, width = trajectory.camera(request.camera).shape[1:3]
    scale = min(1.0, request.size / max(height, width))
    tile = max(1, round(width * scale)), max(1, round(height * scale))
    columns = math.ceil(math.sqrt(len(chosen)))
    rows = math.ceil(len(chosen) / columns)
    sheet = Image.new("RGB", (columns * tile[0], rows * tile[1]))
    for index, frame in enumerate(_read_frames(trajectory, request.camera, chosen)):
        image = Image.fromarray(frame)
        if image.size != tile:
            image = image.resize(tile, Image.Resampling.BICUBIC, reducing_gap=3.0)
        sheet.paste(image, (index % columns * tile[0], index // columns * tile[1]))
    file = io.BytesIO()
    # No chroma subsampling: with it, frames would tint the edges of their neighbours.
    sheet.save(file, "JPEG", quality=QUALITY, subsampling=0)
    return file.getvalue()


def _read_frames(
    trajectory: Trajectory, camera: str, chosen: npt.NDArray[np.int64]
) -> Iterator[Array]:
    """Yield the chosen frames [h w 3]; consecutive frames are read in batches."""
    height, width = trajectory.camera(camera).shape[1:3]
    batch = max(1, BATCH_BYTES // max(1, 3 * height * width))
    for span in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
        for first in range(int(span[0]), int(span[-1]) + 1, batch):
            stop = min(first + batch, int(span[-1]) + 1)
            for frame in trajectory.frames(camera, first, stop):
                yield np.ascontiguousarray(frame)


def _key(trajectory: Trajectory, request: FilmRequest) -> str:
    """Return the cache key of a sheet: it depends on the files, the request and SHEET_VERSION."""
    source = trajectory.source
    place = [source.path.resolve().as_posix(), source.key, source.stamp(), trajectory.orientation]
    frames = [request.camera, request.size, request.start, request.stop, len(request.frames())]
    return fingerprint_json([SHEET_VERSION, trajectory.id, place, frames])


def _clean_up(folder: Path, limit: int) -> int:
    """Remove files left by killed processes and, above the limit, the least recently used sheets.

    Returns:
        The total size in bytes of the sheets that remain.
    """
    sheets: list[tuple[float, int, Path]] = []
    for part in folder.glob("*"):
        remove_leftovers(part)
    for file in folder.glob("*/*"):
        with suppress(OSError):
            found = file.stat()
            if file.name.endswith(TEMPORARY):  # another thread or process is writing it
                continue
            sheets.append((found.st_mtime, found.st_size, file))
    total = sum(size for _, size, _ in sheets)
    if total <= limit:
        return total
    for _, size, file in sorted(sheets):
        if total <= REMAINING_SHARE * limit:
            break
        with suppress(OSError):
            file.unlink()
            total -= size
    return total
