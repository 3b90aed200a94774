"""Make `samples/libero-mini` from collected demonstrations.

    strap libero collect --suite libero_90 --demos 3 --out demos/libero_90 --tasks …
    strap libero collect --suite libero_10 --demos 5 --out demos/libero_10 --tasks …
    python runs/libero_mini.py demos samples/libero-mini

The tasks are listed in `libero_tasks`; `python runs/libero_mini.py --tasks` prints them for a
shell.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

import strap
from strap.datasets.lerobot import write_lerobot
from strap.datasets.lerobot.reading import episode_id
from strap.scores import read_labels, write_labels

sys.path.insert(0, str(Path(__file__).parent))
from libero_tasks import PRIOR, TARGETS

CRF, GOP = 27, 12
"""Small files before fast access: the sample is part of the repository."""


@dataclass(frozen=True)
class Making:
    """Cut the sample out of collected demonstrations."""

    demos: tyro.conf.Positional[Path]
    """the folder with libero_90/ and libero_10/, as `strap libero collect` wrote them"""
    out: tyro.conf.Positional[Path]
    """the sample's folder"""
    prior_each: int = 3
    target_each: int = 5


def main(making: Making) -> None:
    """Write the prior and the targets, with labels."""
    _write(making.demos / "libero_90", PRIOR, making.prior_each, making.out / "prior")
    for name, task in TARGETS.items():
        _write(making.demos / "libero_10", [task], making.target_each, making.out / "target" / name)
    size = sum(f.stat().st_size for f in making.out.rglob("*") if f.is_file())
    print(f"{making.out}: {size / 1e6:.1f} MB")


def _write(folder: Path, tasks: tuple[str, ...] | list[str], each: int, out: Path) -> None:
    dataset = strap.open_dataset(folder)
    ids = [f"{task}_demo/demo_{i}" for task in tasks for i in range(each)]
    labels = read_labels(dataset)
    chosen = [_slim(dataset[key]) for key in ids]
    write_lerobot(out, chosen, robot_type="panda", crf=CRF, gop=GOP, total=len(ids))
    write_labels(out, {episode_id(i): labels[key] for i, key in enumerate(ids)})
    print(f"{out}: {len(ids)} episodes, {sum(t.length for t in chosen)} frames")


def _slim(trajectory: strap.Trajectory) -> strap.Trajectory:
    """Return a trajectory without the simulator's states, which only replaying needs."""
    kept = {k: v for k, v in trajectory.extras.items() if k in ("rewards", "dones")}
    return replace(trajectory, extras=kept)


if __name__ == "__main__":
    if "--tasks" in sys.argv:
        print("libero_90", *PRIOR)
        print("libero_10", *TARGETS.values())
    else:
        main(tyro.cli(Making))
