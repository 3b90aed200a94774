from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strap
from strap.augmentation import estimate_size
from strap.conversion import convert
from strap.datasets.robomimic import write_robomimic
from strap.datasets.slicing import slice_trajectory
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.synthetic import Planted, make_planted
from strap.types import Match, Matches, Segment, Source, Trajectory


def matches_of(planted: Planted, *segments: Segment) -> Matches:
    name = strap.open_dataset(planted.prior).name
    query = planted.plants[0].query
    rows = [
        Match(query, s, 0.5 * i, i, "do something else", name) for i, s in enumerate(segments, 1)
    ]
    return Matches(tuple(rows))


SEGMENTS = (Segment("demo_1", 8, 30), Segment("demo_2", 0, 25), Segment("demo_1", 8, 30))


@pytest.fixture
def written(planted: Planted, tmp_path: Path) -> Path:
    last = strap.open_dataset(planted.prior)["demo_4"].length
    segments = (*SEGMENTS, Segment("demo_4", last - 20, last))
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    return strap.augment(target, prior, matches_of(planted, *segments), tmp_path / "augmented")


def test_every_rule_of_the_format(written: Path, planted: Planted) -> None:
    """robomimic's layout, rule by rule, with h5py alone."""
    with h5py.File(written) as file, h5py.File(planted.target) as source:
        data = file["data"]
        names = [f"demo_{i}" for i in range(6)]
        assert sorted(data) == names
        assert data.attrs["total"] == sum(len(data[n]["actions"]) for n in names)
        assert json.loads(data.attrs["env_args"])["env_name"] == "synthetic"
        assert data.attrs["num_demos"] == 6
        assert data.attrs["macros_image_convention"] == "opengl"  # as the target's images lie
        for name in names:
            demo = data[name]
            length = len(demo["actions"])
            assert demo.attrs["num_samples"] == length
            for key in ("states", "rewards", "dones", "is_pad", "is_context"):
                assert demo[key].shape[0] == length, key
            for key, array in demo["obs"].items():
                assert array.shape[0] == length, key
            assert demo["obs/agentview_rgb"].dtype == np.uint8
            assert demo["obs/agentview_rgb"].shape[1:] == (32, 32, 3)
            assert demo["is_pad"].dtype == np.bool_
            assert json.loads(demo.attrs["ep_meta"])["lang"].startswith("do ")
        assert set(data["demo_0"]["obs"]) == set(data["demo_5"]["obs"])
        masks = {key: [n.decode() for n in value[:]] for key, value in file["mask"].items()}
        assert masks == {"target": names[:2], "retrieved": names[2:], "all": names}
        assert file["mask/all"].dtype.kind == "S"
        for key in ("actions", "states", "obs/agentview_rgb", "obs/ee_pos"):
            original, padded = source["data/demo_1"][key][:], data["demo_1"][key][:]
            assert np.array_equal(padded[5:-5], original)
            assert np.array_equal(padded[:5], np.repeat(original[:1], 5, axis=0))
            assert np.array_equal(padded[-5:], np.repeat(original[-1:], 5, axis=0))
        is_pad = data["demo_1"]["is_pad"][:]
        assert is_pad[:5].all()
        assert is_pad[-5:].all()
        assert not is_pad[5:-5].any()


def test_context_and_padding(written: Path, planted: Planted) -> None:
    with h5py.File(written) as file, h5py.File(planted.prior) as source:
        inner, outer = file["data/demo_2"], source["data/demo_1"]
        for key in ("actions", "states", "rewards", "dones", "obs/agentview_rgb", "obs/ee_pos"):
            assert np.array_equal(inner[key][:], outer[key][3:35]), key
        assert not inner["is_pad"][:].any()
        assert inner["is_context"][:].tolist() == [True] * 5 + [False] * 22 + [True] * 5
        first = file["data/demo_3"]  # starts with its trajectory: five repeated frames
        assert first["is_pad"][:].tolist() == [True] * 5 + [False] * 30
        states = source["data/demo_2/states"][:]
        assert np.array_equal(first["states"][:6], np.repeat(states[:1], 6, axis=0))
        last = file["data/demo_5"]
        assert last["is_pad"][:].tolist() == [False] * 25 + [True] * 5
        assert last["dones"][:].tolist() == [0] * 24 + [1] * 6


def test_provenance(written: Path, planted: Planted) -> None:
    with h5py.File(written) as file:
        attrs = dict(file["data/demo_3"].attrs)
        found = {k: v for k, v in attrs.items() if k.startswith("source_")}
        assert found == {
            "source_dataset": str(planted.prior),
            "source_trajectory": "demo_2",
            "source_start": 0,
            "source_stop": 25,
            "source_cost": 1.0,
            "source_rank": 2,
            "source_query_trajectory": "demo_0",
            "source_query_start": 0,
            "source_query_stop": 30,
        }
        assert file["data/demo_0"].attrs["source_dataset"] == str(planted.target)


def test_reading_back(written: Path, planted: Planted) -> None:
    back = strap.open_dataset(written)
    target = strap.open_dataset(planted.target)
    for key in target.ids:
        one, other = target[key], back[key]
        assert one.instruction == other.instruction == "do the planted task"
        assert one.fps == other.fps
        real = slice(5, other.length - 5)
        assert np.array_equal(one.frames("agentview_rgb"), other.frames("agentview_rgb")[real])
        assert np.array_equal(one.actions[:], other.actions[real])
    assert back["demo_2"].instruction == "do something else"
    assert np.array_equal(back["demo_2"].actions[:], back["demo_4"].actions[:])  # found twice, kept


def test_images_are_turned_to_lie_as_the_targets(tmp_path: Path) -> None:
    target = make_planted(tmp_path / "t", demos=1, sub_tasks=1, prior=1)
    prior = make_planted(tmp_path / "p", demos=1, sub_tasks=1, prior=1, seed=5)
    upright = strap.open_dataset(prior.prior, orientation="upright")
    segment = Segment("demo_0", 6, 20)
    match = Match(segment, segment, 0.0, 1, "", upright.name)
    out = strap.augment(
        strap.open_dataset(target.target), upright, Matches((match,)), tmp_path / "a"
    )
    back = strap.open_dataset(out)["demo_1"]
    assert back.orientation == "flipped"
    expected = upright["demo_0"].frames("agentview_rgb", 1, 25)
    assert np.array_equal(back.frames("agentview_rgb"), expected)


def test_what_lies_on_pixels_is_turned_with_the_images(tmp_path: Path) -> None:
    """And nothing else, such as a camera's pose or actions in chunks."""
    numbers = np.random.default_rng(0)
    arrays = {
        "obs/view_image": numbers.integers(0, 255, (6, 12, 10, 3)).astype(np.uint8),
        "next_obs/view_image": numbers.integers(0, 255, (6, 3, 12, 10)).astype(np.uint8),
        "obs/view_distance": numbers.normal(size=(6, 12, 10)),
        "obs/other_depth": numbers.normal(size=(6, 1, 8, 8)),
        "camera_pose": numbers.normal(size=(6, 4, 4)),
        "action_chunk": numbers.normal(size=(6, 8, 7)),
        "obs/cloud": numbers.normal(size=(6, 40, 3)),
    }
    with h5py.File(tmp_path / "flipped.hdf5", "w") as file:
        file.create_group("data").attrs["image_orientation"] = "flipped"
        for name, array in {**arrays, "actions": np.zeros((6, 2))}.items():
            file[f"data/demo_0/{name}"] = array
    flipped = strap.open_dataset(tmp_path / "flipped.hdf5")
    out = write_robomimic(tmp_path / "upright.hdf5", flipped, orientation="upright")
    axes = {
        "obs/view_image": 1,
        "next_obs/view_image": 2,
        "obs/view_distance": 1,
        "obs/other_depth": 2,
    }
    with h5py.File(out) as file:
        for name, array in arrays.items():
            expected = np.flip(array, axes[name]) if name in axes else array
            assert np.array_equal(file[f"data/demo_0/{name}"][:], expected), name


def test_a_segment_of_another_shape_is_not_written_with_the_others(
    planted: Planted, tmp_path: Path
) -> None:
    target = strap.open_dataset(planted.target)
    for name, kind in (("actions", "array"), ("obs/ee_pos", "proprioception")):
        odd = Path(shutil.copy(planted.prior, tmp_path / f"{kind}.hdf5"))
        with h5py.File(odd, "r+") as file:
            wider = np.pad(file[f"data/demo_1/{name}"][:], ((0, 0), (0, 1)))
            del file[f"data/demo_1/{name}"]
            file[f"data/demo_1/{name}"] = wider
        prior = strap.open_dataset(odd)
        found = [Segment("demo_1", 2, 9), Segment("demo_0", 2, 9)]
        matches = [Match(Segment("demo_0", 0, 9), s, 1.0, 1, "", prior.name) for s in found]
        with pytest.raises(
            StrapError, match=rf"'demo_1\[2:9\]' has {kind} .* leave that trajectory out"
        ):
            strap.augment(target, [prior], Matches(tuple(matches)), tmp_path / "a.hdf5")
        assert not (tmp_path / "a.hdf5").exists()


def test_several_frame_rates_in_one_file_are_told(planted: Planted, tmp_path: Path) -> None:
    slow = Path(shutil.copy(planted.prior, tmp_path / "slow.hdf5"))
    with h5py.File(slow, "r+") as file:
        file["data"].attrs["fps"] = 10.0
    prior = strap.open_dataset(slow)
    match = Match(Segment("demo_0", 0, 9), Segment("demo_1", 2, 9), 1.0, 1, "", prior.name)
    with pytest.warns(UserWarning, match=r"several frame rates .* 20 Hz \('demo_0'\), 10 Hz"):
        strap.augment(strap.open_dataset(planted.target), prior, Matches((match,)), tmp_path / "a")


def test_without_matches_there_is_the_target(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    out = strap.augment(target, [prior], Matches(()), tmp_path / "a.hdf5")
    with h5py.File(out) as file:
        assert len(file["mask/retrieved"]) == 0
        assert len(file["data"]) == 2


@pytest.mark.parametrize("format", ["robomimic", "lerobot"])
def test_the_size_is_known_before_it_is_written(
    planted: Planted, tmp_path: Path, format: Literal["robomimic", "lerobot"]
) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    matches = matches_of(planted, *SEGMENTS)
    size = estimate_size(target, [prior], matches, format=format)
    out = strap.augment(target, prior, matches, tmp_path / "augmented", format=format)
    assert size.frames == sum(trajectory.length for trajectory in strap.open_dataset(out))
    if format == "robomimic":
        written = out.stat().st_size
        assert 0.9 * written < size.nbytes < written
    assert str(size).startswith(f"{size.frames:,} frames, about ")


def test_keys_of_a_lerobot_dataset_are_robomimics(planted: Planted, tmp_path: Path) -> None:
    lerobot = tmp_path / "lerobot"
    convert(strap.open_dataset(planted.target), lerobot)
    names = strap.open_dataset(lerobot)
    assert "observation.ee_pos" in names[names.ids[0]].proprioception
    out = convert(names, tmp_path / "back.hdf5")
    with h5py.File(out) as file:
        keys = set(file["data/demo_0/obs"])
    assert {"agentview_rgb", "ee_pos"} <= keys
    assert not any(key.startswith("observation") for key in keys)


def test_a_segment_outside_its_trajectory(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    (tmp_path / "a.hdf5").write_text("what was there before")
    with pytest.raises(StrapError, match=r"segment demo_1\[8:999\] is outside"):
        strap.augment(
            target, prior, matches_of(planted, Segment("demo_1", 8, 999)), tmp_path / "a.hdf5"
        )
    assert (tmp_path / "a.hdf5").read_text() == "what was there before"
    assert [f.name for f in tmp_path.iterdir()] == ["a.hdf5"]  # no temporary file is left


def test_a_match_into_an_unknown_dataset(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    match = Match(Segment("a", 0, 9), Segment("demo_0", 0, 9), 0.0, 1, "", "/elsewhere")
    with pytest.raises(StrapError, match="there are matches in '/elsewhere', which is not among"):
        strap.augment(target, [prior, target], Matches((match,)), tmp_path / "a.hdf5")


def changed_prior(planted: Planted, folder: Path, change: str) -> strap.Dataset:
    file = folder / "changed.hdf5"
    shutil.copy(planted.prior, file)
    with h5py.File(file, "a") as handle:
        for demo in handle["data"].values():
            if change == "actions":
                del demo["actions"]
                demo["actions"] = np.zeros((len(demo["states"]), 4))
            elif change == "camera":
                demo.move("obs/agentview_rgb", "obs/side")
            elif change == "proprioception":
                del demo["obs/gripper_states"]
    return strap.open_dataset(file)


def test_datasets_that_cannot_be_mixed(planted: Planted, tmp_path: Path) -> None:
    target = strap.open_dataset(planted.target)
    segment = Segment("demo_0", 0, 9)
    name = (tmp_path / "changed.hdf5").as_posix()
    found = Matches((Match(segment, segment, 0.0, 1, "", name),))
    with pytest.raises(StrapError, match=r"actions differ: .*\(7,\).*\(4,\)"):
        strap.augment(target, changed_prior(planted, tmp_path, "actions"), found, tmp_path / "a")
    with (
        pytest.warns(UserWarning, match="camera agentview_rgb of the target is missing"),
        pytest.raises(StrapError, match=r"share no camera .* prior side 32×32"),
    ):
        strap.augment(target, changed_prior(planted, tmp_path, "camera"), found, tmp_path / "a")
    prior = changed_prior(planted, tmp_path, "proprioception")
    with pytest.warns(UserWarning, match="gripper_states of the target is missing"):
        out = strap.augment(target, prior, found, tmp_path / "a")
    with h5py.File(out) as file:
        assert "gripper_states" not in file["data/demo_0/obs"]


@pytest.mark.parametrize("format", ["robomimic", "lerobot"])
def test_formats_that_spell_proprioception_differently_are_mixed(
    planted: Planted, tmp_path: Path, format: Literal["robomimic", "lerobot"]
) -> None:
    target = strap.open_dataset(planted.target)
    convert(strap.open_dataset(planted.prior), tmp_path / "prior")
    prior = strap.open_dataset(tmp_path / "prior")
    first, other = target[target.ids[0]], prior[prior.ids[0]]
    assert "ee_pos" in first.proprioception
    assert "observation.ee_pos" in other.proprioception
    segment = Segment(other.id, 8, 30)
    found = Matches((Match(planted.plants[0].query, segment, 0.5, 1, "", prior.name),))
    out = strap.augment(target, prior, found, tmp_path / "both", format=format, history=0, chunk=0)
    written = strap.open_dataset(out)
    last = written[written.ids[-1]]
    name = "ee_pos" if format == "robomimic" else "observation.ee_pos"
    assert np.array_equal(
        last.proprioception[name][:], other.proprioception["observation.ee_pos"][8:30]
    )
    kept = {key.removeprefix("observation.") for key in last.proprioception}
    assert set(first.proprioception) <= kept


@given(
    st.integers(1, 12), st.integers(0, 11), st.integers(1, 12), st.integers(0, 6), st.integers(0, 6)
)
def test_slices_read_the_frames_they_name(
    length: int, start: int, size: int, before: int, after: int
) -> None:
    start = min(start, length - 1)
    stop = min(length, start + size)
    values = np.arange(length)[:, None]
    whole = Trajectory(
        "t", length, "", {}, {"x": lazy(values)}, lazy(values), Source(Path("f"), "t")
    )
    own = slice_trajectory(whole, Segment("t", start, stop), before=before, after=after, id="s")
    wanted = [min(max(i, 0), length - 1) for i in range(start - before, stop + after)]
    assert own.actions[:].ravel().tolist() == wanted
    assert own.proprioception["x"][1:3].ravel().tolist() == wanted[1:3]
    assert own.extras["is_pad"][:].sum() == max(0, before - start) + max(0, stop + after - length)
    assert (~own.extras["is_pad"][:] & ~own.extras["is_context"][:]).sum() == stop - start
    assert len(own.actions[2:2]) == 0


def test_a_full_disk(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    matches = matches_of(planted, Segment("demo_0", 0, 40))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(StrapError, match="no space left to write"):
            strap.augment(target, prior, matches, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(tmp_path.iterdir())
    out = strap.augment(target, prior, matches, tmp_path / "out")
    assert out.stat().st_size > 500_000
