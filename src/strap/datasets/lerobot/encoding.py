"""Encode episodes as videos: one small mp4 each, later joined without encoding them again."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from strap.atomic import replacing
from strap.datasets.base import Codec
from strap.datasets.lerobot.video import import_av
from strap.errors import StrapError, unknown
from strap.types import Array

GOP = 2
"""frames from keyframe to keyframe, as in LeRobot: at most two frames are decoded to get one"""
CODECS = {"h264": "libx264", "av1": "libsvtav1"}
# Macroblock trees (`mbtree`) save nothing if every second frame is a keyframe, the default here.
# With them x264 is not deterministic: the quality of a block can differ between runs.
_PRESETS = {"h264": {"preset": "veryfast", "bf": "0", "mbtree": "0"}, "av1": {"preset": "8"}}
# Small images have more detail per pixel. They need finer quantisation for an average error below
# three grey levels: (largest number of pixels, crf).
_CRF = {
    "h264": ((128 * 128, 9), (256 * 256, 15), (math.inf, 23)),
    "av1": ((128 * 128, 10), (256 * 256, 20), (math.inf, 30)),
}


@dataclass(frozen=True)
class Encoding:
    """The options by which a camera's frames are encoded."""

    codec: Codec
    fps: Fraction
    height: int
    width: int
    crf: int | None = None
    gop: int = GOP

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise unknown("codec", self.codec, CODECS)
        if self.pixels == "yuv444p" and self.codec == "av1":
            raise StrapError(
                f"AV1 needs images of even height and width, these are "
                f"{self.height}×{self.width}; write with codec='h264'"
            )

    @property
    def pixels(self) -> str:
        """The pixel format: colour at half resolution, or at full resolution for odd sizes."""
        return "yuv420p" if self.height % 2 == 0 and self.width % 2 == 0 else "yuv444p"

    @property
    def quality(self) -> int:
        """The crf in use: the given one, or the default for the image size."""
        if self.crf is not None:
            return self.crf
        area = self.height * self.width
        return next(crf for limit, crf in _CRF[self.codec] if area <= limit)

    def spec(self) -> dict[str, Any]:
        """Return the feature's entry in `info.json`."""
        fps = float(self.fps)
        return {
            "dtype": "video",
            "shape": [self.height, self.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": self.height,
                "video.width": self.width,
                "video.codec": self.codec,
                "video.pix_fmt": self.pixels,
                "video.is_depth_map": False,
                "video.fps": int(fps) if fps.is_integer() else fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }


def encode(path: Path, chunks: Iterator[Array], encoding: Encoding) -> None:
    """Write chunks of frames, uint8 [n h w 3], as one mp4, which appears when it is complete."""
    av = import_av()
    options = {"crf": str(encoding.quality), "g": str(encoding.gop), **_PRESETS[encoding.codec]}
    # SVT-AV1 prints its settings for every episode unless this is set.
    os.environ.setdefault("SVT_LOG", "1")
    part = replacing(path, sweep=False)  # the folder is the caller's to clean up
    with part as temporary, av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream(CODECS[encoding.codec], rate=encoding.fps, options=options)
        stream.height, stream.width = encoding.height, encoding.width
        stream.pix_fmt = encoding.pixels
        stream.time_base = 1 / encoding.fps
        with ordinary_threads():
            container.start_encoding()
        index = 0
        for chunk in chunks:
            for pixels in chunk:
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                frame.pts, frame.time_base = index, 1 / encoding.fps
                container.mux(stream.encode(frame))
                index += 1
        container.mux(stream.encode())


@contextmanager
def ordinary_threads() -> Iterator[None]:
    """Restore the scheduling of threads that become real-time inside the block.

    If the process runs as root, SVT-AV1 makes the calling thread and its own threads real-time.
    Threads that are started later inherit this. Real-time threads that wait for each other without
    sleeping, as those of linear algebra do, can stop the whole machine.
    """
    tasks = Path("/proc/self/task")
    if not tasks.is_dir() or not hasattr(os, "sched_setscheduler"):
        yield
        return
    before = {}
    for task in tasks.iterdir():
        with suppress(ProcessLookupError):  # a thread can end while the threads are listed
            before[task.name] = os.sched_getscheduler(int(task.name))
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for task in tasks.iterdir():
            with suppress(ProcessLookupError):
                if os.sched_getscheduler(int(task.name)) != before.get(task.name, policy):
                    os.sched_setscheduler(int(task.name), policy, parameters)


def join(path: Path, videos: Sequence[Path], lengths: Sequence[int], fps: Fraction) -> None:
    """Concatenate videos into one mp4, with frame k exactly at k / fps."""
    av = import_av()
    with replacing(path) as temporary, av.open(str(temporary), "w", format="mp4") as out:
        target: Any = None
        before = 0
        for video, length in zip(videos, lengths, strict=True):
            with av.open(str(video)) as source:
                stream = source.streams.video[0]
                if target is None:
                    target = out.add_stream_from_template(stream, opaque=True)
                    target.time_base = stream.time_base
                _copy_packets(source, stream, out, target, before / fps)
            before += length


def _copy_packets(source: Any, stream: Any, out: Any, target: Any, begin: Fraction) -> None:
    shift = begin / Fraction(stream.time_base)
    if shift.denominator != 1:
        raise StrapError(
            f"'{source.name}': frame times are not multiples of its time base {stream.time_base}; "
            "remove the unfinished folder and convert again"
        )
    for packet in source.demux(stream):
        if packet.dts is None:  # the empty packet that ends a stream
            continue
        packet.pts += int(shift)
        packet.dts += int(shift)
        packet.stream = target
        out.mux(packet)
