"""Changing a run through its page: choices on disk at once, borders as a draft until kept."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.view.conftest import HOST, PORT

from strap.choices import open_choices
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run, open_run
from strap.synthetic import Planted
from strap.view.films import Films
from strap.view.run_views import RunView
from strap.view.server import make_app

MOVED = {"demonstration": 1, "boundaries": [20, 50]}


@pytest.fixture(scope="module")
def made(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run; read only."""
    folder = tmp_path_factory.mktemp("made")
    options = RetrievalOptions("pixels", 12, augmented="none")
    out, stores = folder / "run", folder / "stores"
    return run_retrieval(planted.target, [planted.prior], out, options, stores=stores)


@pytest.fixture
def own_run(made: Run, tmp_path: Path) -> Run:
    """A copy of it, to be changed."""
    return open_run(shutil.copytree(made.path, tmp_path / "run"))


@pytest.fixture
def page(own_run: Run, tmp_path: Path) -> Iterator[TestClient]:
    view = RunView.open(own_run.path, Films(tmp_path / "films"))
    with TestClient(make_app(view, PORT), base_url=HOST) as client:
        client.headers["X-Strap"] = "1"
        yield client


def change(page: TestClient, what: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    answer = page.post(f"/api/{what}", json=wanted)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def contents(page: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = page.get("/api/contents").json()
    return found


def test_choices_are_on_disk_at_once_and_can_be_undone(page: TestClient, own_run: Run) -> None:
    assert contents(page)["read_only"] is False
    told = change(page, "choices", {"reject": [1, 3]})
    assert (told["rejected"], told["kept"], told["undo"]) == ([1, 3], 10, 1)
    assert open_choices(own_run.path).describe(own_run.matches) == told
    assert contents(page)["choices"] == told
    assert change(page, "choices", {"undo": True})["kept"] == 12
    assert RunView.open(own_run.path).contents()["choices"]["redo"] == 1


@pytest.mark.parametrize(
    "wanted", [{}, {"reject": [99]}, {"frobnicate": 1}, {"weight": "x", "rows": [1]}]
)
def test_a_change_that_makes_no_sense_changes_nothing(
    page: TestClient, own_run: Run, wanted: Mapping[str, Any]
) -> None:
    answer = page.post("/api/choices", json=wanted)
    assert answer.status_code == 409
    assert len(answer.text.splitlines()) == 1
    assert not (own_run.path / "choices.json").exists()


def test_moved_borders_are_a_draft_that_can_be_dropped(page: TestClient, own_run: Run) -> None:
    before = contents(page)
    files = {file.name: file.read_bytes() for file in own_run.path.iterdir() if file.is_file()}
    draft = change(page, "borders", MOVED)
    assert draft["draft"] == MOVED
    spans = [
        (draft["queries"][i]["start"], draft["queries"][i]["stop"])
        for i in draft["demonstrations"][1]["queries"]
    ]
    assert spans == [(0, 20), (20, 50), (50, draft["demonstrations"][1]["length"])]
    assert draft["choices"]["kept"] == len(draft["matches"]["query"])
    assert max(draft["matches"]["query"]) < len(draft["queries"])
    assert contents(page) == draft
    now = {file.name: file.read_bytes() for file in own_run.path.iterdir() if file.is_file()}
    assert now == files
    assert change(page, "borders/drop", {}) == before == contents(page)


def test_a_drafts_matches_have_paths(page: TestClient) -> None:
    draft = change(page, "borders", MOVED)
    row = draft["matches"]["query"].index(draft["demonstrations"][1]["queries"][0])
    found = page.get(f"/api/alignment?match={row}").json()
    assert found["path"][-1][0] == 19
    assert sum(cost for _, _, cost in found["path"]) == pytest.approx(
        draft["matches"]["cost"][row], rel=1e-3
    )


def test_borders_of_several_demonstrations_add_up(page: TestClient) -> None:
    change(page, "borders", MOVED)
    draft = change(page, "borders", {"demonstration": 0, "boundaries": []})
    assert draft["draft"] == {"demonstration": 0, "boundaries": []}
    assert [len(own["queries"]) for own in draft["demonstrations"]] == [1, 3]


def test_kept_borders_make_the_run_again(page: TestClient, own_run: Run) -> None:
    draft = change(page, "borders", MOVED)
    kept = change(page, "borders/keep", {})
    assert kept["draft"] is None
    assert kept["queries"] == draft["queries"]
    assert kept["matches"] == draft["matches"]
    made = open_run(own_run.path)
    assert made.manifest["arguments"]["segmentation"]["method"] == "manual"
    assert len(made.matches) == len(kept["matches"]["query"])
    assert change(page, "choices", {"reject": [0]})["kept"] == len(made.matches) - 1


def test_a_draft_cannot_be_chosen_from(page: TestClient) -> None:
    change(page, "borders", MOVED)
    answer = page.post("/api/choices", json={"reject": [0]})
    assert (answer.status_code, "keep or drop them first" in answer.text) == (409, True)


@pytest.mark.parametrize(
    ("what", "wanted", "status"),
    [
        ("borders", {}, 400),
        ("borders", {"demonstration": 2, "boundaries": []}, 400),
        ("borders", {"demonstration": True, "boundaries": []}, 400),
        ("borders", {"demonstration": "demo_0", "boundaries": []}, 400),
        ("borders", {**MOVED, "more": 1}, 400),
        ("borders", {"demonstration": 0, "boundaries": [50, 20]}, 409),
        ("borders", {"demonstration": 0, "boundaries": "20"}, 409),
        ("borders", {"demonstration": 0, "boundaries": [10**9]}, 409),
        ("borders/keep", {}, 409),
        ("borders/keep", {"demonstration": 0}, 400),
        ("borders/drop", {"demonstration": 0}, 400),
    ],
)
def test_borders_that_make_no_sense_are_refused(
    page: TestClient, what: str, wanted: Mapping[str, Any], status: int
) -> None:
    before = contents(page)
    answer = page.post(f"/api/{what}", json=wanted)
    assert (answer.status_code, len(answer.text.splitlines())) == (status, 1)
    assert contents(page) == before


def test_preparing_searches_by_the_present_borders_and_shows_nothing_new(own_run: Run) -> None:
    view = RunView.open(own_run.path)
    before = json.dumps(view.contents())
    view.prepare()
    assert json.dumps(view.contents()) == before


def test_a_closed_view_searches_no_more(own_run: Run) -> None:
    view = RunView.open(own_run.path)
    view.close()
    view.prepare()
    with pytest.raises(StrapError, match="the viewer has ended"):
        view.change("borders", MOVED)


def test_choices_among_older_matches_are_not_applied(own_run: Run, page: TestClient) -> None:
    change(page, "choices", {"reject": [0]})
    content = json.loads((own_run.path / "choices.json").read_text())
    (own_run.path / "choices.json").write_text(json.dumps({**content, "matches": "other"}))
    assert contents(page)["choices"]["kept"] == 12


def test_a_run_that_was_made_again_is_reloaded_before_it_is_changed(
    planted: Planted, page: TestClient, own_run: Run
) -> None:
    change(page, "borders", MOVED)
    shown = contents(page)["fingerprint"]
    options = RetrievalOptions("pixels", 8, augmented="none")
    prior = [planted.prior]
    made = run_retrieval(planted.target, prior, own_run.path, options, overwrite=True)
    reject = {"reject": [0]}
    for what, wanted in (("choices", reject), ("borders", MOVED), ("borders/keep", {})):
        answer = page.post(f"/api/{what}", json=wanted)
        told = "was made again, or its borders were moved in another tab: nothing was changed"
        assert (answer.status_code, told in answer.text) == (409, True)
    assert open_run(own_run.path) == replace(made, reused=True)
    assert not (own_run.path / "choices.json").exists()
    # The page is reloaded; another tab still shows the older matches.
    found = contents(page)
    assert (len(found["matches"]["query"]), found["draft"]) == (8, None)
    assert page.post("/api/choices", json={**reject, "among": shown}).status_code == 409
    assert change(page, "choices", {**reject, "among": found["fingerprint"]})["kept"] == 7
    draft = change(page, "borders", {**MOVED, "among": found["fingerprint"]})
    assert len(draft["matches"]["query"]) == 8
    assert page.post("/api/borders/keep", json={"among": found["fingerprint"]}).status_code == 409
    assert change(page, "borders/keep", {"among": draft["fingerprint"]})["draft"] is None


def test_a_run_that_is_being_made_is_not_changed(page: TestClient, own_run: Run) -> None:
    (own_run.path / "manifest.json").unlink()
    answer = page.post("/api/choices", json={"reject": [0]})
    assert (answer.status_code, "reload the page" in answer.text) == (409, True)
    answer = page.get("/api/contents")
    assert (answer.status_code, "not a finished run" in answer.text) == (409, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_that_cannot_be_written_is_read_only(own_run: Run, page: TestClient) -> None:
    own_run.path.chmod(0o555)
    assert contents(page)["read_only"] is True
