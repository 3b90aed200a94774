"""The commands, the code and the notebook that README and the pages show, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.pages import PAGES, ROOT, RUN, SHOWN, Block, read_blocks

from strap.cli.help import options_of
from strap.cli.page import list_commands

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
SHOWING_RUNS = [page for page in PAGES if any(block.is_run for block in read_blocks(page))]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
COMMANDS = list_commands()


def run(command: Sequence[str], folder: Path) -> None:
    """Run a command as a user would who has installed the package; it must succeed."""
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


def run_block(block: Block, folder: Path) -> None:
    run(
        [*({"sh": ("bash", "-euc"), "python": (sys.executable, "-c")}[block.language]), block.text],
        folder,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all pages are run: the sample data is there, as in the repository."""
    path = tmp_path_factory.mktemp("pages")
    (path / "samples").symlink_to(ROOT / "samples")
    (path / "runs").symlink_to(ROOT / "runs")
    return path


@pytest.fixture(scope="module")
def folder_with_run(folder: Path) -> Path:
    """The same with `my-run`, retrieved as README says."""
    retrieving = [block for block in read_blocks(ROOT / "README.md") if block.is_run][0]
    assert "strap retrieve" in retrieving.text
    run_block(retrieving, folder)
    for name in ("matches.parquet", "augmented/meta/info.json", "segments.json", "manifest.json"):
        assert (folder / "my-run" / name).is_file()
    return folder


@pytest.mark.parametrize("page", SHOWING_RUNS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, request: pytest.FixtureRequest) -> None:
    blocks = [block for block in read_blocks(page) if block.is_run]
    needs_run = any("my-run" in block.text for block in blocks)
    folder = request.getfixturevalue("folder_with_run" if needs_run else "folder")
    for block in blocks:
        run_block(block, folder)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.language in RUN + SHOWN, f"{block}: name a language, one of {RUN + SHOWN}"
    if block.language not in (*RUN, "console") or block.is_run or block.is_synopsis:
        return
    kind, _, rest = (
        block.mark.partition(": ") if "not run" in block.mark else ("run by", "", block.mark)
    )
    if kind == "not run":
        assert len(rest.split()) >= 2, f"{block}: say what it needs that the tests lack"
        return
    found = re.fullmatch(r"run by (tests/[\w/]+\.py)::(test_\w+)", rest)
    assert found, f"{block}: is not run; see tests/pages.py"
    assert f"def {found[2]}(" in (ROOT / found[1]).read_text(), f"{block}: no such test"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.commands], ids=str)
def test_commands_have_options_that_exist(block: Block) -> None:
    for line in block.commands:
        words = line.split()
        name = next((n for n in (" ".join(words[1:3]), words[1]) if n in COMMANDS), None)
        assert name, f"{block}: no command is called '{line}'"
        known = {option.word for option in options_of(COMMANDS[name])} | {"--help"}
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) <= known, f"{block}: {line}"


def test_the_notebook_runs(folder: Path) -> None:
    cells = [
        cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    (folder / "docs").mkdir(exist_ok=True)
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    assert "strap.retrieve(" in code
    run([sys.executable, "-c", code], folder / "docs")
    assert NOTEBOOK.stat().st_size < 500_000


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/testing.md"])
def test_make_targets_that_pages_name_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"\bmake ([a-z]+)\b", (ROOT / name).read_text())
    assert named
    for target in set(named):
        assert re.search(rf"^{target}:", makefile, flags=re.M), f"{name} names 'make {target}'"


def test_the_readme_names_every_room_and_no_other() -> None:
    source = ROOT / "src" / "strap"
    rooms = {
        f"{p.name}/" if p.is_dir() else p.name
        for p in source.iterdir()
        if not p.name.startswith(("_", "py."))
    }
    tree = re.search(r"```text\nsrc/strap/\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert tree
    assert set(re.findall(r"\b[a-z_]+(?:/|\.py)", tree[1])) == rooms
