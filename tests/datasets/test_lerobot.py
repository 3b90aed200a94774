"""LeRobot: read what pyarrow and PyAV wrote, write what they can read, and never garbage."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.datasets.writers import (
    Episode,
    episodes,
    number_of,
    picture,
    write_lerobot_v3,
    write_lerobot_v21,
    write_video,
)

from strap.datasets.base import Dataset
from strap.datasets.lerobot import encoding as encoding_module
from strap.datasets.lerobot import finished_episodes, is_lerobot, open_lerobot, write_lerobot
from strap.datasets.lerobot.statistics import ImageStats, aggregate, number_stats
from strap.datasets.lerobot.video import Decoder, DecoderPool, decoder_pool
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.types import Source, Trajectory

LENGTHS = (9, 1, 14)
RATES = {"29.97": Fraction(2997, 100), "ntsc": Fraction(30000, 1001), "12.5": Fraction(25, 2)}


def opened(path: Path, **options: object) -> Dataset:
    name, reader = open_lerobot(path, **options)
    return Dataset(path, name, reader)


def check(dataset: Dataset, content: list[Episode]) -> None:
    """Every number equal, every frame the right one."""
    assert list(dataset.ids) == [f"episode_{e.index:06d}" for e in content]
    for e in content:
        trajectory = dataset[f"episode_{e.index:06d}"]
        assert trajectory.length == e.length
        assert trajectory.instruction == e.task
        assert set(trajectory.cameras) == {"front", "wrist"}
        np.testing.assert_array_equal(trajectory.proprioception["observation.state"][:], e.state)
        np.testing.assert_array_equal(trajectory.actions[:], e.action)
        np.testing.assert_array_equal(trajectory.extras["next.reward"][:], e.reward)
        np.testing.assert_array_equal(trajectory.extras["next.done"][:], e.done)
        for name, tint in (("front", 0), ("wrist", 20)):
            frames = trajectory.frames(name)
            assert [number_of(f) for f in frames] == [e.first + i for i in range(e.length)]
            assert np.abs(frames.astype(int) - e.frames(tint)).mean(axis=(1, 2, 3)).max() < 3


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1", "mpeg4"])
def test_v21_as_pyarrow_and_pyav_write_it(tmp_path: Path, codec: str) -> None:
    content = episodes(LENGTHS)
    dataset = opened(write_lerobot_v21(tmp_path / "d", content, codec=codec))
    assert dataset.format == "lerobot-v2.1"
    check(dataset, content)


def test_encoding_makes_no_thread_real_time(tmp_path: Path) -> None:
    """SVT-AV1 does, run by root; threads that wait without sleeping then stop the machine."""
    seen: set[int] = set()

    def look() -> None:
        tasks = Path("/proc/self/task").iterdir()
        for task in tasks:
            with suppress(ProcessLookupError):  # one that has ended meanwhile
                seen.add(os.sched_getscheduler(int(task.name)))

    def chunks() -> Iterator[np.ndarray]:
        for _ in range(3):
            yield np.zeros((4, 64, 64, 3), np.uint8)
            look()

    av1 = encoding_module.Encoding("av1", Fraction(10), 64, 64)
    encoding_module.encode(tmp_path / "a.mp4", chunks(), av1)
    look()
    assert seen
    assert not seen & {os.SCHED_FIFO, os.SCHED_RR}


@pytest.mark.parametrize("rate", [*RATES, "7"])
def test_v3_episodes_share_one_mp4_at_odd_frame_rates(tmp_path: Path, rate: str) -> None:
    fps = RATES.get(rate, Fraction(7))
    content = episodes(LENGTHS)
    dataset = opened(write_lerobot_v3(tmp_path / "d", content, fps))
    assert dataset.format == "lerobot-v3.0"
    assert dataset["episode_000000"].fps == pytest.approx(float(fps))
    check(dataset, content)


@pytest.mark.parametrize(
    ("codec", "options"),
    [("libx264", {"bf": "3", "g": "12"}), ("libsvtav1", {"g": "8"}), ("mpeg4", {"g": "10"})],
)
def test_v3_long_groups_and_b_frames(tmp_path: Path, codec: str, options: dict[str, str]) -> None:
    content = episodes((40, 3, 30))
    dataset = opened(write_lerobot_v3(tmp_path / "d", content, codec=codec, **options))
    check(dataset, content)
    camera = dataset["episode_000002"].cameras["front"]
    order = random.Random(0).sample(range(30), 12)
    assert [number_of(camera[i]) for i in order] == [43 + i for i in order]


def test_v3_pictures_in_the_table(tmp_path: Path) -> None:
    content = episodes(LENGTHS)
    dataset = opened(write_lerobot_v3(tmp_path / "d", content, pictures=True))
    check(dataset, content)
    last = content[2].frames()
    np.testing.assert_array_equal(dataset["episode_000002"].cameras["front"][3:6], last[3:6])


def test_names_and_place_are_kept_as_attributes(tmp_path: Path) -> None:
    dataset = opened(write_lerobot_v3(tmp_path / "d", episodes(LENGTHS)))
    attributes = dataset["episode_000002"].attributes
    assert attributes["feature_names"]["observation.state"][:3] == ["x", "y", "z"]
    assert attributes["dataset_from_index"] == 10
    assert dataset.metadata["robot_type"] == "test"
    assert is_lerobot(dataset.path)
    assert not is_lerobot(tmp_path)


def test_an_hour_of_video_decodes_one_group_before_the_range(tmp_path: Path) -> None:
    fps, gop, length = Fraction(15), 30, 54_000
    path = tmp_path / "hour.mp4"
    with av.open(str(path), "w") as container:
        options = {"preset": "ultrafast", "g": str(gop), "crf": "20", "sc_threshold": "0"}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        shown = []
        for i in range(256):
            planes = np.full((48, 48), 128, np.uint8)  # of yuv420p, one below the other
            planes[:32] = picture(i, (32, 48))[..., 0]
            shown.append(av.VideoFrame.from_ndarray(planes, format="yuv420p"))
        for i in range(length):
            frame = shown[i % 256]
            frame.pts, frame.time_base = i, 1 / fps
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    decoder = Decoder(path)
    start = length // 2 + 17
    frames = decoder.read(Fraction(start) / fps, 50, 1 / fps, (32, 48, 3))
    assert [number_of(f) for f in frames] == [(start + i) % 256 for i in range(50)]
    assert decoder.decoded <= 50 + gop
    before, seeks = decoder.decoded, decoder.seeks
    decoder.read(Fraction(start + 50) / fps, 50, 1 / fps, (32, 48, 3))
    assert (decoder.decoded - before, decoder.seeks) == (50, seeks)  # reading on: no seek, no waste
    decoder.close()


def test_only_the_cameras_asked_for_are_opened(tmp_path: Path) -> None:
    root = write_lerobot_v3(tmp_path / "d", episodes(LENGTHS))
    shutil.rmtree(root / "videos/observation.images.wrist")
    trajectory = opened(root)["episode_000000"]
    assert len(trajectory.frames("front", 2, 5)) == 3
    with pytest.raises(
        StrapError, match=r"episode_000000, camera 'observation.images.wrist': miss"
    ):
        trajectory.frames("wrist", 2, 5)


def test_pool_keeps_few_files_open_and_closes_the_rest(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.mp4" for i in range(4)]
    for i, path in enumerate(paths):
        write_video(path, [picture(i)] * 3, Fraction(10))
    made: list[Decoder] = []

    def make(path: Path) -> Decoder:
        made.append(Decoder(path))
        return made[-1]

    few = DecoderPool(capacity=2, make=make)
    for path in (*paths, paths[3]):
        with few.borrow(path) as decoder:
            decoder.read(Fraction(0), 1, Fraction(1, 10), (48, 64, 3))
    assert len(few) == 2
    assert [d.closed for d in made] == [True, True, False, False]
    few.close()
    assert all(d.closed for d in made)


def test_a_closed_file_gives_its_threads_back_at_once(tmp_path: Path) -> None:
    """Not with some later garbage collection: by then there may be hundreds."""
    paths = [tmp_path / f"{i}.mp4" for i in range(12)]
    for path in paths:
        write_video(path, [picture(0)] * 3, Fraction(10))
    few = DecoderPool(capacity=1)
    counts = []
    gc.disable()
    try:
        for path in paths:
            with few.borrow(path) as decoder:
                decoder.read(Fraction(0), 3, Fraction(1, 10), (48, 64, 3))
            counts.append(len(list(Path("/proc/self/task").iterdir())))
    finally:
        gc.enable()
    assert counts[-1] <= counts[1]


def test_a_forked_process_opens_its_own_decoders(tmp_path: Path) -> None:
    """In a process of its own: a test runner has threads that do not survive a fork."""
    root = write_lerobot_v3(tmp_path / "d", episodes(LENGTHS))
    script = textwrap.dedent("""
        import os, sys
        import strap
        camera = strap.open_dataset(sys.argv[1])["episode_000002"].cameras["front"]
        expected = camera[4]
        child = os.fork()
        if child == 0:
            own = strap.open_dataset(sys.argv[1])["episode_000002"].cameras["front"]
            os._exit(0 if (own[4] == expected).all() and (camera[4] == expected).all() else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, timeout=280)


def test_tables_work_without_pyav(sound: Path) -> None:
    script = textwrap.dedent("""
        import sys
        sys.modules["av"] = None
        from pathlib import Path
        from strap.datasets.lerobot import open_lerobot
        from strap.errors import StrapError
        trajectory = open_lerobot(Path(sys.argv[1]))[1].read("episode_000000")
        assert trajectory.actions[:].shape == (9, 3)
        try:
            trajectory.frames("front")
        except StrapError as error:
            assert "needs PyAV: pip install" in str(error), error
        else:
            raise SystemExit("frames came from nowhere")
    """)
    subprocess.run([sys.executable, "-c", script, str(sound)], check=True, timeout=60)


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "rate"), [("h264", "29.97"), ("h264", "12.5"), ("av1", "ntsc")])
def test_write_gives_back_numbers_exactly_and_frames_closely(
    tmp_path: Path, codec: str, rate: str
) -> None:
    content = episodes(LENGTHS)
    source = opened(write_lerobot_v3(tmp_path / "in", content, RATES[rate]))
    out = write_lerobot(tmp_path / "out", source, codec=codec, robot_type="arm")
    again = opened(out)
    check(again, content)
    assert again["episode_000000"].fps == pytest.approx(float(RATES[rate]))
    assert again.metadata["robot_type"] == "arm"
    assert not list(tmp_path.glob(".*"))


def test_written_files_as_other_tools_see_them(tmp_path: Path) -> None:
    content = episodes(LENGTHS)
    out = write_lerobot(tmp_path / "out", opened(write_lerobot_v21(tmp_path / "in", content)))
    info = json.loads((out / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (3, 24, 2)
    assert info["splits"] == {"train": "0:3"}
    data = pq.read_table(out / "data/chunk-000/file-000.parquet")
    assert data["index"].to_pylist() == list(range(24))
    assert data["episode_index"].to_pylist() == [0] * 9 + [1] + [2] * 14
    assert str(data.schema.field("timestamp").type) == "float"
    assert data.schema.field("action").type.list_size == 3
    rows = pq.read_table(out / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [row["dataset_from_index"] for row in rows] == [0, 9, 10]
    key = "videos/observation.images.front"
    assert [row[f"{key}/from_timestamp"] for row in rows] == pytest.approx([0, 0.9, 1.0])
    assert rows[2]["tasks"] == ["pick up the cup"]
    np.testing.assert_allclose(rows[2]["stats/action/mean"], content[2].action.mean(axis=0), 1e-5)
    assert np.shape(rows[2]["stats/observation.images.front/max"]) == (3, 1, 1)
    stats = json.loads((out / "meta/stats.json").read_text())
    whole = np.concatenate([e.action for e in content])
    np.testing.assert_allclose(stats["action"]["std"], whole.std(axis=0), rtol=1e-5)
    assert stats["action"]["count"] == [24]
    tasks = pq.read_table(out / "meta/tasks.parquet")
    described = json.loads(tasks.schema.metadata[b"pandas"])
    assert described["index_columns"] == ["task"]
    assert tasks["task_index"].to_pylist() == [0, 1]
    with av.open(str(out / f"{key}/chunk-000/file-000.mp4")) as container:
        stream = container.streams.video[0]
        times = [Fraction(f.pts) * stream.time_base for f in container.decode(stream)]
    assert times == [Fraction(i, 10) for i in range(24)]


def made(
    name: str, length: int = 6, size: tuple[int, int] = (48, 64), **changes: object
) -> Trajectory:
    frames = np.stack([picture(i, size) for i in range(length)])
    rng = np.random.default_rng(length)
    base = Trajectory(
        id=name,
        length=length,
        instruction="stack the bowls",
        cameras={"agentview": lazy(frames[:, ::-1])},
        proprioception={
            "ee_pos": lazy(rng.normal(size=(length, 3))),
            "gripper": lazy(rng.normal(size=length)),
        },
        actions=lazy(rng.normal(size=(length, 7))),
        source=Source(Path("nowhere"), name),
        fps=20.0,
        orientation="flipped",
        extras={
            "is_pad": lazy(np.arange(length) < 2),
            "next_obs/ee_pos": lazy(rng.normal(size=(length, 3))),
            "depth": lazy(np.zeros((length, 4, 4), np.float32)),
        },
    )
    return replace(base, **changes)


def test_other_formats_become_lerobot_features(tmp_path: Path) -> None:
    source = made("demo_0")
    trajectory = opened(write_lerobot(tmp_path / "out", [source]))["episode_000000"]
    assert set(trajectory.proprioception) == {
        "observation.state",
        "observation.ee_pos",
        "observation.gripper",
    }
    np.testing.assert_array_equal(
        trajectory.proprioception["observation.ee_pos"][:], source.proprioception["ee_pos"][:]
    )
    assert trajectory.proprioception["observation.state"].shape == (6, 4)
    names = trajectory.attributes["feature_names"]["observation.state"]
    assert names == ["ee_pos_0", "ee_pos_1", "ee_pos_2", "gripper"]
    assert set(trajectory.extras) == {"is_pad", "next_obs.ee_pos"}  # depth has no column
    assert trajectory.extras["is_pad"][:].tolist() == [True, True, False, False, False, False]
    assert trajectory.orientation == "upright"
    np.testing.assert_allclose(trajectory.frames("agentview"), source.frames("agentview"), atol=40)
    assert [number_of(f) for f in trajectory.frames("agentview")] == list(range(6))


def test_provenance_comes_back(tmp_path: Path) -> None:
    origin = {"dataset": "/prior", "trajectory": "demo_3", "start": 4, "stop": 9, "cost": 1.5}
    both = [
        made("target", attributes={"provenance": {"dataset": "/target", "trajectory": "target"}}),
        made("found", 5, attributes={"provenance": origin}),
    ]
    dataset = opened(write_lerobot(tmp_path / "out", both))
    assert dataset["episode_000001"].attributes["provenance"] == origin
    assert dataset["episode_000000"].attributes["provenance"] == {
        "dataset": "/target",
        "trajectory": "target",
    }


def test_odd_sizes_keep_full_colour(tmp_path: Path) -> None:
    odd = made("demo_0", size=(49, 65))
    trajectory = opened(write_lerobot(tmp_path / "out", [odd]))["episode_000000"]
    frames = trajectory.frames("agentview")
    assert frames.shape == (6, 49, 65, 3)
    assert np.abs(frames.astype(int) - odd.frames("agentview")).mean() < 3
    with pytest.raises(StrapError, match="AV1 needs images of even height and width"):
        write_lerobot(tmp_path / "other", [odd], codec="av1")


def test_files_roll_at_their_size_limits(tmp_path: Path) -> None:
    content = episodes((9,) * 6)
    source = opened(write_lerobot_v3(tmp_path / "in", content))
    out = write_lerobot(
        tmp_path / "out", source, video_files_size_in_mb=0.02, data_files_size_in_mb=0.002
    )
    assert len(list((out / "videos/observation.images.front/chunk-000").iterdir())) > 1
    assert len(list((out / "data/chunk-000").iterdir())) > 1
    check(opened(out), content)


def test_extras_that_differ_are_left_out_with_a_warning(tmp_path: Path) -> None:
    other = made(
        "demo_1", extras={"is_pad": lazy(np.zeros(6, bool)), "states": lazy(np.ones((6, 2)))}
    )
    with pytest.warns(UserWarning, match=r"the same: next_obs.ee_pos, states"):
        out = write_lerobot(tmp_path / "out", [made("demo_0"), other])
    assert set(opened(out)["episode_000001"].extras) == {"is_pad"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cameras": {}}, r"'demo_1' lacks 'observation.images.agentview'"),
        ({"actions": lazy(np.zeros((6, 2)))}, r"'demo_1' has 'action' of shape \(2,\)"),
        ({"fps": 15.0}, "runs at 15 Hz, the first at 20"),
        ({"length": 0}, "has no frames"),
    ],
)
def test_trajectories_that_do_not_fit(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(StrapError, match=message):
        write_lerobot(tmp_path / "out", [made("demo_0"), replace(made("demo_1"), **change)])
    assert not (tmp_path / "out").exists()


def test_nothing_to_write_and_no_rate(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match="there are no trajectories"):
        write_lerobot(tmp_path / "out", [])
    with pytest.raises(StrapError, match="give the frame rate of the recording"):
        write_lerobot(tmp_path / "out", [made("demo_0", fps=None)])
    with pytest.raises(StrapError, match=r"unknown codec 'h265'.*h264"):
        write_lerobot(tmp_path / "out", [made("demo_0")], codec="h265")
    (tmp_path / "out").mkdir()
    with pytest.raises(StrapError, match="exists already"):
        write_lerobot(tmp_path / "out", [made("demo_0")])


# x264 writes the same bytes every time only where the rows of 16×16 blocks are even in number:
# with 48 or 80 rows of pixels its rate control reads memory that nothing has written.
REPEATABLE = (64, 64)


def _content(root: Path) -> dict[str, bytes]:
    files = (p for p in root.rglob("*") if p.is_file())
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_a_stopped_run_goes_on_and_gives_the_same_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    everything = [made(f"demo_{i}", 5 + i, REPEATABLE) for i in range(6)]
    limits = {"video_files_size_in_mb": 0.01}
    straight = _content(write_lerobot(tmp_path / "straight", everything, **limits))

    def stopping():
        for i, trajectory in enumerate(everything):
            if i == stop_at:
                raise KeyboardInterrupt
            yield trajectory

    with pytest.raises(KeyboardInterrupt):
        write_lerobot(tmp_path / "out", stopping(), **limits)
    assert not (tmp_path / "out").exists()
    encoded: list[Path] = []
    encode = encoding_module.encode
    monkeypatch.setattr(
        finished_episodes, "encode", lambda path, *rest: (encoded.append(path), encode(path, *rest))
    )
    assert _content(write_lerobot(tmp_path / "out", everything, **limits)) == straight
    assert len(encoded) == 6 - stop_at  # finished episodes were not encoded again


def test_a_stopped_run_of_other_trajectories_is_not_mixed_in(tmp_path: Path) -> None:
    with pytest.raises(StrapError):
        write_lerobot(tmp_path / "out", [made("a"), made("b", cameras={})])
    with pytest.warns(UserWarning, match="started from other data"):
        write_lerobot(tmp_path / "out", [made("other")])
    with pytest.raises(StrapError):
        write_lerobot(tmp_path / "two", [made("a"), made("b"), made("c", cameras={})])
    with pytest.raises(
        StrapError, match=r"another trajectory \('b'\) than 'z' of .*: remove that folder"
    ):
        write_lerobot(tmp_path / "two", [made("a"), made("z")])


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(finished_episodes, "encode", full)
    with pytest.raises(StrapError, match="no space left to write"):
        write_lerobot(tmp_path / "out", [made("demo_0")])


def test_a_writer_keeps_no_episodes_in_memory(tmp_path: Path) -> None:
    """Twenty episodes of 25 MB are written; the last fifteen together need no 100 MB more."""
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import numpy as np
        from strap.datasets.lerobot import open_lerobot, write_lerobot
        from strap.lazy_arrays import LazyArray, lazy
        from strap.types import Source, Trajectory
        out, length, size = Path(sys.argv[1]), 112, (240, 320)
        plain = np.zeros((1, *size, 3), np.uint8)
        def frames(start, stop):
            return np.repeat(plain + np.uint8(start % 200), stop - start, axis=0)
        def one(i):
            return Trajectory(f"t{i}", length, "go", {"front": LazyArray((length, *size, 3),
                np.dtype(np.uint8), frames)}, {}, lazy(np.zeros((length, 7), np.float32)),
                Source(out, "x"), fps=10.0)
        # Of this program alone: ru_maxrss begins with what the process that started it had. The
        # encoder's own threads and pictures, of which a machine with more cores has more, are there
        # from the first episode on.
        def peak():
            status = open("/proc/self/status").read()
            return 1024 * int(status.partition("VmHWM:")[2].split()[0])
        peaks = []
        def episodes():
            for i in range(20):
                peaks.append(peak())
                yield one(i)
        write_lerobot(out, episodes())
        _, reader = open_lerobot(out)
        for name in list(reader.ids)[::5]:
            reader.read(name).cameras["front"][5:9]
        growth = peak() - peaks[5]
        assert growth < 1e8, f"{growth / 1e6:.0f} MB more than {peaks[5] / 1e6:.0f}"
        print(f"{growth / 1e6:.0f} MB more than {peaks[5] / 1e6:.0f}")
    """)
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "out")], check=True, timeout=280)


# --- statistics --------------------------------------------------------------------------------


def test_statistics_agree_with_numpy() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)) for n in (5, 1, 20)]
    total = aggregate([{"x": number_stats(part)} for part in parts])["x"]
    whole = np.concatenate(parts)
    for name in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(total[name], getattr(np, name)(whole, axis=0))
    frames = rng.integers(0, 256, (7, 20, 30, 3)).astype(np.uint8)
    pictures = ImageStats(7)
    pictures.add(frames[:4])
    pictures.add(frames[4:])
    stats = pictures.result()
    scaled = frames.reshape(-1, 3) / 255
    np.testing.assert_allclose(stats["mean"].ravel(), scaled.mean(axis=0))
    np.testing.assert_allclose(stats["std"].ravel(), scaled.std(axis=0))
    np.testing.assert_allclose(stats["q50"].ravel(), np.median(scaled, axis=0), atol=1 / 255)
    assert stats["count"] == [7]


def test_statistics_are_those_of_the_finite_numbers() -> None:
    values = np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, -np.inf]])
    stats = number_stats(values)
    assert {
        name: own.tolist() for name, own in stats.items() if name in ("min", "max", "mean")
    } == {
        "min": [1.0, 0.0],
        "max": [3.0, 0.0],
        "mean": [2.0, 0.0],
    }
    assert stats["count"] == [3]
    assert number_stats(np.array([np.nan, 2.0]))["std"].tolist() == [0.0]
    same = number_stats(np.array([[[1.0, 2.0], [3.0, np.nan]]]))["max"]
    assert same.tolist() == [[1.0, 2.0], [3.0, 0.0]]


# --- bad input ---------------------------------------------------------------------------------


def read_everything(root: Path) -> None:
    dataset = opened(root)
    for trajectory in dataset:
        trajectory.actions[:]
        for array in (*trajectory.proprioception.values(), *trajectory.extras.values()):
            array[:]
        for name in trajectory.cameras:
            frames = trajectory.frames(name)
            first = int(dataset.reader.layout.columns["dataset_from_index"][0])
            assert len(frames) == trajectory.length
            assert first == 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lerobot_v3(tmp_path_factory.mktemp("sound") / "d", episodes(LENGTHS))


FILES = [
    "meta/info.json",
    "meta/episodes/chunk-000/file-000.parquet",
    "data/chunk-000/file-000.parquet",
    "videos/observation.images.front/chunk-000/file-000.mp4",
]


@pytest.mark.parametrize("file", FILES)
def test_truncated_at_ten_places(sound: Path, tmp_path: Path, file: str) -> None:
    whole = (sound / file).read_bytes()
    for place in random.Random(file).sample(range(len(whole) - 1), 10):
        root = tmp_path / str(place)
        shutil.copytree(sound, root)
        (root / file).write_bytes(whole[:place])
        with pytest.raises(StrapError, match=str(root / file)):
            read_everything(root)


def test_a_truncated_video_that_opens_still_errs(tmp_path: Path) -> None:
    """With its index in front, a cut mp4 opens; what is missing must not come back as pictures."""
    path = tmp_path / "cut.mp4"
    frames = [picture(i) for i in range(60)]
    whole = tmp_path / "whole.mp4"
    with av.open(str(whole), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "10"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    data = whole.read_bytes()
    for cut in random.Random(0).sample(range(len(data) // 2, len(data) - 1), 10):
        path.write_bytes(data[:cut])
        with pytest.raises(StrapError, match=r"cut\.mp4"), decoder_pool().borrow(path) as decoder:
            decoder.read(Fraction(0), 60, Fraction(1, 10), (48, 64, 3))


def _edit(root: Path, change: dict[str, object], feature: str | None = None) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    (info["features"][feature] if feature else info).update(change)
    (root / "meta/info.json").write_text(json.dumps(info))


def copied(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def test_a_wrong_shape_in_info(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path)
    _edit(root, {"shape": [4]}, "action")
    with pytest.raises(
        StrapError, match=r"file-000.parquet', episode_000000: 'action' has shape \[3\]"
    ):
        opened(root)["episode_000000"].actions[:]
    _edit(root, {"shape": [24, 64, 3]}, "observation.images.front")
    with pytest.raises(StrapError, match=r"episode_000000.*file-000.mp4' has frames of \[48, 64\]"):
        opened(root)["episode_000000"].frames("front")
    _edit(root, {"shape": [3]}, "observation.images.front")
    with pytest.raises(StrapError, match=r"must be \[height, width, channels\]"):
        opened(root)


def test_wrong_lengths_and_times(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path)
    file = root / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(file).to_pylist()
    rows[0]["length"] = 12
    pq.write_table(pq.read_table(file).from_pylist(rows), file)
    with pytest.raises(
        StrapError, match=r"episode 0: column 'action' has 9 rows but meta/ says 12"
    ):
        opened(root)["episode_000000"].actions[:]
    _edit(root, {"fps": 14})
    with pytest.raises(StrapError, match="has no frame at"):
        opened(root)["episode_000002"].frames("front")
    _edit(root, {"fps": 0})
    with pytest.raises(StrapError, match="must be a positive number"):
        opened(root)


def test_missing_parquet_and_missing_video(tmp_path: Path) -> None:
    root = write_lerobot_v21(tmp_path / "d", episodes(LENGTHS))
    (root / "data/chunk-000/episode_000000.parquet").unlink()
    (root / "videos/chunk-000/observation.images.wrist/episode_000002.mp4").unlink()
    dataset = opened(root)
    with pytest.raises(StrapError, match=r"missing data file '.*episode_000000.parquet'"):
        dataset["episode_000000"].actions[:]
    with pytest.raises(StrapError, match=r"episode_000002.*missing video.*missing='skip'"):
        dataset["episode_000002"].frames("wrist")
    left = opened(root, missing="skip")
    assert left.ids == ("episode_000001",)
    assert left.reader.skipped == ("episode_000000", "episode_000002")
    assert "skipped 2 of 3 episodes" in left.reader.summary
    with pytest.raises(StrapError, match="unknown trajectory 'episode_000000'"):
        left["episode_000000"]
    assert left.fingerprint() == dataset.fingerprint()


def test_an_unknown_codec(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path)
    file = root / "videos/observation.images.front/chunk-000/file-000.mp4"
    file.write_bytes(file.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(StrapError, match=r"episode_000001.*file-000.mp4.*codec"):
        opened(root)["episode_000001"].frames("front")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"codebase_version": "v4.1"}, "v2.x and v3.0 are read"),
        ({"features": None}, "has no 'features'"),
        ({"data_path": "data/{nothing}.parquet"}, "cannot make a file name from data_path"),
    ],
)
def test_a_strange_info(
    sound: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    root = copied(sound, tmp_path)
    _edit(root, change)
    with pytest.raises(StrapError, match=message):
        read_everything(root)


def test_depth_maps_are_no_cameras(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path)
    _edit(root, {"info": {"video.is_depth_map": True}}, "observation.images.wrist")
    assert set(opened(root)["episode_000000"].cameras) == {"front"}


def test_no_action_feature(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"].pop("action")
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(StrapError, match=r"no feature 'action'.*observation.state"):
        opened(root)
    assert opened(root, action="observation.state")["episode_000000"].actions.shape == (9, 5)
