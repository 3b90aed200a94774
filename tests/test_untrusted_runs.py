"""Runs that somebody forged or damaged: matches of wrong kinds, manifests that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strap import tables
from strap.cli import main
from strap.datasets import open_dataset
from strap.errors import StrapError
from strap.exports import write_filter
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.segments import read_segments
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment

ROWS = Matches(
    tuple(
        Match(Segment("demo_0", 0, 20), Segment(f"p{i}", i, i + 25), 1.5 * i, i + 1, "pick", "d")
        for i in range(3)
    )
)


def column(name: str, values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    table = ROWS.to_table()
    return table.set_column(table.column_names.index(name), name, pa.array(values, kind))


TABLES: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "starts as texts": (
        lambda: column("start", ["0", "1", "2"]),
        "'start' holds string, not int64",
    ),
    "starts as fractions": (lambda: column("start", [0.5, 1.0, 2.0]), "'start' holds double"),
    "costs as texts": (lambda: column("cost", ["a", "b", "c"]), "'cost' holds string, not float64"),
    "trajectories as numbers": (
        lambda: column("trajectory", [1, 2, 3]),
        "'trajectory' holds int64",
    ),
    "datasets as bytes": (lambda: column("dataset", [b"\xff"] * 3), "'dataset' holds binary"),
    "ranks as lists": (lambda: column("rank", [[1]] * 3), "'rank' holds list"),
    "a start that is missing": (
        lambda: column("start", [0, None, 2]),
        "row 1: start is empty: every match needs one",
    ),
    "no trajectories": (
        lambda: column("trajectory", [None] * 3, pa.string()),
        "row 0: trajectory is empty",
    ),
    "a column of nothing": (lambda: column("stop", [None] * 3), "'stop' holds null"),
    "a negative start": (
        lambda: column("start", [0, -1, 2]),
        r"row 1: segment p1\[-1:26\] is empty",
    ),
    "stop before start": (lambda: column("query_stop", [20, 20, 0]), "row 2: segment demo_0"),
    "a cost that is none": (lambda: column("cost", [0, float("nan"), 1]), "row 1: cost is nan"),
    "an infinite cost": (lambda: column("cost", [0, 1, float("inf")]), "row 2: cost is inf"),
    "rank 0": (lambda: column("rank", [1, 0, 3]), "row 1: rank is 0: ranks count from 1"),
    "a number past all": (
        lambda: column("stop", [25, 2**64 - 1, 27], pa.uint64()),
        "cannot read matches",
    ),
    "a column twice": (
        lambda: ROWS.to_table().append_column("cost", pa.array([1.0, 2.0, 3.0])),
        "several columns called 'cost'",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_forged_table_of_matches_is_refused(tmp_path: Path, name: str) -> None:
    make, message = TABLES[name]
    pq.write_table(make(), tmp_path / "m.parquet")
    with pytest.raises(StrapError, match=message) as caught:
        Matches.from_parquet(tmp_path / "m.parquet")
    assert "m.parquet'" in str(caught.value)


def test_tables_of_other_tools_are_read(tmp_path: Path) -> None:
    table = ROWS.to_table()
    for name, kind in (
        ("start", pa.int32()),
        ("cost", pa.float32()),
        ("instruction", pa.large_string()),
        ("dataset", pa.dictionary(pa.int32(), pa.string())),
    ):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table.column(at).cast(kind))
    extra = table.append_column("note", pa.array([None, {"a": 1}, None]))
    pq.write_table(extra.select(extra.column_names[::-1]), tmp_path / "m.parquet")
    assert Matches.from_parquet(tmp_path / "m.parquet") == ROWS
    absent = column("instruction", [None] * 3, pa.string())
    pq.write_table(absent, tmp_path / "m.parquet")
    assert [match.instruction for match in Matches.from_parquet(tmp_path / "m.parquet")] == [""] * 3


def test_matches_in_any_order_are_read_and_printed(tmp_path: Path) -> None:
    pq.write_table(ROWS.to_table().take([2, 0, 1, 0]), tmp_path / "m.parquet")
    found = Matches.from_parquet(tmp_path / "m.parquet")
    assert [match.rank for match in found] == [3, 1, 2, 1]
    assert len(found.queries) == 1
    assert str(found).count("demo_0[0:20]") == 4


def test_a_small_file_of_endless_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ROWS.to_table().take([0] * 2_000_000)
    pq.write_table(table, tmp_path / "m.parquet")
    assert (tmp_path / "m.parquet").stat().st_size < 300_000
    with pytest.raises(StrapError, match="declares 2,000,000 rows; at most 1,000,000 are read"):
        Matches.from_parquet(tmp_path / "m.parquet")
    monkeypatch.setattr(tables, "MAX_ROWS", 2)
    pq.write_table(ROWS.to_table(), tmp_path / "m.parquet")
    with pytest.raises(StrapError, match="declares 3 rows"):
        Matches.from_parquet(tmp_path / "m.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 99 + b"PAR1", b"\0" * 999])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.parquet").write_bytes(content)
    with pytest.raises(StrapError, match=r"cannot read matches from '.*m\.parquet'"):
        Matches.from_parquet(tmp_path / "m.parquet")


def test_a_filter_of_frames_past_all_takes_no_memory(planted: Planted, tmp_path: Path) -> None:
    query, target = Segment("demo_0", 0, 5), open_dataset(planted.target)
    spans = [(3, 9), (9, 2**62), (0, 2)]
    rows = [Match(query, Segment("p", a, b), 1.0, 1, "", "d") for a, b in spans]
    write_filter(tmp_path / "f.json", target, Matches(tuple(rows)))
    kept = json.loads((tmp_path / "f.json").read_text())["d"]["frames"]["p"]
    assert kept == [[0, 2], [3, 2**62]]


def test_an_episode_of_endless_digits_keeps_its_name(planted: Planted, tmp_path: Path) -> None:
    name = "episode_" + "9" * 5000
    rows = [Match(Segment("demo_0", 0, 5), Segment(name, 0, 3), 1.0, 1, "", "d")]
    write_filter(tmp_path / "f.json", open_dataset(planted.target), Matches(tuple(rows)))
    assert json.loads((tmp_path / "f.json").read_text())["d"]["episodes"] == [name]


@pytest.mark.parametrize(
    "row",
    [
        {"trajectory": None, "start": 0, "stop": 5},
        {"trajectory": ["demo_0"], "start": 0, "stop": 5},
        {"trajectory": "demo_0", "start": "0", "stop": 5},
        {"trajectory": "demo_0", "start": 0, "stop": 5.5},
        {"trajectory": "demo_0", "start": False, "stop": 5},
        {"trajectory": "demo_0", "start": 0},
        7,
    ],
)
def test_forged_segments_are_refused(tmp_path: Path, row: Any) -> None:
    (tmp_path / "segments.json").write_text(json.dumps({"segments": [row]}))
    with pytest.raises(StrapError, match=r"segments\.json' is not a file of segments"):
        read_segments(tmp_path / "segments.json")


@pytest.fixture(scope="module")
def made(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made")
    options = RetrievalOptions("pixels", top_k=6)
    run_retrieval(planted.target, [planted.prior], out / "run", options, stores=out / "stores")
    return out / "run"


Change = Callable[[dict[str, Any]], Any]
MANIFESTS: dict[str, tuple[Change, str]] = {
    "a list": (lambda m: [m], "it is not the manifest of a run"),
    "of something else": (
        lambda m: {**m, "format": "strap-store"},
        "it is not the manifest of a run",
    ),
    "without arguments": (lambda m: {**m, "arguments": None}, "arguments, inputs or seconds"),
    "inputs as a list": (lambda m: {**m, "inputs": []}, "arguments, inputs or seconds"),
    "an input that is no text": (
        lambda m: {**m, "inputs": {"a": [1]}},
        "a path or name is not text",
    ),
    "queries as text": (lambda m: {**m, "queries": "3"}, "'queries', 'history', 'chunk'"),
    "seconds as texts": (lambda m: {**m, "seconds": {"a": "b"}}, "a duration is not a number"),
    "reasons as a list": (lambda m: {**m, "reasons": ["a"]}, "'reasons' does not say why"),
    "a reason as a number": (lambda m: {**m, "reasons": {"fuse": 3}}, "a path or name is not text"),
}
ARGUMENTS: dict[str, tuple[Any, str]] = {
    "target": (["a"], "a path or name is not text"),
    "prior": ([], "'prior' or another list is missing"),
    "cameras": ([None], "a path or name is not text"),
    "history": ("5", "'queries', 'history', 'chunk'"),
    "opening": ({"format": None, "run": "me"}, "how the datasets were opened"),
    "openings": ({"a": {"fields": {"camera": "image"}}}, "how the datasets of stores were opened"),
}


def _argument(name: str) -> Change:
    value = ARGUMENTS[name][0]
    return lambda m: {**m, "arguments": {**m["arguments"], name: value}}


@pytest.mark.parametrize("name", [*MANIFESTS, *ARGUMENTS])
def test_a_forged_manifest_of_a_run_is_refused(made: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "matches.parquet").write_bytes((made / "matches.parquet").read_bytes())
    how, message = MANIFESTS.get(name) or (_argument(name), ARGUMENTS[name][1])
    manifest = how(json.loads((made / "manifest.json").read_text()))
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(StrapError, match=message):
        open_run(run)
    assert main(["export", str(run), "--as", "manifest", "--out", str(tmp_path / "o.json")]) == 2


def test_a_run_with_a_damaged_manifest_is_made_again(
    planted: Planted, made: Path, tmp_path: Path
) -> None:
    options = RetrievalOptions("pixels", top_k=6)
    call = (planted.target, [planted.prior], tmp_path / "run", options)
    first = run_retrieval(*call, stores=made.parent / "stores")
    (tmp_path / "run/manifest.json").write_text("[" * 100_000)
    with pytest.raises(StrapError, match=r"cannot read '.*manifest\.json' as JSON"):
        run_retrieval(*call, stores=made.parent / "stores")
    again = run_retrieval(*call, stores=made.parent / "stores", overwrite=True)
    assert again.matches == first.matches
