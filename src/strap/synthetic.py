"""Generated datasets with planted matches at known places, for tests, docs and benchmarks.

Each demonstration is a random path of a few slowly changing numbers. They give the place and colour
of a bright disc on a textured background, and the position of the end effector, which rests between
sub-tasks. A planted match is a time-warped, noisy copy of a target segment inside a prior
trajectory that is otherwise unrelated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import numpy.typing as npt

from strap.atomic import replacing, write_json
from strap.errors import StrapError
from strap.types import Array, Segment

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Plant:
    """A copy of a target segment inside a prior trajectory."""

    query: Segment
    segment: Segment


@dataclass(frozen=True)
class Planted:
    """Two generated datasets, and the places of the planted copies."""

    target: Path
    prior: Path
    plants: tuple[Plant, ...]


def make_planted(
    out: str | Path,
    *,
    demos: int = 2,
    sub_tasks: int = 3,
    prior: int = 12,
    length: int = 30,
    size: int = 32,
    noise: float = 1.0,
    dialect: Literal["libero", "robomimic"] = "libero",
    seed: int = 0,
) -> Planted:
    """Write `target.hdf5` and `prior.hdf5` (and `plants.json`) into a folder.

    Args:
        out: the folder.
        demos: target demonstrations.
        sub_tasks: segments of each; the end effector rests between them.
        prior: prior trajectories; the first demos × sub_tasks of them hold one plant each.
        length: frames of a segment.
        size: image height and width.
        noise: standard deviation of the pixel noise, in grey levels.
        dialect: `libero` (images stored flipped) or `robomimic`.
        seed: seed of all random choices.
    """
    if prior < demos * sub_tasks:
        raise StrapError(
            f"prior is {prior}: {demos * sub_tasks} trajectories are needed for one plant each"
        )
    out, rng = Path(out), np.random.default_rng(seed)
    demonstrations = [_demonstration(rng, sub_tasks, length) for _ in range(demos)]
    targets = [np.concatenate(walks) for walks in demonstrations]
    queries = [
        (Segment(f"demo_{d}", s * length, (s + 1) * length), demonstrations[d][s])
        for d in range(demos)
        for s in range(sub_tasks)
    ]
    priors, plants = [], []
    for index in range(prior):
        before, after = (_walk(rng, int(rng.integers(10, 30))) for _ in range(2))
        if index >= len(queries):
            priors.append(np.concatenate([before, _walk(rng, length), after]))
            continue
        query, path = queries[index]
        copy = path[warp(rng, len(path))]
        priors.append(np.concatenate([before, copy, after]))
        found = Segment(f"demo_{index}", len(before), len(before) + len(copy))
        plants.append(Plant(query, found))
    world = _World(size, noise, rng)
    _write(out / "target.hdf5", targets, world, dialect, "do the planted task")
    _write(out / "prior.hdf5", priors, world, dialect, "do something else")
    rows = [{"query": vars(p.query), "match": vars(p.segment)} for p in plants]
    write_json(out / "plants.json", rows)
    return Planted(out / "target.hdf5", out / "prior.hdf5", tuple(plants))


def warp(rng: np.random.Generator, length: int, *, stretch: float = 0.3) -> npt.NDArray[np.int64]:
    """Return 0 … length−1 in order, some twice: a slower copy that step (1, 2) can follow."""
    doubled = rng.random(length) < stretch
    # The first and last frames stay single, so that start and stop of the copy are unambiguous. No
    # two neighbours are doubled, because a step of the path can skip one frame, not two.
    doubled[[0, -1]] = False
    doubled[1:] &= ~doubled[:-1]
    return np.repeat(np.arange(length), 1 + doubled)


def _walk(rng: np.random.Generator, length: int, start: Floats | None = None) -> Floats:
    """Return a path [length 4] (x, y, shade, tone in 0 … 1) over random points, without stops."""
    knots = [rng.random(4) if start is None else start]
    while len(knots) < 4:
        point = rng.random(4)
        # Far enough apart that every step of up to 60 frames moves more than the stop threshold.
        if np.abs(point - knots[-1])[:3].sum() > 0.6:
            knots.append(point)
    at = np.linspace(0, 3, length)
    columns = np.array(knots).T
    return np.stack([np.interp(at, np.arange(4), column) for column in columns], axis=1)


def _demonstration(rng: np.random.Generator, sub_tasks: int, length: int) -> list[Floats]:
    """Return walks that each start where the one before ended, so with a stop between them."""
    walks: list[Floats] = []
    for _ in range(sub_tasks):
        walks.append(_walk(rng, length, walks[-1][-1] if walks else None))
    return walks


class _World:
    """Renders path points to images and end-effector poses."""

    def __init__(self, size: int, noise: float, rng: np.random.Generator) -> None:
        self.size, self.noise, self.rng = size, noise, rng
        self.ground = _smooth(rng.uniform(0, 40, (4, 4, 3)), size)

    def images(self, path: Floats) -> npt.NDArray[np.uint8]:
        """Return upright images uint8 [t size size 3] of states [t 4]."""
        y, x = np.mgrid[0 : self.size, 0 : self.size] / self.size
        near = (x - path[:, 0, None, None]) ** 2 + (y - path[:, 1, None, None]) ** 2
        disc = np.exp(-near / 0.02)[..., None]
        colour = np.stack([path[:, 2], path[:, 3], 1 - path[:, 2]], axis=1)[:, None, None]
        tone = 60 * path[:, 3, None, None, None]
        image = self.ground + tone + 150 * disc * (0.3 + 0.7 * colour)
        image = image + self.noise * self.rng.standard_normal(image.shape)
        return np.asarray(image.clip(0, 255), np.uint8)

    def positions(self, path: Floats) -> Floats:
        """Return the positions [t 3], in metres, of states [t 4]."""
        return path[:, :3] * [0.5, 0.5, 0.3]


def _smooth(coarse: Floats, size: int) -> Floats:
    """Return a coarse image enlarged to size×size by bilinear interpolation."""
    at = np.linspace(0, len(coarse) - 1, size)
    low = at.astype(int).clip(max=len(coarse) - 2)
    part = (at - low)[:, None, None]
    rows = coarse[low] * (1 - part) + coarse[low + 1] * part
    part = part.reshape(1, size, 1)
    return np.asarray(rows[:, low] * (1 - part) + rows[:, low + 1] * part)


def _write(file: Path, paths: list[Floats], world: _World, dialect: str, instruction: str) -> None:
    libero = dialect == "libero"
    with replacing(file) as temporary, h5py.File(temporary, "w", locking=False) as handle:
        data = handle.create_group("data")
        data.attrs["total"] = sum(map(len, paths))
        data.attrs["env_args"] = json.dumps(
            {"env_name": "synthetic", "type": 1, "env_kwargs": {"control_freq": 20}}
        )
        if libero:
            data.attrs["bddl_file_name"] = "synthetic.bddl"
            data.attrs["problem_info"] = json.dumps({"language_instruction": instruction})
            data.attrs["macros_image_convention"] = "opengl"
        for index, path in enumerate(paths):
            demo = data.create_group(f"demo_{index}")
            _write_demo(demo, path, world, libero)
            if not libero:
                demo.attrs["ep_meta"] = json.dumps({"lang": instruction})


def _write_demo(demo: h5py.Group, path: Floats, world: _World, libero: bool) -> None:
    length = len(path)
    images: Array = world.images(path)
    positions = world.positions(path)
    moves = np.diff(positions, axis=0, append=positions[-1:]) * 20
    demo.attrs["num_samples"] = length
    demo["actions"] = np.concatenate([moves, np.zeros((length, 4))], axis=1)
    demo["states"] = path
    demo["rewards"] = np.zeros(length)
    demo["dones"] = (np.arange(length) == length - 1).astype(np.uint8)
    camera, position = (
        ("agentview_rgb", "ee_pos") if libero else ("agentview_image", "robot0_eef_pos")
    )
    demo[f"obs/{camera}"] = images[:, ::-1] if libero else images
    demo[f"obs/{position}"] = positions
    demo["obs/gripper_states"] = path[:, 2:4]
