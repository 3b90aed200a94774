"""Read frames from video files: seek to the keyframe before them, and decode only as needed.

One decoder per file stays open (for a few files per thread), so that consecutive reads decode each
frame once and never seek.

    keyframe          wanted
    |                 |-------|
    K . . . . . . . . W W W W W . . .
    ^ seek here, then decode and drop the frames before the first wanted one
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from strap.cpus import count_cpus
from strap.datasets.lerobot.containers import container_format
from strap.datasets.untrusted import MAX_IMAGE_PIXELS, missing_file_error, stat_regular_file
from strap.errors import StrapError
from strap.types import Array

OPEN_FILES = 8
"""decoders kept open per thread"""
SHORT_SKIP = 8
"""the most frames that are decoded and dropped to avoid a seek"""
MAX_THREADS = 4
"""codec threads per decoder: more gain little on robot videos and cost memory per open file"""
MAX_THREAD_PIXELS = 1 << 25
"""the most pixels that all threads of a decoder hold: each thread has its own images"""
FFMPEG_OPTIONS = {
    "protocol_whitelist": "file",
    "enable_drefs": "0",
    "use_absolute_path": "0",
    "max_pixels": str(MAX_IMAGE_PIXELS),
}
"""options by which FFmpeg reads only this file, no file that it names, and no larger images"""


def import_av() -> ModuleType:
    """Return PyAV, which is imported only when a video is read or written."""
    try:
        import av
    except ImportError as error:
        raise StrapError(
            "reading and writing videos needs PyAV: pip install 'av>=15' (tables work without)"
        ) from error
    module: ModuleType = av
    return module


def list_keyframes(container: Any, stream: Any) -> list[int]:
    """Return the decoding times of a video's keyframes, in ticks.

    They come from the file's index. PyAV before 16 does not give access to it; then all packets
    are read, without decoding them.
    """
    index = getattr(stream, "index_entries", None)
    if index is not None:
        return sorted(entry.timestamp for entry in index if entry.is_keyframe)
    packets = container.demux(stream)
    times = [p.dts for p in packets if p.is_keyframe and p.dts is not None]
    container.seek(0, stream=stream)
    return sorted(times)


class Decoder:
    """One open video file, read by frame times.

    `decoded` counts all decoded frames, including those that were not requested.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decoded = 0
        self.seeks = 0
        self.closed = False
        self.lock = threading.Lock()
        av = import_av()
        kind = container_format(path)
        try:
            self._container = av.open(f"file:{path}", format=kind, options=FFMPEG_OPTIONS)
        except Exception as error:
            raise self._unreadable(error) from error
        try:
            self._stream = self._container.streams.video[0]
            if self._stream.codec_context is None:
                raise StrapError(
                    f"'{path}': no decoder for its codec{_codec_tag(self._stream)} in this PyAV; "
                    "re-encode the video as H.264 or AV1"
                )
            self._prepare(av)
        except BaseException as error:
            self._container.close()
            if isinstance(error, StrapError) or not isinstance(error, Exception):
                raise
            raise self._unreadable(error) from error

    def _prepare(self, av: ModuleType) -> None:
        context = self._stream.codec_context
        context.thread_type = "AUTO"
        n_cpus = count_cpus()
        affordable = MAX_THREAD_PIXELS // max(1, context.width * context.height)
        n_threads = max(1, min(MAX_THREADS, n_cpus + 1, affordable))
        context.thread_count = n_threads if n_cpus > 1 else 1
        # With "explode" a damaged image raises an error instead of being filled with grey.
        context.options = {"err_detect": "explode", "max_pixels": FFMPEG_OPTIONS["max_pixels"]}
        self._tick = Fraction(self._stream.time_base)
        self._keys = list_keyframes(self._container, self._stream)
        # One converter for all frames: a new one per frame would cost a tenth of the time.
        self._converter = av.video.reformatter.VideoReformatter()
        self._frames = self._decode()
        self._frame: Any = None  # the last decoded frame

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return int(self._stream.codec_context.height), int(self._stream.codec_context.width)

    def close(self) -> None:
        """Close the file and end the codec's threads."""
        self.closed = True
        self._container.close()
        # The codec's threads end when the last reference to it is gone. The generator refers back
        # to this object, so without this they would live until a garbage collection.
        self._frames = iter(())
        self._frame = self._stream = self._converter = None

    def read(
        self, first: Fraction, count: int, interval: Fraction, shape: tuple[int, ...]
    ) -> Array:
        """Return `count` frames `interval` apart, the first at `first` (seconds), uint8 [n h w 3].

        If the video has no frame within half an interval of a time, an error is raised.
        """
        self._require_size(self.size, shape)
        out = np.empty((count, *shape), np.uint8)
        slack = self._slack(interval)
        try:
            for i in range(count):
                wanted = (first + i * interval) / self._tick
                if i == 0:
                    self._prepare_to_read(wanted - slack, interval / self._tick)
                frame = self._frame_at(wanted, slack)
                self._require_size((frame.height, frame.width), shape)
                out[i] = self._converter.reformat(frame, format="rgb24").to_ndarray()
        except StrapError:
            raise
        except Exception as error:
            self._restart()
            raise self._unreadable(error) from error
        return out

    def _require_size(self, size: tuple[int, int], shape: tuple[int, ...]) -> None:
        if size != shape[:2]:
            raise StrapError(
                f"'{self.path}' has frames of {list(size)} but meta/info.json says "
                f"{list(shape[:2])}; correct the shape there"
            )

    def _slack(self, interval: Fraction) -> Fraction:
        """Return half a frame interval in ticks, of the video if it is faster than the dataset."""
        rate = self._stream.average_rate or 0
        half = min(interval, 1 / Fraction(rate)) / 2 if rate > 0 else interval / 2
        return max(half, interval / 8) / self._tick

    def _frame_at(self, wanted: Fraction, slack: Fraction) -> Any:
        """Decode up to the frame within `slack` of `wanted` (ticks) and return it."""
        while self._frame is None or self._frame.pts < wanted - slack:
            before = self._frame
            self._frame = next(self._frames, None)
            if self._frame is None:
                self._restart()
                raise self._no_frame(wanted, before, "the file is truncated; download it again")
        if self._frame.pts > wanted + slack:
            raise self._no_frame(wanted, self._frame, "fps or from_timestamp in meta/ are wrong")
        return self._frame

    def _no_frame(self, wanted: Fraction, nearest: Any, reason: str) -> StrapError:
        seen = f"the nearest is at {float(nearest.pts * self._tick):.4f} s" if nearest else "none"
        return StrapError(
            f"'{self.path}' has no frame at {float(wanted * self._tick):.4f} s ({seen}): {reason}"
        )

    def _prepare_to_read(self, first: Fraction, interval: Fraction) -> None:
        """Seek, if necessary, so that decoding reaches the first frame at or after `first`."""
        here = None if self._frame is None else self._frame.pts
        if here is not None and here < first + interval:
            keyframe_between = bisect_right(self._keys, first) > bisect_right(self._keys, here)
            if here + SHORT_SKIP * interval >= first or (self._keys and not keyframe_between):
                return  # decoding on is cheaper than seeking
        self._seek(first)

    def _seek(self, first: Fraction) -> None:
        """Seek to the last keyframe that is displayed at or before `first`.

        Seeking uses decoding times. With B-frames a keyframe can be displayed later than its
        decoding time; then this goes back to earlier keyframes.
        """
        target = max(int(first), 0)
        index = bisect_right(self._keys, target) - 1
        back = 1
        while True:
            self._restart(self._keys[index] if self._keys and index >= 0 else target)
            self._frame = next(self._frames, None)
            if self._frame is None or self._frame.pts <= first or index <= 0:
                return
            index, back = max(0, index - back), 2 * back

    def _restart(self, pts: int | None = None) -> None:
        self._frames = self._decode()
        self._frame = None
        if pts is not None:
            self._container.seek(pts, stream=self._stream, backward=True)
            self.seeks += 1

    def _decode(self) -> Iterator[Any]:
        for frame in self._container.decode(self._stream):
            if frame.pts is None:
                continue
            if frame.is_corrupt:
                raise ValueError(f"the image at {float(frame.pts * self._tick):.4f} s is damaged")
            self.decoded += 1
            yield frame

    def _unreadable(self, error: BaseException) -> StrapError:
        if not self.path.exists():
            return missing_file_error(self.path, "video")
        reason = getattr(error, "strerror", None) or str(error)
        return StrapError(
            f"cannot decode '{self.path}' ({reason}): truncated, damaged, or of an unknown codec; "
            "download it again or re-encode it as H.264 or AV1"
        )


def _codec_tag(stream: Any) -> str:
    tag = getattr(stream, "codec_tag", "") or ""
    return f" '{tag}'" if str(tag).strip("\0 ") else ""


class DecoderPool:
    """A cache of open decoders, one per file; the least recently used one is closed first."""

    def __init__(self, capacity: int = OPEN_FILES, make: Callable[[Path], Decoder] = Decoder):
        self._capacity = capacity
        self._make = make
        self._open: OrderedDict[tuple[Path, int, int], Decoder] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def borrow(self, path: Path) -> Iterator[Decoder]:
        """Yield the decoder of a file, for exclusive use inside the block."""
        while True:
            decoder = self._get(path)
            with decoder.lock:
                if not decoder.closed:  # another thread can have closed it before we got the lock
                    yield decoder
                    return

    def _get(self, path: Path) -> Decoder:
        status = stat_regular_file(path, "video")
        key = (path, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._open:
                self._open[key] = self._make(path)
            self._open.move_to_end(key)
            decoder = self._open[key]
            while len(self._open) > self._capacity:
                _, oldest = self._open.popitem(last=False)
                with oldest.lock:
                    oldest.close()
            return decoder

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


_thread_pool = threading.local()
_parents: list[DecoderPool] = []


def decoder_pool() -> DecoderPool:
    """Return this thread's pool of decoders, so that threads reading one file do not wait.

    After a fork the parent's pool is neither used nor closed: the codec threads of its decoders
    exist only in the parent.
    """
    process, found = getattr(_thread_pool, "pool", (None, None))
    if process != os.getpid() or found is None:
        if found is not None:
            _parents.append(found)
        found = DecoderPool()
        _thread_pool.pool = (os.getpid(), found)
    return found
