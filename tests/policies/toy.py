"""A simulator without physics: the arm must come to a place, and may crash on the way."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from strap.errors import StrapError
from strap.evaluation.simulators import TimeStep


class Toy:
    """Solved when the position's first number passes 1; state 1 starts with a sub-goal missing."""

    def __init__(self, folder: str, always: int, once: int) -> None:
        self.folder, self.always, self.once = Path(folder), always, once
        with (self.folder / "made").open("a") as file:
            file.write("x")

    def begin(self, state: int) -> TimeStep:
        if state >= 50:
            raise StrapError(f"'reach' has initial states 0 to 49, not {state}")
        self.state, self.place, self.count = state, np.zeros(3), 0
        return self._see()

    def step(self, action: np.ndarray) -> TimeStep:
        self.count += 1
        if self.count == 2 and self.state == self.always:
            os._exit(3)
        if self.count == 2 and self.state == self.once and not (self.folder / "once").exists():
            (self.folder / "once").touch()
            raise RuntimeError("the simulator diverged")
        self.place = self.place + 0.25
        return self._see()

    def _see(self) -> TimeStep:
        image = np.full((32, 32, 3), 40 * self.count % 256, np.uint8)
        state = {"ee_pos": self.place, "gripper_states": np.zeros(2)}
        near = bool(self.place[0] >= 0.5)
        solved = bool(self.place[0] >= 1) and self.state != 1
        goals = {"near": near, "there": solved}
        return TimeStep({"agentview_rgb": image}, state, solved, goals)


def make(folder: str, always: int = -1, once: int = -1) -> Toy:
    return Toy(folder, always, once)
