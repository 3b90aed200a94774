"""LeRobot videos of somebody else: only videos are opened, and none that is a bomb."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from tests.datasets.lerobot_damage import (
    FRONT,
    LENGTHS,
    read_all,
)
from tests.datasets.writers import (
    number_of,
    picture,
    write_video,
)

from strap.datasets.lerobot import containers
from strap.datasets.lerobot.video import list_keyframes
from strap.errors import StrapError

DISGUISED = {
    "ffconcat": "ffconcat version 1.0\nfile neighbour.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nneighbour.mp4\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>',
    "image": "/* picture%03d.png */",
    "script": "#!/bin/sh\n",
    "empty": "",
}


@pytest.mark.parametrize("kind", DISGUISED)
def test_playlists_named_mp4_are_not_opened(v3: Path, kind: str) -> None:
    neighbour = v3 / FRONT.replace("file-000", "neighbour")
    (v3 / FRONT).rename(neighbour)
    (v3 / FRONT).write_text(DISGUISED[kind])
    if kind == "ffconcat":
        with av.open(str(v3 / FRONT)) as container:  # FFmpeg by itself opens what it names
            assert container.streams.video[0].width == 64
    with pytest.raises(
        StrapError, match=r"front.*file-000.mp4' is not an mp4, mov, mkv or webm video"
    ):
        read_all(v3)


def test_keyframes_are_the_same_without_an_index(v3: Path) -> None:
    """PyAV before 16 shows no index: then packets are read."""

    class WithoutIndex:
        index_entries = None

    with av.open(str(v3 / FRONT)) as container:
        stream = container.streams.video[0]
        known = list_keyframes(container, stream)
        demux, seek = container.demux, container.seek
        older = SimpleNamespace(
            demux=lambda _: demux(stream), seek=lambda time, **_: seek(time, stream=stream)
        )
        assert list_keyframes(older, WithoutIndex()) == known
        assert known
        assert next(container.decode(stream)).pts == 0  # it is at the beginning again


def test_other_containers(v3: Path) -> None:
    frames = [picture(i) for i in range(sum(LENGTHS))]
    for suffix in ("mkv", "mov", "avi"):
        file = v3.parent / f"a.{suffix}"
        write_video(file, frames, Fraction(10), bf="0")
        (v3 / FRONT).write_bytes(file.read_bytes())
        if suffix == "avi":
            with pytest.raises(StrapError, match=r"starts with b'RIFF.*re-encode it as mp4"):
                read_all(v3)
        else:
            assert number_of(read_all(v3)[2].frames("front")[3]) == 9


def box(data: bytes, kind: bytes, place: int, *numbers: int) -> bytes:
    """Overwrite numbers of the first box of that kind, `place` bytes behind its kind."""
    start = data.index(kind) + 4 + place
    new = struct.pack(f">{len(numbers)}I", *numbers)
    return data[:start] + new + data[start + len(new) :]


def fragmented() -> bytes:
    """An mp4 without a table of its pictures: each fragment has its own."""

    out = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov"}
    with av.open(out, "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "4", "bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for i in range(sum(LENGTHS)):
            frame = av.VideoFrame.from_ndarray(picture(i), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def test_fragments_are_read(v3: Path) -> None:
    (v3 / FRONT).write_bytes(fragmented())
    assert number_of(read_all(v3)[2].frames("front")[3]) == 9


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("plain", lambda d: box(d, b"stsz", 4, 1, 80_000_000), "80,000,000 bytes of images"),
        ("plain", lambda d: box(d, b"stsz", 4, 0, 80_000_000), "80,000,013|80,000,000 images"),
        ("plain", lambda d: box(d, b"elst", 4, 80_000_000), "images; at most 16,777,216"),
        ("fragmented", lambda d: box(d, b"trun", 4, 80_000_000), r"80,000,0\d\d images"),
        ("plain", lambda d: d.replace(b"mvhd", b"cmov"), "its index is compressed"),
    ],
)
def test_videos_that_declare_more_than_they_hold(
    v3: Path, kind: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    whole = fragmented() if kind == "fragmented" else (v3 / FRONT).read_bytes()
    (v3 / FRONT).write_bytes(damage(whole))
    with pytest.raises(StrapError, match=f"front.*file-000.mp4'.*({message})"):
        read_all(v3)


def test_a_large_index(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_INDEX_BYTES", 500)
    with pytest.raises(StrapError, match=r"file-000.mp4' declares .* bytes of index"):
        read_all(v3)


def test_a_video_without_pictures(v3: Path) -> None:
    with av.open(str(v3 / FRONT), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(StrapError, match=r"cannot decode '.*file-000.mp4'"):
        read_all(v3)


def test_a_video_whose_pictures_change_their_size(v3: Path) -> None:
    settings = {"x264-params": "repeat-headers=1:bframes=0:keyint=1"}

    def encoded(size: tuple[int, int], start: int) -> list[av.Packet]:
        codec = av.CodecContext.create("libx264", "w")
        codec.height, codec.width = size
        codec.pix_fmt, codec.time_base, codec.options = "yuv420p", Fraction(1, 10), settings
        found = []
        for i in range(start, start + 10):
            frame = av.VideoFrame.from_ndarray(picture(i, size), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 10)
            found += codec.encode(frame)
        return found + codec.encode(None)

    with av.open(str(v3 / FRONT), "w") as container:
        stream = container.add_stream("libx264", rate=10, options=settings)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for packet in encoded((48, 64), 0)[:3] + encoded((96, 128), 3):
            packet.stream = stream
            container.mux(packet)
    with pytest.raises(StrapError, match=r"has frames of \[96, 128\] but meta/info.json says"):
        read_all(v3)
