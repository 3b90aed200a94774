"""The README's commands and snippets, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.S)


@pytest.mark.parametrize("page", ["dtw.md"])
def test_snippets_of_a_page_run(page: str, tmp_path: Path) -> None:
    text = (README.parent / "docs" / page).read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert snippets
    for snippet in snippets:
        command = [sys.executable, "-c", snippet]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{snippet}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", ["segmentation.md"])
def test_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    text = (README.parent / "docs" / page).read_text()
    scripts = re.findall(r"```bash\n(.*?)```", text, flags=re.S)
    assert scripts
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "STRAP_CACHE": str(tmp_path / "cache"), "PATH": path}
    (tmp_path / "samples").symlink_to(README.parent / "samples")
    snippets = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    commands = [["bash", "-euc", script] for script in scripts]
    commands += [[sys.executable, "-c", snippet] for snippet in snippets]
    for command in commands:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


def test_the_readme_runs(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "STRAP_CACHE": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    assert len(blocks("bash")) >= 2
    assert len(blocks("python")) >= 2
    (tmp_path / "samples").symlink_to(README.parent / "samples")
    commands = [["bash", "-euc", script] for script in blocks("bash")]
    commands += [[sys.executable, "-c", snippet] for snippet in blocks("python")]
    for command in commands:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    for name in ("matches.parquet", "augmented/meta/info.json", "segments.json", "manifest.json"):
        assert (tmp_path / "my-run" / name).is_file()
    assert (tmp_path / "augmented.hdf5").is_file()


def test_the_readme_names_every_room_and_no_other() -> None:
    source = README.parent / "src" / "strap"
    rooms = {
        f"{p.name}/" if p.is_dir() else p.name
        for p in source.iterdir()
        if not p.name.startswith(("_", "py."))
    }
    tree = re.search(r"```\nsrc/strap/\n(.*?)```", README.read_text(), flags=re.S)
    assert tree
    assert set(re.findall(r"\b[a-z_]+(?:/|\.py)", tree[1])) == rooms


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_make_targets_that_pages_name_exist(name: str) -> None:
    makefile = (README.parent / "Makefile").read_text()
    named = re.findall(r"\bmake ([a-z]+)\b", (README.parent / name).read_text())
    assert named
    for target in set(named):
        assert re.search(rf"^{target}:", makefile, flags=re.M), f"{name} names 'make {target}'"
