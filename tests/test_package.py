"""What is in the wheel and in the sdist: everything that is needed, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import strap

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LITTER = (
    "src/strap/cli/__pycache__/demo.cpython-311.pyc",
    "src/strap/notes.txt",
    "samples/libero-mini/.DS_Store",
    "tests/test_litter.py",
    "runs/results/litter.json",
)
"""what lies about in a clone that is worked in"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel, made from a copy of the repository with litter in it."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in ("src", "samples", "tests", "runs"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, clone)
    for name in LITTER:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("litter")
    # Without isolation the build takes setuptools from here and needs no network.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clone)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


def files_under(folder: Path) -> set[str]:
    """The files of a folder of the repository, by their paths in it."""
    found = {path for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_modules_the_page_and_the_sample(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {f"strap/{name}" for name in files_under(ROOT / "src" / "strap")}
    samples = {f"strap/samples/{name}" for name in files_under(ROOT / "samples")}
    assert names == modules | samples
    for name in ("py.typed", "view/static/index.html", "samples/libero-mini/prior/meta/info.json"):
        assert f"strap/{name}" in names
    assert sum(entry.compress_size for entry in wheel.infolist()) < 25e6


def test_the_sdist_has_what_makes_the_wheel(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    sources = {name for name in members if name.startswith("src/strap/")}
    assert sources == {f"src/strap/{name}" for name in files_under(ROOT / "src" / "strap")}
    samples = {name for name in members if name.startswith("samples/")}
    assert samples == {f"samples/{name}" for name in files_under(ROOT / "samples")}
    rest = {name for name in members - sources - samples if ".egg-info/" not in name}
    assert rest == {
        *("pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in", "PKG-INFO"),
        *("README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"),
        "constraints.txt",
    }


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_metadata(wheel: zipfile.ZipFile) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Version"] == strap.__version__
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("License-File", [])) == {"LICENSE", "NOTICE"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2412.15182"]
    scripts = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "strap = strap.cli:main" in wheel.read(scripts).decode()


def test_the_pythons_claimed_begin_with_the_required_one() -> None:
    marks = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={marks[0]}"
    assert marks == sorted(marks, key=lambda mark: int(mark.partition(".")[2]))


def test_the_version_is_the_same_everywhere() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert cited
    assert {PROJECT["version"], cited[1]} == {strap.__version__}
