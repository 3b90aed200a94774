"""`strap completion`: the scripts, sourced and asked in the shells they are for."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from strap.cli import COMMANDS, main
from strap.cli.completion import WRITERS
from strap.cli.shell_words import read_commands, values_of

OPTIONS = read_commands()
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
STRAP = {
    "bash": "strap() { printf '<%s>' \"$*\"; echo; }",
    "zsh": "strap() { printf '<%s>' \"$*\"; echo; }",
    "fish": 'function strap; printf "<%s>" "$argv"; echo; end',
}
"""a `strap` that prints its words in angle brackets"""
FILES = {"bash": "strap", "zsh": "_strap", "fish": "strap.fish"}
LOAD = {
    "bash": "source SCRIPTS/strap",
    "zsh": "fpath=(SCRIPTS $fpath); autoload -Uz compinit; compinit -u -D",
    "fish": "source SCRIPTS/strap.fish",
}
"""how a shell comes to its script"""
SOURCE_IN_ZSH = "autoload -Uz compinit; compinit -u -D; source SCRIPTS/_strap"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the three scripts."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        (folder / FILES[shell]).write_text(WRITERS[shell](OPTIONS))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with something to complete."""
    for name in ("mug demos", "tall-mug.hdf5"):
        (tmp_path / name).touch()
    return tmp_path


def needs(shell: str) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return shell


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_the_script(
    shell: str, scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == (scripts / FILES[shell]).read_text()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_it(shell: str, scripts: Path) -> None:
    done = subprocess.run(
        [needs(shell), "-n", str(scripts / FILES[shell])], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_it(shell: str, scripts: Path) -> None:
    text = (scripts / FILES[shell]).read_text()
    assert all(re.search(rf"\b{name}\b", text) for name in COMMANDS)
    for command in OPTIONS.values():
        for option in command.options:
            word = option.word if shell != "fish" else f"-l {option.word[2:]} "
            assert word in text


def type_keys(shell: str, load: str, folder: Path, keys: str) -> str:
    """What `strap` is called with after these keys are typed into the shell; \\t is TAB."""
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TERM": "dumb", "PS1": "$ "}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(shell, SHELLS[shell], {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **home})
    try:
        os.write(terminal, f"{STRAP[shell]}; {load}; echo re''ady\n".encode())
        wait_for(terminal, r"ready\r")
        os.write(terminal, f"{keys}\n".encode())
        return wait_for(terminal, r"<([^>]*)>")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def wait_for(terminal: int, pattern: str, seconds: float = 60) -> str:
    """Read the terminal until it shows the pattern; return its last group."""
    shown, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
        if found := re.search(pattern, shown):
            return found[found.re.groups]
    raise AssertionError(f"no {pattern!r} in {shown!r}")


@pytest.mark.slow  # a shell for each
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("keys", "call"),
    [
        ("strap retr\t", "retrieve"),
        ("strap retrieve --matches-p\t", "retrieve --matches-per-trajectory"),
        ("strap retrieve --rule rel\t", "retrieve --rule released"),
        ("strap store ver\t--dr\t", "store verify --drop"),
        ("strap inspect tall\t", "inspect tall-mug.hdf5"),
        ("strap retrieve --target mug\t", "retrieve --target mug demos"),
        ("strap retrieve --prior a tall\t", "retrieve --prior a tall-mug.hdf5"),
        ("strap retrieve --prior a --jso\t", "retrieve --prior a --json"),
        ("strap retrieve --prior a b --jso\t", "retrieve --prior a b --json"),
        ("strap figures run --formats pdf sv\t", "figures run --formats pdf svg"),
        ("strap embed data --encoder resnet1\t", "embed data --encoder resnet18"),
        ("strap embed data --encoder tall\t", "embed data --encoder tall-mug.hdf5"),
        ("strap completion fi\t", "completion fish"),
    ],
)
def test_a_tab_completes(shell: str, keys: str, call: str, scripts: Path, data: Path) -> None:
    load = LOAD[shell].replace("SCRIPTS", str(scripts))
    assert type_keys(needs(shell), load, data, keys).rstrip() == call


def test_zsh_can_source_it_too(scripts: Path, data: Path) -> None:
    load = SOURCE_IN_ZSH.replace("SCRIPTS", str(scripts))
    assert type_keys(needs("zsh"), load, data, "strap retr\t").rstrip() == "retrieve"


def ask_bash(scripts: Path, line: str) -> list[str]:
    """What bash offers at the end of a line, files left out."""
    words = line.split(" ")
    code = f'source {scripts}/strap; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _strap'
    code += '; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code, "-", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_bash_offers_what_may_stand_there(scripts: Path) -> None:
    assert ask_bash(scripts, "strap ") == list(COMMANDS)
    assert ask_bash(scripts, "strap -") == ["--help", "--version"]
    assert ask_bash(scripts, "strap store ") == ["verify", "info", "merge", "gc", "sketch"]
    assert ask_bash(scripts, "strap doctor ") == ["--json", "--help"]
    assert ask_bash(scripts, "strap view ") == []  # files
    assert ask_bash(scripts, "strap retrieve --unit ") == ["step", "second"]
    assert ask_bash(scripts, "strap retrieve --unit = s") == ["step", "second"]
    assert ask_bash(scripts, "strap retrieve --seed ") == []  # a number
    assert "--rule" in ask_bash(scripts, "strap retrieve --seed 1 ")
    assert ask_bash(scripts, "strap retrieve --unit step --min") == ["--min-length"]


def ask_fish(scripts: Path, folder: Path, line: str) -> list[str]:
    """What fish offers at the end of a line."""
    code = f"source {scripts}/strap.fish; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], capture_output=True, text=True, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


def test_fish_offers_what_may_stand_there(scripts: Path, data: Path) -> None:
    needs("fish")
    assert set(ask_fish(scripts, data, "strap ")) == set(COMMANDS)
    assert ask_fish(scripts, data, "strap retrieve --unit ") == ["second", "step"]
    assert ask_fish(scripts, data, "strap retrieve --seed ") == []
    assert ask_fish(scripts, data, "strap doctor tall") == []
    assert ask_fish(scripts, data, "strap view tall") == ["tall-mug.hdf5"]


def test_values_of_types() -> None:
    assert values_of(int) == values_of(float | None)
    assert values_of(Path | None).is_file
    assert not values_of(int).is_file
    assert values_of(tuple[Path, ...]).is_many
    assert not values_of(Path).is_many
