"""Runs side by side, rollouts and datasets through the server; and what lies at a path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.view.conftest import HOST, PORT

from strap.cli import main
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.segments import Segmentation
from strap.synthetic import Planted
from strap.view.opening import open_subject
from strap.view.run_views import RunView
from strap.view.server import make_app
from strap.view.subjects import Subject

FILM = {"place": "target", "trajectory": "demo_0", "start": 0, "stop": 9}
FILM |= {"camera": "agentview_rgb", "size": 96}


def show(subject: Subject) -> TestClient:
    return TestClient(make_app(subject, PORT), base_url=HOST, headers={"X-Strap": "1"})


@pytest.fixture(scope="module")
def other(planted: Planted, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the same target, cut by windows."""
    options = RetrievalOptions("pixels", 8, Segmentation("window"), augmented="none")
    place, stores = tmp_path_factory.mktemp("other") / "windows", run.path.parent / "stores"
    return run_retrieval(planted.target, [planted.prior], place, options, stores=stores)


def make_evaluation(folder: Path, successes: list[bool]) -> Path:
    (folder / "videos").mkdir(parents=True)
    about = {"suite": "libero_10", "task": "put the mug away", "horizon": 520}
    (folder / "evaluation.json").write_text(json.dumps(about))
    lines = []
    for state, success in enumerate(successes):
        name = f"videos/{state}.mp4"
        (folder / name).write_bytes(f"{folder.name}, film {state}".encode())
        lines.append(json.dumps({"state": state, "success": success, "steps": 9, "video": name}))
    (folder / "episodes.jsonl").write_text("\n".join([*lines, ""]))
    return folder


def test_runs_side_by_side(run: Run, other: Run) -> None:
    subject = open_subject([run.path, other.path])
    assert subject.name == "my-run and windows"
    subject.prepare()
    page = show(subject)
    found = page.get("/api/contents").json()
    assert found["kind"] == "comparison"
    assert [own["name"] for own in found["runs"]] == ["my-run", "windows"]
    assert [len(own["matches"]["query"]) for own in found["runs"]] == [12, 8]
    for number, own in enumerate((run, other)):
        alone = show(RunView.open(own.path)).get("/api/alignment?match=5").json()
        assert page.get(f"/api/alignment?match=5&run={number}").json() == alone
        assert page.get("/api/film", params={**FILM, "run": number}).status_code == 200
    assert page.get("/api/alignment?match=0&run=2").status_code == 404
    assert page.get("/api/film", params={**FILM, "run": 2}).status_code == 404
    assert page.get("/api/video?state=0").status_code == 404
    assert page.post("/api/choices", json={"reject": [0]}).status_code == 404


def test_against_is_one_more(run: Run, other: Run) -> None:
    assert open_subject([run.path], against=other.path).contents()["kind"] == "comparison"


def test_rollouts_side_by_side(tmp_path: Path) -> None:
    first = make_evaluation(tmp_path / "strap", [True, True])
    second = make_evaluation(tmp_path / "bc", [True, False])
    page = show(open_subject([first], against=second))
    found = page.get("/api/contents").json()
    assert found["kind"] == "evaluation"
    told = [[episode["success"] for episode in own["episodes"]] for own in found["evaluations"]]
    assert told == [[True, True], [True, False]]
    video = page.get("/api/video?evaluation=1&state=1", headers={"Range": "bytes=4-7"})
    assert (video.status_code, video.content) == (206, b"film")
    assert video.headers["content-type"] == "video/mp4"
    for missing in ("evaluation=2&state=0", "evaluation=0&state=2"):
        assert page.get(f"/api/video?{missing}").status_code == 404
    assert page.get("/api/film", params=FILM).status_code == 404
    assert page.get("/api/alignment?match=0").status_code == 404
    assert page.post("/api/choices", json={}).status_code == 404


def test_a_record_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path / "strap", [True])
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    row = {"state": 0, "success": True, "steps": 9, "video": "../secret.mp4"}
    (folder / "episodes.jsonl").write_text(json.dumps(row) + "\n")
    page = show(open_subject([folder]))
    assert page.get("/api/contents").json()["evaluations"][0]["episodes"][0]["video"] is False
    assert page.get("/api/video?state=0").status_code == 404


def test_episodes_that_are_finished_meanwhile_are_shown(tmp_path: Path) -> None:
    folder = make_evaluation(tmp_path / "strap", [True])
    page = show(open_subject([folder]))
    with (folder / "episodes.jsonl").open("a") as file:
        file.write(json.dumps({"state": 7, "success": False, "steps": 520}) + "\n")
    assert len(page.get("/api/contents").json()["evaluations"][0]["episodes"]) == 2


def test_a_dataset(planted: Planted) -> None:
    subject = open_subject([planted.prior])
    page = show(subject)
    found = page.get("/api/contents").json()
    assert (found["kind"], found["name"], len(found["episodes"])) == ("dataset", "prior.hdf5", 12)
    assert page.get("/api/film", params=FILM).headers["X-Frames"] == "9"
    assert page.get("/api/film", params={**FILM, "place": "0"}).status_code == 404
    assert page.get("/api/film", params={**FILM, "trajectory": "demo_12"}).status_code == 404
    assert page.get("/api/alignment?match=0").status_code == 404
    assert page.get("/api/video?state=0").status_code == 404
    assert page.post("/api/choices", json={}).status_code == 404


def test_what_lies_at_a_path_is_found_by_looking(
    run: Run, planted: Planted, tmp_path: Path
) -> None:
    evaluation = make_evaluation(tmp_path / "strap", [True])
    store = next(iter(run.manifest["stores"].values()))
    with pytest.raises(StrapError, match="nothing to view"):
        open_subject([])
    with pytest.raises(StrapError, match="there is nothing at"):
        open_subject([tmp_path / "absent"])
    with pytest.raises(StrapError, match="holds embeddings, no images"):
        open_subject([Path(store)])
    with pytest.raises(StrapError, match="run and evaluation"):
        open_subject([run.path, evaluation])
    with pytest.raises(StrapError, match="one at a time"):
        open_subject([planted.target, planted.prior])


def test_what_cannot_be_viewed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path), "--no-browser"]) == 2
    assert "is not a dataset that can be read" in capsys.readouterr().err
