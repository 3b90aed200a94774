"""The documentation site: built without a warning, with nothing that a browser would fetch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pages import ROOT

BUILD = ("mkdocs", "build", "--strict")


def build(*options: str | Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("material")
    command = [sys.executable, "-m", *BUILD, *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build("--site-dir", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("link", ["index.md#nowhere", "absent.md"])
def test_a_link_that_leads_nowhere_ends_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n[a link]({link})\n")
    own = (
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nhooks: []\nnav: [index.md]\nplugins: []\n"
    )
    (tmp_path / "mkdocs.yml").write_text(own)
    done = build("--config-file", tmp_path / "mkdocs.yml", "--site-dir", tmp_path / "site")
    assert done.returncode == 1
    assert link in done.stderr


def test_make_builds_as_these_tests_do() -> None:
    assert f"/{' '.join(BUILD)}\n" in (ROOT / "Makefile").read_text()


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r"""<(?:link|script|img|iframe|source|video)\b[^>]*?["'](?:https?:)?//""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not fetched.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_pages_of_the_repository_and_the_notebook_are_there(site: Path) -> None:
    notebook = (site / "notebook.html").read_text()
    for number in range(3):
        assert f'src="images/notebook-{number}.png"' in notebook
        assert (site / "images" / f"notebook-{number}.png").is_file()
    assert 'href="notebook.ipynb"' in notebook
    assert json.loads((site / "notebook.ipynb").read_text())["cells"]
    assert 'href="../formats/damage.html"' in (site / "repository" / "SECURITY.html").read_text()
    assert 'href="repository/benchmarks/index.html"' in (site / "index.html").read_text()


def test_marks_for_the_tests_do_not_show(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert len(found) > 200
    mark = re.compile(r"run by tests/|not run: |saved as \w+\.py")
    marked = {entry["location"] for entry in found if mark.search(entry["text"])}
    assert marked == {"testing.html#the-pages"}  # which explains them
