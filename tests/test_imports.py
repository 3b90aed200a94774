"""Imports run one way, and importing loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import strap

SOURCE = Path(strap.__file__).parent
ORDER = (
    "errors",
    "extras",
    "cpus",
    "progress",
    "atomic",
    "locks",
    "provenance",
    "folders",
    "workers",
    "ray",
    "cuda_graphs",
    "tables",
    "lazy_arrays",
    "types",
    "jit",
    "dtw",
    "datasets",
    "synthetic",
    "position_columns",
    "stop_frames",
    "segments",
    "inspection",
    "encoders",
    "store",
    "embeddings",
    "policies",
    "representations",
    "search",
    "retrieval",
    "choices",
    "augmentation",
    "exports",
    "conversion",
    "features",
    "runs",
    "run_options",
    "pipeline",
    "scores",
    "figures",
    "training",
    "libero",
    "evaluation",
    "gym",
    "serving",
    "experiments",
    "view",
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
        assert imported_rooms(file) <= {"dtw", "errors", "extras", "jit", "cpus"}


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a module imports, in functions too, but not for types alone."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
    for child in node.orelse if is_for_types else ast.iter_child_nodes(node):
        yield from imported_names(child)


def find_circle(folder: Path, root: Path) -> list[str]:
    """Return modules of a folder of which each imports the next, the last the first; else []."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file
        for file in folder.rglob("*.py")
    }
    graph = {}
    for module, file in files.items():
        names = set(imported_names(ast.parse(file.read_text())))
        imported = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = imported & set(files) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")))
def test_no_modules_import_each_other(room: str) -> None:
    assert find_circle(SOURCE / room, SOURCE.parent) == []


def test_circles_in_functions_are_found_and_those_of_types_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    folder.mkdir()
    (folder / "a.py").write_text("def f():\n    from room.b import g\n")
    (folder / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from room.a import f\n"
    )
    assert find_circle(folder, tmp_path) == []
    (folder / "b.py").write_text("import room.a\n")
    assert set(find_circle(folder, tmp_path)) == {"room.a", "room.b"}


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
