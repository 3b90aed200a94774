from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import strap
from strap.datasets import natural
from strap.datasets.hdf5.attributes import instruction_from_name
from strap.errors import StrapError
from strap.synthetic import Planted, make_planted


def write(
    file: Path,
    *,
    demos: int = 2,
    length: int = 6,
    data_attrs: dict[str, object] | None = None,
    demo_attrs: dict[str, object] | None = None,
) -> Path:
    """A small robomimic file, written with h5py alone."""
    rng = np.random.default_rng(0)
    with h5py.File(file, "w") as handle:
        data = handle.create_group("data")
        data.attrs.update(data_attrs or {})
        for index in range(demos):
            demo = data.create_group(f"demo_{index}")
            demo.attrs.update({"num_samples": length, **(demo_attrs or {})})
            demo["actions"] = rng.normal(size=(length, 7))
            demo["states"] = rng.normal(size=(length, 11))
            demo["obs/front"] = rng.integers(0, 255, (length, 8, 8, 3), dtype=np.uint8)
            demo["obs/wrist"] = rng.integers(0, 255, (length, 4, 4, 3), dtype=np.uint8)
            demo["obs/front_depth"] = rng.random((length, 8, 8, 1))
            demo["obs/robot0_eef_pos"] = rng.random((length, 3))
            demo["next_obs/robot0_eef_pos"] = rng.random((length, 3))
    return file


def test_a_file_by_its_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5", demos=11)
    dataset = strap.open_dataset(file)
    assert dataset.format == "robomimic"
    assert dataset.ids == tuple(f"demo_{i}" for i in range(11))  # natural order, not demo_10 < 2
    assert len(dataset) == 11
    own = dataset["demo_3"]
    with h5py.File(file) as handle:
        demo = handle["data/demo_3"]
        assert np.array_equal(own.actions[:], demo["actions"][:])
        assert np.array_equal(own.frames("front"), demo["obs/front"][:])
        assert np.array_equal(own.extras["states"][2:4], demo["states"][2:4])
    assert set(own.cameras) == {"front", "wrist"}
    assert set(own.proprioception) == {"robot0_eef_pos"}
    assert {"obs/front_depth", "next_obs/robot0_eef_pos", "states"} <= set(own.extras)
    assert (own.length, own.orientation, own.fps, own.instruction) == (6, "upright", None, "")
    assert [t.id for t in dataset][:2] == ["demo_0", "demo_1"]


def test_a_frame_range_reads_that_range_of_that_camera_only(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5", length=40)
    own = strap.open_dataset(file)["demo_1"]
    touched: list[tuple[str, object]] = []
    plain = h5py.Dataset.__getitem__

    def spy(self: h5py.Dataset, key: object, *rest: object) -> object:
        touched.append((self.name, key))
        return plain(self, key, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(h5py.Dataset, "__getitem__", spy)
        assert own.frames("wrist", 10, 15).shape == (5, 4, 4, 3)
    assert touched == [("/data/demo_1/obs/wrist", slice(10, 15))]


def test_a_folder_of_files(tmp_path: Path) -> None:
    for name in ("b_10", "b_2"):
        write(tmp_path / f"{name}.hdf5")
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "c.h5", demos=1)
    (tmp_path / "notes.txt").write_text("not data")
    dataset = strap.open_dataset(tmp_path)
    expected = ("b_2/demo_0", "b_2/demo_1", "b_10/demo_0", "b_10/demo_1", "sub/c/demo_0")
    assert dataset.ids == expected
    assert dataset["sub/c/demo_0"].source.key == "demo_0"


@pytest.mark.parametrize(
    ("data_attrs", "demo_attrs"),
    [
        ({}, {"ep_meta": json.dumps({"lang": "lift it"})}),
        ({}, {"lang": "lift it"}),
        ({}, {"language_instruction": b"lift it"}),
        ({"problem_info": json.dumps({"language_instruction": "lift it"})}, {}),
        ({"problem_info": json.dumps({"language_instruction": ["lift ", "it"]})}, {}),
        ({"language_instruction": '"lift it"'}, {}),
        ({"env_args": json.dumps({"lang": "lift it"})}, {}),
        ({"ep_meta": "no json", "lang": "lift it"}, {"ep_meta": "no json"}),
    ],
)
def test_instruction_from_any_of_the_known_places(
    tmp_path: Path, data_attrs: dict[str, object], demo_attrs: dict[str, object]
) -> None:
    file = write(tmp_path / "a.hdf5", data_attrs=data_attrs, demo_attrs=demo_attrs)
    assert strap.open_dataset(file)["demo_0"].instruction == "lift it"


def test_libero_names_its_task_in_the_file_name(tmp_path: Path) -> None:
    file = tmp_path / "KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5"
    write(file, data_attrs={"bddl_file_name": "x.bddl"})
    assert strap.open_dataset(file)["demo_0"].instruction == "turn on the stove"
    assert instruction_from_name(Path("pick_up_a_book_demo.hdf5")) == "pick up a book"


def test_orientation_is_explicit(tmp_path: Path, planted: Planted) -> None:
    libero = strap.open_dataset(planted.target)
    assert libero.format == "libero"
    assert libero["demo_0"].orientation == "flipped"
    assert (
        strap.open_dataset(planted.target, orientation="upright")["demo_0"].orientation == "upright"
    )
    said = write(tmp_path / "a.hdf5", data_attrs={"image_orientation": "flipped"})
    assert strap.open_dataset(said)["demo_0"].orientation == "flipped"
    opencv = {"bddl_file_name": "x", "macros_image_convention": "opencv"}
    upright = write(tmp_path / "b.hdf5", data_attrs=opencv)
    assert strap.open_dataset(upright)["demo_0"].orientation == "upright"
    with pytest.raises(StrapError, match="unknown orientation 'sideways'"):
        strap.open_dataset(planted.target, orientation="sideways")  # type: ignore[arg-type]


def test_both_dialects_show_the_same_picture(tmp_path: Path) -> None:
    libero = make_planted(tmp_path / "l", demos=1, sub_tasks=1, prior=1)
    robomimic = make_planted(tmp_path / "r", demos=1, sub_tasks=1, prior=1, dialect="robomimic")
    one = strap.open_dataset(libero.target)["demo_0"]
    other = strap.open_dataset(robomimic.target)["demo_0"]
    assert np.array_equal(one.frames("agentview_rgb"), other.frames("agentview_image"))
    assert one.instruction == other.instruction == "do the planted task"
    assert (one.fps, other.fps) == (20.0, 20.0)


def test_frame_rate(tmp_path: Path) -> None:
    args = json.dumps({"env_kwargs": {"control_freq": 15}})
    file = write(tmp_path / "a.hdf5", data_attrs={"env_args": args})
    assert strap.open_dataset(file)["demo_0"].fps == 15
    libero = write(tmp_path / "b.hdf5", data_attrs={"problem_info": "{}"})
    assert strap.open_dataset(libero)["demo_0"].fps == 20


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match=r"no such dataset: '.*nowhere.hdf5'"):
        strap.open_dataset(tmp_path / "nowhere.hdf5")


def test_not_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(StrapError, match="no dataset that can be read"):
        strap.open_dataset(tmp_path / "a.txt")
    with pytest.raises(StrapError, match="no dataset that can be read"):
        strap.open_dataset(tmp_path)
    with pytest.raises(StrapError, match="unknown format 'libro': did you mean 'libero'"):
        strap.open_dataset(tmp_path / "a.txt", format="libro")


def test_truncated_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(StrapError, match=r"cannot open '.*a.hdf5' as HDF5 .*truncated"):
        strap.open_dataset(file)


def test_hdf5_without_data_group(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as handle:
        handle["other"] = 1
    with pytest.raises(StrapError, match=r"has no group '/data'.*its top level holds: other"):
        strap.open_dataset(tmp_path / "a.hdf5")


def test_an_observation_of_another_length_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5")
    with h5py.File(file, "a") as handle:
        del handle["data/demo_1/obs/front"]
        handle["data/demo_1/obs/front"] = np.zeros((4, 8, 8, 3), np.uint8)
    dataset = strap.open_dataset(file)
    with pytest.raises(StrapError, match=r"demo_1: 'obs/front' has shape \(4, 8, 8, 3\)"):
        dataset["demo_1"]


def test_unreadable_frames_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5")
    own = strap.open_dataset(file)["demo_1"]
    with h5py.File(file, "a") as handle:
        del handle["data/demo_1/obs/front"]
    with pytest.raises(StrapError, match="'data/demo_1/obs/front' leads nowhere"):
        own.frames("front")


def test_unknown_trajectory(tmp_path: Path) -> None:
    dataset = strap.open_dataset(write(tmp_path / "a.hdf5", demos=2))
    with pytest.raises(StrapError, match="unknown trajectory 'demo_7': did you mean 'demo_"):
        dataset["demo_7"]
    many = strap.open_dataset(write(tmp_path / "b.hdf5", demos=13, length=1))
    with pytest.raises(StrapError, match="there are 13, from demo_0 to demo_12"):
        many["demo_99"]


def test_fingerprint_notices_a_change(tmp_path: Path) -> None:
    file = write(tmp_path / "a.hdf5")
    before = strap.open_dataset(file).fingerprint()
    assert strap.open_dataset(file).fingerprint() == before
    write(tmp_path / "b.hdf5")
    assert strap.open_dataset(tmp_path).fingerprint() != before
    write(file, length=7)
    assert strap.open_dataset(file).fingerprint() != before


def test_natural_order() -> None:
    assert sorted(["a10", "a2", "a", "b1"], key=natural) == ["a", "a2", "a10", "b1"]
