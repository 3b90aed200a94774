"""Worker processes are sent the dataset, which may have been read from by then."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.writers import episodes, write_lerobot_v3, write_rlds, write_zarr
from tests.stores import write_dataset

import strap


def _write_buffer(path: Path) -> None:
    write_zarr(path, {"action": np.zeros((4, 2), np.float32)}, [3, 4])


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.hdf5", write_dataset),
        ("lerobot", lambda path: write_lerobot_v3(path, episodes([3, 2]))),
        ("droid/1.0.0", write_rlds),
        ("buffer.zarr", _write_buffer),
    ],
)
def test_a_dataset_that_was_read_from_can_be_sent(
    name: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    if name.endswith("zarr"):
        pytest.importorskip("zarr")
    write(tmp_path / name)
    dataset = strap.open_dataset(tmp_path / name)
    expected = [trajectory.identity() for trajectory in dataset]
    sent = pickle.loads(pickle.dumps(dataset))
    assert [trajectory.identity() for trajectory in sent] == expected
