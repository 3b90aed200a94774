"""The control loop of a robot whose policy is behind `strap serve`, with a simulated arm to try it.

    strap serve CKPT                                                        # one terminal
    python examples/robot.py --suite libero_90 --task 0 --states 0 1 2      # another

For a robot of your own, write an `Arm` in place of `SimulatedArm`; the rest may stay. It needs
numpy and openpi-client alone. docs/recipes/robot.md says what comes before this.
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
    """What the loop asks of a robot."""

    instruction: str
    low: Array
    """[a] what no action falls below …"""
    high: Array
    """… or exceeds"""

    @property
    def rate(self) -> float:
        """Measured actions a second; refused where more than 5 % off those of the training data."""

    def observe(self) -> Mapping[str, Array]:
        """Return cameras and proprioception of this moment, by the names that the server prints."""

    def move(self, action: Array) -> None:
        """Begin an action [a]."""

    def wait(self) -> None:
        """Return when the next action is due."""

    def is_done(self) -> bool:
        """Return whether the task is solved, or the operator has ended the episode."""

    def stop(self) -> None:
        """Hold still. The loop calls it when an episode ends, however it does."""


class Ticks:
    """The clock of a robot: says when an action is due, and how many a second there really were."""

    def __init__(self, rate: float) -> None:
        self._nominal = rate
        self._times = deque([time.monotonic()], maxlen=1 + round(rate))  # of the last second

    def wait(self) -> None:
        """Return at the next tick; at once where that is over."""
        due = self._times[-1] + 1 / self._nominal
        time.sleep(max(0.0, due - time.monotonic()))
        self._times.append(time.monotonic())

    @property
    def rate(self) -> float:
        """Ticks a second, over the last second; the nominal ones until that is over."""
        if len(self._times) <= self._nominal:
            return self._nominal
        return (len(self._times) - 1) / (self._times[-1] - self._times[0])


@dataclass(frozen=True)
class Outcome:
    """How an episode ended."""

    steps: int
    is_done: bool
    slowest: float
    """seconds of the longest wait for an action"""


def control(arm: Arm, policy: Any, *, max_steps: int, seconds: float) -> Outcome:
    """Let a policy move an arm for one episode. However that ends, the arm is stopped first.

    Args:
        arm: the robot.
        policy: an openpi client, connected.
        max_steps: actions after which the episode ends.
        seconds: how long an answer may take.

    What the server refuses raises RuntimeError with its reason, a late answer TimeoutError, a lost
    connection what the client raises. Read why, and connect anew, before the arm moves again.
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
    """Return the action [a] of this moment; TimeoutError where it is late.

    openpi's client would wait for ever, so it waits in a thread that may be left behind.
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
    """A task of LIBERO in place of a robot.

    Its time stands still while the policy thinks; with `ticks` it keeps to the clock, as robots do.
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
        """Go to an initial state."""
        self._seen, info = self._env.reset(options={"initial_state": state})
        self._is_done = bool(info["is_success"])
        self._ticks = self._make_ticks(self._rate) if self._make_ticks else None

    @property
    def rate(self) -> float:
        """Actions a second, of simulated time or by the clock."""
        return self._ticks.rate if self._ticks else self._rate

    def observe(self) -> Mapping[str, Array]:
        """What cameras and joints say after the last action, as HDF5 or LeRobot names it."""
        return {**self._seen, **{f"observation.{name}": self._seen[name] for name in self._seen}}

    def move(self, action: Array) -> None:
        """A twentieth of a second of simulated time."""
        self._seen, _, self._is_done, _, _ = self._env.step(action)

    def wait(self) -> None:
        """Keep to the clock, where there is one."""
        if self._ticks:
            self._ticks.wait()

    def is_done(self) -> bool:
        """Whether the task is solved."""
        return self._is_done

    def stop(self) -> None:
        """Hold still, which a simulated arm does by itself."""

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


def main() -> None:
    """Run an episode from each initial state and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--suite", default="libero_90")
    parser.add_argument("--task", default="0", help="its number or a part of its instruction")
    parser.add_argument("--demos", default="", help="HDF5 file: begin where its demonstrations do")
    parser.add_argument("--states", type=int, nargs="+", default=[0], help="initial states")
    parser.add_argument("--steps", type=int, default=520, help="of an episode, at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="for an answer, at most")
    parser.add_argument("--real-time", action="store_true", help="keep to the clock, as robots do")
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
