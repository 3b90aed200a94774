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
    for name in ("matches.parquet", "augmented.hdf5", "segments.json", "manifest.json"):
        assert (tmp_path / "my-run" / name).is_file()
    assert (tmp_path / "augmented.hdf5").is_file()


def test_the_readme_names_every_room() -> None:
    source = README.parent / "src" / "strap"
    rooms = {p.name for p in source.iterdir() if not p.name.startswith(("_", "py."))}
    tree = README.read_text()
    missing = [room for room in rooms if room not in tree]
    assert not missing


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"])
def test_the_papers_are_there(name: str) -> None:
    assert (README.parent / name).read_text().strip()
