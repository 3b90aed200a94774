"""A frame cache small enough to carry: its pictures as video, the rest as it is.

PACK/ holds the same files as the cache, but `frames-<camera>.mp4` (H.264, every frame within a few
grey levels) where the cache has `frames-<camera>.npy`. Unpacking decodes with PyAV, or with OpenCV
where PyAV is absent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from strap.artifacts import write_json
from strap.errors import StrapError
from strap.training.cache import FrameCache, open_cache, read_content
from strap.types import Array

CRF = 14
GOP = 30


def pack(cache: str | Path, out: str | Path, *, crf: int = CRF) -> Path:
    """Write a packed copy of a finished cache; smaller `crf`, better pictures."""
    from strap.datasets.lerobot.encoding import Encoding, encode

    source, out = open_cache(cache), Path(out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.path.iterdir()):
        if file.is_file() and not file.name.startswith(("frames-", ".", "manifest")):
            shutil.copyfile(file, out / file.name)
    size = source.interface.image_size
    for camera in source.interface.cameras if source.has_frames else ():
        frames = source.frames(camera)
        pieces = (np.asarray(frames[i : i + 256]) for i in range(0, len(frames), 256))
        encoding = Encoding("h264", Fraction(20), size, size, crf=crf, gop=GOP)
        encode(out / f"frames-{camera}.mp4", pieces, encoding)
    write_json(out / "packed.json", {"crf": crf})
    return out


def unpack(packed: str | Path, out: str | Path) -> FrameCache:
    """Make a cache of a packed one."""
    packed, out = Path(packed).expanduser(), Path(out).expanduser()
    if not (packed / "packed.json").is_file():
        raise StrapError(f"'{packed}' is no packed cache (it has no packed.json): pack one first")
    if (out / "manifest.json").is_file():
        return open_cache(out)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(packed.iterdir()):
        if file.suffix != ".mp4" and file.name != "packed.json":
            shutil.copyfile(file, out / file.name)
    cache = read_content(out)
    size = cache.interface.image_size
    for camera in cache.interface.cameras if cache.has_frames else ():
        shape = (cache.rows, size, size, 3)
        array = open_memmap(out / f"frames-{camera}.npy", mode="w+", dtype="uint8", shape=shape)
        row = 0
        for image in decode(packed / f"frames-{camera}.mp4"):
            array[row] = image
            row += 1
        if row != cache.rows:
            raise StrapError(
                f"'{packed / f'frames-{camera}.mp4'}' has {row} frames, not {cache.rows}: it is "
                "damaged; pack again"
            )
        array.flush()
    write_json(out / "manifest.json", {"identity": "unpacked", "from": packed.name})
    return open_cache(out)


def decode(video: Path) -> Iterator[Array]:
    """Every frame of a video, uint8 [h w 3]."""
    try:
        import av
    except ImportError:
        yield from _decode_opencv(video)
        return
    with av.open(str(video)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24")


def _decode_opencv(video: Path) -> Iterator[Array]:
    try:
        import cv2
    except ImportError as error:
        raise StrapError("unpacking needs PyAV or OpenCV: pip install av") from error
    capture: Any = cv2.VideoCapture(str(video))
    while True:
        fine, image = capture.read()
        if not fine:
            return
        yield image[:, :, ::-1]
