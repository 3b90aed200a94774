"""A summary of a dataset, made in seconds from its metadata and a sample of its trajectories."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.datasets.selection import space_evenly
from strap.errors import StrapError, name_some, printable
from strap.position_columns import joint_candidates, position_candidates
from strap.progress import Progress, silent
from strap.types import Array, Trajectory

MAX_SAMPLED = 2000
"""Trajectories to read at most, evenly spaced, if the format has no table of them."""
MAX_SECONDS = 5.0
"""Time limit for reading trajectories; the report covers those read by then."""
BINS = 10
DARK = 8
"""Grey level up to which a frame counts as black."""
TEXT = 200
"""Characters of an instruction to show at most."""
TILE = 160
"""Longer side of an image on the contact sheet, in pixels."""


@dataclass(frozen=True)
class Histogram:
    """A histogram of trajectory lengths: counts[i] are between edges[i] and edges[i+1]."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def __str__(self) -> str:
        most = max(self.counts, default=0) or 1
        lines = []
        for count, low, high in zip(self.counts, self.edges, self.edges[1:], strict=False):
            bar = "█" * round(30 * count / most)
            lines.append(f"  {low:6.0f} – {high:<6.0f} {bar} {count}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Inspection:
    """A summary of a dataset.

    If `exact` is false, the lengths are those of the `sampled` trajectories, and `frames` is
    estimated from them.
    """

    path: Path
    format: str
    episodes: int
    frames: int
    exact: bool
    sampled: int
    cameras: Mapping[str, tuple[int, int]]
    """name -> (height, width)"""
    fps: float | None
    orientation: str
    instructions: Mapping[str, int]
    """instruction -> trajectories, most frequent first"""
    told: int
    """how many trajectories the instructions were read from"""
    actions: tuple[int, ...]
    proprioception: Mapping[str, int]
    """name -> columns"""
    positions: Sequence[str]
    """columns that can be the end effector's position, most likely first"""
    joints: Sequence[str]
    """columns that can be joint angles, most likely first"""
    lengths: Histogram
    notes: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        about = "" if self.exact else f" (estimated from {self.sampled})"
        told = "" if self.told == self.episodes else f" (in {self.told} trajectories looked at)"
        cameras = ", ".join(f"{name} {h}×{w}" for name, (h, w) in self.cameras.items())
        states = ", ".join(f"{name} [{width}]" for name, width in self.proprioception.items())
        lines = [
            f"{self.path}",
            f"format          {self.format}",
            f"episodes        {self.episodes}",
            f"frames          {self.frames}{about}",
            f"cameras         {cameras or 'none'}, {self.orientation}",
            f"fps             {f'{self.fps:g}' if self.fps else 'unknown'}",
            f"actions         {list(self.actions)}",
            f"proprioception  {states or 'none'}",
            f"position        {self._describe_position()}",
            f"instructions    {len(self.instructions)}{told}",
            *(
                f"  {count:5d} × {_cut(text) or '(none)'}"
                for text, count in _top(self.instructions)
            ),
            "lengths",
            *str(self.lengths).splitlines(),
            *self.notes,
        ]
        return "\n".join(map(printable, lines))

    def _describe_position(self) -> str:
        if self.positions:
            return ", ".join(self.positions)
        if self.joints:
            return f"none found; joints: {', '.join(self.joints)}"
        return "none found: name it"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"


def _top(instructions: Mapping[str, int], limit: int = 12) -> list[tuple[str, int]]:
    shown = list(instructions.items())[:limit]
    rest = list(instructions.values())[limit:]
    return [*shown, (f"… {len(rest)} more instructions", sum(rest))] if rest else shown


def inspect(
    dataset: Dataset, *, sample: int = MAX_SAMPLED, seconds: float = MAX_SECONDS
) -> Inspection:
    """Summarise a dataset from a sample of trajectories, and for a few one frame per camera.

    Args:
        dataset: a dataset of any format.
        sample: how many trajectories to read at most, evenly spaced.
        seconds: time limit for reading them.
    """
    if not len(dataset):
        raise StrapError(f"'{dataset.path}' holds no trajectories")
    missing = _missing_files(dataset)
    lacking = {name for ids in missing.values() for name in ids}
    is_on_hub = bool(getattr(dataset.full_dataset.reader, "commit", ""))
    whole = [name for name in dataset.ids if name not in lacking or is_on_hub]
    seen = _open_sample(dataset, whole or dataset.ids, sample, seconds)
    first = seen[0]
    lengths = np.array([t.length for t in seen])
    exact = len(seen) == len(dataset)
    frames = int(lengths.sum()) if exact else round(float(lengths.mean()) * len(dataset))
    listed = getattr(dataset.reader, "lengths", None)
    if listed is not None:  # the format keeps a table of its trajectories
        lengths, exact = np.asarray(listed), True
        frames = int(lengths.sum())
    texts = getattr(dataset.reader, "instructions", None) or [t.instruction for t in seen]
    summary = str(getattr(dataset.reader, "summary", ""))
    return Inspection(
        path=dataset.path,
        format=dataset.format,
        episodes=len(dataset),
        frames=frames,
        exact=exact,
        sampled=len(seen),
        cameras={name: (a.shape[1], a.shape[2]) for name, a in first.cameras.items()},
        fps=first.fps,
        orientation=first.orientation,
        instructions=dict(Counter(texts).most_common()),
        told=len(texts),
        actions=first.actions.shape[1:],
        proprioception={name: _width(a.shape) for name, a in first.proprioception.items()},
        positions=position_candidates(first),
        joints=joint_candidates(first),
        lengths=_histogram(lengths),
        notes=(
            *(_note_not_fetched if is_on_hub else _note_missing)(missing, len(dataset)),
            *_note_differences(seen),
            *_note_dark_cameras([t for t in seen if t.id not in lacking]),
            *([summary] if summary else []),
        ),
    )


def _open_sample(
    dataset: Dataset, ids: Sequence[str], sample: int, seconds: float
) -> list[Trajectory]:
    """Open evenly spaced trajectories, in random order so that a time-out keeps them even."""
    places = np.unique(np.linspace(0, len(ids) - 1, max(1, sample)).round().astype(int))
    order = np.concatenate([places[:1], np.random.default_rng(0).permutation(places[1:])])
    stop = time.monotonic() + seconds
    seen: dict[int, Trajectory] = {}
    for place in order:
        seen[int(place)] = dataset[ids[place]]
        if time.monotonic() > stop:
            break
    return [seen[place] for place in sorted(seen)]


def _width(shape: Sequence[int]) -> int:
    return int(np.prod(shape[1:], dtype=int))


def _histogram(lengths: Array) -> Histogram:
    counts, edges = np.histogram(lengths, bins=min(BINS, max(1, len(np.unique(lengths)))))
    return Histogram(tuple(map(float, edges)), tuple(map(int, counts)))


def _missing_files(dataset: Dataset) -> dict[str, list[str]]:
    """Return for each kind of file the trajectories whose file is not on this machine."""
    missing: Mapping[str, Sequence[str]] = getattr(dataset.full_dataset.reader, "missing", {})
    chosen = set(dataset.ids)
    return {what: [name for name in ids if name in chosen] for what, ids in missing.items()}


def _note_not_fetched(missing: Mapping[str, Sequence[str]], total: int) -> list[str]:
    """Return a note on how much of a hub dataset has been downloaded."""
    here = [f"the {what} of {total - len(ids)}" for what, ids in missing.items()]
    return [
        f"in the hub's cache, of {total} trajectories: {', '.join(here)}; commands fetch the rest"
    ]


def _note_missing(missing: Mapping[str, Sequence[str]], total: int) -> list[str]:
    """Return notes on the trajectories with missing files."""
    found = [
        f"the {what} is missing in {len(ids)} of {total} trajectories ({name_some(ids)})"
        for what, ids in missing.items()
        if ids
    ]
    if found:
        found.append("download what is missing, or leave those trajectories out: --missing skip")
    return found


def _note_differences(seen: Sequence[Trajectory]) -> list[str]:
    """Return notes on trajectories that differ from the first one or have no instruction."""
    first = seen[0]
    found = []
    for name, array in first.cameras.items():
        unlike = [
            t.id
            for t in seen
            if name not in t.cameras or t.cameras[name].shape[1:] != array.shape[1:]
        ]
        if unlike:
            found.append(f"camera {name} is missing or of another size in {_describe_ids(unlike)}")
    widths = [t.id for t in seen if t.actions.shape[1:] != first.actions.shape[1:]]
    if widths:
        found.append(f"actions have another size in {_describe_ids(widths)}")
    silent = [t.id for t in seen if not t.instruction]
    if silent:
        found.append(f"no instruction in {_describe_ids(silent)}")
    return found


def _note_dark_cameras(seen: Sequence[Trajectory], n_sampled: int = 3) -> list[str]:
    """Return notes on cameras that are black (as Bridge's absent ones) or cannot be read."""
    sampled = [seen[place] for place in space_evenly(len(seen), n_sampled)] if seen else []
    found = []
    for name in seen[0].cameras if seen else ():
        shown = [t for t in sampled if name in t.cameras and t.length]
        try:
            brightest = max((int(t.cameras[name][t.length // 2].max()) for t in shown), default=255)
        except StrapError as error:
            found.append(f"camera {name} cannot be read: {error}")
            continue
        if brightest <= DARK:
            found.append(f"camera {name} is black in the {len(shown)} trajectories looked at")
    return found


def _describe_ids(ids: Sequence[str]) -> str:
    return f"{len(ids)} trajectories ({name_some(ids)})"


def write_contact_sheet(
    dataset: Dataset,
    out: str | Path,
    *,
    trajectories: int = 6,
    frames: int = 6,
    cameras: Sequence[str] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write a PNG with one row of upright frames, from first to last, per trajectory and camera.

    Args:
        dataset: a dataset of any format.
        out: the PNG file to write.
        trajectories: number of trajectories, evenly spaced over the dataset.
        frames: number of frames per trajectory, evenly spaced in time.
        cameras: the cameras to show; by default all.
        progress: called with (what, done, total) while a dataset is fetched from the hub.
    """
    from PIL import Image, ImageDraw

    places = np.unique(np.linspace(0, len(dataset) - 1, trajectories).round().astype(int))
    chosen = dataset.select([dataset.ids[p] for p in places] if len(dataset) else [])
    chosen.fetch(cameras, progress)
    rows: list[tuple[str, list[Array]]] = []
    for trajectory in chosen:
        if not trajectory.length:
            continue
        for name in trajectory.cameras if cameras is None else cameras:
            times = np.linspace(0, trajectory.length - 1, min(frames, trajectory.length))
            shown = [trajectory.frames(name, int(t), int(t) + 1)[0] for t in times.round()]
            label = _cut(f"{trajectory.id}  {name}  {trajectory.instruction}")
            rows.append((printable(label), shown))
    if not rows:
        raise StrapError(f"'{dataset.path}' has no camera to show")
    tiles = [[_tile(Image.fromarray(np.ascontiguousarray(f))) for f in shown] for _, shown in rows]
    heights = [max(tile.height for tile in row) + 18 for row in tiles]
    width = max(sum(tile.width + 4 for tile in row) for row in tiles) + 4
    sheet = Image.new("RGB", (width, sum(heights) + 4), "white")
    draw = ImageDraw.Draw(sheet)
    top = 4
    for (label, _), row, height in zip(rows, tiles, heights, strict=True):
        draw.text((4, top), label, fill="black")
        for i, tile in enumerate(row):
            sheet.paste(tile, (4 + i * (tile.width + 4), top + 14))
        top += height
    out = Path(out).expanduser()
    with replacing(out) as temporary:
        sheet.save(temporary, format="PNG")
    return out


def _tile(image: Any) -> Any:
    scale = TILE / max(image.size)
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
