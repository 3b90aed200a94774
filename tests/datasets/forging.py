"""RLDS folders with something changed, and reading all that they hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.datasets import writers
from tests.datasets.writers import example, record

import strap
from strap.datasets.base import Dataset

Json = Any
SHARD = "droid-train.tfrecord-00000-of-00002"
ONE = "droid-train.tfrecord-00000-of-00001"


def read_all(folder: Path, **options: Any) -> Dataset:
    dataset = strap.open_dataset(folder, **options)
    for trajectory in dataset:
        for arrays in (trajectory.cameras, trajectory.proprioception, trajectory.extras):
            for array in arrays.values():
                array[:]
        trajectory.actions[:]
    return dataset


def change(file: Path, edit: Callable[[Json], object]) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def forge_info(folder: Path, **values: Json) -> None:
    change(folder / "dataset_info.json", lambda info: info.update(values))


def forge_split(folder: Path, **values: Json) -> None:
    change(folder / "dataset_info.json", lambda info: info["splits"][0].update(values))


def step_features(content: Json) -> dict[str, Json]:
    step = content["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    features: dict[str, Json] = step["featuresDict"]["features"]
    return features


def forge_field(folder: Path, name: str, feature: Json) -> None:
    change(folder / "features.json", lambda content: step_features(content).update({name: feature}))


def write_record(folder: Path, data: bytes) -> None:
    """One shard with one record."""
    forge_split(folder, shardLengths=["1"])
    (folder / ONE).write_bytes(record(data))


def write_episode(folder: Path, changes: dict[str, object | None]) -> None:
    """One sound episode of four steps, with these features changed or left out."""
    features = writers._droid_episode(3, 4, writers.SIZE) | changes
    write_record(folder, example({k: v for k, v in features.items() if v is not None}))
