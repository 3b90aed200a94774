"""Building a frame cache: decode, resize, and where asked run the frozen vision, once per frame."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from strap.atomic import read_json, remove_leftovers, replacing, write_json, writing
from strap.encoders.language import embed_instructions
from strap.errors import StrapError, unknown
from strap.locks import LOCK, locked
from strap.policies.images import fit
from strap.policies.settings import Interface, Vision
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.training.cache import FORMAT, FrameCache, open_cache, read_content
from strap.training.data import Clip, TrainingData
from strap.types import Array, Trajectory

DECODE = 128
"""Frames decoded at a time."""
PREFIX = "observation."
SIZE = 128
STATE = "building.json"
"""How far a cache has got; gone when it is finished."""


@dataclass(frozen=True)
class CacheOptions:
    """What of the data a policy will see."""

    vision: Vision = "resnet"
    image_size: int = SIZE
    """side of the images; others are resized"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: all)"""
    proprioception: tuple[str, ...] = ()
    """which keys (default: all but `state` where it only repeats the others)"""
    language: str = "minilm"
    """what embeds instructions: minilm, clip, words, a hub id or a local folder"""


def build_cache(
    data: TrainingData, out: str | Path, options: CacheOptions, *, progress: Progress = silent
) -> FrameCache:
    """Decode everything into a folder; interrupted, it goes on where it was, else it is kept."""
    out = Path(out).expanduser()
    identity = fingerprint_json([FORMAT, data.fingerprint(), asdict(options)])
    if not _is_built(out, identity):
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        with locked(out / LOCK):  # two trainings that need one cache: the second waits for it
            if not _is_built(out, identity):
                _build(data, out, options, identity, progress)
    return open_cache(out)


def _is_built(out: Path, identity: str) -> bool:
    """Whether the cache is finished, and the one wanted."""
    manifest = out / "manifest.json"
    if not manifest.is_file() or read_json(manifest).get("identity") != identity:
        return False
    (out / STATE).unlink(missing_ok=True)  # of one that was killed before its last step
    return True


def _build(
    data: TrainingData, out: Path, options: CacheOptions, identity: str, progress: Progress
) -> None:
    state, manifest = out / STATE, out / "manifest.json"
    remove_leftovers(out)
    manifest.unlink(missing_ok=True)
    done = 0
    if state.is_file() and read_json(state).get("identity") == identity:
        done = int(read_json(state)["clips"])
    else:
        state.unlink(missing_ok=True)  # first: it may speak of what is overwritten now
        _describe(data, out, options)
        write_json(state, {"identity": identity, "clips": 0})
    writer = _ClipWriter(read_content(out), data, options)
    for index in range(done, len(data.clips)):
        writer.write(index)
        write_json(state, {"identity": identity, "clips": index + 1})
        progress("frames", index + 1, len(data.clips))
    about = {"identity": identity, "options": asdict(options), "versions": versions()}
    write_json(manifest, about)
    state.unlink()


def _describe(data: TrainingData, out: Path, options: CacheOptions) -> None:
    """content.json, the instructions' vectors, and arrays of the right size, still empty."""
    first = data.clips[0].trajectory()
    keys = choose_keys(first, options.proprioception)
    cameras = options.cameras or tuple(first.cameras)
    for name in cameras:
        first.camera(name)
    texts: dict[str, int] = {}
    clips, row = [], 0
    for clip in data.clips:
        trajectory = clip.trajectory()
        _check(trajectory, first, cameras, keys)
        number = texts.setdefault(trajectory.instruction, len(texts))
        clips.append(
            {
                "id": clip.id,
                "dataset": clip.dataset.name,
                "role": clip.role,
                "instruction": number,
                "start": clip.start,
                "stop": clip.stop,
                "row": row,
            }
        )
        row += clip.stop - clip.start
    language = embed_instructions(list(texts), options.language)
    _save(out / "language.npy", language)
    interface = Interface(
        cameras=tuple(cameras),
        image_size=options.image_size,
        proprioception={short(key): first.proprioception[key].shape[1] for key in keys},
        action_size=first.actions.shape[1],
        language_size=language.shape[1],
        map_size=_prepare_maps(data, out, cameras, options),
        fps=first.fps,
    )
    found = [
        {"clip": r.clip, "start": r.start, "stop": r.stop, "cost": r.cost, "query": r.query}
        for r in data.retrieved
    ]
    content = {
        "format": FORMAT,
        "interface": asdict(interface),
        "clips": clips,
        "retrieved": found,
        "context": [data.context.history, data.context.chunk] if data.context else None,
        "instructions": list(texts),
        "language": options.language,
        "frames": options.vision == "resnet",
    }
    for name, (shape, dtype) in _arrays(interface, row, options.vision).items():
        _reserve(out / name, shape, dtype)
    write_json(out / "content.json", content)


def _reserve(file: Path, shape: tuple[int, ...], dtype: str) -> None:
    """Make an empty array whose bytes are on the disk: writing to it can't meet a full one.

    A page of a mapped file that finds no room ends the process with a signal.
    """
    with writing(file):
        file.unlink(missing_ok=True)  # a training that reads the one before goes on reading it
        open_memmap(file, mode="w+", dtype=dtype, shape=shape).flush()
        with file.open("r+b") as handle:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)


def _arrays(
    interface: Interface, rows: int, vision: Vision
) -> dict[str, tuple[tuple[int, ...], str]]:
    size = interface.image_size
    arrays: dict[str, tuple[tuple[int, ...], str]] = {
        "actions.npy": ((rows, interface.action_size), "float32"),
        "states.npy": ((rows, sum(interface.proprioception.values())), "float32"),
    }
    for camera in interface.cameras:
        if vision == "frozen":
            arrays[f"maps-{camera}.npy"] = ((rows, *interface.map_size), "float16")
        else:
            arrays[f"frames-{camera}.npy"] = ((rows, size, size, 3), "uint8")
    return arrays


class _ClipWriter:
    """Fills the arrays, a clip at a time."""

    def __init__(self, cache: FrameCache, data: TrainingData, options: CacheOptions) -> None:
        self.cache, self.data, self.options = cache, data, options
        self.arrays = {
            name: open_memmap(cache.path / name, mode="r+")
            for name in _arrays(cache.interface, cache.rows, options.vision)
        }
        self.vision: Any = None
        if options.vision == "frozen":
            from strap.policies.checkpoints import read_tensors
            from strap.policies.frozen import FrozenVision, Projection

            tensors = read_tensors(cache.path / "tensors.safetensors")
            self.vision = FrozenVision()
            self.projection = Projection(tensors["mean"], tensors["directions"])

    def write(self, index: int) -> None:
        """One clip's rows, flushed to disk."""
        clip, row = self.data.clips[index], self.cache.clips[index].row
        trajectory = clip.trajectory()
        rows = slice(row, row + clip.stop - clip.start)
        actions = np.asarray(trajectory.actions[clip.start : clip.stop], np.float32)
        if not np.isfinite(actions).all():
            raise StrapError(f"trajectory '{clip.id}' has actions that are not finite; mend it")
        self.arrays["actions.npy"][rows] = actions
        names = {short(key): key for key in trajectory.proprioception}
        states = [
            np.asarray(trajectory.proprioception[names[key]][clip.start : clip.stop], np.float32)
            for key in self.cache.interface.proprioception
        ]
        if states:
            self.arrays["states.npy"][rows] = np.concatenate(states, axis=1)
        for camera in self.cache.interface.cameras:
            self._write_camera(camera, trajectory, clip, row)
        for array in self.arrays.values():
            array.flush()

    def _write_camera(self, camera: str, trajectory: Trajectory, clip: Clip, row: int) -> None:
        for start in range(clip.start, clip.stop, DECODE):
            stop = min(start + DECODE, clip.stop)
            images = fit(trajectory.frames(camera, start, stop), self.options.image_size)
            rows = slice(row + start - clip.start, row + stop - clip.start)
            if self.vision is None:
                self.arrays[f"frames-{camera}.npy"][rows] = images
            else:
                maps = self.vision.project(images, self.projection)
                self.arrays[f"maps-{camera}.npy"][rows] = maps


def _prepare_maps(
    data: TrainingData, out: Path, cameras: Sequence[str], options: CacheOptions
) -> tuple[int, int]:
    """Find the projection from frames spread over the clips; (places, channels) of a map."""
    if options.vision != "frozen":
        return (0, 0)
    from strap.policies.checkpoints import write_tensors
    from strap.policies.frozen import SAMPLE, FrozenVision, find_projection

    each = max(1, SAMPLE // (len(data.clips) * len(cameras)))
    vision, sample = FrozenVision(), []
    step = max(1, len(data.clips) * len(cameras) // SAMPLE)
    for clip in data.clips[::step]:
        trajectory = clip.trajectory()
        for start in np.linspace(clip.start, clip.stop - 1, each).astype(int).tolist():
            for camera in cameras:
                image = fit(trajectory.frames(camera, start, start + 1), options.image_size)
                sample.append(image)
    import torch

    images = np.concatenate(sample)
    maps = torch.cat([vision.maps(images[i : i + 64]) for i in range(0, len(images), 64)])
    projection = find_projection(maps)
    write_tensors(
        out / "tensors.safetensors",
        {"mean": projection.mean, "directions": projection.directions},
    )
    return int(maps.shape[1]), int(projection.directions.shape[1])


def choose_keys(trajectory: Trajectory, asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Proprioception keys as asked, else all; LeRobot's `state` only where it says more."""
    known = trajectory.proprioception
    by_short = {short(key): key for key in known}
    if asked:
        for key in asked:
            if short(key) not in by_short:
                raise unknown("proprioception", key, by_short)
        return tuple(by_short[short(key)] for key in asked)
    keys = tuple(known)
    others = sum(known[key].shape[1] for key in keys if short(key) != "state")
    if "state" in by_short and others >= known[by_short["state"]].shape[1]:
        return tuple(key for key in keys if short(key) != "state")
    return keys


def short(key: str) -> str:
    """`observation.ee_pos` -> `ee_pos`: the name that files and simulators share."""
    return key.removeprefix(PREFIX)


def _check(
    trajectory: Trajectory, first: Trajectory, cameras: Sequence[str], keys: Sequence[str]
) -> None:
    if trajectory.actions.shape[1:] != first.actions.shape[1:]:
        raise StrapError(
            f"trajectory '{trajectory.id}' has actions of size {trajectory.actions.shape[1]}, "
            f"'{first.id}' of {first.actions.shape[1]}: one policy cannot learn from both"
        )
    for name in cameras:
        trajectory.camera(name)
    mine = _sizes(trajectory)
    for key in keys:
        size = first.proprioception[key].shape[1]
        if mine.get(short(key)) != size:
            raise StrapError(
                f"trajectory '{trajectory.id}' has no proprioception '{short(key)}' of size {size} "
                f"as '{first.id}' has: choose those they share with --proprioception"
            )


def _sizes(trajectory: Trajectory) -> Mapping[str, int]:
    return {short(key): array.shape[1] for key, array in trajectory.proprioception.items()}


def _save(path: Path, array: Array) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)
