"""Find a training's clips in a cache of whole datasets, without decoding or copying images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strap.atomic import read_json
from strap.encoders.language import TEXT_ENCODER, embed_instructions
from strap.errors import StrapError, name_some
from strap.policies.settings import Vision
from strap.provenance import fingerprint_json
from strap.training.cache import CachedClip, FrameCache, SharedArrays
from strap.training.cache_builder import find_frame_sizes, place_clips, stamp_clips
from strap.training.compatibility import choose_keys
from strap.training.data import Clip, TrainingData
from strap.types import Array, short_name


def select_clips(
    cache: FrameCache,
    data: TrainingData,
    *,
    cameras: Sequence[str] = (),
    proprioception: Sequence[str] = (),
    language: str = TEXT_ENCODER,
    vision: Vision | None = None,
    image_size: int | None = None,
) -> FrameCache:
    """Return the part of a cache that a training needs, as if it were a separate cache.

    Args:
        cache: contains every clip of the data, by dataset and trajectory id, and perhaps others.
        data: the clips, their roles, and the retrieved segments.
        cameras: which of the cache's cameras to use (default: all).
        proprioception: which of its keys to use (default: all).
        language: the text encoder; the cache's vectors are reused if they come from it.
        vision: required contents of the cache: frames for `resnet`, feature maps for `frozen`.
        image_size: required side of the cache's images.
    """
    interface = cache.interface
    _require_images(cache, vision, image_size)
    chosen = tuple(cameras) or interface.cameras
    for name in chosen:
        if name not in interface.cameras:
            known = ", ".join(interface.cameras) or "none"
            raise StrapError(f"the cache '{cache.path}' has no camera '{name}'; it has: {known}")
    first = data.clips[0].trajectory()
    keys = choose_keys(first, tuple(proprioception) or tuple(interface.proprioception))
    sizes = {short_name(key): first.proprioception[key].shape[1] for key in keys}
    clips, texts = place_clips(data, chosen, keys)
    vectors = _embed_new(cache, texts, language)
    stamps = stamp_clips(data)
    rows, origin = _find_rows(cache, data, stamps), fingerprint_json(stamps)
    if not cache.has_frames:  # the projection of feature maps depends on the whole cache
        origin = fingerprint_json([origin, cache.origin])
    return replace(
        cache,
        interface=replace(
            interface,
            cameras=chosen,
            proprioception=sizes,
            language_size=vectors.shape[1],
            fps=first.fps,
            frame_sizes=find_frame_sizes(first, chosen),
        ),
        clips=clips,
        retrieved=data.retrieved,
        instructions=texts,
        language_encoder=language,
        context=(data.context.history, data.context.chunk) if data.context else None,
        origin=origin,
        shared=SharedArrays(rows, _find_columns(cache, sizes), vectors),
    )


def _require_images(cache: FrameCache, vision: Vision | None, image_size: int | None) -> None:
    held = "resnet" if cache.has_frames else "frozen"
    if vision not in (None, held):
        raise StrapError(
            f"the cache '{cache.path}' was made for --vision {held}, not {vision}: make one with "
            f"`strap cache --vision {vision}`"
        )
    if image_size not in (None, cache.interface.image_size):
        raise StrapError(
            f"the cache '{cache.path}' holds images of {cache.interface.image_size} pixels a side, "
            f"not {image_size}: make one with `strap cache --image-size {image_size}`"
        )


def _find_rows(cache: FrameCache, data: TrainingData, stamps: Sequence[str]) -> tuple[int, ...]:
    """Return the cache row of each clip's first frame; raise if a clip is missing or changed."""
    held: dict[tuple[str, str], list[int]] = {}
    for number, cached in enumerate(cache.clips):
        held.setdefault((cached.dataset, cached.id), []).append(number)
    known = read_json(cache.path / "manifest.json")["stamps"]
    rows, missing, changed = [], [], []
    for clip, stamp in zip(data.clips, stamps, strict=True):
        numbers = held.get((clip.dataset.name, clip.id), [])
        holding = [number for number in numbers if _holds(cache.clips[number], clip)]
        if not holding:
            missing.append(clip)
        elif known[holding[0]] != stamp:
            changed.append(clip)
        else:
            skipped = clip.start - cache.clips[holding[0]].start
            rows.append(cache.image_rows[holding[0]] + skipped)
    if missing or changed:
        raise _describe_missing(cache, missing, changed)
    return tuple(rows)


def _holds(cached: CachedClip, clip: Clip) -> bool:
    return cached.start <= clip.start and clip.stop <= cached.stop


def _describe_missing(
    cache: FrameCache, missing: Sequence[Clip], changed: Sequence[Clip]
) -> StrapError:
    """Return the error that names the clips that a cache lacks, or the changed ones."""
    wrong = missing or changed
    names = dict.fromkeys(clip.dataset.name for clip in wrong)
    ids = name_some([clip.id for clip in wrong])
    held = ", ".join(dict.fromkeys(clip.dataset for clip in cache.clips))
    if missing:
        return StrapError(
            f"the cache '{cache.path}' lacks {len(missing)} of the clips to train on: {ids} of "
            f"{', '.join(names)}; it holds {held}: decode these, too, with `strap cache`, or leave "
            "--frames out"
        )
    return StrapError(
        f"{len(changed)} trajectories of {', '.join(names)} ({ids}) were changed, or are read with "
        f"another orientation or other --rlds-… fields, since '{cache.path}' was made: run `strap "
        "cache` again with the options of this training"
    )


def _find_columns(cache: FrameCache, sizes: dict[str, int]) -> tuple[int, ...]:
    """Return the columns of states.npy that hold the given keys."""
    begin, columns = 0, {}
    for key, size in cache.interface.proprioception.items():
        columns[key] = range(begin, begin + size)
        begin += size
    for key, size in sizes.items():
        if key not in columns or len(columns[key]) != size:
            known = ", ".join(f"{k} ({len(v)})" for k, v in columns.items()) or "none"
            raise StrapError(
                f"the cache '{cache.path}' has no proprioception '{key}' of size {size}; it has: "
                f"{known}: choose those with --proprioception"
            )
    return tuple(column for key in sizes for column in columns[key])


def _embed_new(cache: FrameCache, texts: Sequence[str], encoder: str) -> Array:
    """Return the instructions' vectors [n l]; embed only those that the cache lacks."""
    known: dict[str, Array] = {}
    if encoder == cache.language_encoder:
        known = dict(zip(cache.instructions, cache.language, strict=True))
    new = [text for text in texts if text not in known]
    if new:
        known |= dict(zip(new, embed_instructions(new, encoder), strict=True))
    return np.stack([known[text] for text in texts])
