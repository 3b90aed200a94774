from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strap.errors import StrapError, unknown
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Match, Matches, Segment, Source, Trajectory


def counted(array: np.ndarray) -> tuple[LazyArray, list[tuple[int, int]]]:
    reads: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> np.ndarray:
        reads.append((start, stop))
        return array[start:stop]

    return LazyArray(array.shape, array.dtype, read), reads


def test_lazy_array_reads_only_what_is_indexed() -> None:
    values = np.arange(20).reshape(10, 2)
    array, reads = counted(values)
    assert np.array_equal(array[3:5], values[3:5])
    assert np.array_equal(array[-1], values[-1])
    assert np.array_equal(array[2:9:3], values[2:9:3])
    assert reads == [(3, 5), (9, 10), (2, 9)]
    assert np.array_equal(array[::-1], values[::-1])
    assert np.array_equal(np.asarray(array), values)
    assert len(array[7:3]) == 0
    with pytest.raises(IndexError, match="frame 10 of 10"):
        array[10]


def trajectory(**changes: object) -> Trajectory:
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    fields = {
        "id": "demo_0",
        "length": 2,
        "instruction": "wave",
        "cameras": {"front": lazy(images)},
        "proprioception": {},
        "actions": lazy(np.zeros((2, 7))),
        "source": Source(Path("x.hdf5"), "demo_0"),
        **changes,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]


def test_frames_are_upright_whatever_the_orientation() -> None:
    upright, flipped = trajectory(), trajectory(orientation="flipped")
    assert np.array_equal(upright.frames("front"), upright.cameras["front"][:])
    assert np.array_equal(flipped.frames("front"), flipped.cameras["front"][:][:, ::-1])
    assert np.array_equal(flipped.frames("front", 1, 2)[0], flipped.frames("front")[1])


def test_an_unknown_camera_suggests_the_nearest() -> None:
    with pytest.raises(StrapError, match="unknown camera 'frnt': did you mean 'front'"):
        trajectory().frames("frnt")


def test_fingerprint_follows_the_content() -> None:
    one = trajectory().fingerprint(["front"])
    assert one == trajectory(id="other").fingerprint(["front"], chunk=1)
    assert one != trajectory(orientation="flipped").fingerprint(["front"])
    assert one != trajectory(actions=lazy(np.ones((2, 7)))).fingerprint(["front"])


def test_repr_says_what_matters() -> None:
    text = repr(trajectory(fps=20.0))
    assert "2 frames at 20 Hz" in text
    assert "front 4×4" in text


def test_a_segment_must_hold_a_frame() -> None:
    assert len(Segment("a", 2, 5)) == 3
    for start, stop in ((3, 3), (4, 2), (-1, 2)):
        with pytest.raises(StrapError, match="needs 0 <= start < stop"):
            Segment("a", start, stop)


def example() -> Matches:
    query = Segment("demo_0", 0, 20)
    rows = [
        Match(query, Segment(f"p{i}", i, i + 25), 1.5 * i, i + 1, "pick", "d") for i in range(3)
    ]
    return Matches(tuple(rows))


def test_matches_go_through_parquet(tmp_path: Path) -> None:
    matches = example()
    assert Matches.from_parquet(matches.to_parquet(tmp_path / "m.parquet")) == matches
    columns = matches.to_table().column_names
    assert columns[:6] == [
        "query_trajectory", "query_start", "query_stop", "trajectory", "start", "stop",
    ]  # fmt: skip
    assert columns[6:] == ["cost", "rank", "instruction", "dataset", "cost_per_frame"]
    empty = Matches(())
    assert empty.to_table().schema == matches.to_table().schema
    assert Matches.from_parquet(empty.to_parquet(tmp_path / "e.parquet")) == empty


def test_a_match_costs_so_much_for_each_frame_of_its_query(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    query, other = Segment("demo_0", 10, 30), Segment("demo_1", 0, 3)
    rows = [
        Match(query, Segment("p", 0, 40), 5.0, 1, "pick", "d"),
        Match(other, Segment("p", 5, 9), 0.1, 1, "pick", "d"),
    ]
    matches = Matches(tuple(rows))
    assert [match.cost_per_frame for match in matches] == [5.0 / 20, 0.1 / 3]
    table = pq.read_table(matches.to_parquet(tmp_path / "m.parquet"))
    assert table.schema.field("cost_per_frame").type == pa.float64()
    assert table.column("cost_per_frame").to_pylist() == [5.0 / 20, 0.1 / 3]
    assert table.column("cost").to_pylist() == [5.0, 0.1]


def test_tables_without_or_with_another_cost_per_frame_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    older = example().to_table().drop_columns(["cost_per_frame"])
    for name, table in {
        "older": older,
        "wrong": older.append_column("cost_per_frame", pa.array([9.0, None, float("nan")])),
        "texts": older.append_column("cost_per_frame", pa.array(["a", "b", "c"])),
    }.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        found = Matches.from_parquet(tmp_path / f"{name}.parquet")
        assert found == example()
        assert [match.cost_per_frame for match in found] == [0.0, 1.5 / 20, 3.0 / 20]


def test_matches_print_as_a_table() -> None:
    text = str(example())
    assert text.splitlines()[0].split() == ["query", "rank", "cost", "match", "instruction"]
    assert "demo_0[0:20]" in text
    assert repr(example()) == "Matches(3 matches of 1 queries)"
    assert "… and 60 more" in str(Matches(example().rows[:1] * 100))
    assert example()[1:].rows == example().rows[1:]
    assert example()[0].rank == 1


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"cost": [1.0]}), tmp_path / "x.parquet")
    with pytest.raises(StrapError, match="lacks query_trajectory"):
        Matches.from_parquet(tmp_path / "x.parquet")
    with pytest.raises(StrapError, match="cannot read matches"):
        Matches.from_parquet(tmp_path / "absent.parquet")


def test_unknown_lists_what_is_known() -> None:
    assert str(unknown("thing", "zzz", ["a"])) == "unknown thing 'zzz': Known: a"
    assert str(unknown("thing", "z", [])).endswith("Known: none")


def test_a_list_of_matches_names_the_dataset_only_where_there_are_several() -> None:
    query = Segment("demo_0", 0, 5)
    first = Match(query, Segment("demo_1", 0, 7), 1.25, 1, "open", "/data/prior-0")
    second = Match(query, Segment("demo_1", 1, 9), 2.5, 2, "close", "/data/prior-1")
    assert str(Matches((first,))).splitlines() == [
        "query        rank  cost  match        instruction",
        "demo_0[0:5]  1     1.25  demo_1[0:7]  open",
    ]
    assert str(Matches((first, second))).splitlines() == [
        "query        rank  cost  match        dataset  instruction",
        "demo_0[0:5]  1     1.25  demo_1[0:7]  prior-0  open",
        "demo_0[0:5]  2     2.5   demo_1[1:9]  prior-1  close",
    ]
    other = Match(query, Segment("demo_1", 1, 9), 2.5, 2, "close", "/copy/prior-0")
    assert "demo_1[1:9]  /copy/prior-0  close" in str(Matches((first, other)))
