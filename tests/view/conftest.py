from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.synthetic import Planted
from strap.view.films import Films
from strap.view.run_views import RunView
from strap.view.server import make_app

PORT = 8123
HOST = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="session")
def run(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve matches of six queries; read only."""
    folder = tmp_path_factory.mktemp("view")
    options = RetrievalOptions(encoder="pixels", top_k=12, augmented="none")
    place = folder / "my-run"
    return run_retrieval(planted.target, [planted.prior], place, options, stores=folder / "stores")


@pytest.fixture
def view(run: Run, tmp_path: Path) -> RunView:
    return RunView.open(run.path, Films(tmp_path / "films"))


@pytest.fixture
def client(view: RunView) -> Iterator[TestClient]:
    with TestClient(make_app(view, PORT), base_url=HOST) as found:
        yield found
