"""Without the optional packages every command works or says in one line which extra it wants."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from strap.cli import COMMANDS
from strap.extras import EXTRAS, NEEDED_BY, explain_missing, install_command
from strap.synthetic import Planted

ROOT = Path(__file__).parent.parent
BARE = f"""
import json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

ABSENT = {sorted({m for ms in EXTRAS.values() for m in ms})!r}

class Without:
    # A finder that does not see the extras' modules.
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        absent = name.partition(".")[0] in ABSENT
        return None if absent else self.finder.find_spec(name, *rest)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from strap.cli import main
for call in json.loads(sys.argv[1]):
    os.chdir(call["folder"])
    said = StringIO()
    with redirect_stderr(said), redirect_stdout(StringIO()):
        code = main(call["words"])
    print(json.dumps([code, said.getvalue()]))
"""
COMMANDS_THAT_NEED = {
    "train TARGET --out policy": "encoders,train",
    "cache TARGET --out frames": "encoders,train",
    "evaluate policy --task mug": "encoders,train,libero",
    "libero collect --suite libero_10 --out demos": "libero",
    "embed TARGET --encoder dinov2-base --out store": "encoders",
    "retrieve --target TARGET --prior PRIOR --encoder clip-vit-b16 --out run": "encoders",
    "embed TARGET --encoder pixels --engine ray --out store": "ray",
    "view TARGET --no-browser": "view",
    "serve policy": "encoders,train,serve",
    "inspect lerobot/pusht": "hub",
}
"""commands, and the extras that each of them needs"""


def call(folders: Sequence[Path], commands: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Call `strap` in an interpreter in which no extra is installed, once in each of the folders.

    Returns the exit code and standard error of each call.
    """
    calls = [{"folder": str(f), "words": list(w)} for f, w in zip(folders, commands, strict=True)]
    command = [sys.executable, "-c", BARE, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_command_names_its_extra_in_one_line(planted: Planted, tmp_path: Path) -> None:
    named = {"TARGET": str(planted.target), "PRIOR": str(planted.prior)}
    calls = [[named.get(word, word) for word in words.split()] for words in COMMANDS_THAT_NEED]
    folders = [tmp_path / str(number) for number in range(len(calls))]
    for folder in folders:
        folder.mkdir()
    for (code, told), extras in zip(call(folders, calls), COMMANDS_THAT_NEED.values(), strict=True):
        assert code == 2, told
        assert len(told.splitlines()) == 1
        assert f"[{extras}]" in told
    assert not any(tmp_path.glob("*/*"))  # nothing is left of the attempts


def test_what_needs_no_extra_works_without(planted: Planted, tmp_path: Path) -> None:
    target, prior = str(planted.target), str(planted.prior)
    run = ["retrieve", "--target", target, "--prior", prior, "--encoder", "pixels"]
    commands = [
        ["inspect", target],
        ["segment", target, "--out", "segments.json"],
        ["convert", target, "copy.hdf5"],
        ["embed", prior, "--encoder", "pixels", "--out", "store"],
        ["store", "info", "store"],
        [*run, "--top-k", "4", "--out", "run"],
        ["export", "run", "--as", "manifest", "--out", "matches.json"],
        ["report", "run"],
        ["doctor"],
        ["completion", "bash"],
        ["figures", "run"],
    ]
    *others, (code, told) = call([tmp_path] * len(commands), commands)
    assert [code for code, _ in others] == [0] * len(others), others
    assert (code, "[figures]" in told) == (2, True)


def test_help_needs_no_extra(tmp_path: Path) -> None:
    codes = call([tmp_path] * len(COMMANDS), [[command, "--help"] for command in COMMANDS])
    assert [code for code, _ in codes] == [0] * len(COMMANDS), codes


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = set(project["optional-dependencies"])
    assert set(EXTRAS) <= offered
    assert {extra for extras in NEEDED_BY.values() for extra in extras} <= set(EXTRAS)
    assert set(NEEDED_BY) <= set(COMMANDS)


WHEEL = "strap_robot-0.1.0-py3-none-any.whl"
FROM_GIT = {"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "3f2a"}}
PLAIN = "pip install 'strap-robot[ray]'"


def told_command(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> str:
    """The command for the extra `ray` where pip noted this origin."""
    text = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata.Distribution, "read_text", lambda *_: text, raising=False)
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda *_: text)
    return install_command("ray")


@pytest.mark.parametrize(
    ("name", "details", "command"),
    [
        ("clone", {"dir_info": {"editable": True}}, "pip install -e '{}[ray]'"),
        ("a clone", {"dir_info": {}}, "pip install '{}[ray]'"),
        (WHEEL, {"archive_info": {"hash": "sha256=12"}}, "pip install '{}[ray]'"),
    ],
)
def test_the_command_installs_what_lies_here(
    name: str,
    details: dict[str, Any],
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / name
    origin = {"url": source.as_uri(), **details}
    assert told_command(monkeypatch, origin) == PLAIN  # it was removed since
    source.touch()
    assert told_command(monkeypatch, origin) == command.format(source)


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": f"https://a.b/{WHEEL}", "archive_info": {}}, f"https://a.b/{WHEEL}"),
        (FROM_GIT, "git+https://a.b/c.git@3f2a"),
        (FROM_GIT | {"subdirectory": "d"}, "git+https://a.b/c.git@3f2a#subdirectory=d"),
        (
            {"url": "file:///a/c", "vcs_info": {"vcs": "git", "requested_revision": "main"}},
            "git+file:///a/c@main",
        ),
    ],
)
def test_the_command_installs_from_where_this_came(
    origin: dict[str, Any], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_command(monkeypatch, origin) == f"pip install 'strap-robot[ray] @ {source}'"


def test_what_came_from_an_index_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_command(monkeypatch, None) == PLAIN


def test_a_module_that_no_extra_brings_is_no_missing_extra() -> None:
    assert explain_missing(ModuleNotFoundError("no", name="nonsense"), "train") is None
