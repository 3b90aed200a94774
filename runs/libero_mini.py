"""Makes `samples/libero-mini` from collected demonstrations.

    strap libero collect --suite libero_90 --demos 3 --out demos/libero_90 --tasks …
    strap libero collect --suite libero_10 --demos 5 --out demos/libero_10 --tasks …
    python runs/libero_mini.py demos samples/libero-mini

The names of the tasks are below; `python runs/libero_mini.py --tasks` prints them for the shell.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

import strap
from strap.datasets.lerobot import write_lerobot
from strap.datasets.lerobot.reading import episode_id
from strap.skills import read_labels, write_labels

PRIOR = (
    # Scenes and sub-tasks that the targets share.
    "LIVING_ROOM_SCENE1_pick_up_the_alphabet_soup_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE1_pick_up_the_cream_cheese_box_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE2_pick_up_the_alphabet_soup_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE2_pick_up_the_tomato_sauce_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE5_put_the_white_mug_on_the_left_plate",
    "LIVING_ROOM_SCENE5_put_the_yellow_and_white_mug_on_the_right_plate",
    # The same scenes, other objects.
    "LIVING_ROOM_SCENE1_pick_up_the_tomato_sauce_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE2_pick_up_the_butter_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE2_pick_up_the_milk_and_put_it_in_the_basket",
    "LIVING_ROOM_SCENE5_put_the_red_mug_on_the_left_plate",
    "LIVING_ROOM_SCENE5_put_the_red_mug_on_the_right_plate",
    # Other scenes.
    "KITCHEN_SCENE1_put_the_black_bowl_on_the_plate",
    "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet",
    "LIVING_ROOM_SCENE6_put_the_red_mug_on_the_plate",
    "LIVING_ROOM_SCENE6_put_the_chocolate_pudding_to_the_left_of_the_plate",
    "STUDY_SCENE1_pick_up_the_book_and_place_it_in_the_left_compartment_of_the_caddy",
)
TARGETS = {
    "soup-sauce": "LIVING_ROOM_SCENE2_put_both_the_alphabet_soup_and_"
    "the_tomato_sauce_in_the_basket",
    "soup-cheese": "LIVING_ROOM_SCENE1_put_both_the_alphabet_soup_and_"
    "the_cream_cheese_box_in_the_basket",
    "mug-mug": "LIVING_ROOM_SCENE5_put_the_white_mug_on_the_left_plate_"
    "and_put_the_yellow_and_white_mug_on_the_right_plate",
}
CRF, GOP = 27, 12
"""Sizes before speed: the sample travels with the repository."""


@dataclass(frozen=True)
class Making:
    """Cut the sample out of collected demonstrations."""

    demos: tyro.conf.Positional[Path]
    """holds libero_90/ and libero_10/, as `strap libero collect` wrote them"""
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
    """Without the simulator's states, which only replaying needs."""
    kept = {k: v for k, v in trajectory.extras.items() if k in ("rewards", "dones")}
    return replace(trajectory, extras=kept)


if __name__ == "__main__":
    if "--tasks" in sys.argv:
        print("libero_90", *PRIOR)
        print("libero_10", *TARGETS.values())
    else:
        main(tyro.cli(Making))
