"""What a user would run on each kind of input; every function is one command's worth of work.

Each takes the input's path, a folder for what it writes and a digest to which it adds what it read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.fuzzing.digest import Digest

import strap
from strap.cli import export
from strap.datasets import open_dataset
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.inspection import inspect
from strap.lazy_arrays import LazyArray
from strap.policies import Observation, load_policy
from strap.runs import open_run
from strap.segments import read_segments
from strap.store import upkeep
from strap.training.data import open_training_data
from strap.types import Segment, Trajectory

CAMERAS = ("left", "right")
ENCODER_SIDE = 2
INSTRUCTION = "pick up the cup"


def inspect_dataset(path: Path, _out: Path, _digest: Digest) -> None:
    """`strap inspect`; its numbers are those that reading gives."""
    str(inspect(open_dataset(path)))


def read_dataset(path: Path, _out: Path, digest: Digest) -> None:
    """Every array of every trajectory."""
    dataset = open_dataset(path)
    digest.layout(dataset.format, tuple(dataset.ids))
    digest.mapping("metadata", dataset.metadata)
    dataset.fingerprint()
    for trajectory in dataset:
        _read_trajectory(trajectory, digest)


def _read_trajectory(trajectory: Trajectory, digest: Digest) -> None:
    digest.layout(trajectory.id, trajectory.length)
    digest.content(trajectory.instruction, trajectory.fps, trajectory.orientation)
    repr(trajectory)
    for kind in ("cameras", "proprioception", "extras"):
        arrays: dict[str, LazyArray] = getattr(trajectory, kind)
        for name in sorted(arrays):
            digest.array(f"{kind}.{name}", arrays[name][:])
    for name in trajectory.cameras:
        trajectory.frames(name, 0, 1)
    digest.array("actions", trajectory.actions[:])
    digest.mapping("attributes", trajectory.attributes)


def describe_store(path: Path, _out: Path, _digest: Digest) -> None:
    """`strap store info`."""
    str(upkeep.describe_store(path))


def verify_store(path: Path, _out: Path, _digest: Digest) -> None:
    """`strap store verify`, which ends with code 2 where something is damaged."""
    if damages := upkeep.verify_path(path):
        raise StrapError(damages[0].message)


def read_store(path: Path, _out: Path, digest: Digest) -> None:
    """Every vector."""
    store = strap.open_store(path)
    digest.layout(store.ids, store.config.cameras, store.dim, store.complete)
    digest.content(store.dataset)
    digest.mapping("encoder", store.config.encoder)
    for key in store.ids:
        entry = store.entry(key)
        digest.layout(key, entry.length)
        digest.content(entry.instruction, entry.fingerprint, entry.stamp)
        digest.array("mean", store[key])
        for camera in store.config.cameras:
            digest.array(camera, store.of_camera(key, camera))


def search_store(path: Path, _out: Path, digest: Digest) -> None:
    """Two searches, one that looks at sketches where there are some."""
    store, queries = strap.open_store(path), strap.open_store(path.parent / "queries")
    for top_k in (1, len(store)):
        found = strap.retrieve(
            [Segment("demo_0", 1, 4)], queries, store, top_k=max(top_k, 1), backend="cpu"
        )
        digest.content([vars(match) for match in found])


def clear_store(path: Path, _out: Path, _digest: Digest) -> None:
    """`strap store gc --dry-run`."""
    upkeep.collect_garbage(path, dry_run=True)


def merge_store(path: Path, out: Path, digest: Digest) -> None:
    """`strap store merge` into a new one."""
    merged = upkeep.merge([path], out / "merged")
    digest.layout(merged.ids, merged.frames)


def finish_store(path: Path, out: Path, digest: Digest) -> None:
    """`strap embed` again, which takes up what a killed writer left."""
    dataset = open_dataset(path.parent / "source.hdf5")
    strap.embed(dataset, PixelEncoder(ENCODER_SIDE), path, dtype="float32", workers=1)
    verify_store(path, out, digest)
    read_store(path, out, digest)


def read_run(path: Path, _out: Path, digest: Digest) -> None:
    """The run as Python sees it: matches, segments, the augmented dataset."""
    run = open_run(path)
    digest.layout(len(run.matches), len(run.matches.queries))
    digest.content(str(run.matches), [vars(match) for match in run.matches])
    digest.content(read_segments(path / "segments.json"))
    run.matches.to_table()


def read_augmented(path: Path, out: Path, digest: Digest) -> None:
    """The augmented dataset."""
    read_dataset(path / "augmented.hdf5", out, digest)


def export_manifest(path: Path, out: Path, digest: Digest) -> None:
    """`strap export --as manifest`."""
    export.Command(path, out / "manifest.json", kind="manifest").run()
    digest.content((out / "manifest.json").read_text())


def export_filter(path: Path, out: Path, digest: Digest) -> None:
    """`strap export --as filter`."""
    export.Command(path, out / "filter.json", kind="filter").run()
    digest.content((out / "filter.json").read_text())


def export_weights(path: Path, out: Path, digest: Digest) -> None:
    """`strap export --as weights`."""
    import pyarrow.parquet as pq

    export.Command(path, out / "weights", kind="weights").run()
    for file in sorted((out / "weights").glob("*.parquet")):
        digest.content(file.name, pq.read_table(file).to_pydict())


def export_dataset(path: Path, out: Path, _digest: Digest) -> None:
    """`strap export --as robomimic`."""
    export.Command(path, out / "exported.hdf5", kind="robomimic").run()


def open_training(path: Path, _out: Path, digest: Digest) -> None:
    """What `strap train RUN` looks at first."""
    data = open_training_data(path)
    digest.content([(c.id, c.role, c.start, c.stop) for c in data.clips], data.retrieved)


def open_augmented_training(path: Path, out: Path, digest: Digest) -> None:
    """What `strap train RUN/augmented.hdf5` looks at first."""
    open_training(path / "augmented.hdf5", out, digest)


def act(path: Path, _out: Path, digest: Digest) -> None:
    """Load a policy and let it act; an action must be finite."""
    policy = load_policy(path, device="cpu")
    digest.layout(policy.interface.cameras, tuple(policy.interface.proprioception.items()))
    rng = np.random.default_rng(0)
    for _ in range(2):
        pictures = {name: rng.integers(0, 255, (32, 32, 3), np.uint8) for name in CAMERAS}
        images = {name: pictures[name] for name in CAMERAS if name in policy.interface.cameras}
        state = {"ee_pos": rng.random(3), "gripper_states": rng.random(2)}
        action = policy.act(Observation(images, state, INSTRUCTION))
        if not np.isfinite(action).all():
            raise FloatingPointError(f"the policy acts by {action}")
        digest.array("action", action)
