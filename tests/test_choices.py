"""Choices among matches: what remains, undo and redo, several writers, and who keeps to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests import forks

import strap
from strap.choices import (
    Choices,
    carry_over,
    change_choices,
    changes,
    choose_matches,
    fingerprint_matches,
    open_choices,
)
from strap.cli import main
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment

NOTHING = {
    "rejected": [],
    "accepted": [],
    "match_weights": {},
    "task_weights": {},
    "rejected_tasks": [],
    "top_k": None,
    "undo": 0,
    "redo": 0,
}


def make_matches(count: int = 5) -> Matches:
    """Two queries with `count` matches each, of two tasks in turn; the second's cost more."""
    return Matches(
        tuple(
            Match(
                query,
                Segment(f"p{rank}", place, place + 25),
                cost=10.0 * place + rank,
                rank=rank,
                instruction=("pick", "place")[rank % 2],
                dataset="/prior",
            )
            for place, query in enumerate((Segment("demo_0", 0, 20), Segment("demo_0", 20, 40)))
            for rank in range(1, count + 1)
        )
    )


@pytest.fixture
def matches() -> Matches:
    return make_matches()


@pytest.fixture
def folder(tmp_path: Path, matches: Matches) -> Path:
    matches.to_parquet(tmp_path / "matches.parquet")
    return tmp_path


def test_nothing_chosen_keeps_everything(folder: Path, matches: Matches) -> None:
    choices = open_choices(folder)
    assert choices.describe(matches) == {**NOTHING, "kept": 10}
    assert choices.rows(matches) == list(range(len(matches)))
    assert choices.weights(matches) == [1.0] * 10
    assert not (folder / "choices.json").exists()
    chosen = choose_matches(folder, matches)
    assert (chosen.matches, chosen.to_json()) == (matches, None)


def test_each_change_says_what_it_says(folder: Path, matches: Matches) -> None:
    def change(**words: Any) -> dict[str, Any]:
        return change_choices(folder, matches, words).describe(matches)

    assert change(reject=[3, 8, 3])["rejected"] == [3, 8]
    assert change(accept=[3])["rejected"] == [8]
    assert change(weight=2, rows=[0, 3])["match_weights"] == {"0": 2.0, "3": 2.0}
    assert change(task="pick", weight=0.5)["task_weights"] == {"pick": 0.5}
    assert change(reject_task="place")["rejected_tasks"] == ["place"]
    said = change(top_k=4)
    assert said == {
        "rejected": [8],
        "accepted": [3],
        "match_weights": {"0": 2.0, "3": 2.0},
        "task_weights": {"pick": 0.5},
        "rejected_tasks": ["place"],
        "top_k": 4,
        "undo": 6,
        "redo": 0,
        "kept": 3,
    }
    choices = open_choices(folder)
    assert choices.describe(matches) == said
    # Two of each query are within the share; 0 and 2 are of the rejected task; 3 is accepted.
    assert choices.rows(matches) == [1, 3, 6]
    assert choices.weights(matches) == [0.5, 1.0, 0.5]
    assert change(clear=[8, 3])["match_weights"] == {"0": 2.0}
    assert change(clear_task="place")["rejected_tasks"] == []
    assert change(top_k=None)["kept"] == 10


def test_weight_0_rejects_and_any_other_takes_it_back(folder: Path, matches: Matches) -> None:
    choices = change_choices(folder, matches, {"weight": 0, "rows": [2]})
    choices = change_choices(folder, matches, {"task": "place", "weight": 0.0})
    said = choices.describe(matches)
    assert (said["rejected"], said["rejected_tasks"], said["kept"]) == ([2], ["place"], 4)
    assert said["match_weights"] == said["task_weights"] == {}
    change_choices(folder, matches, {"weight": 3, "rows": [2]})
    choices = change_choices(folder, matches, {"task": "place", "weight": 1})
    assert choices.describe(matches)["kept"] == 10
    assert choices.weights(matches)[2] == 3.0


def test_top_k_keeps_what_a_retrieval_of_so_many_keeps(planted: Planted, tmp_path: Path) -> None:
    found = {}
    for top_k in (12, 7, 5):
        options = RetrievalOptions(encoder="pixels", top_k=top_k, augmented="none")
        place = tmp_path / str(top_k)
        run = run_retrieval(
            planted.target, [planted.prior], place, options, stores=tmp_path / "stores"
        )
        found[top_k] = run.matches
    for top_k in (7, 5):
        choices = change_choices(tmp_path / "12", found[12], {"top_k": top_k})
        assert Matches(tuple(found[12][row] for row in choices.rows(found[12]))) == found[top_k]


def test_undo_and_redo_lead_back_and_forth(folder: Path, matches: Matches) -> None:
    steps: list[Mapping[str, Any]] = [
        {"reject": [1, 2]},
        {"weight": 2.0, "rows": [0, 1]},
        {"reject_task": "pick"},
        {"top_k": 3},
        {"accept": [1]},
    ]
    states = [open_choices(folder).describe(matches)]
    states += [change_choices(folder, matches, step).describe(matches) for step in steps]

    def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return all(one[key] == other[key] for key in one if key not in ("undo", "redo"))

    for state in reversed(states[:-1]):
        assert same(change_choices(folder, matches, {"undo": True}).describe(matches), state)
    assert change_choices(folder, matches, {"undo": True}).describe(matches)["redo"] == 5
    for state in states[1:]:
        assert same(change_choices(folder, matches, {"redo": True}).describe(matches), state)
    change_choices(folder, matches, {"undo": True})
    said = change_choices(folder, matches, {"reject": [9]}).describe(matches)
    assert (said["undo"], said["redo"]) == (5, 0)  # what was undone is left behind


def test_what_changes_nothing_is_no_step(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": [1]})
    before = (folder / "choices.json").stat().st_mtime_ns
    for change in ({"reject": [1]}, {"reject": []}, {"top_k": None}, {"clear_task": "pick"}):
        assert len(change_choices(folder, matches, change).undo) == 1
    assert (folder / "choices.json").stat().st_mtime_ns == before


def test_history_is_bounded(
    folder: Path, matches: Matches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_STEPS", 20)
    for step in range(changes.MAX_STEPS + 5):
        change_choices(folder, matches, {"reject" if step % 2 else "clear": [1, 2, 3]})
        change_choices(folder, matches, {"accept": [1, 2, 3]})
    assert len(open_choices(folder).undo) == changes.MAX_STEPS
    monkeypatch.setattr(changes, "MAX_MARKS", 10)
    assert len(change_choices(folder, matches, {"clear": [1, 2, 3]}).undo) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "unknown change of choices 'nothing': give one of reject; accept"),
        ({"rejct": [1]}, "unknown change of choices 'rejct'"),
        ({"reject": [1], "accept": [2]}, "unknown change of choices 'accept and reject'"),
        ({"\x1b[2J": 1}, r"'\\x1b\[2J'"),
        ({"reject": [10]}, "row 10 is not in matches.parquet, which has rows 0 to 9"),
        ({"reject": [-1]}, "row -1 is not in"),
        ({"reject": [True]}, "row True is not in"),
        ({"reject": [1.0]}, r"row 1\.0 is not in"),
        ({"accept": 3}, "rows are 3: give a list"),
        ({"clear": "012"}, "rows are '012'"),
        ({"weight": float("nan"), "rows": [1]}, "weight is nan: it must be a number from 0"),
        ({"weight": float("inf"), "rows": [1]}, "weight is inf"),
        ({"weight": -1, "rows": [1]}, "weight is -1"),
        ({"weight": 1e9, "rows": [1]}, "to 1000"),
        ({"weight": "2", "rows": [1]}, "weight is '2'"),
        ({"weight": True, "rows": [1]}, "weight is True"),
        ({"task": "pick", "weight": 10**400}, "weight is 1000"),
        ({"task": "pic", "weight": 2}, "no match has task 'pic': give the whole"),
        ({"reject_task": None}, "no match has task None"),
        ({"top_k": 0}, "top_k is 0: it must be at least 1, or null"),
        ({"top_k": True}, "top_k is True"),
        ({"top_k": 2.0}, r"top_k is 2\.0"),
        ({"undo": 1}, 'undo is 1: say {"undo": true}'),
    ],
)
def test_a_wrong_change_is_refused(
    folder: Path, matches: Matches, change: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(StrapError, match=message):
        change_choices(folder, matches, change)
    assert not (folder / "choices.json").exists()


def test_choices_of_other_matches_are_not_applied(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": [0]})
    other = make_matches(4)
    with pytest.raises(StrapError, match="the choices are of other matches than these 8"):
        open_choices(folder).rows(other)
    with pytest.warns(UserWarning, match=r"it is not\s+applied; choose again with `strap view`"):
        chosen = choose_matches(folder, other)
    assert (len(chosen.matches), chosen.to_json()) == (8, None)
    # A page that shows what the run was before it was made again must not write.
    with pytest.raises(StrapError, match="was made again and has other matches now: open it again"):
        change_choices(folder, other, {"reject": [1]})
    other.to_parquet(folder / "matches.parquet")
    said = change_choices(folder, other, {"reject": [1]}).describe(other)
    assert (said["rejected"], said["undo"]) == ([1], 1)
    assert json.loads((folder / "choices-older.json").read_text())["choices"]["matches"]["0"]


def test_all_older_choices_are_kept(folder: Path, matches: Matches) -> None:
    names = ["choices-older.json", "choices-older-2.json", "choices-older-3.json"]
    for number, name in enumerate(names, 1):
        change_choices(folder, matches, {"reject": list(range(number))})
        matches = make_matches(5 + number)
        with pytest.warns(
            UserWarning, match=f"`strap view`, which keeps the old file as '{name}', or remo"
        ):
            choose_matches(folder, matches)
        matches.to_parquet(folder / "matches.parquet")
    change_choices(folder, matches, {"reject": [0]})
    kept = [json.loads((folder / name).read_text())["choices"]["matches"] for name in names]
    assert [len(rows) for rows in kept] == [1, 2, 3]


def test_nothing_is_chosen_among_matches_that_the_run_has_no_more(
    folder: Path, matches: Matches
) -> None:
    make_matches(4).to_parquet(folder / "matches.parquet")
    with pytest.raises(StrapError, match=r"open it again \(reload the page\), then choose"):
        change_choices(folder, matches, {"reject": [0]})
    assert not (folder / "choices.json").exists()
    matches.to_parquet(folder / "matches.parquet")
    change_choices(folder, matches, {"reject": [0]})
    make_matches(4).to_parquet(folder / "matches.parquet")
    with pytest.raises(StrapError, match="was made again and has other matches now"):
        change_choices(folder, matches, {"reject": [1]})
    assert open_choices(folder).describe(matches)["rejected"] == [0]


def test_a_task_that_no_match_has_any_more_is_named(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": [1]})
    change_choices(folder, matches, {"task": "pick", "weight": 0.25})
    change_choices(folder, matches, {"reject_task": "place"})
    mended = Matches(tuple(replace(m, instruction=f"{m.instruction}!") for m in matches))
    mended.to_parquet(folder / "matches.parquet")
    told = r"choices.json' rejects or weighs task 'pick', task 'place', which no match .* choose ag"
    with pytest.warns(UserWarning, match=told):
        chosen = choose_matches(folder, mended)
    assert (len(chosen.matches), set(chosen.weights)) == (9, {1.0})  # what is said of matches holds
    # The next choice of a task takes back what is said of names that are gone.
    said = change_choices(folder, mended, {"task": "pick!", "weight": 0.25}).describe(mended)
    assert (said["task_weights"], said["rejected_tasks"]) == ({"pick!": 0.25}, [])
    assert (said["rejected"], said["undo"]) == ([1], 4)
    assert len(change_choices(folder, mended, {"undo": True}).tasks) == 2
    assert change_choices(folder, mended, {"clear_task": "place"}).tasks == {}
    for wrong in (["place"], "place"):
        with pytest.raises(StrapError, match="no match has task"):
            change_choices(folder, mended, {"clear_task": wrong})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_matches(folder, mended)


def test_choices_are_carried_over_to_matches_that_are_still_there(
    folder: Path, matches: Matches
) -> None:
    change_choices(folder, matches, {"reject": [0, 6]})
    change_choices(folder, matches, {"weight": 2.0, "rows": [7]})
    change_choices(folder, matches, {"task": "pick", "weight": 0.5})
    after = Matches(matches.rows[4:9])
    kept = carry_over(folder, matches, after)
    assert kept == open_choices(folder)
    said = kept.describe(after)
    assert (said["rejected"], said["match_weights"]) == ([2], {"3": 2.0})
    assert (said["task_weights"], said["undo"], said["kept"]) == ({"pick": 0.5}, 0, 4)


def test_where_nothing_remains_the_next_step_is_told(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": list(range(10))})
    with pytest.raises(StrapError, match=r"all 10 matches .* are rejected: .* --choices ignore"):
        choose_matches(folder, matches)
    assert len(choose_matches(folder, matches, "ignore").matches) == 10


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: [],
        lambda content: {**content, "format": "other"},
        lambda content: {**content, "matches": 3},
        lambda content: {**content, "choices": {**content["choices"], "matches": {"-1": ["", 1]}}},
        lambda content: {**content, "choices": {**content["choices"], "matches": {"1": ["no", 1]}}},
        lambda content: {**content, "choices": {**content["choices"], "matches": {"1": ["", -1]}}},
        lambda content: {**content, "choices": {**content["choices"], "matches": {"1": ["", 0]}}},
        lambda content: {**content, "choices": {**content["choices"], "tasks": [1]}},
        lambda content: {**content, "choices": {**content["choices"], "top_k": [1, 2]}},
        lambda content: {**content, "undo": [3]},
        lambda content: {**content, "redo": None},
    ],
)
def test_a_damaged_file_is_refused(folder: Path, matches: Matches, damage: Any) -> None:
    change_choices(folder, matches, {"reject": [0]})
    file = folder / "choices.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(StrapError, match=r"choices\.json' is damaged .* remove it to start again"):
        open_choices(folder)


def test_a_row_that_the_matches_have_not_is_refused(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": [0]})
    file = folder / "choices.json"
    content = json.loads(file.read_text())
    content["choices"]["matches"] = {"10": ["rejected", 1.0]}
    file.write_text(json.dumps(content))
    with pytest.raises(StrapError, match="they name match 10 of 10"):
        open_choices(folder).describe(matches)


def reject(folder: Path, rows: Iterable[int]) -> None:
    found = Matches.from_parquet(folder / "matches.parquet")
    for row in rows:
        change_choices(folder, found, {"reject": [row]})


def reject_and_be_killed(folder: Path, rows: Iterable[int]) -> None:
    """As `reject`, but end when the new file is written and not yet in its place."""
    fsync = os.fsync

    def kill(file: int) -> None:
        fsync(file)
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = kill
    reject(folder, rows)


def test_two_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    matches = make_matches(60)
    matches.to_parquet(tmp_path / "matches.parquet")
    children = [
        forks.start(reject, tmp_path, rows) for rows in (range(0, 120, 3), range(1, 120, 3))
    ]
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]
    said = open_choices(tmp_path).describe(matches)
    assert said["rejected"] == [row for row in range(120) if row % 3 != 2]
    assert said["undo"] == 80


def test_killed_while_writing_leaves_the_old_file(folder: Path, matches: Matches) -> None:
    change_choices(folder, matches, {"reject": [1]})
    before = (folder / "choices.json").read_bytes()
    child = forks.start(reject_and_be_killed, folder, [5])
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert (folder / "choices.json").read_bytes() == before
    change_choices(folder, matches, {"reject": [2]})
    assert open_choices(folder).describe(matches)["rejected"] == [1, 2]
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob(".*.tmp"))


@pytest.fixture(scope="module")
def made(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "run"
    options = RetrievalOptions(encoder="pixels", top_k=6)
    stores = out.parent / "stores"
    return run_retrieval(planted.target, [planted.prior], out, options, stores=stores).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_exports_keep_to_the_choices(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matches = open_run(run).matches
    change_choices(run, matches, {"reject": [0, 3]})
    change_choices(run, matches, {"weight": 2.5, "rows": [1]})
    out = tmp_path / "m.json"
    assert main(["export", str(run), "--as", "manifest", "--out", str(out)]) == 0
    assert "choices: 4 of 6 matches kept, 1 re-weighed (strap view)" in capsys.readouterr().out
    rows = {(r["episode"], r["start"], r["stop"]): r["weight"] for r in json.loads(out.read_text())}

    def place(row: int) -> tuple[str, int, int]:
        found = matches[row].segment
        return found.trajectory_id, found.start, found.stop

    assert [rows.get(place(row)) for row in range(6)] == [None, 2.5, 1.0, None, 1.0, 1.0]
    note = json.loads((tmp_path / "m.json.choices.json").read_text())
    chosen = choose_matches(run, matches)
    assert note == {"run": str(run), "as": "manifest", **(chosen.to_json() or {})}
    assert (note["matches"], note["kept"], note["reweighed"]) == (6, 4, 1)

    assert main(["export", str(run), "--as", "weights", "--out", str(tmp_path / "w")]) == 0
    weights = np.array(pq.read_table(tmp_path / "w" / "prior-0-prior.parquet")["weight"])
    kept = {1: 2.5, 2: 1.0, 4: 1.0, 5: 1.0}
    assert weights.sum() == sum(w * len(matches[row].segment) for row, w in kept.items())
    words = ["--as", "robomimic", "--out", str(tmp_path / "a.hdf5")]
    assert main(["export", str(run), *words]) == 0
    told = "1 matches have a weight other than 1, which 'robomimic' cannot store"
    assert told in capsys.readouterr().err
    exported = strap.open_dataset(tmp_path / "a.hdf5")
    starts = [t.attributes["source_start"] for t in exported if "source_cost" in t.attributes]
    assert starts == [matches[row].segment.start for row in kept]

    change_choices(run, matches, {"undo": True})
    change_choices(run, matches, {"undo": True})
    assert main(["export", str(run), "--as", "manifest", "--out", str(out), "--json"]) == 0
    assert len(json.loads(out.read_text())) == 2 + len(set(map(place, range(6))))
    assert not (tmp_path / "m.json.choices.json").exists()


def test_exports_may_ignore_the_choices(run: Path, tmp_path: Path) -> None:
    change_choices(run, open_run(run).matches, {"reject": [0]})
    out = tmp_path / "m.json"
    words = ["export", str(run), "--as", "manifest", "--out", str(out)]
    assert main(words) == 0
    assert len(json.loads(out.read_text())) == 2 + 5
    assert main([*words, "--choices", "ignore"]) == 0
    assert len(json.loads(out.read_text())) == 2 + 6
    assert not (tmp_path / "m.json.choices.json").exists()


def test_a_run_that_was_made_again_is_exported_whole(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "m.json"
    words = ["--target", str(own_planted.target), "--prior", str(own_planted.prior)]
    words += ["--encoder", "pixels", "--augmented", "none", "--out", str(run), "--overwrite"]
    assert main(["retrieve", *words, "--top-k", "6"]) == 0
    change_choices(run, open_run(run).matches, {"reject": [0, 1, 2]})
    assert main(["retrieve", *words, "--top-k", "8"]) == 0
    capsys.readouterr()
    assert main(["export", str(run), "--as", "manifest", "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "is of other matches than the run has now: it is not applied" in told.err
    assert "choices:" not in told.out
    assert len(json.loads(out.read_text())) == 2 + 8


def test_the_fingerprint_follows_what_was_found_and_not_its_cost(matches: Matches) -> None:
    dearer = Matches(tuple(replace(match, cost=match.cost + 1) for match in matches))
    turned = Matches(matches.rows[::-1])
    assert fingerprint_matches(dearer) == fingerprint_matches(matches)
    assert fingerprint_matches(turned) != fingerprint_matches(matches)
    assert Choices().is_of(turned)
