"""HDF5 files on a full disk: an error in one line, and a process that ends as others do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from strap.datasets.creation import creating_hdf5

SCRIPT = """
import resource, sys
from pathlib import Path
import h5py, numpy as np
from strap.datasets.creation import creating_hdf5
from strap.errors import StrapError

images = np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), dtype=np.uint8)
for limit in range(100, 120_000, 3_001):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    try:
        with creating_hdf5(Path(sys.argv[1])) as file:
            file.create_dataset("plain", data=images)
            file.create_dataset("zipped", data=images, chunks=(1, 16, 16, 3), compression="gzip")
            file.create_dataset("words", data=["grasp"] * 500, dtype=h5py.string_dtype())
            file["plain"].attrs["model"] = "x" * 30_000
    except StrapError as error:
        print(error)
"""


def test_hdf5_on_a_full_disk_ends_in_a_line(tmp_path: Path) -> None:
    """However much fits: no traceback of HDF5's own, no crash at the end, nothing left behind."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.hdf5")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 40
    assert all(line.startswith("no space left to write") for line in lines)
    assert not any(tmp_path.iterdir())


def test_the_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    with pytest.raises(TypeError), creating_hdf5(path) as file:
        file["x"] = object()
    assert not any(tmp_path.iterdir())
    with creating_hdf5(path) as file:
        file["x"] = np.arange(3)
        file.check()
        assert not path.exists()
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [0, 1, 2]
