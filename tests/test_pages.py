"""README and the pages of docs/ name things that exist, and every command on them is tested."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pages import PAGES, ROOT, RUN, SHOWN, Block, read_blocks

import strap
from strap.cli.help import options_of
from strap.cli.page import list_commands

COMMANDS = list_commands()
TROUBLE = ROOT / "docs" / "troubleshooting.md"


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_block_is_run_or_says_why_not(page: Path) -> None:
    for block in read_blocks(page):
        assert block.language in RUN + SHOWN, f"{block}: name a language, one of {RUN + SHOWN}"
        if block.language in RUN and not block.is_run and not block.is_synopsis:
            require_reason(block)


def require_reason(block: Block) -> None:
    """Hold the comment above a block to what tests/pages.py allows."""
    reason = re.fullmatch(r"not run: \w+ .+", block.mark)
    test = re.fullmatch(r"run by (tests/[\w/]+\.py)::(test_\w+)", block.mark)
    job = re.fullmatch(r"run by (\.ci/\w+)", block.mark)
    assert reason or test or job, f"{block}: '{block.mark}' is no reason; see tests/pages.py"
    if job:
        script = ROOT / job[1]
        assert script.is_file(), f"{block}: no such job"
        assert f'"{block.mark}"' in script.read_text(), f"{block}: the job runs no such blocks"
    if test:
        assert f"def {test[2]}(" in (ROOT / test[1]).read_text(), f"{block}: no such test"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_have_options_that_exist(page: Path) -> None:
    for block in read_blocks(page):
        for line in block.commands if block.language in RUN else ():
            words = line.split()
            name = next((n for n in (" ".join(words[1:3]), words[1]) if n in COMMANDS), None)
            assert name, f"{block}: there is no such command: {line}"
            known = {option.word for option in options_of(COMMANDS[name])} | {"--help"}
            wrong = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)) - known
            assert not wrong, f"{block}: strap {name} has no {', '.join(wrong)}"


def texts_in(source: Path) -> Iterator[str]:
    """Yield the texts in a module, `…` where a value is put in."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_errors_that_are_explained_stand_in_the_source() -> None:
    headings = re.findall(r"^### (`+)(.+)\1$", TROUBLE.read_text(), flags=re.M)
    quoted = [message.strip() for _, message in headings]
    assert len(quoted) >= 20
    known = [text for file in (ROOT / "src").rglob("*.py") for text in texts_in(file)]
    for message in quoted:
        assert any(message in text for text in known), f"nothing says: {message}"


def test_the_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: strap\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.M)
    assert set(shown) == set(strap.__all__) - {"dtw", "__version__"}


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
