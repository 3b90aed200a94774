"""Sheets of frames: which frames, how they lie, made once, and a folder that does not grow."""

from __future__ import annotations

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from strap.atomic import TEMPORARY, replacing
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Array, Source, Trajectory
from strap.view import films
from strap.view.errors import BadRequestError, NotThereError
from strap.view.films import FilmRequest, Films, FilmSheet, draw_sheet

ALL = FilmRequest("target", "demo", 0, 7, "wrist", 96)


def make_trajectory(file: Path, length: int = 7, height: int = 24, width: int = 32) -> Trajectory:
    """A trajectory whose frame i is all of one grey, 30 · i."""
    file.write_bytes(b"frames")
    shades = (30 * np.arange(length) % 256).astype(np.uint8)
    images = np.broadcast_to(shades[:, None, None, None], (length, height, width, 3))
    return Trajectory(
        id="demo",
        length=length,
        instruction="",
        cameras={"wrist": lazy(np.ascontiguousarray(images))},
        proprioception={},
        actions=lazy(np.zeros((length, 1))),
        source=Source(file, "demo"),
    )


@pytest.fixture
def trajectory(tmp_path: Path) -> Trajectory:
    return make_trajectory(tmp_path / "file")


def shades(film: FilmSheet) -> list[int]:
    """Return the grey in the middle of each frame of a sheet, row by row."""
    with Image.open(io.BytesIO(film.jpeg)) as image:
        pixels: Array = np.asarray(image.convert("L"))
    height, width = pixels.shape[0] // film.rows, pixels.shape[1] // film.columns
    places = [divmod(i, film.columns) for i in range(film.frames)]
    return [int(pixels[r * height + height // 2, c * width + width // 2]) for r, c in places]


def test_frames_lie_row_by_row(trajectory: Trajectory, tmp_path: Path) -> None:
    film = Films(tmp_path / "films").get(trajectory, ALL)
    assert (film.frames, film.columns, film.rows) == (7, 3, 3)
    assert np.allclose(shades(film), 30 * np.arange(7), atol=2)
    with Image.open(io.BytesIO(film.jpeg)) as image:
        assert (image.format, image.size) == ("JPEG", (3 * 32, 3 * 24))  # never enlarged


def test_a_part_and_a_count(trajectory: Trajectory, tmp_path: Path) -> None:
    film = Films(tmp_path / "films").get(trajectory, replace(ALL, start=2, stop=7, count=3))
    assert np.allclose(shades(film), [60, 120, 180], atol=2)


@given(start=st.integers(0, 500), length=st.integers(1, 300), count=st.integers(1, 400))
def test_first_and_last_are_shown_and_none_twice(start: int, length: int, count: int) -> None:
    request = FilmRequest("0", "t", start, start + length, "c", 96, count)
    shown = request.frames()
    assert len(shown) == min(count, length)
    assert (np.diff(shown) > 0).all()
    assert shown[0] == start
    if count > 1:
        assert shown[-1] == start + length - 1


def test_large_frames_shrink_to_the_size(tmp_path: Path) -> None:
    large = make_trajectory(tmp_path / "file", length=4, height=300, width=400)
    with Image.open(io.BytesIO(draw_sheet(large, replace(ALL, stop=4)))) as image:
        assert image.size == (2 * 96, 2 * 72)


def test_flipped_images_are_shown_upright(tmp_path: Path) -> None:
    trajectory = make_trajectory(tmp_path / "file", length=1)
    images = np.zeros((1, 24, 32, 3), np.uint8)
    images[:, :12] = 255  # stored bottom row first: the lower half is bright
    flipped = replace(trajectory, cameras={"wrist": lazy(images)}, orientation="flipped")
    with Image.open(io.BytesIO(draw_sheet(flipped, replace(ALL, stop=1)))) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels[:8].max() < 20
    assert pixels[-8:].min() > 235


def counting(trajectory: Trajectory, reads: list[tuple[int, int]]) -> Trajectory:
    """The same trajectory; what is read of its camera is noted."""
    stored = trajectory.cameras["wrist"]

    def read(start: int, stop: int) -> Array:
        reads.append((start, stop))
        return stored.read(start, stop)

    return replace(trajectory, cameras={"wrist": LazyArray(stored.shape, stored.dtype, read)})


def test_only_shown_frames_are_read(
    trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[int, int]] = []
    draw_sheet(counting(trajectory, reads), replace(ALL, count=3))
    assert reads == [(0, 1), (3, 4), (6, 7)]
    reads.clear()
    monkeypatch.setattr(films, "BATCH_BYTES", 3 * 24 * 32 * 4)  # four frames at a time
    draw_sheet(counting(trajectory, reads), ALL)
    assert reads == [(0, 4), (4, 7)]


def test_a_sheet_is_drawn_once_and_read_from_disk_then(
    trajectory: Trajectory, tmp_path: Path
) -> None:
    reads: list[tuple[int, int]] = []
    counted = counting(trajectory, reads)
    first = Films(tmp_path / "films").get(counted, ALL)
    again = Films(tmp_path / "films").get(counted, ALL)  # another process, later
    assert again == first
    assert len(reads) == 1
    assert not list((tmp_path / "films").rglob("*.tmp"))


def test_those_who_ask_at_once_wait_for_one_drawing(trajectory: Trajectory, tmp_path: Path) -> None:
    reads: list[tuple[int, int]] = []
    entered, may_go_on = threading.Event(), threading.Event()
    stored = trajectory.cameras["wrist"]

    def read(start: int, stop: int) -> Array:
        reads.append((start, stop))
        entered.set()
        assert may_go_on.wait(30)
        return stored.read(start, stop)

    slow = replace(trajectory, cameras={"wrist": LazyArray(stored.shape, stored.dtype, read)})
    kept = Films(tmp_path / "films")
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(kept.get, slow, ALL) for _ in range(4)]
        assert entered.wait(30)
        may_go_on.set()
        assert len({answer.result(30).jpeg for answer in asked}) == 1
    assert len(reads) == 1


def test_a_failure_is_everybodys_and_is_not_kept(trajectory: Trajectory, tmp_path: Path) -> None:
    def fail(start: int, stop: int) -> Array:
        raise OSError("the disk is gone")

    stored = trajectory.cameras["wrist"]
    broken = replace(trajectory, cameras={"wrist": LazyArray(stored.shape, stored.dtype, fail)})
    kept = Films(tmp_path / "films")
    with pytest.raises(OSError, match="the disk is gone"):
        kept.get(broken, ALL)
    assert kept.get(trajectory, ALL).frames == 7


def test_a_changed_file_is_drawn_again(trajectory: Trajectory, tmp_path: Path) -> None:
    reads: list[tuple[int, int]] = []
    counted, kept = counting(trajectory, reads), Films(tmp_path / "films")
    kept.get(counted, ALL)
    (tmp_path / "file").write_bytes(b"other frames")
    kept.get(counted, ALL)
    assert len(reads) == 2


def test_what_was_used_longest_ago_is_removed(trajectory: Trajectory, tmp_path: Path) -> None:
    folder = tmp_path / "films"
    asked = [replace(ALL, start=start, stop=start + 4) for start in range(4)]
    size = len(Films(tmp_path / "other").get(trajectory, asked[0]).jpeg)
    kept = Films(folder, max_bytes=int(3.5 * size))
    files: list[Path] = []
    for request in asked[:3]:
        kept.get(trajectory, request)
        files += set(folder.rglob("*.jpg")) - set(files)
        os.utime(files[-1], (len(files), len(files)))
    kept.get(trajectory, asked[0])  # used just now, so the second was used longest ago
    kept.get(trajectory, asked[3])
    assert [file.exists() for file in files] == [True, False, True]
    assert sum(file.stat().st_size for file in folder.rglob("*.jpg")) <= 3.5 * size


def test_what_a_killed_process_left_is_removed(trajectory: Trajectory, tmp_path: Path) -> None:
    folder = tmp_path / "films"
    Films(folder).get(trajectory, ALL)
    [sheet] = folder.glob("*/*")
    left = sheet.with_name(f".{sheet.name}.0123{TEMPORARY}")
    left.write_bytes(b"a part")
    with replacing(sheet, sweep=False) as written:  # by another process, which is at it
        Films(folder).get(trajectory, replace(ALL, start=1))
        assert written.exists()
        written.write_bytes(b"the whole")
    assert not left.exists()
    assert sheet.read_bytes() == b"the whole"


def test_a_folder_that_cannot_be_written_keeps_nothing(
    trajectory: Trajectory, tmp_path: Path
) -> None:
    (tmp_path / "films").write_text("a file in its place")
    assert Films(tmp_path / "films").get(trajectory, ALL).frames == 7


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (replace(ALL, size=100), "size is 100: it must be one of 96, 192, 384"),
        (replace(ALL, stop=8), "'demo' has 0 to 7"),
        (replace(ALL, start=3, stop=3), "frames 3 to 3"),
        (replace(ALL, count=0), "0 frames are requested"),
        (replace(ALL, count=401), "401 frames are requested: a sheet has 1 to 400"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    trajectory: Trajectory, tmp_path: Path, request_: FilmRequest, message: str
) -> None:
    with pytest.raises(BadRequestError, match=message):
        Films(tmp_path / "films").get(trajectory, request_)


def test_an_unknown_camera_names_the_nearest(trajectory: Trajectory, tmp_path: Path) -> None:
    with pytest.raises(NotThereError, match="did you mean 'wrist'"):
        Films(tmp_path / "films").get(trajectory, replace(ALL, camera="wrst"))


def test_too_long_a_segment_is_asked_for_in_pieces(tmp_path: Path) -> None:
    long = make_trajectory(tmp_path / "file", length=401, height=8, width=8)
    kept = Films(tmp_path / "films")
    with pytest.raises(BadRequestError, match="the rest as another sheet"):
        kept.get(long, replace(ALL, stop=401))
    assert kept.get(long, replace(ALL, stop=400)).columns == 20
