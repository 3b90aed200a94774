from __future__ import annotations

from pathlib import Path

import h5py
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strap
from strap.conversion import convert
from strap.datasets.labels import FILE, _read_parquet, labels_of, object_kind, with_labels
from strap.errors import StrapError
from strap.scores import read_labels, write_labels
from strap.synthetic import Planted


def test_labels_beside_a_dataset(tmp_path: Path, own_planted: Planted) -> None:
    dataset = strap.open_dataset(own_planted.target)
    with pytest.raises(StrapError, match=r"'demo_0' .* has no skill labels, .*skills/skill"):
        read_labels(dataset)
    text = h5py.string_dtype()
    with h5py.File(own_planted.target, "a") as file:
        for demo in file["data"].values():
            demo.create_dataset("skills/skill", data=["reach"] * 90, dtype=text)
            demo.create_dataset("skills/object", data=["bowl_2"] * 90, dtype=text)
    labels = read_labels(strap.open_dataset(own_planted.target))
    assert labels["demo_1"][5] == ("reach", "bowl")
    (tmp_path / "meta").mkdir()
    write_labels(tmp_path, labels)
    assert _read_parquet(tmp_path / FILE) == labels


@pytest.fixture
def sample() -> strap.Dataset:
    return strap.open_dataset(Path(__file__).parents[2] / "samples/libero-mini/target/mug-mug")


def test_a_lerobot_dataset_has_a_label_for_every_frame(sample: strap.Dataset) -> None:
    labels = read_labels(sample)
    assert list(labels) == list(sample.ids)
    assert {key: len(own) for key, own in labels.items()} == {t.id: t.length for t in sample}
    assert ("carry", "porcelain_mug") in labels[sample.ids[0]]


def test_a_conversion_takes_labels_along(tmp_path: Path, sample: strap.Dataset) -> None:
    chosen = sample.ids[2:0:-1]
    labels = read_labels(sample)
    as_hdf5 = strap.open_dataset(convert(sample, tmp_path / "some.hdf5", ids=chosen))
    assert [labels[key] for key in chosen] == list(read_labels(as_hdf5).values())
    back = strap.open_dataset(convert(as_hdf5, tmp_path / "back"))
    assert list(read_labels(back).values()) == list(read_labels(as_hdf5).values())
    assert list(read_labels(back)) == ["episode_000000", "episode_000001"]
    before = back.fingerprint()
    convert(as_hdf5, tmp_path / "back")
    assert strap.open_dataset(tmp_path / "back").fingerprint() == before


@pytest.mark.parametrize("middle", ["middle", "middle.hdf5"])
def test_a_conversion_of_few_labels(tmp_path: Path, sample: strap.Dataset, middle: str) -> None:
    source = strap.open_dataset(convert(sample, tmp_path / "source", ids=sample.ids[:3]))
    labels = read_labels(sample)
    write_labels(source.path, {"episode_000001": labels[sample.ids[1]]})
    between = strap.open_dataset(convert(source, tmp_path / middle))
    again = strap.open_dataset(convert(between, tmp_path / "again"))
    assert [labels_of(t) for t in with_labels(again)] == [[], labels[sample.ids[1]], []]


def test_a_conversion_with_too_few_labels(tmp_path: Path, sample: strap.Dataset) -> None:
    source = strap.open_dataset(convert(sample, tmp_path / "source", ids=sample.ids[:1]))
    write_labels(source.path, {"episode_000000": [("reach", "mug")]})
    with pytest.raises(StrapError, match=r"'episode_000000' .* frames but skill labels for 1:"):
        convert(source, tmp_path / "out.hdf5")


def test_a_trajectory_without_labels_is_named(tmp_path: Path, sample: strap.Dataset) -> None:
    (tmp_path / "meta").mkdir()
    first = sample.ids[0]
    write_labels(tmp_path, {first: read_labels(sample)[first]})
    view = strap.Dataset(tmp_path, sample.format, sample.reader)
    with pytest.raises(StrapError, match=r"trajectory 'episode_000001' of .* has no skill labels"):
        read_labels(view)


def test_frames_out_of_order(tmp_path: Path) -> None:
    columns = {"episode": ["a", "a"], "frame": [1, 0], "skill": ["s", "s"], "object": ["o", "o"]}
    pq.write_table(pa.table(columns), tmp_path / "skills.parquet")
    with pytest.raises(StrapError, match="expected frame 0, found frame 1"):
        _read_parquet(tmp_path / "skills.parquet")
    del columns["object"]
    pq.write_table(pa.table(columns), tmp_path / "skills.parquet")
    with pytest.raises(StrapError, match="not a table of skill labels: it lacks object"):
        _read_parquet(tmp_path / "skills.parquet")


def test_kind() -> None:
    assert object_kind("akita_black_bowl_12") == "akita_black_bowl"
    assert object_kind("wooden_cabinet_1_top_region") == "wooden_cabinet_1_top_region"
