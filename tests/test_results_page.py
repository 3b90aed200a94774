"""The pages of results and scores show what `runs/results` holds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "runs" / "results_page.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pages_hold_the_tables_of_the_results() -> None:
    done = run_script("--check")
    assert done.returncode == 0, done.stderr


def test_another_number_on_either_page_is_found(tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("results.md", "scores.md")]
    for page in pages:
        page.write_text((ROOT / "docs" / page.name).read_text())
    assert run_script("--check", "--page", *map(str, pages)).returncode == 0
    text = pages[1].read_text()
    pages[1].write_text(text.replace("| random | none | – | stops | 100 |", "| random | none |", 1))
    done = run_script("--check", "--page", *map(str, pages))
    assert done.returncode == 1
    assert "scores.md shows other results" in done.stderr


def test_a_page_with_other_tables_is_found_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text().replace("| 11 / 20 (34 to 74 %) |", "| 20 / 20 |", 1))
    done = run_script("--check", "--page", str(page))
    assert done.returncode == 1
    assert "shows other results" in done.stderr
    assert run_script("--page", str(page)).returncode == 0
    assert page.read_text() == PAGE.read_text()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("<!-- main_table: Paired test -->", "has no part 'Paired test': Successes,"),
        ("<!-- nothing: Precision -->", "there is no experiment 'nothing.toml'"),
        ("", "an `<!-- end -->` no marker"),
        ("<!-- main_table: Paired tests -->\n<!-- no_harm: Missing -->", "has no `<!-- end -->`"),
    ],
)
def test_a_wrong_marker_is_told_and_the_page_left_alone(
    tmp_path: Path, wrong: str, told: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text().replace("<!-- main_table: Paired tests -->", wrong))
    before = page.read_text()
    done = run_script("--page", str(page))
    assert done.returncode == 1
    assert told in done.stderr
    assert page.read_text() == before
