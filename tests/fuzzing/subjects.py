"""Small sound inputs of every kind: what the fuzzer damages.

They come out byte for byte alike each time, so that a case can be repeated by its number.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from tests.datasets.writers import episodes, write_lerobot_v3, write_lerobot_v21, write_rlds
from tests.datasets.writers import write_zarr as write_zarr_arrays
from tests.fuzzing import uses

import strap
from strap.cli.store import Sketch
from strap.encoders import PixelEncoder
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.policies import Checkpoint, Interface, PolicySettings, build_policy
from strap.policies.checkpoints import Instructions, save_checkpoint
from strap.policies.frozen_vision import Projection
from strap.segments import Segmentation
from strap.store import PendingTrajectory, Session, StoreConfig, StoreSource, create_store
from strap.synthetic import make_planted

SIZE = (16, 16)
LENGTHS = (5, 4)
EPOCH = 1_700_000_000
"""when every file was last written, as far as fingerprints see"""


@dataclass(frozen=True)
class Subject:
    """An input, how it is made and what a user does with it."""

    name: str
    place: str
    """the file or folder that is damaged, inside the subject's folder"""
    build: Callable[[Path], None]
    """writes it into the subject's folder, with what it needs beside it"""
    commands: Sequence[Callable[..., None]]
    has_checksums: bool = False
    """of its own, which damage may repair"""


def _hdf5(file: Path, dialect: str, *, compressed: bool) -> None:
    """Two short demonstrations with states, rewards and an instruction."""
    rng, libero = np.random.default_rng(1), dialect == "libero"
    told = {"language_instruction": uses.INSTRUCTION}
    camera, position = ("agentview_rgb", "ee_pos") if libero else ("cam_image", "robot0_eef_pos")
    packing = {"compression": "gzip", "shuffle": True, "chunks": (2, *SIZE, 3)}
    with h5py.File(file, "w") as handle:
        data = handle.create_group("data")
        data.attrs["total"] = sum(LENGTHS)
        kwargs = {"env_name": "synthetic", "type": 1, "env_kwargs": {"control_freq": 20}}
        data.attrs["env_args"] = json.dumps(kwargs)
        if libero:
            data.attrs["bddl_file_name"] = "synthetic.bddl"
            data.attrs["problem_info"] = json.dumps(told)
            data.attrs["macros_image_convention"] = "opengl"
        for index, length in enumerate(LENGTHS):
            demo = data.create_group(f"demo_{index}")
            demo.attrs["num_samples"] = length
            demo.attrs["ep_meta"] = json.dumps({"lang": uses.INSTRUCTION})
            images = rng.integers(0, 255, (length, *SIZE, 3), np.uint8)
            demo.create_dataset(f"obs/{camera}", data=images, **packing if compressed else {})
            demo[f"obs/{position}"] = rng.random((length, 3))
            demo["obs/gripper_states"] = rng.random((length, 2))
            demo["actions"], demo["states"] = rng.random((length, 7)), rng.random((length, 9))
            demo["rewards"], demo["dones"] = np.zeros(length), np.arange(length) == length - 1


def build_robomimic(folder: Path) -> None:
    _hdf5(folder / "data.hdf5", "robomimic", compressed=False)


def build_libero(folder: Path) -> None:
    _hdf5(folder / "data.hdf5", "libero", compressed=True)


def build_hdf5_folder(folder: Path) -> None:
    (folder / "data").mkdir()
    _hdf5(folder / "data/one.hdf5", "libero", compressed=False)
    _hdf5(folder / "data/two.hdf5", "libero", compressed=True)


def build_lerobot_videos(folder: Path) -> None:
    write_lerobot_v3(folder / "data", episodes(LENGTHS, SIZE))


def build_lerobot_images(folder: Path) -> None:
    write_lerobot_v3(folder / "data", episodes(LENGTHS, SIZE), pictures=True, row_group=4)


def build_lerobot_v21(folder: Path) -> None:
    write_lerobot_v21(folder / "data", episodes(LENGTHS, SIZE))


def build_rlds(folder: Path) -> None:
    write_rlds(folder / "data", ((3, 4), (2,)), size=SIZE)


def build_zarr(folder: Path) -> None:
    rng, frames = np.random.default_rng(2), sum(LENGTHS)
    arrays = {
        "img": rng.integers(0, 255, (frames, *SIZE, 3), np.uint8),
        "state": rng.random((frames, 4), np.float32),
        "action": rng.random((frames, 3), np.float32),
    }
    write_zarr_arrays(folder / "data.zarr", arrays, np.cumsum(LENGTHS), rows=4)


def build_zarr_zip(folder: Path) -> None:
    build_zarr(folder)
    root = folder / "data.zarr"
    with zipfile.ZipFile(folder / "data.zarr.zip", "w") as archive:
        for file in sorted(file for file in root.rglob("*") if file.is_file()):
            member = zipfile.ZipInfo(file.relative_to(root).as_posix())
            archive.writestr(member, file.read_bytes())


def _store(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = StoreConfig({"name": "made"}, "float32", 12, uses.CAMERAS)
    create_store(path, config, StoreSource("recorded.hdf5"))
    session = Session(path, config)
    for index, length in enumerate((9, 5, 12, 1, 7, 8, 6, 10, 4)):
        rows = [rng.random((length, 12), np.float32) for _ in uses.CAMERAS]
        begun = PendingTrajectory(f"demo_{index}", length, uses.INSTRUCTION, "s")
        session.add(begun, rows, f"{seed}.{index}")
        if index == 5:
            session.flush()
    session.flush()
    manifest = {"dataset": "recorded.hdf5", "fingerprint": "f", "dropped": ["demo_3"]}
    manifest["shards"] = ["000000", "000001"]
    (path / "manifest.json").write_text(json.dumps(manifest))


def build_store(folder: Path) -> None:
    _store(folder / "store", seed=3)
    _store(folder / "queries", seed=4)


def build_store_sketches(folder: Path) -> None:
    build_store(folder)
    Sketch(folder / "store").run()


class _Interrupted(PixelEncoder):
    """Encodes so many batches, then stops as a killed writer does."""

    left = 6

    def encode(self, images: np.ndarray) -> np.ndarray:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().encode(images)


def build_store_unfinished(folder: Path) -> None:
    make_planted(folder, demos=1, sub_tasks=2, prior=4, length=5, size=16)
    (folder / "prior.hdf5").rename(folder / "source.hdf5")
    os.utime(folder / "source.hdf5", (EPOCH, EPOCH))
    dataset = strap.open_dataset(folder / "source.hdf5")
    with np.testing.assert_raises(KeyboardInterrupt):
        encoder = _Interrupted(uses.ENCODER_SIDE)
        strap.embed(dataset, encoder, folder / "store", dtype="float32", batch=16, workers=1)


def build_run(folder: Path) -> None:
    planted = make_planted(folder, demos=1, sub_tasks=3, prior=3, length=12, size=16, seed=5)
    for file in (planted.target, planted.prior):
        os.utime(file, (EPOCH, EPOCH))
    options = RetrievalOptions("pixels", top_k=4, segmentation=Segmentation(min_length=6))
    run = folder / "run"
    run_retrieval(planted.target, [planted.prior], run, options, stores=folder / "stores")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["seconds"] = dict.fromkeys(manifest["seconds"], 0.5)
    (run / "manifest.json").write_text(json.dumps(manifest, indent=1))


def _checkpoint(folder: Path, settings: PolicySettings, cameras: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    proprioception = {"ee_pos": 3, "gripper_states": 2}
    interface = Interface(cameras, 32, proprioception, 4, 8, (4, 3) if cameras else (0, 0), 20.0)
    told = Instructions((uses.INSTRUCTION, "wait"), torch.randn(2, 8), "words")
    projection = Projection(torch.randn(272), torch.randn(272, 3) / 16) if cameras else None
    policy = build_policy(interface, settings)
    about = {"training": {"steps": 3}, "step": 3}
    save_checkpoint(folder, Checkpoint(policy, interface, settings, told, projection, about))


def build_policy_transformer(folder: Path) -> None:
    _checkpoint(folder / "policy", PolicySettings(layers=1, width=16, heads=2, modes=2), ())


def build_policy_diffusion(folder: Path) -> None:
    settings = PolicySettings(
        kind="diffusion",
        history=2,
        chunk=8,
        execute=4,
        first_action=-1,
        channels=(8, 16),
        groups=2,
        kernel=3,
        diffusion_steps=4,
        language=False,
    )
    _checkpoint(folder / "policy", settings, ())


def build_policy_frozen(folder: Path) -> None:
    settings = PolicySettings(vision="frozen", layers=1, width=16, heads=2, modes=2, keypoints=4)
    _checkpoint(folder / "policy", settings, uses.CAMERAS[:1])


DATASET = (uses.inspect_dataset, uses.read_dataset)
STORE = (
    uses.describe_store,
    uses.verify_store,
    uses.read_store,
    uses.search_store,
    uses.clear_store,
    uses.merge_store,
)
UNFINISHED = (uses.describe_store, uses.verify_store, uses.clear_store, uses.finish_store)
RUN = (
    uses.read_run,
    uses.read_augmented,
    uses.export_manifest,
    uses.export_filter,
    uses.export_weights,
    uses.export_dataset,
    uses.open_training,
    uses.open_augmented_training,
)
POLICY = (uses.act,)

SUBJECTS = (
    Subject("robomimic", "data.hdf5", build_robomimic, DATASET),
    Subject("libero", "data.hdf5", build_libero, DATASET),
    Subject("hdf5-folder", "data", build_hdf5_folder, DATASET),
    Subject("lerobot-videos", "data", build_lerobot_videos, DATASET),
    Subject("lerobot-images", "data", build_lerobot_images, DATASET),
    Subject("lerobot-v2.1", "data", build_lerobot_v21, DATASET),
    Subject("rlds", "data", build_rlds, DATASET, has_checksums=True),
    Subject("zarr-folder", "data.zarr", build_zarr, DATASET),
    Subject("zarr-zip", "data.zarr.zip", build_zarr_zip, DATASET, has_checksums=True),
    Subject("store", "store", build_store, STORE, has_checksums=True),
    Subject("store-sketches", "store", build_store_sketches, STORE, has_checksums=True),
    Subject("store-unfinished", "store", build_store_unfinished, UNFINISHED, has_checksums=True),
    Subject("run", "run", build_run, RUN),
    Subject("policy-transformer", "policy", build_policy_transformer, POLICY),
    Subject("policy-diffusion", "policy", build_policy_diffusion, POLICY),
    Subject("policy-frozen", "policy", build_policy_frozen, POLICY),
)
