"""Building a frame cache: decode, resize, and where asked run the frozen vision, once per frame."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from strap.artifacts import (
    LOCK,
    Progress,
    fingerprint_json,
    read_json,
    remove_leftovers,
    replacing,
    silent,
    versions,
    write_json,
    writing,
)
from strap.errors import StrapError, unknown
from strap.locks import locked
from strap.policies.images import fit
from strap.policies.language import embed_instructions
from strap.policies.settings import Interface, Vision
from strap.training.cache import FORMAT, FrameCache, open_cache, read_content
from strap.training.sources import Piece, Source
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
    source: Source, out: str | Path, options: CacheOptions, *, progress: Progress = silent
) -> FrameCache:
    """Decode everything into a folder; interrupted, it goes on where it was, else it is kept."""
    out = Path(out).expanduser()
    identity = fingerprint_json([source.fingerprint(), asdict(options)])
    if not _is_built(out, identity):
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        with locked(out / LOCK):  # two trainings that need one cache: the second waits for it
            if not _is_built(out, identity):
                _build(source, out, options, identity, progress)
    return open_cache(out)


def _is_built(out: Path, identity: str) -> bool:
    """Whether the cache is finished, and the one wanted."""
    manifest = out / "manifest.json"
    if not manifest.is_file() or read_json(manifest).get("identity") != identity:
        return False
    (out / STATE).unlink(missing_ok=True)  # of one that was killed before its last step
    return True


def _build(
    source: Source, out: Path, options: CacheOptions, identity: str, progress: Progress
) -> None:
    state, manifest = out / STATE, out / "manifest.json"
    remove_leftovers(out)
    manifest.unlink(missing_ok=True)
    done = 0
    if state.is_file() and read_json(state).get("identity") == identity:
        done = int(read_json(state)["pieces"])
    else:
        state.unlink(missing_ok=True)  # first: it may speak of what is overwritten now
        _describe(source, out, options)
        write_json(state, {"identity": identity, "pieces": 0})
    writer = _Writer(read_content(out), source, options)
    for index in range(done, len(source.pieces)):
        writer.write(index)
        write_json(state, {"identity": identity, "pieces": index + 1})
        progress("frames", index + 1, len(source.pieces))
    about = {"identity": identity, "options": asdict(options), "versions": versions()}
    write_json(manifest, about)
    state.unlink()


def _describe(source: Source, out: Path, options: CacheOptions) -> None:
    """content.json, the instructions' vectors, and arrays of the right size, still empty."""
    first = source.pieces[0].trajectory()
    keys = choose_keys(first, options.proprioception)
    cameras = options.cameras or tuple(first.cameras)
    for name in cameras:
        first.camera(name)
    texts: dict[str, int] = {}
    stretches, row = [], 0
    for piece in source.pieces:
        trajectory = piece.trajectory()
        _check(trajectory, first, cameras, keys)
        number = texts.setdefault(trajectory.instruction, len(texts))
        stretches.append(
            {
                "id": piece.id,
                "dataset": piece.dataset.name,
                "role": piece.role,
                "instruction": number,
                "start": piece.start,
                "stop": piece.stop,
                "row": row,
            }
        )
        row += piece.stop - piece.start
    language = embed_instructions(list(texts), options.language)
    _save(out / "language.npy", language)
    interface = Interface(
        cameras=tuple(cameras),
        image_size=options.image_size,
        proprioception={short(key): first.proprioception[key].shape[1] for key in keys},
        action_size=first.actions.shape[1],
        language_size=language.shape[1],
        map_size=_prepare_maps(source, out, cameras, options),
        fps=first.fps,
    )
    found = [
        {"stretch": f.piece, "start": f.start, "stop": f.stop, "cost": f.cost, "query": f.query}
        for f in source.found
    ]
    content = {
        "format": FORMAT,
        "interface": asdict(interface),
        "stretches": stretches,
        "retrieved": found,
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


class _Writer:
    """Fills the arrays, a piece at a time."""

    def __init__(self, cache: FrameCache, source: Source, options: CacheOptions) -> None:
        self.cache, self.source, self.options = cache, source, options
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
        """One piece's rows, flushed to disk."""
        piece, stretch = self.source.pieces[index], self.cache.stretches[index]
        trajectory = piece.trajectory()
        rows = slice(stretch.row, stretch.row + stretch.length)
        actions = np.asarray(trajectory.actions[piece.start : piece.stop], np.float32)
        if not np.isfinite(actions).all():
            raise StrapError(f"trajectory '{piece.id}' has actions that are not finite; mend it")
        self.arrays["actions.npy"][rows] = actions
        names = {short(key): key for key in trajectory.proprioception}
        states = [
            np.asarray(trajectory.proprioception[names[key]][piece.start : piece.stop], np.float32)
            for key in self.cache.interface.proprioception
        ]
        if states:
            self.arrays["states.npy"][rows] = np.concatenate(states, axis=1)
        for camera in self.cache.interface.cameras:
            self._write_camera(camera, trajectory, piece, stretch.row)
        for array in self.arrays.values():
            array.flush()

    def _write_camera(self, camera: str, trajectory: Trajectory, piece: Piece, row: int) -> None:
        for start in range(piece.start, piece.stop, DECODE):
            stop = min(start + DECODE, piece.stop)
            images = fit(trajectory.frames(camera, start, stop), self.options.image_size)
            rows = slice(row + start - piece.start, row + stop - piece.start)
            if self.vision is None:
                self.arrays[f"frames-{camera}.npy"][rows] = images
            else:
                maps = self.vision.project(images, self.projection)
                self.arrays[f"maps-{camera}.npy"][rows] = maps


def _prepare_maps(
    source: Source, out: Path, cameras: Sequence[str], options: CacheOptions
) -> tuple[int, int]:
    """Find the projection from frames spread over the pieces; (places, channels) of a map."""
    if options.vision != "frozen":
        return (0, 0)
    from strap.policies.checkpoints import write_tensors
    from strap.policies.frozen import SAMPLE, FrozenVision, find_projection

    each = max(1, SAMPLE // (len(source.pieces) * len(cameras)))
    vision, sample = FrozenVision(), []
    step = max(1, len(source.pieces) * len(cameras) // SAMPLE)
    for piece in source.pieces[::step]:
        trajectory = piece.trajectory()
        for start in np.linspace(piece.start, piece.stop - 1, each).astype(int).tolist():
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
