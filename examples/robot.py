"""The control loop of a robot that a policy of `strap serve` controls, with a simulated arm to try.

    strap serve CKPT                                                        # one terminal
    python examples/robot.py --suite libero_90 --task 0 --states 0 1 2      # another

For your own robot, write an `Arm` in place of `SimulatedArm` and keep the rest. The loop only needs
numpy and openpi-client. docs/recipes/robot.md describes the steps before this one.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, Protocol

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

Array = np.ndarray[Any, np.dtype[Any]]


class Arm(Protocol):
    """The interface of a robot that the control loop uses."""

    instruction: str
    low: Array
    """[a] the smallest value of each number of an action"""
    high: Array
    """[a] the largest value of each number of an action"""

    @property
    def rate(self) -> float:
        """Measured actions per second; the server allows 5 % more or less than the data's rate."""

    def observe(self) -> Mapping[str, Array]:
        """Return the current cameras and proprioception, by the names that the server prints."""

    def move(self, action: Array) -> None:
        """Start an action [a]; return at once."""

    def wait(self) -> None:
        """Return when the next action is due."""

    def is_done(self) -> bool:
        """Return whether the task is solved, or the operator has ended the episode."""

    def stop(self) -> None:
        """Hold still. The loop calls this at the end of every episode, also after an error."""


class Ticks:
    """The clock of a robot: it waits until the next action is due and measures the rate."""

    def __init__(self, rate: float) -> None:
        self._nominal = rate
        self._times = deque([time.monotonic()], maxlen=1 + round(rate))  # the last second

    def wait(self) -> None:
        """Return at the next tick, or at once if its time has passed."""
        due = self._times[-1] + 1 / self._nominal
        time.sleep(max(0.0, due - time.monotonic()))
        self._times.append(time.monotonic())

    @property
    def rate(self) -> float:
        """Ticks per second, over the last second; the nominal rate during the first second."""
        if len(self._times) <= self._nominal:
            return self._nominal
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])


@dataclass(frozen=True)
class Outcome:
    """The outcome of one episode."""

    steps: int
    is_done: bool
    slowest: float
    """the longest wait for an action, in seconds"""


def control(arm: Arm, policy: Any, *, max_steps: int, seconds: float) -> Outcome:
    """Let a policy move an arm for one episode, and stop the arm at the end or on an error.

    Args:
        arm: the robot.
        policy: an openpi client, connected.
        max_steps: actions after which the episode ends.
        seconds: the longest wait for an answer.

    If the server refuses an observation, RuntimeError gives the reason. A late answer raises
    TimeoutError; a lost connection raises the client's error. Read the reason and connect again
    before the arm moves again.
    """
    wants = policy.get_server_metadata()
    names = [*wants["cameras"], *wants["proprioception"]]
    steps, slowest = 0, 0.0
    try:
        while steps < max_steps and not arm.is_done():
            seen = arm.observe()
            message: dict[str, Any] = {name: seen[name] for name in names}
            message |= {"prompt": arm.instruction, "rate": arm.rate, "reset": steps == 0}
            began = time.monotonic()
            action = ask(policy, message, seconds)
            slowest = max(slowest, time.monotonic() - began)
            arm.move(np.clip(action, arm.low, arm.high))
            arm.wait()
            steps += 1
    finally:
        arm.stop()
    return Outcome(steps, arm.is_done(), slowest)


def ask(policy: Any, message: dict[str, Any], seconds: float) -> Array:
    """Return the action [a] for this observation; raise TimeoutError if it is late.

    openpi's client would wait for ever, so it waits in a thread that is abandoned after `seconds`.
    """
    answer: Future[dict[str, Any]] = Future()

    def wait_for_it() -> None:
        try:
            answer.set_result(policy.infer(message))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=wait_for_it, daemon=True).start()
    return np.asarray(answer.result(seconds)["actions"][0])


class SimulatedArm:
    """A LIBERO task in place of a robot.

    Simulated time stops while the policy computes. With `ticks` it runs in real time, as on a
    robot.
    """

    def __init__(
        self, suite: str, task: str, ticks: Callable[[float], Ticks] | None = None, **options: Any
    ) -> None:
        import gymnasium

        name = f"strap.gym:strap/{suite.replace('_', '-')}-v0"
        self._env: Any = gymnasium.make(name, task=task, **options)
        self._rate = float(self._env.metadata["render_fps"])
        self._make_ticks = ticks
        self._ticks: Ticks | None = None
        self.instruction: str = self._env.unwrapped.instruction
        self.low, self.high = self._env.action_space.low, self._env.action_space.high
        self._seen: Mapping[str, Array] = {}
        self._is_done = False

    def begin(self, state: int) -> None:
        """Reset to an initial state."""
        self._seen, info = self._env.reset(options={"initial_state": state})
        self._is_done = bool(info["is_success"])
        self._ticks = self._make_ticks(self._rate) if self._make_ticks else None

    @property
    def rate(self) -> float:
        """Actions per second, of simulated time or, with `ticks`, of real time."""
        return self._ticks.rate if self._ticks else self._rate

    def observe(self) -> Mapping[str, Array]:
        """Return the observation after the last action, by the names of HDF5 and of LeRobot."""
        return {**self._seen, **{f"observation.{name}": self._seen[name] for name in self._seen}}

    def move(self, action: Array) -> None:
        """Simulate the action for a twentieth of a second."""
        self._seen, _, self._is_done, _, _ = self._env.step(action)

    def wait(self) -> None:
        """Wait for the next tick, if the arm runs in real time."""
        if self._ticks:
            self._ticks.wait()

    def is_done(self) -> bool:
        """Return whether the task is solved."""
        return self._is_done

    def stop(self) -> None:
        """Do nothing: a simulated arm holds still by itself."""

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


def main() -> None:
    """Run an episode from each initial state and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--suite", default="libero_90")
    parser.add_argument("--task", default="0", help="its number or a part of its instruction")
    parser.add_argument("--demos", default="", help="HDF5 file: start where its demonstrations do")
    parser.add_argument("--states", type=int, nargs="+", default=[0], help="initial states")
    parser.add_argument("--steps", type=int, default=520, help="most steps of an episode")
    parser.add_argument("--seconds", type=float, default=5.0, help="longest wait for an answer")
    parser.add_argument("--real-time", action="store_true", help="run in real time, as on a robot")
    call = parser.parse_args()
    policy = WebsocketClientPolicy(call.host, call.port)
    size = next(iter(policy.get_server_metadata()["cameras"].values()))["shapes"][0][0]
    ticks = Ticks if call.real_time else None
    arm = SimulatedArm(call.suite, call.task, ticks, image_size=size, demos=call.demos)
    solved = 0
    for state in call.states:
        arm.begin(state)
        outcome = control(arm, policy, max_steps=call.steps, seconds=call.seconds)
        solved += outcome.is_done
        print(
            f"state {state}: {'solved' if outcome.is_done else 'not solved'} in {outcome.steps} "
            f"steps, slowest answer {outcome.slowest * 1e3:.0f} ms",
            flush=True,
        )
    print(f"{solved} of {len(call.states)} solved")
    arm.close()


if __name__ == "__main__":
    main()
