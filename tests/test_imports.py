"""Imports run one way, and importing loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import strap

SOURCE = Path(strap.__file__).parent
ORDER = (
    "errors",
    "processors",
    "artifacts",
    "locks",
    "tables",
    "types",
    "jit",
    "dtw",
    "datasets",
    "synthetic",
    "segments",
    "inspection",
    "encoders",
    "store",
    "embeddings",
    "search",
    "retrieval",
    "augmentation",
    "exports",
    "conversion",
    "runs",
    "report",
    "policies",
    "training",
    "libero",
    "evaluation",
    "diagnosis",
    "cli",
)
"""Each room may import from those before it."""


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("strap.")}
    return rooms & set(ORDER)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_run_one_way(file: Path) -> None:
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room in ("__init__", "__main__"):
        return
    assert room in ORDER, f"give the room '{room}' its place in ORDER"
    later = {r for r in imported_rooms(file) if ORDER.index(r) > ORDER.index(room)}
    assert not later, f"{file.name} of '{room}' imports from {later}"
    if room == "dtw":
        assert imported_rooms(file) <= {"dtw", "errors", "jit", "processors"}


@pytest.mark.parametrize("code", ["import strap", "import strap.cli"])
def test_importing_loads_nothing_heavy(code: str) -> None:
    check = f"{code}; import sys; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"torch", "numba", "transformers", "pyarrow", "h5py", "av", "mujoco", "numpy", "tyro"}
    assert not heavy & set(loaded)


def test_public_names_exist() -> None:
    for name in strap.__all__:
        assert getattr(strap, name) is not None
    assert set(strap.__all__) <= set(dir(strap))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        strap.nothing  # noqa: B018
