from __future__ import annotations

import json
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from tests import forks
from tests.datasets.writers import episodes, write_lerobot_v21

import strap
from strap.cli import main
from strap.conversion import convert
from strap.datasets import robomimic
from strap.errors import StrapError
from strap.exports import frame_weights, weighted_spans, write_filter, write_manifest
from strap.lazy_arrays import lazy
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment, Source, Trajectory


@pytest.fixture
def matches(planted: Planted) -> Matches:
    name = strap.open_dataset(planted.prior).name
    query = Segment("demo_0", 0, 30)
    found = [Segment("demo_10", 3, 9), Segment("demo_2", 5, 8), Segment("demo_2", 5, 8)]
    found.append(Segment("demo_2", 7, 12))
    return Matches(tuple(Match(query, s, 0.0, i, "", name) for i, s in enumerate(found, 1)))


def test_stretches(planted: Planted, matches: Matches) -> None:
    target = strap.open_dataset(planted.target)
    rows = [(r.episode, r.start, r.stop, r.weight) for r in weighted_spans(target, matches)]
    assert rows == [
        ("demo_0", 0, 90, 1.0),
        ("demo_1", 0, 90, 1.0),
        ("demo_2", 5, 8, 2.0),  # retrieved twice
        ("demo_2", 7, 12, 1.0),
        ("demo_10", 3, 9, 1.0),
    ]


def test_manifest(planted: Planted, matches: Matches, tmp_path: Path) -> None:
    target = strap.open_dataset(planted.target)
    write_manifest(tmp_path / "m.json", target, matches)
    write_manifest(tmp_path / "m.parquet", target, matches)
    rows = json.loads((tmp_path / "m.json").read_text())
    assert rows == pq.read_table(tmp_path / "m.parquet").to_pylist()
    assert list(rows[0]) == ["dataset", "episode", "start", "stop", "weight"]
    assert rows[0]["dataset"] == str(planted.target)


def test_weights_name_every_frame(planted: Planted, matches: Matches) -> None:
    prior = strap.open_dataset(planted.prior)
    lengths = [t.length for t in prior]
    table = frame_weights(prior, matches)
    assert table["index"].to_pylist() == list(range(sum(lengths)))
    weights = np.array(table["weight"])
    expected = np.zeros(sum(lengths))
    first = sum(lengths[:2])
    expected[first + 5 : first + 8] += 2
    expected[first + 7 : first + 12] += 1
    expected[sum(lengths[:10]) + 3 : sum(lengths[:10]) + 9] += 1
    assert np.array_equal(weights, expected)
    target = strap.open_dataset(planted.target)
    assert set(np.array(frame_weights(target, Matches(()), is_target=True)["weight"])) == {1.0}


def test_weights_of_a_changed_dataset(planted: Planted, matches: Matches) -> None:
    long = Match(matches[0].query, Segment("demo_0", 0, 999), 0.0, 1, "", matches[0].dataset)
    with pytest.raises(StrapError, match=r"demo_0\[0:999\] goes past"):
        frame_weights(strap.open_dataset(planted.prior), Matches((long,)))


def test_frames_are_numbered_from_0_in_a_file_made_of_a_part_of_a_lerobot_dataset(
    planted: Planted, tmp_path: Path
) -> None:
    lerobot = strap.open_dataset(convert(strap.open_dataset(planted.prior), tmp_path / "lerobot"))
    part = convert(lerobot, tmp_path / "part.hdf5", ids=list(lerobot.ids)[4:6])
    table = frame_weights(strap.open_dataset(part), Matches(()))
    assert table["index"].to_pylist() == list(range(len(table)))


@pytest.mark.parametrize("version", ["hdf5", "v3.0", "v2.1"])
def test_weights_name_the_frames_that_a_selection_leaves_out(
    planted: Planted, tmp_path: Path, version: str
) -> None:
    """LeRobot takes frames that are not named at weight 1; the retrieved ones may be among them."""
    whole = strap.open_dataset(planted.prior)
    lengths = [trajectory.length for trajectory in whole]
    if version == "v3.0":
        whole = strap.open_dataset(convert(whole, tmp_path / "lerobot"))
    if version == "v2.1":
        folder = write_lerobot_v21(tmp_path / "v21", episodes(lengths))
        (folder / "data/chunk-000/episode_000001.parquet").unlink()
        whole = strap.open_dataset(folder, missing="skip")
    begins = np.cumsum(lengths) - lengths
    spans = {}
    for key in whole.ids:
        number = int(key.rpartition("_")[2])
        spans[key] = range(begins[number], begins[number] + lengths[number])
    ids = list(whole.ids)
    match = Match(Segment(ids[3], 0, 4), Segment(ids[7], 2, 6), 0.0, 1, "", whole.name)
    table = frame_weights(whole.select(ids[3:5]), Matches((match,)), is_target=True)
    weights = dict(zip(table["index"].to_pylist(), table["weight"].to_pylist(), strict=True))
    assert set(weights) == {index for span in spans.values() for index in span}
    expected = {*spans[ids[3]], *spans[ids[4]], *spans[ids[7]][2:6]}
    assert {index for index, weight in weights.items() if weight} == expected


def test_filter(planted: Planted, matches: Matches, tmp_path: Path) -> None:
    write_filter(tmp_path / "f.json", strap.open_dataset(planted.target), matches)
    content = json.loads((tmp_path / "f.json").read_text())
    assert content[str(planted.prior)] == {
        "episodes": ["demo_2", "demo_10"],
        "frames": {"demo_2": [[5, 12]], "demo_10": [[3, 9]]},
    }
    assert content[str(planted.target)]["frames"] == {"demo_0": [[0, 90]], "demo_1": [[0, 90]]}


def test_export_a_run_every_way(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    words = ["--target", str(own_planted.target), "--prior", str(own_planted.prior)]
    assert main(["retrieve", *words, "--encoder", "pixels", "--top-k", "6", "--out", run]) == 0
    for kind, name in (
        ("lerobot", "lerobot"),
        ("robomimic", "again.hdf5"),
        ("manifest", "m.json"),
        ("filter", "f.json"),
        ("weights", "weights"),
    ):
        out = str(tmp_path / name)
        capsys.readouterr()
        assert main(["export", run, "--as", kind, "--out", out, "--json"]) == 0
        written = json.loads(capsys.readouterr().out)["written"]
        assert all(Path(file).exists() for file in written)
    lerobot = strap.open_dataset(tmp_path / "lerobot")
    assert len(lerobot) == 8
    whole = strap.open_dataset(Path(run) / "augmented.hdf5")
    for one, other in zip(lerobot, whole, strict=True):
        # A demonstration is padded in robomimic's layout alone, a segment in both.
        real = slice(5, -5) if other.length > one.length else slice(None)
        assert np.allclose(one.actions[:], other.actions[:][real], atol=1e-6)
        assert one.instruction == other.instruction
        assert np.array_equal(one.extras["is_pad"][:].ravel(), other.extras["is_pad"][:][real])
        camera = next(iter(one.cameras))
        pictures = other.frames("agentview_rgb")[real]
        error = np.abs(one.frames(camera).astype(int) - pictures).mean()
        assert error < 3
    weights = pq.read_table(tmp_path / "weights" / "prior-0-prior.parquet")
    retrieved = sum(len(m.segment) for m in strap.Matches.from_parquet(f"{run}/matches.parquet"))
    assert sum(weights["weight"].to_pylist()) == retrieved
    own_planted.prior.touch()
    assert main(["export", run, "--as", "filter", "--out", str(tmp_path / "g.json")]) == 2
    assert "has changed since" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "h")]) == 2
    assert "is not a finished run" in capsys.readouterr().err


def test_convert_there_and_back(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lerobot, back = str(tmp_path / "lerobot"), str(tmp_path / "back.hdf5")
    assert main(["convert", str(planted.prior), lerobot]) == 0
    assert "12 trajectories" in capsys.readouterr().out
    assert main(["convert", lerobot, back, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "robomimic"
    start, end = strap.open_dataset(planted.prior), strap.open_dataset(back)
    for one, other in zip(start, end, strict=True):
        assert one.instruction == other.instruction
        assert np.allclose(one.actions[:], other.actions[:], atol=1e-6)
        camera = next(iter(other.cameras))
        difference = one.frames("agentview_rgb").astype(int) - other.frames(camera)
        assert np.abs(difference).mean() < 3
        assert np.abs(difference[[0, -1]]).mean() < 3
    written = Path(back).stat().st_mtime_ns
    assert main(["convert", lerobot, back]) == 0  # the same again: it is there
    assert Path(back).stat().st_mtime_ns == written
    assert main(["convert", str(planted.target), back]) == 2
    assert "exists already" in capsys.readouterr().err


def convert_slowly(dataset: str, out: str) -> int:
    """Call `strap convert`; each trajectory takes a moment to write."""
    write = robomimic._write_demo

    def write_slowly(*arguments: Any) -> str:
        time.sleep(0.1)
        return write(*arguments)

    robomimic._write_demo = write_slowly
    return main(["convert", dataset, out])


def test_a_killed_conversion_goes_on(planted: Planted, tmp_path: Path) -> None:
    out = tmp_path / "out.hdf5"
    child = forks.start(convert_slowly, str(planted.prior), str(out))
    parts = tmp_path / ".out.hdf5.partial"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("demo_*.hdf5"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    child.kill()
    child.join()
    assert not out.exists()
    kept = {f: f.stat().st_mtime_ns for f in parts.glob("demo_*.hdf5")}
    assert kept
    seen: list[float] = []

    def watch(_what: str, _done: int, _total: int) -> None:
        seen.extend(f.stat().st_mtime_ns - kept[f] for f in kept if f.exists())

    convert(strap.open_dataset(planted.prior), out, progress=watch)
    assert set(seen) == {0}  # finished parts were not written again
    assert not parts.exists()
    with h5py.File(out) as file, h5py.File(planted.prior) as source:
        assert len(file["data"]) == 12
        for name, demo in source["data"].items():
            for key in ("actions", "states", "obs/agentview_rgb", "obs/ee_pos"):
                assert np.array_equal(file["data"][name][key][:], demo[key][:])


def test_convert_some(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.prior)
    out = convert(dataset, tmp_path / "two.hdf5", ids=["demo_3", "demo_11"])
    two = strap.open_dataset(out)
    assert len(two) == 2
    assert np.array_equal(two["demo_1"].actions[:], dataset["demo_11"].actions[:])
    with pytest.raises(StrapError, match="unknown output format 'rlds'"):
        convert(dataset, tmp_path / "x", format="rlds")  # type: ignore[arg-type]
    with pytest.raises(StrapError, match=r"unknown trajectory 'demo_99'|there are 12"):
        convert(dataset, tmp_path / "y.hdf5", ids=["demo_99"])
    with pytest.raises(StrapError, match="unknown trajectory 'demo_4': did you mean 'demo_3'"):
        convert(dataset.select(["demo_3"]), tmp_path / "z.hdf5", ids=["demo_4"])


def test_a_trajectory_is_converted_once(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.prior)
    with pytest.raises(StrapError, match="named twice"):
        convert(dataset, tmp_path / "x.hdf5", ids=["demo_3", "demo_3"])


def test_a_frame_rate_that_is_given_counts_in_every_format(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((4, 2))
    out = convert(strap.open_dataset(tmp_path / "a.hdf5"), tmp_path / "b.hdf5", fps=15)
    others = [convert(strap.open_dataset(out), tmp_path / to, fps=30) for to in ("c.hdf5", "c")]
    kept = convert(strap.open_dataset(out), tmp_path / "d.hdf5")
    opened = [strap.open_dataset(file) for file in (out, kept, *others)]
    assert [dataset[dataset.ids[0]].fps for dataset in opened] == [15, 15, 30, 30]


def test_rewards_and_ends_of_lerobot_are_those_of_robomimic(tmp_path: Path) -> None:
    own = Trajectory(
        id="a",
        length=3,
        instruction="",
        cameras={},
        proprioception={},
        actions=lazy(np.zeros((3, 2))),
        source=Source(tmp_path, "a"),
        extras={
            "next.reward": lazy(np.array([0.0, 0.5, 1.0], np.float32)),
            "next.done": lazy(np.array([[False], [True], [True]])),
        },
    )
    out = robomimic.write_robomimic(tmp_path / "a.hdf5", [own])
    with h5py.File(out) as file:
        assert file["data/demo_0/rewards"][:].tolist() == [0.0, 0.5, 1.0]
        assert file["data/demo_0/dones"][:].tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["actions", "actions/x", "obs", "obs/ee_pos"])
def test_an_array_whose_place_is_taken_is_left_out(
    planted: Planted, tmp_path: Path, name: str
) -> None:
    own = strap.open_dataset(planted.target)["demo_0"]
    odd = replace(own, extras={**own.extras, name: lazy(np.zeros(own.length))})
    with pytest.warns(UserWarning, match=f"'{name}' is left out"):
        out = robomimic.write_robomimic(tmp_path / "a.hdf5", [odd])
    back = strap.open_dataset(out)["demo_0"]
    assert np.array_equal(back.actions[:], own.actions[:])
    assert set(back.proprioception) == set(own.proprioception)


def test_inspect(planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = tmp_path / "sheet.png"
    assert main(["inspect", str(planted.target), "--sheet", str(sheet)]) == 0
    shown = capsys.readouterr().out
    assert "agentview_rgb 32×32, flipped" in shown
    assert sheet.stat().st_size > 1000
    assert main(["inspect", str(planted.target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


def test_a_text_that_hdf5_cannot_hold(planted: Planted, tmp_path: Path) -> None:
    from strap.datasets.robomimic import write_robomimic

    dataset = strap.open_dataset(planted.target)
    odd = replace(dataset["demo_0"], instruction="put\0 it")
    with pytest.raises(StrapError, match="its instruction holds a NUL character"):
        write_robomimic(tmp_path / "a.hdf5", [odd])
    assert list(tmp_path.iterdir()) == []


def test_ids_of_odd_digits_are_sorted() -> None:
    from strap.datasets import natural_sort_key

    names = ["demo_10", "demo_2", "demo_²", "demo_" + "9" * 5000, "demo_٣"]
    assert sorted(names, key=natural_sort_key)[:2] == ["demo_2", "demo_10"]


def test_metadata_that_is_too_large_for_an_attribute(planted: Planted, tmp_path: Path) -> None:
    from strap.datasets.robomimic import write_robomimic

    dataset = strap.open_dataset(planted.target)
    with pytest.warns(
        UserWarning, match="'scene' of the dataset's metadata is left out: it is too large"
    ):
        out = write_robomimic(
            tmp_path / "a.hdf5", [dataset["demo_0"]], metadata={"scene": np.zeros(20_000), "b": "c"}
        )
    assert strap.open_dataset(out).metadata["b"] == "c"


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_numbers_that_are_not_finite_are_told_once(
    own_planted: Planted, tmp_path: Path, name: str
) -> None:
    with h5py.File(own_planted.prior, "r+") as file:
        file["data/demo_1/actions"][3, 2] = np.nan
        file["data/demo_2/actions"][4, 0] = np.inf
    dataset = strap.open_dataset(own_planted.prior)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = convert(dataset, tmp_path / name, ids=["demo_0", "demo_1", "demo_2"])
    told = [str(one.message) for one in caught if "is written as it is" in str(one.message)]
    assert len(told) == 1
    assert re.search(
        r"'demo_1', (episode 1|demo_1), frame 3, column 2 of 'actions?' is nan", told[0]
    )
    if name == "out":
        stats = json.loads((out / "meta/stats.json").read_text(), parse_constant=pytest.fail)
        actions = np.concatenate([dataset[f"demo_{i}"].actions[:] for i in range(3)])
        highest = np.where(np.isfinite(actions), actions, -np.inf).max(axis=0)
        np.testing.assert_allclose(stats["action"]["max"], highest, rtol=1e-6)
