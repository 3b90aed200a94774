"""LeRobot datasets to be damaged, each test's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.datasets.lerobot_damage import LENGTHS
from tests.datasets.writers import episodes, write_lerobot_v3, write_lerobot_v21


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lerobot")
    write_lerobot_v3(root / "v3", episodes(LENGTHS))
    write_lerobot_v3(root / "pictures", episodes(LENGTHS), pictures=True)
    write_lerobot_v21(root / "v21", episodes(LENGTHS))
    return root


@pytest.fixture
def v3(written: Path, tmp_path: Path) -> Path:
    """A dataset of v3.0 with videos, to be damaged."""
    return Path(shutil.copytree(written / "v3", tmp_path / "v3"))


@pytest.fixture
def pictures(written: Path, tmp_path: Path) -> Path:
    """One of v3.0 with pictures in its table."""
    return Path(shutil.copytree(written / "pictures", tmp_path / "pictures"))


@pytest.fixture
def v21(written: Path, tmp_path: Path) -> Path:
    """One of v2.1."""
    return Path(shutil.copytree(written / "v21", tmp_path / "v21"))
