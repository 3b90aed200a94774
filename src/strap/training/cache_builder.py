"""Build a frame cache: decode and resize every frame once; optionally compute frozen vision."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from numpy.lib.format import open_memmap

from strap.atomic import explain_write_errors, read_json, remove_leftovers, write_array, write_json
from strap.encoders.language import TEXT_ENCODER, embed_instructions
from strap.errors import StrapError
from strap.locks import LOCK, hold_lock
from strap.policies.settings import MAX_SIDE, Interface, Vision
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json, versions
from strap.training.cache import (
    FORMAT,
    CachedClip,
    FrameCache,
    open_cache,
    read_content,
)
from strap.training.cache_writer import ClipWriter, sample_images
from strap.training.compatibility import choose_keys, require_same_features
from strap.training.data import TrainingData
from strap.types import Trajectory, short_name

SAVE_EVERY = 4096
"""number of frames after which progress is saved, so that they are not decoded again"""
SIZE = 128
STATE = "building.json"
"""progress of an unfinished cache; deleted when the cache is finished"""


@dataclass(frozen=True)
class CacheOptions:
    """The features of the data that a cache keeps for policies."""

    vision: Vision = "resnet"
    image_size: int = SIZE
    """side of the images, up to 8192 pixels; images of other sizes are resized"""
    cameras: tuple[str, ...] = ()
    """cameras to keep (default: all)"""
    proprioception: tuple[str, ...] = ()
    """keys to keep (default: all, but `state` only if it is larger than the others together)"""
    language: str = TEXT_ENCODER
    """text encoder of instructions: minilm, clip, words, a hub id or a local folder"""

    def __post_init__(self) -> None:
        if not 1 <= self.image_size <= MAX_SIDE:
            raise StrapError(f"image_size is {self.image_size}: it must be 1 to {MAX_SIDE} pixels")


def build_cache(
    data: TrainingData,
    out: str | Path,
    options: CacheOptions,
    *,
    workers: int | None = None,
    progress: Progress = silent,
) -> FrameCache:
    """Decode all clips into a folder; resume an interrupted cache, and reuse a finished one.

    Args:
        data: the clips to decode.
        out: the cache's folder.
        options: the features of the data to keep.
        workers: number of threads or processes that decode (default: by the number of CPUs).
        progress: called with the number of finished clips.
    """
    out = Path(out).expanduser()
    identity = fingerprint_json([FORMAT, data.fingerprint(), asdict(options)])
    if not _is_built(out, identity):
        with explain_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        with hold_lock(out / LOCK):  # if two trainings need one cache, the second waits
            if not _is_built(out, identity):
                _build(data, out, options, identity, workers, progress)
    return open_cache(out)


def _is_built(out: Path, identity: str) -> bool:
    """Return whether the folder has a finished cache of the given identity."""
    manifest = out / "manifest.json"
    if not manifest.is_file() or read_json(manifest).get("identity") != identity:
        return False
    (out / STATE).unlink(missing_ok=True)  # left by a process killed before its last step
    return True


def _build(
    data: TrainingData,
    out: Path,
    options: CacheOptions,
    identity: str,
    workers: int | None,
    progress: Progress,
) -> None:
    state, manifest = out / STATE, out / "manifest.json"
    data.fetch(options.cameras or None, progress)
    remove_leftovers(out)
    manifest.unlink(missing_ok=True)
    stamps, done = stamp_clips(data), 0
    if state.is_file() and read_json(state).get("identity") == identity:
        done = int(read_json(state)["clips"])
    else:
        state.unlink(
            missing_ok=True
        )  # first, because it might describe arrays that are overwritten now
        _lay_out(data, out, options, stamps)
        write_json(state, {"identity": identity, "clips": 0})
    writer, saved = ClipWriter(read_content(out), data), done

    def save() -> None:
        writer.flush()
        write_json(state, {"identity": identity, "clips": done})

    try:
        for number in writer.write(done, workers):
            done = number + 1
            if sum(clip.length for clip in writer.cache.clips[saved:done]) >= SAVE_EVERY:
                save()
                saved = done
            progress("frames", done, len(data.clips))
    finally:
        save()
    about = {"identity": identity, "options": asdict(options), "stamps": stamps}
    write_json(manifest, {**about, "versions": versions()})
    state.unlink()


def stamp_clips(data: TrainingData) -> list[str]:
    """Return a stamp per clip that changes with its trajectory's files and reading options."""
    stamps = []
    for clip in data.clips:
        trajectory, fields = clip.trajectory(), clip.dataset.opening.get("fields")
        reading = [json.dumps(fields)] if fields else []
        stamps.append(" ".join([trajectory.source.stamp(), trajectory.orientation, *reading]))
    return stamps


def _lay_out(data: TrainingData, out: Path, options: CacheOptions, stamps: Sequence[str]) -> None:
    """Write content.json, the instructions' vectors, and empty arrays of the final size."""
    first = data.clips[0].trajectory()
    keys = choose_keys(first, options.proprioception)
    cameras = options.cameras or tuple(first.cameras)
    for name in cameras:
        first.camera(name)
    clips, texts = place_clips(data, cameras, keys)
    language = embed_instructions(texts, options.language)
    write_array(out / "language.npy", language)
    interface = Interface(
        cameras=tuple(cameras),
        image_size=options.image_size,
        proprioception={short_name(key): first.proprioception[key].shape[1] for key in keys},
        action_size=first.actions.shape[1],
        language_size=language.shape[1],
        map_size=_prepare_maps(data, out, cameras, options),
        fps=first.fps,
        frame_sizes=find_frame_sizes(first, cameras),
    )
    cache = FrameCache(
        out,
        interface,
        clips,
        data.retrieved,
        texts,
        options.language,
        options.vision == "resnet",
        (data.context.history, data.context.chunk) if data.context else None,
        origin=fingerprint_json(stamps),
    )
    for file, (shape, dtype) in _arrays(interface, cache.rows, options.vision).items():
        _reserve(out / file, shape, dtype)
    write_json(out / "content.json", cache.to_json())


def find_frame_sizes(trajectory: Trajectory, cameras: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (height, width) of each camera's images."""
    shapes = {name: trajectory.camera(name).shape for name in cameras}
    return {name: (shape[1], shape[2]) for name, shape in shapes.items()}


def place_clips(
    data: TrainingData, cameras: Sequence[str], keys: Sequence[str]
) -> tuple[tuple[CachedClip, ...], tuple[str, ...]]:
    """Assign rows to the clips, end to end; return the clips and their distinct instructions."""
    first = data.clips[0].trajectory()
    texts: dict[str, int] = {}
    clips, row = [], 0
    for clip in data.clips:
        trajectory = clip.trajectory()
        require_same_features(trajectory, first, cameras, keys)
        number = texts.setdefault(trajectory.instruction, len(texts))
        place = (number, clip.start, clip.stop, row)
        clips.append(CachedClip(clip.id, clip.dataset.name, clip.role, *place))
        row += clip.stop - clip.start
    return tuple(clips), tuple(texts)


def _reserve(file: Path, shape: tuple[int, ...], dtype: str) -> None:
    """Create an array with all its disk space allocated, so that writing cannot fill the disk."""
    with explain_write_errors(file):
        file.unlink(missing_ok=True)  # a training can still read the old file
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


def _prepare_maps(
    data: TrainingData, out: Path, cameras: Sequence[str], options: CacheOptions
) -> tuple[int, int]:
    """Fit the projection to frames spread over the clips; return (cells, channels) of a map."""
    if options.vision != "frozen":
        return (0, 0)
    import torch

    from strap.policies.checkpoints import write_tensors
    from strap.policies.frozen_vision import SAMPLE, FrozenVision, find_projection

    vision = FrozenVision()
    images = sample_images(data.clips, cameras, options.image_size, SAMPLE)
    maps = torch.cat([vision.maps(images[i : i + 64]) for i in range(0, len(images), 64)])
    projection = find_projection(maps)
    write_tensors(
        out / "tensors.safetensors",
        {"mean": projection.mean, "directions": projection.directions},
    )
    return int(maps.shape[1]), int(projection.directions.shape[1])
