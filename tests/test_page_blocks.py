"""The commands, the code and the notebook that README and the pages show, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests import forks
from tests.pages import PAGES, ROOT, Block, read_blocks

from strap.cli import main

BLOCKS = {page: [block for block in read_blocks(page) if block.is_run] for page in PAGES}
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
NEEDS_SHELL = re.compile(r"[|&;<>$`*?~(){}]")


def run(command: Sequence[str], folder: Path) -> str:
    """Run a command as a user would who has installed the package; return what it says."""
    environment = {
        **os.environ,
        "STRAP_CACHE": str(folder / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MPLBACKEND": "agg",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return f"{done.stdout}\n{done.stderr}"


def run_forked(function: Callable[[Any], int | None], given: Any, folder: Path) -> str:
    """Call a function with what is given, in a process forked in the folder; return what it says.

    That is what a user's command does, without a second of imports for each.
    """
    log = folder / "said.log"
    environment = {"STRAP_CACHE": str(folder / "cache"), "MPLBACKEND": "agg"}
    process = forks.start(function, given, folder=folder, environment=environment, log=log)
    process.join(300)
    said = log.read_text()
    log.unlink()
    assert process.exitcode == 0, f"{given}\n{said}"
    return said


def run_python(code: str) -> None:
    sys.path.insert(0, "")
    exec(code, vars(sys.modules["__main__"]))


def run_lines(lines: Sequence[str], folder: Path) -> str:
    """Run lines for a shell; return what they say."""
    calls = [shlex.split(line, comments=True) for line in lines]
    if NEEDS_SHELL.search("".join(lines)) or any(call[:1] not in ([], ["strap"]) for call in calls):
        return run(["bash", "-euc", "\n".join(lines)], folder)
    return "\n".join(run_forked(main, call[1:], folder) for call in calls if call)


def run_block(block: Block, folder: Path) -> None:
    """Run a block of a page, or save it for the next ones."""
    if block.file:
        (folder / block.file).write_text(block.text)
    elif block.language == "python":
        run_forked(run_python, block.text, folder)
    elif block.language == "sh":
        run_lines(block.lines, folder)
    else:
        commands = [line[2:] for line in block.lines if line.startswith("$ ")]
        shown = [line for line in block.lines if not line.startswith("$ ")]
        require_shown(run_lines(commands, folder), shown, block)


def require_shown(said: str, shown: Sequence[str], block: Block) -> None:
    """Require the words of a page in what was said, in order.

    Costs (numbers from ten on with a decimal point) may differ by one per cent: processors convert
    a video's colours each in their own way.
    """
    words = said.split()
    for part in "\n".join([*shown, ""]).split("\n…\n"):
        expected = part.split()
        starts = range(len(words) - len(expected) + 1)
        found = next((i for i in starts if all(map(is_alike, expected, words[i:]))), None)
        assert found is not None, f"{block} shows\n{part}\nand not\n{said}"
        words = words[found + len(expected) :]


def is_alike(expected: str, word: str) -> bool:
    cost = re.compile(r"\d{2,}\.\d+")
    if cost.fullmatch(expected) and cost.fullmatch(word):
        return float(word) == pytest.approx(float(expected), rel=0.01)
    return word == expected


def test_what_a_page_shows_is_compared() -> None:
    block = BLOCKS[ROOT / "README.md"][0]
    require_shown("one 34.46 two\nthree four", ["one 34.41", "…", "four"], block)
    require_shown("one 34.46 two\nthree four", ["one 34.41", "…"], block)
    for said in ("one 35.46 four", "one 34 four", "one 34.41 five", "four one 34.41"):
        with pytest.raises(AssertionError, match="and not"):
            require_shown(said, ["one 34.41", "…", "four"], block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all pages are run: the sample data is there, as in the repository."""
    path = tmp_path_factory.mktemp("pages")
    (path / "samples").symlink_to(ROOT / "samples")
    return path


@pytest.fixture(scope="module")
def folder_with_run(folder: Path) -> Path:
    """The same with `my-run`, retrieved as README says."""
    retrieving = BLOCKS[ROOT / "README.md"][0]
    assert "strap retrieve" in retrieving.text
    run(["bash", "-euc", retrieving.text], folder)  # the program that is installed
    for name in ("matches.parquet", "augmented/meta/info.json", "segments.json", "manifest.json"):
        assert (folder / "my-run" / name).is_file()
    return folder


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCKS[page]], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page: Path, request: pytest.FixtureRequest) -> None:
    needs_run = any("my-run" in block.text for block in BLOCKS[page])
    folder = request.getfixturevalue("folder_with_run" if needs_run else "folder")
    for block in BLOCKS[page]:
        run_block(block, folder)


def test_the_notebook_runs(folder: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert any("strap.retrieve(" in cell for cell in code)
    (folder / "docs").mkdir()
    run_forked(run_python, "\n\n".join(code), folder / "docs")
    assert NOTEBOOK.stat().st_size < 600_000


def test_the_pictures_of_the_concepts_are_drawn(folder: Path) -> None:
    script = str(ROOT / "docs" / "images" / "concepts.py")
    (folder / "pictures").mkdir()
    run(
        [sys.executable, script, "--stores", "stores", "--encoder", "pixels", "--out", "pictures"],
        folder,
    )
    drawn = {path.name for path in (folder / "pictures").iterdir()}
    shown = re.findall(r"\(images/(.+)\)", (ROOT / "docs" / "concepts.md").read_text())
    assert drawn == set(shown)
