"""Frames out of video files: seek to the keyframe before, decode only what is asked for.

One decoder stays open per file (a few files per process), so that reading on from where the last
read stopped decodes each frame once and never seeks.

    keyframe          wanted
    |                 |-------|
    K . . . . . . . . W W W W W . . .
    ^ seek here, decode and drop up to the first wanted frame
"""

from __future__ import annotations

import os
import stat
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

from strap.datasets.lerobot.containers import container_format
from strap.datasets.untrusted import MAX_IMAGE_PIXELS
from strap.errors import StrapError
from strap.processors import processors
from strap.types import Array

OPEN_FILES = 8
"""decoders kept open per process"""
SHORT_SKIP = 8
"""frames worth decoding to avoid a seek"""
MAX_THREADS = 4
"""per decoder: more gains little on robot videos and costs memory for every open file"""
MAX_THREAD_PIXELS = 1 << 25
"""of the pictures that threads decode at a time: each thread keeps some of its own"""
OPENING = {
    "protocol_whitelist": "file",
    "enable_drefs": "0",
    "use_absolute_path": "0",
    "max_pixels": str(MAX_IMAGE_PIXELS),
}
"""FFmpeg reads this one file, none that it names, and no larger pictures"""


def import_av() -> ModuleType:
    """Return PyAV, imported when the first video is touched."""
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

    They are in the file's index; PyAV before 16 does not show that, so all packets are read, which
    decodes nothing.
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

    `decoded` counts the frames that came out of the codec, wanted or not.
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
            self._container = av.open(f"file:{path}", format=kind, options=OPENING)
        except Exception as error:
            raise self._bad(error) from error
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
            raise self._bad(error) from error

    def _prepare(self, av: ModuleType) -> None:
        context = self._stream.codec_context
        context.thread_type = "AUTO"
        n_processors = processors()
        affordable = MAX_THREAD_PIXELS // max(1, context.width * context.height)
        n_threads = max(1, min(MAX_THREADS, n_processors + 1, affordable))
        context.thread_count = n_threads if n_processors > 1 else 1
        # A damaged picture is an error, not a grey guess.
        context.options = {"err_detect": "explode", "max_pixels": OPENING["max_pixels"]}
        self._tick = Fraction(self._stream.time_base)
        self._keys = list_keyframes(self._container, self._stream)
        # One converter for all frames: making one per frame costs a tenth of the time.
        self._convert = av.video.reformatter.VideoReformatter()
        self._frames = self._forward()
        self._frame: Any = None  # the one that came out last

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        return int(self._stream.codec_context.height), int(self._stream.codec_context.width)

    def close(self) -> None:
        """Give the file and the codec's threads back."""
        self.closed = True
        self._container.close()
        # The codec's threads end with the last that knows it; what refers back to the decoder
        # would keep it until some later garbage collection.
        self._frames = iter(())
        self._frame = self._stream = self._convert = None

    def read(
        self, first: Fraction, count: int, interval: Fraction, shape: tuple[int, ...]
    ) -> Array:
        """Return `count` frames from `first` (seconds) on, `interval` apart, uint8 [n h w 3].

        A time with no frame within half an interval is an error: the video has no such frame.
        """
        self._require_size(self.size, shape)
        out = np.empty((count, *shape), np.uint8)
        slack = self._slack(interval)
        try:
            for i in range(count):
                wanted = (first + i * interval) / self._tick
                if i == 0:
                    self._approach(wanted - slack, interval / self._tick)
                frame = self._at(wanted, slack)
                self._require_size((frame.height, frame.width), shape)
                out[i] = self._convert.reformat(frame, format="rgb24").to_ndarray()
        except StrapError:
            raise
        except Exception as error:
            self._restart()
            raise self._bad(error) from error
        return out

    def _require_size(self, size: tuple[int, int], shape: tuple[int, ...]) -> None:
        if size != shape[:2]:
            raise StrapError(
                f"'{self.path}' has frames of {list(size)} but meta/info.json says "
                f"{list(shape[:2])}; correct the shape there"
            )

    def _slack(self, interval: Fraction) -> Fraction:
        """Return half a frame, in ticks: of the video where it is faster than the dataset."""
        rate = self._stream.average_rate or 0
        half = min(interval, 1 / Fraction(rate)) / 2 if rate > 0 else interval / 2
        return max(half, interval / 8) / self._tick

    def _at(self, wanted: Fraction, slack: Fraction) -> Any:
        """Return the frame within `slack` of `wanted`, decoding forward up to it."""
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

    def _approach(self, first: Fraction, interval: Fraction) -> None:
        """Make sure that decoding forward meets the first frame at or after `first` (ticks)."""
        here = None if self._frame is None else self._frame.pts
        if here is not None and here < first + interval:
            keyframe_between = bisect_right(self._keys, first) > bisect_right(self._keys, here)
            if here + SHORT_SKIP * interval >= first or (self._keys and not keyframe_between):
                return  # reading on is cheaper than seeking
        self._seek(first)

    def _seek(self, first: Fraction) -> None:
        """Go to the last keyframe whose picture is not after `first`.

        Seeking works on decoding times; with B-frames a keyframe may be shown later than that, and
        then the one before it is the one to start from, or one of those before that.
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
        self._frames = self._forward()
        self._frame = None
        if pts is not None:
            self._container.seek(pts, stream=self._stream, backward=True)
            self.seeks += 1

    def _forward(self) -> Iterator[Any]:
        for frame in self._container.decode(self._stream):
            if frame.pts is None:
                continue
            if frame.is_corrupt:
                raise ValueError(f"the picture at {float(frame.pts * self._tick):.4f} s is damaged")
            self.decoded += 1
            yield frame

    def _bad(self, error: BaseException) -> StrapError:
        if not self.path.exists():
            return StrapError(
                f"missing video '{self.path}'; download it, or open the dataset with "
                "missing='skip' (--missing skip) to leave its episodes out"
            )
        reason = getattr(error, "strerror", None) or str(error)
        return StrapError(
            f"cannot decode '{self.path}' ({reason}): truncated, damaged, or of an unknown codec; "
            "download it again or re-encode it as H.264 or AV1"
        )


def _codec_tag(stream: Any) -> str:
    tag = getattr(stream, "codec_tag", "") or ""
    return f" '{tag}'" if str(tag).strip("\0 ") else ""


class DecoderPool:
    """The last few decoders, one per file; the file that was not used longest is closed first."""

    def __init__(self, capacity: int = OPEN_FILES, make: Callable[[Path], Decoder] = Decoder):
        self._capacity = capacity
        self._make = make
        self._open: OrderedDict[tuple[Path, int, int], Decoder] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def borrow(self, path: Path) -> Iterator[Decoder]:
        """Give the decoder of that file, for this thread alone while it is borrowed."""
        while True:
            decoder = self._get(path)
            with decoder.lock:
                if not decoder.closed:  # another thread may have pushed it out meanwhile
                    yield decoder
                    return

    def _get(self, path: Path) -> Decoder:
        try:
            found = path.stat()
        except OSError as error:
            raise StrapError(
                f"missing video '{path}' ({error.strerror}); download it, or open the dataset "
                "with missing='skip' (--missing skip) to leave its episodes out"
            ) from error
        if not stat.S_ISREG(found.st_mode):
            raise StrapError(f"'{path}' is no file but a folder, pipe or device; download it again")
        key = (path, found.st_mtime_ns, found.st_size)
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
    """Return this thread's decoders: threads that read one file do not wait for each other.

    After a fork the parent's are left alone, neither used nor closed: their threads exist only in
    the parent.
    """
    process, found = getattr(_thread_pool, "pool", (None, None))
    if process != os.getpid() or found is None:
        if found is not None:
            _parents.append(found)
        found = DecoderPool()
        _thread_pool.pool = (os.getpid(), found)
    return found
