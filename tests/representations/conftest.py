from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from torch.backends import mkldnn

from strap.datasets import Dataset, open_dataset
from strap.representations import Kind, Representation, RepresentationSettings, train_representation
from strap.store import EmbeddingStore
from strap.synthetic import make_planted

TINY = RepresentationSettings(
    steps=3,
    batch=3,
    latent=6,
    features=8,
    keypoints=4,
    hidden=(10, 12),
    image_size=64,
    log_every=1,
)


@contextmanager
def without_mkldnn() -> Iterator[None]:
    """On ARM processors oneDNN takes three times as long to train on so small pictures."""
    before = bool(mkldnn.enabled)
    mkldnn.enabled = before and platform.machine() not in ("aarch64", "arm64")
    try:
        yield
    finally:
        mkldnn.enabled = before


@pytest.fixture(autouse=True)
def _small_products() -> Iterator[None]:
    """For these tests alone: larger networks take three times as long without oneDNN."""
    with without_mkldnn():
        yield


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Dataset]:
    """A target and a prior; frame 5 of demo_0 is frame 7 of the prior's demo_1, action included."""
    made = make_planted(
        tmp_path_factory.mktemp("pair"), demos=1, sub_tasks=1, prior=2, length=8, noise=0
    )
    copy_frame(made.target, "demo_0", 5, made.prior, "demo_1", 7)
    return open_dataset(made.target), open_dataset(made.prior)


def copy_frame(source: Path, key: str, frame: int, out: Path, other: str, place: int) -> None:
    with h5py.File(source) as one, h5py.File(out, "r+") as two:
        for name in ("actions", "obs/agentview_rgb"):
            two[f"data/{other}/{name}"][place] = one[f"data/{key}/{name}"][frame]


@pytest.fixture(scope="session")
def trained(
    pair: tuple[Dataset, Dataset], tmp_path_factory: pytest.TempPathFactory
) -> dict[Kind, Representation]:
    """Both representations, trained on the prior."""
    out = tmp_path_factory.mktemp("trained")
    kinds: tuple[Kind, ...] = ("br", "fr")
    with without_mkldnn():
        return {k: train_representation(k, pair[1:], out / k, TINY, device="cpu") for k in kinds}


@pytest.fixture(scope="session")
def stores(
    pair: tuple[Dataset, Dataset],
    trained: dict[Kind, Representation],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Kind, list[EmbeddingStore]]:
    """Both datasets by both representations; read only."""
    out = tmp_path_factory.mktemp("stores")
    with without_mkldnn():
        return {
            kind: [made.embed(data, out / kind / data.path.stem) for data in pair]
            for kind, made in trained.items()
        }


def write_cameras(file: Path, cameras: tuple[str, ...], width: int) -> Dataset:
    """One trajectory of noise with these cameras and so many numbers in an action."""
    rng = np.random.default_rng(0)
    with h5py.File(file, "w") as handle:
        demo = handle.create_group("data/demo_0")
        demo["actions"] = rng.random((5, width))
        for name in cameras:
            demo[f"obs/{name}"] = rng.integers(0, 255, (5, 32, 32, 3), dtype=np.uint8)
        demo["obs/ee_pos"] = rng.random((5, 3))
    return open_dataset(file)


def write_sliding(file: Path) -> Dataset:
    """Two trajectories of a texture that slides to the right by 2 pixels a frame."""
    rng = np.random.default_rng(0)
    with h5py.File(file, "w") as handle:
        for index in range(2):
            wide = np.asarray(texture(rng, 64))
            slid = np.stack([wide[16:48, 30 - 2 * t : 62 - 2 * t] for t in range(12)])
            handle[f"data/demo_{index}/actions"] = np.full((12, 7), index)
            handle[f"data/demo_{index}/obs/agentview_image"] = slid
    return open_dataset(file)


def texture(rng: np.random.Generator, size: int) -> Image.Image:
    """A smooth random picture of size×size."""
    coarse = Image.fromarray(rng.integers(0, 255, (size // 8, size // 8, 3), dtype=np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)
