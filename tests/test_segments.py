from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strap
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.position_columns import position_name, positions
from strap.segments import Segmentation, cut, read_segments
from strap.stop_frames import merge_forward
from strap.synthetic import Planted
from strap.types import Segment, Source, Trajectory


def moving(steps: list[float], **changes: object) -> Trajectory:
    """A trajectory whose x moves by these steps."""
    x = np.concatenate([[0.0], np.cumsum(steps)])
    position = np.stack([x, 0 * x, 0 * x], axis=1)
    fields = {
        "id": "t",
        "length": len(x),
        "instruction": "",
        "cameras": {},
        "proprioception": {"ee_pos": lazy(position), "joints": lazy(np.repeat(position, 2, 1))},
        "actions": lazy(np.zeros((len(x), 7))),
        "source": Source(Path("x"), "t"),
        "fps": 20.0,
        **changes,
    }
    return Trajectory(**fields)  # type: ignore[arg-type]


def borders(trajectory: Trajectory, **options: object) -> list[tuple[int, int]]:
    return [(s.start, s.stop) for s in cut(trajectory, Segmentation(**options))]  # type: ignore[arg-type]


GO, REST = 0.02, 0.001


def test_cut_after_every_stop_frame() -> None:
    # Frame 24 rests before frame 25, so the first segment ends with frame 24.
    steps = [GO] * 24 + [REST] + [GO] * 30
    assert borders(moving(steps)) == [(0, 25), (25, 56)]


def test_short_chunks_are_merged_forward() -> None:
    steps = [GO] * 4 + [REST] + [GO] * 24 + [REST] * 3 + [GO] * 30
    assert borders(moving(steps)) == [(0, 30), (30, 63)]


def test_a_short_last_chunk_joins_the_one_before() -> None:
    steps = [GO] * 24 + [REST] + [GO] * 5
    assert borders(moving(steps)) == [(0, 31)]


def test_a_demonstration_of_three_frames_is_one_segment() -> None:
    assert borders(moving([REST, REST])) == [(0, 3)]
    assert borders(moving([REST, REST]), method="window") == [(0, 3)]


def test_epsilon_per_second_uses_the_frame_rate() -> None:
    steps = [GO] * 24 + [0.004] + [GO] * 30
    assert len(borders(moving(steps), epsilon=0.1, unit="second")) == 2  # 0.1 m/s is 5 mm a step
    assert len(borders(moving(steps), epsilon=0.06, unit="second")) == 1
    with pytest.raises(StrapError, match="no frame rate"):
        borders(moving(steps, fps=None), unit="second")


def test_norms_differ_on_diagonal_moves() -> None:
    diagonal = np.cumsum(np.full((60, 3), 0.002), axis=0)
    own = moving([GO] * 59, proprioception={"ee_pos": lazy(diagonal)})
    assert len(borders(own, norm="l1")) == 1  # 6 mm a step
    assert len(borders(own, norm="l2")) == 3  # 3.5 mm a step


def test_window_and_full() -> None:
    assert borders(moving([GO] * 69), method="window") == [(0, 30), (30, 60), (60, 70)]
    assert borders(moving([GO] * 69), method="full") == [(0, 70)]


def test_position_columns_are_the_users_to_say() -> None:
    joints_only = moving([GO] * 9, proprioception={"joints": lazy(np.arange(60.0).reshape(10, 6))})
    with pytest.raises(StrapError, match=r"no end-effector position .*joints.*--position"):
        positions(joints_only)
    assert positions(joints_only, "joints").shape == (10, 6)
    assert positions(joints_only, "joints[0:3]").tolist()[0] == [0, 1, 2]
    assert positions(joints_only, "joints[0, 5]").tolist()[0] == [0, 5]
    with pytest.raises(StrapError, match="unknown proprioception 'joint': did you mean 'joints'"):
        positions(joints_only, "joint")


def test_other_rows_of_numbers_can_be_named_too() -> None:
    others = {
        "states": lazy(np.arange(40.0).reshape(10, 4)),
        "rewards": lazy(np.zeros(10)),
        "depth": lazy(np.zeros((10, 4, 4))),
    }
    own = moving([GO] * 9, extras=others)
    assert positions(own, "states[1:3]").tolist()[0] == [1, 2]
    assert position_name(own) == "ee_pos"  # found among proprioception alone
    with pytest.raises(
        StrapError, match=r"unknown proprioception .*Known: ee_pos, joints, states$"
    ):
        positions(own, "depth")


SIX = {"joints": lazy(np.arange(6.0).repeat(10).reshape(6, 10).T)}


@pytest.mark.parametrize(
    ("selection", "columns"),
    [
        ("[1:]", [1, 2, 3, 4, 5]),
        ("[:]", [0, 1, 2, 3, 4, 5]),
        ("[:3]", [0, 1, 2]),
        ("[0:3]", [0, 1, 2]),
        ("[2]", [2]),
        ("[-1]", [5]),
        ("[-3:]", [3, 4, 5]),
        ("[:-4]", [0, 1]),
        ("[::2]", [0, 2, 4]),
        ("[1:6:3]", [1, 4]),
        ("[6:0:-2]", [5, 3, 1]),
        ("[ 0 , 2,5 ]", [0, 2, 5]),
        ("[0:6]", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_position_selects_columns_as_python_does(selection: str, columns: list[int]) -> None:
    own = moving([GO] * 9, proprioception=SIX)
    assert positions(own, f"joints{selection}").tolist() == [columns] * 10
    assert position_name(own, f"joints{selection}") == f"joints[{','.join(map(str, columns))}]"


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        ("[5:2]", "selects no column"),
        ("[6:]", "selects no column"),
        ("[0:0]", "selects no column"),
        ("[7]", "selects column 7"),
        ("[-7]", "selects column -7"),
        ("[0:9]", "selects column 8"),
        ("[7:]", "selects column 7"),
        ("[0,6]", "selects column 6"),
        ("[::0]", "has a step of 0"),
        ("[]", "is not a selection of columns"),
        ("[x]", "is not a selection of columns"),
        ("[0;2]", "is not a selection of columns"),
        ("[0,2,]", "is not a selection of columns"),
        ("[0:1:1:1]", "is not a selection of columns"),
        ("[1_0]", "is not a selection of columns"),
        ("[²]", "is not a selection of columns"),
        (f"[{'9' * 5000}]", "is not a selection of columns"),
    ],
)
def test_a_position_that_selects_nothing_is_an_error(selection: str, problem: str) -> None:
    for length in (9, 60):  # short trajectories are not cut, but the wrong name is told
        still = {"joints": lazy(np.zeros((length, 6)))}
        own = moving([REST] * (length - 1), proprioception=still)
        with pytest.raises(
            StrapError, match=f"trajectory 't': .*{problem}.*'joints' has 6 columns"
        ):
            borders(own, position=f"joints{selection}")


def test_a_name_with_brackets_is_a_name() -> None:
    own = moving([GO] * 9, proprioception={"state[0]": lazy(np.zeros((10, 2)))})
    assert positions(own, "state[0]").shape == (10, 2)
    assert positions(own, "state[0][1]").shape == (10, 1)
    for bad in ("state", "state[0", "[0:3]", ""):
        with pytest.raises(StrapError, match="unknown proprioception"):
            positions(own, bad)


def test_a_position_without_columns_or_numbers_is_an_error() -> None:
    own = moving([GO] * 9, proprioception={"ee_pos": lazy(np.zeros((10, 0)))})
    with pytest.raises(StrapError, match="selects no column, but 'ee_pos' has 0 columns"):
        positions(own)
    own = moving([GO] * 9, proprioception={"ee_pos": lazy(np.full((10, 3), "a"))})
    with pytest.raises(StrapError, match="'ee_pos' holds <U1, not numbers"):
        positions(own)


def test_columns_named_xyz_are_found() -> None:
    own = moving(
        [GO] * 3,
        proprioception={"observation.state": lazy(np.arange(16.0).reshape(4, 4))},
        attributes={"feature_names": {"observation.state": ["grip", "x", "y", "z"]}},
    )
    assert positions(own).tolist()[0] == [1, 2, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_position_that_is_not_finite_is_an_error(value: float) -> None:
    bad = np.zeros((40, 3))
    bad[7, 1] = value
    own = moving([GO] * 39, proprioception={"ee_pos": lazy(bad)})
    with pytest.raises(
        StrapError, match=r"trajectory 't': 'ee_pos' is not finite \(NaN or infinite\) at frame 7"
    ):
        borders(own)
    assert len(borders(own, position="ee_pos[2]")) == 2  # columns that are not used may be anything


def test_manual_boundaries(tmp_path: Path) -> None:
    own = moving([GO] * 69)

    def write(value: object) -> Path:
        file = tmp_path / "b.json"
        file.write_text(json.dumps(value))
        return file

    def manual(value: object) -> list[tuple[int, int]]:
        return borders(own, method="manual", boundaries=write(value))

    assert manual({"t": [10, 40]}) == [(0, 10), (10, 40), (40, 70)]
    assert manual({"t": []}) == [(0, 70)]
    row = {"trajectory": "t", "start": 3, "stop": 9}
    assert manual({"segments": [row]}) == [(3, 9)]
    assert manual({"segments": [row, {**row, "stop": 8}]}) == [(3, 9), (3, 8)]
    for value, message in (
        ({"u": [3]}, "no list of frames for trajectory 't'"),
        ({"t": [40, 10]}, "must increase"),
        ({"t": [70]}, "boundary 70 is outside the trajectory's 70 frames"),
        (
            {"segments": [{"trajectory": "t", "start": 3, "stop": 99}]},
            "goes past the trajectory's 70 frames",
        ),
        ({"segments": []}, "no segments for trajectory 't'"),
        ({"segments": [{"start": 3}]}, "is not a file of segments"),
        ({"segments": [{"trajectory": "t", "start": 0.5, "stop": 9}]}, "are not frame numbers"),
        ({"segments": [{"trajectory": "t", "start": True, "stop": 9}]}, "are not frame numbers"),
        ({"segments": 3}, "is not a file of segments"),
        ({"segments": [row, row]}, r"has the segment t\[3:9\] twice: remove one"),
    ):
        with pytest.raises(StrapError, match=message):
            manual(value)
    with pytest.raises(StrapError, match="needs a boundaries file"):
        Segmentation(method="manual")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "stop"}, "unknown segmentation method 'stop': did you mean 'stops'"),
        ({"norm": "l3"}, "unknown norm"),
        ({"unit": "minute"}, "unknown unit"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"epsilon": "some"}, "epsilon is some: it must be a number above 0, or auto"),
        ({"epsilon": float("inf")}, "epsilon is inf"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"min_length": 0}, "min_length is 0"),
        ({"window": -1}, "window is -1"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(StrapError, match=message):
        Segmentation(**options)  # type: ignore[arg-type]


@given(
    st.lists(st.sampled_from([GO, REST]), min_size=0, max_size=150),
    st.integers(1, 40),
)
def test_segments_tile_and_are_long_enough(steps: list[float], min_length: int) -> None:
    own = moving(steps)
    found = borders(own, min_length=min_length)
    assert found[0][0] == 0
    assert found[-1][1] == own.length
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert len(found) == 1 or min(b - a for a, b in found) >= min_length


def test_merge_forward_worked_by_hand() -> None:
    # The picture in the docstring: chunks of 3, 2, 6, 7 and 3 frames.
    assert merge_forward(np.array([3, 5, 11, 18]), 21, 6) == [0, 11]


def test_segments_through_a_file(planted: Planted, tmp_path: Path) -> None:
    from strap.segments import write_segments

    dataset = strap.open_dataset(planted.target)
    found = strap.segment(dataset)
    write_segments(tmp_path / "s.json", found, dataset=dataset, segmentation=Segmentation())
    assert read_segments(tmp_path / "s.json") == found
    assert found == sorted({plant.query for plant in planted.plants})
    assert found[0] == Segment("demo_0", 0, 30)


@pytest.mark.parametrize("form", ["segments", "boundaries"])
def test_segments_of_unknown_trajectories_are_an_error(
    planted: Planted, tmp_path: Path, form: str
) -> None:
    dataset, file = strap.open_dataset(planted.target), tmp_path / "b.json"

    def cut_by(keys: list[str], dataset: strap.Dataset) -> list[str]:
        rows = [{"trajectory": key, "start": 0, "stop": 40} for key in keys]
        content = {"segments": rows} if form == "segments" else {key: [40] for key in keys}
        file.write_text(json.dumps({"comment": "by hand", **content}))
        found = strap.segment(dataset, method="manual", boundaries=file)
        return list(dict.fromkeys(segment.trajectory_id for segment in found))

    keys = ["demo_0", "demo_1"]
    assert cut_by(keys, dataset) == keys
    # With a selection the file may cut the others too.
    assert cut_by(keys, dataset.select(["demo_1"])) == ["demo_1"]
    told = (
        r"b.json' cuts 'demo_7', but '.*' has no such trajectory \(it has demo_0, demo_1\): correct"
    )
    for chosen in (dataset, dataset.select(["demo_1"])):
        with pytest.raises(StrapError, match=told):
            cut_by([*keys, "demo_7"], chosen)

    # Trajectories whose files are not there are known all the same.
    skipping: Any = SimpleNamespace(ids=keys, read=dataset.reader.read, skipped=["demo_7"])
    assert cut_by([*keys, "demo_7"], replace(dataset, reader=skipping)) == keys


def test_nothing_to_segment() -> None:
    with pytest.raises(StrapError, match="target dataset is empty"):
        strap.segment([])
    with pytest.raises(StrapError, match="'t' has no frames"):
        strap.segment([moving([], length=0)])
