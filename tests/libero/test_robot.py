"""The control loop of `examples/robot.py`: a simulated arm, the real client, a real server."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openpi_client", reason="installed by `make test`, without its dependencies")

from examples import robot
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from tests.policies.small_policies import serve_command, serving
from websockets.exceptions import ConnectionClosed

from strap.policies import Observation, load_policy

STEPS = 6


class NotedArm(robot.SimulatedArm):
    """A simulated arm that notes what it showed, what it was told and how often it was stopped."""

    told_rate: float | None = None

    def begin(self, state: int) -> None:
        self.shown: list[Mapping[str, Any]] = []
        self.moves: list[np.ndarray] = []
        self.stops = 0
        super().begin(state)

    @property
    def rate(self) -> float:
        return self.told_rate or super().rate

    def observe(self) -> Mapping[str, Any]:
        self.shown.append(super().observe())
        return self.shown[-1]

    def move(self, action: np.ndarray) -> None:
        self.moves.append(action)
        super().move(action)

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture(scope="module")
def arm() -> Iterator[NotedArm]:
    made = NotedArm("libero_90", "0", image_size=32)
    yield made
    made.close()


@pytest.fixture(scope="module")
def port(checkpoint: Path) -> Iterator[int]:
    """A server of the policy."""
    with serving(load_policy(checkpoint, device="cpu")) as port:
        yield port


def act_alone(checkpoint: Path, arm: NotedArm) -> list[np.ndarray]:
    """What the policy does without a server."""
    policy = load_policy(checkpoint, device="cpu")
    wants = policy.interface
    for _ in range(STEPS):
        seen = arm.observe()
        images = {name: seen[name] for name in wants.cameras}
        state = {key: seen[key] for key in wants.proprioception}
        action = policy.act(Observation(images, state, arm.instruction))
        arm.move(np.clip(action, arm.low, arm.high))
    return arm.moves


def test_over_the_server_the_arm_moves_as_with_the_policy_alone(
    checkpoint: Path, arm: NotedArm, port: int
) -> None:
    client = WebsocketClientPolicy("127.0.0.1", port)
    arm.begin(3)
    outcome = robot.control(arm, client, max_steps=STEPS, seconds=60)
    assert (outcome.steps, outcome.is_done, arm.stops) == (STEPS, False, 1)
    over, shown = arm.moves, arm.shown
    arm.begin(3)
    np.testing.assert_allclose(over, act_alone(checkpoint, arm), atol=1e-6)
    for first, second in zip(shown, arm.shown, strict=True):
        assert np.array_equal(first["agentview_rgb"], second["agentview_rgb"])
    assert np.ptp(over, axis=0).max() > 1e-4  # the policy answers what it sees


def test_what_the_server_refuses_stops_the_arm(
    arm: NotedArm, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = WebsocketClientPolicy("127.0.0.1", port)
    monkeypatch.setattr(arm, "told_rate", 10.0)
    arm.begin(0)
    with pytest.raises(RuntimeError, match="the robot executes 10 actions per second"):
        robot.control(arm, client, max_steps=STEPS, seconds=60)
    assert (arm.moves, arm.stops) == ([], 1)


def test_a_server_that_hangs_or_dies_stops_the_arm(checkpoint: Path, arm: NotedArm) -> None:
    with serve_command(checkpoint) as (process, port):
        clients = [WebsocketClientPolicy("127.0.0.1", port) for _ in range(2)]
        process.send_signal(signal.SIGSTOP)
        arm.begin(0)
        with pytest.raises(TimeoutError):
            robot.control(arm, clients[0], max_steps=STEPS, seconds=0.2)
        assert (arm.moves, arm.stops) == ([], 1)
        process.kill()
        with pytest.raises(ConnectionClosed):
            robot.control(arm, clients[1], max_steps=STEPS, seconds=60)
        assert (arm.moves, arm.stops) == ([], 2)


def test_the_script_tells_how_episodes_went(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["robot.py", "--port", str(port), "--states", "1", "--steps", "2", "--task", "0"]
    monkeypatch.setattr(sys, "argv", words)
    robot.main()
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("state 1: not solved in 2 steps, slowest answer ")
    assert last == "0 of 1 solved"


def test_ticks_come_when_they_are_due_and_say_how_many_there_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(robot, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    ticks = robot.Ticks(20)
    for number in range(1, 30):
        clock.now += 0.03  # the work of a moment
        ticks.wait()
        assert clock.now == pytest.approx(number / 20)
    assert ticks.rate == pytest.approx(20)
    for _ in range(20):
        clock.now += 0.1  # more than there is time for
        ticks.wait()
    assert ticks.rate == pytest.approx(10)
