"""A damaged augmented dataset is refused with the trajectory's name and what is wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from strap.errors import StrapError
from strap.training.data import open_training_data


def shorten_flags(segment: h5py.Group) -> None:
    flags = segment["is_pad"][:-1]
    del segment["is_pad"]
    segment["is_pad"] = flags


def pad_everything(segment: h5py.Group) -> None:
    segment["is_pad"][:] = True


def leave_only_context(segment: h5py.Group) -> None:
    segment["is_context"][:] = True


def remove_query(segment: h5py.Group) -> None:
    del segment.attrs["source_query_start"]


def spoil_cost(segment: h5py.Group) -> None:
    segment.attrs["source_cost"] = "cheap"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (shorten_flags, "is_pad"),
        (pad_everything, "it has no frame to train on"),
        (leave_only_context, "it has no frame to train on"),
        (remove_query, "it does not name the query of its match"),
        (spoil_cost, "the cost of its match is not a number"),
    ],
)
def test_a_damaged_segment_is_refused(
    run: Path, tmp_path: Path, damage: Callable[[h5py.Group], None], problem: str
) -> None:
    path = tmp_path / "augmented.hdf5"
    shutil.copyfile(run / "augmented.hdf5", path)
    with h5py.File(path, "r+") as file:
        damage(file["data/demo_7"])
    with pytest.raises(StrapError, match=rf"{re.escape(str(path))}.*demo_7.*{problem}"):
        open_training_data(path)
