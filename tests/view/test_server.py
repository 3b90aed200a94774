"""What each address answers, and the command that serves them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from tests.view.conftest import HOST, PORT

import strap
from strap.cli import main
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.synthetic import Planted
from strap.view.errors import NotThereError
from strap.view.films import FilmRequest, FilmSheet
from strap.view.run_views import RunView
from strap.view.server import make_app

FILM = {"place": "target", "trajectory": "demo_0", "start": 5, "stop": 21}
FILM |= {"camera": "agentview_rgb", "size": 96}


def test_the_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    linked = re.findall(r'(?:src|href)="([^":]+)"', page.text)
    for name in linked:
        found = client.get(f"/{name}")
        assert found.status_code == 200, name
        assert found.headers["content-type"].startswith("text/")


def test_contents_are_those_of_the_run(client: TestClient, view: RunView) -> None:
    answer = client.get("/api/contents")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(view.contents()))


def test_contents_are_compressed_and_films_are_not(client: TestClient) -> None:
    packed = {"Accept-Encoding": "gzip"}
    assert client.get("/api/contents", headers=packed).headers["content-encoding"] == "gzip"
    film = client.get("/api/film", params=FILM, headers=packed)
    assert "content-encoding" not in film.headers


def test_a_film_of_the_target_shows_its_frames(client: TestClient, planted: Planted) -> None:
    answer = client.get("/api/film", params=FILM)
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"] == "private, max-age=86400"
    layout = [answer.headers[name] for name in ("X-Frames", "X-Columns", "X-Rows")]
    assert layout == ["16", "4", "4"]
    with Image.open(io.BytesIO(answer.content)) as sheet:
        pixels = np.asarray(sheet, np.float64)
    frames = strap.open_dataset(planted.target)["demo_0"].frames("agentview_rgb", 5, 21)
    size = frames.shape[1]
    for index, frame in enumerate(frames):
        row, column = divmod(index, 4)
        shown = pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]
        own = np.abs(shown - frame).mean()
        others = [np.abs(shown - other).mean() for other in np.delete(frames, index, axis=0)]
        assert own < min(others)


def test_a_film_of_a_prior(client: TestClient) -> None:
    answer = client.get(
        "/api/film", params={**FILM, "place": "0", "trajectory": "demo_3", "count": 8}
    )
    assert answer.headers["X-Frames"] == "8"


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"place": "1"}, 404, "unknown place '1'"),
        ({"place": "../x"}, 404, "unknown place"),
        ({"trajectory": "demo_77"}, 404, "unknown trajectory 'demo_77'"),
        ({"camera": "agentviw_rgb"}, 404, "did you mean 'agentview_rgb'"),
        ({"start": "-1"}, 400, "'start' is '-1': it must be a whole number"),
        ({"start": "1e3"}, 400, "it must be a whole number"),
        ({"start": "٣"}, 400, "it must be a whole number"),
        ({"start": "9" * 300}, 400, "it must be a whole number"),
        ({"stop": "9999999999"}, 400, "it must be a whole number"),
        ({"stop": "100000"}, 400, "frames 5 to 100000 are requested"),
        ({"start": "21"}, 400, "frames 21 to 21"),
        ({"size": "97"}, 400, "it must be one of 96, 192, 384"),
        ({"count": "0"}, 400, "a sheet has 1 to 400"),
        ({"count": "100000"}, 400, "a sheet has 1 to 400"),
        ({"count": ""}, 400, "it must be a whole number"),
        ({"trajectory": None}, 400, "parameter 'trajectory' is missing"),
        ({"trajectory": "x" * 1001}, 400, "has 1001 characters"),
        ({"colour": "red"}, 400, "unknown parameter 'colour'"),
        ({"run": "1"}, 404, "there is no run 1"),
    ],
)
def test_what_makes_no_sense_is_told_in_one_line(
    client: TestClient, changed: Mapping[str, Any], status: int, text: str
) -> None:
    asked = {key: value for key, value in {**FILM, **changed}.items() if value is not None}
    answer = client.get("/api/film", params=asked)
    assert (answer.status_code, text in answer.text) == (status, True), answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert len(answer.text.splitlines()) == 1


def test_a_parameter_twice_is_refused(client: TestClient) -> None:
    assert client.get("/api/alignment?match=0&match=1").status_code == 400
    assert client.get("/api/contents?x=1").status_code == 400
    assert client.get("/?x=1").status_code == 400


@pytest.mark.parametrize("path", ["alignment?match=12", "alignment?match=0&run=1", "video?state=0"])
def test_what_is_not_there(client: TestClient, path: str) -> None:
    assert client.get(f"/api/{path}").status_code == 404


def test_instructions_that_are_html_or_terminal_codes_stay_texts(
    own_planted: Planted, tmp_path: Path
) -> None:
    evil = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e 🤖"
    for file in (own_planted.target, own_planted.prior):
        with h5py.File(file, "r+") as handle:
            handle["data"].attrs["problem_info"] = json.dumps({"language_instruction": evil})
    options = RetrievalOptions("pixels", 6, augmented="none")
    run = run_retrieval(own_planted.target, [own_planted.prior], tmp_path / "run", options)
    client = TestClient(make_app(RunView.open(run.path), PORT), base_url=HOST)
    answer = client.get("/api/contents")
    assert answer.headers["content-type"] == "application/json"  # never parsed as a page
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["title"] == answer.json()["instructions"][0] == evil
    assert evil not in client.get("/").text


class Broken:
    """A subject whose data is damaged in one way or another."""

    name = "broken"

    def prepare(self) -> None:
        raise AssertionError("only what is served is prepared")

    def close(self) -> None:
        raise AssertionError("only what is served is closed")

    def contents(self) -> Mapping[str, Any]:
        raise strap.StrapError("'x.hdf5' is damaged:\ncopy it again")

    def film(self, request: FilmRequest) -> FilmSheet:
        raise NotThereError("no film")

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        raise ZeroDivisionError("a fault of ours")

    def video(self, evaluation: int, state: int) -> Path:
        return Path(__file__)

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"address": address, "request": request}


@pytest.fixture
def broken() -> TestClient:
    return TestClient(make_app(Broken(), PORT), base_url=HOST, raise_server_exceptions=False)


def test_damaged_data_is_told_in_one_line_without_a_traceback(broken: TestClient) -> None:
    answer = broken.get("/api/contents")
    assert (answer.status_code, answer.text) == (409, "'x.hdf5' is damaged: copy it again")


def test_a_fault_of_ours_shows_nothing_of_the_machine(broken: TestClient) -> None:
    answer = broken.get("/api/alignment?match=0")
    assert answer.status_code == 500
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in answer.text
    assert "fault" not in answer.text


def test_videos_are_sent_by_byte_range(broken: TestClient) -> None:
    whole = Path(__file__).read_bytes()
    answer = broken.get("/api/video?state=3", headers={"Range": "bytes=10-19"})
    assert answer.status_code == 206
    assert answer.content == whole[10:20]
    assert answer.headers["content-range"] == f"bytes 10-19/{len(whole)}"
    assert broken.get("/api/video?state=3").content == whole


@pytest.mark.parametrize("address", ["choices", "borders", "borders/keep", "borders/drop"])
def test_changes_reach_the_subject(broken: TestClient, address: str) -> None:
    answer = broken.post(f"/api/{address}", json={"undo": True}, headers={"X-Strap": "1"})
    assert answer.json() == {"address": address, "request": {"undo": True}}


def test_many_films_at_once(client: TestClient) -> None:
    def status(start: int) -> int:
        return client.get("/api/film", params={**FILM, "start": start % 10}).status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(status, range(40))) == {200}


@pytest.fixture
def command(run: Run, tmp_path: Path) -> list[str]:
    return [sys.executable, "-m", "strap", "view", str(run.path), "--no-browser"]


def test_the_command_serves_this_machine_alone_and_ends_with_ctrl_c(
    command: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "STRAP_CACHE": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            found = re.fullmatch(
                r"viewing my-run at (http://127\.0\.0\.1:(\d+)/) \(Ctrl-C ends\)\n", said
            )
            assert found
            with urllib.request.urlopen(f"{found[1]}api/contents", timeout=30) as answer:
                assert json.load(answer)["name"] == "my-run"
            assert _listens_on_loopback_alone(int(found[2]))
        finally:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def _listens_on_loopback_alone(port: int) -> bool:
    """Whether another address of this machine is free at that port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.2", port))
        except OSError:
            return False
    return True


def test_a_port_that_is_taken_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["view", str(run.path), "--port", port, "--no-browser"]) == 2
    told = capsys.readouterr().err
    assert f"port {port} cannot be used" in told
    assert "choose another with --port" in told


def test_a_port_that_is_none_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run.path), "--port", "70000", "--no-browser"]) == 2
    assert "port 70000 cannot be used" in capsys.readouterr().err
