"""H.264 decoded by the processor against NVIDIA's decoder (NVDEC), both through PyAV.

    python benchmarks/formats/hardware_decoding.py [--processes 1 4 16]

Every frame ends as an RGB array in the host's memory, by a converter of its own. Each process opens
the same file twice and decodes it; a first pass, which starts the processes and makes their CUDA
contexts, is not counted. `cuda` is PyAV's hardware acceleration, `h264_cuvid` the vendor's own
decoder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import av
import numpy as np
from av.codec.hwaccel import HWAccel, hwdevices_available
from machine import describe

SIZES = ((128, 128), (320, 180), (640, 480))
FRAMES = 600
KEYFRAME_EVERY = 10
BLOCK = 8  # pixels of one colour


def write_video(path: Path, width: int, height: int) -> None:
    """A scrolling pattern of coloured blocks."""
    shape = height // BLOCK + 2, width // BLOCK + FRAMES // BLOCK + 5, 3
    blocks = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    pattern = blocks.repeat(BLOCK, 0).repeat(BLOCK, 1)
    options = {"crf": "24", "g": str(KEYFRAME_EVERY), "preset": "veryfast"}
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(FRAMES):
            image = np.ascontiguousarray(pattern[:height, i : i + width])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image)))
        file.mux(stream.encode())


def decode(path: str, way: str) -> int:
    """Decode a file; return how many frames it had."""
    if way == "h264_cuvid":
        return _decode_cuvid(path)
    hardware = HWAccel("cuda", allow_software_fallback=False) if way == "cuda" else None
    with av.open(path, hwaccel=hardware) as file:
        stream = file.streams.video[0]
        stream.thread_count = 1
        return sum(1 for frame in file.decode(stream) if frame.to_ndarray(format="rgb24").size)


def _decode_cuvid(path: str) -> int:
    with av.open(path) as file:
        stream = file.streams.video[0]
        decoder = av.CodecContext.create("h264_cuvid", "r")
        decoder.extradata = stream.codec_context.extradata
        frames = (frame for packet in file.demux(stream) for frame in decoder.decode(packet))
        return sum(1 for frame in frames if frame.to_ndarray(format="rgb24").size)


def decode_twice(job: tuple[str, str]) -> int:
    return decode(*job) + decode(*job)


def rate(path: Path, way: str, processes: int) -> float:
    """Frames per second of so many processes together."""
    jobs = [(str(path), way)] * processes
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(decode_twice, jobs, chunksize=1)
        begin = time.perf_counter()
        frames = sum(pool.map(decode_twice, jobs, chunksize=1))
        return frames / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 16])
    options = parser.parse_args()
    print(describe("av"))
    ways = ["processor"]
    if "cuda" in hwdevices_available():
        ways += ["cuda", "h264_cuvid"]
    with tempfile.TemporaryDirectory() as folder:
        for width, height in SIZES:
            path = Path(folder) / f"{width}x{height}.mp4"
            write_video(path, width, height)
            for way in ways:
                for processes in options.processes:
                    try:
                        rates = f"{rate(path, way, processes):.0f} frames/s"
                    except (av.FFmpegError, ValueError, RuntimeError) as error:
                        rates = f"{type(error).__name__}: {error}"
                    print(f"{width}×{height}  {way:10}  {processes:2} processes  {rates}")


if __name__ == "__main__":
    main()
