"""Show a policy server a recorded demonstration and compare the actions, before an arm moves.

    strap serve CKPT                                       # one terminal
    python examples/replay.py DEMONSTRATIONS --episode 0   # another

A policy that was trained on the demonstration should nearly repeat its actions. If its error is as
large as that of the mean action, something between the data and the server differs. The script
needs STRAP, which reads the dataset, and openpi-client.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import WebSocketException

import strap
from strap.errors import StrapError, unknown

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Comparison:
    """The error of the policy's actions against the recorded ones, per number of the action [a]."""

    error: Array
    """mean absolute difference to the recorded actions"""
    spread: Array
    """the same error if the demonstration's mean action is always predicted"""


def replay(trajectory: strap.Trajectory, policy: Any) -> Comparison:
    """Send every frame of a demonstration to the server of an openpi client; return the errors."""
    wants = policy.get_server_metadata()
    # LeRobot's `observation.state` is called `state` by policies.
    states = {k.removeprefix("observation."): v for k, v in trajectory.proprioception.items()}
    said = []
    for moment in range(trajectory.length):
        message: dict[str, Any] = {
            name: trajectory.frames(name, moment, moment + 1)[0] for name in wants["cameras"]
        }
        for key in wants["proprioception"]:
            if key not in states:
                raise unknown("proprioception of the demonstration", key, states)
            message[key] = np.asarray(states[key][moment : moment + 1])[0]
        message |= {"prompt": trajectory.instruction, "reset": moment == 0}
        if trajectory.fps:
            message["rate"] = float(trajectory.fps)
        said.append(policy.infer(message)["actions"][0])
    recorded = np.asarray(trajectory.actions[:])
    error = np.abs(np.stack(said) - recorded).mean(axis=0)
    return Comparison(error, np.abs(recorded - recorded.mean(axis=0)).mean(axis=0))


def connect(host: str, port: int) -> WebsocketClientPolicy:
    """Return a client of the server; raise a StrapError if there is none."""
    try:
        return WebsocketClientPolicy(host, port)
    except (OSError, WebSocketException) as error:
        raise StrapError(
            f"no policy server at {host}:{port} ({error}): start one with `strap serve CKPT`"
        ) from error


def main() -> None:
    """Replay one demonstration and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--episode", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    call = parser.parse_args()
    try:
        dataset = strap.open_dataset(call.dataset)
        if not 0 <= call.episode < len(dataset):
            parser.error(f"--episode is {call.episode}: give 0 to {len(dataset) - 1}")
        trajectory = dataset[dataset.ids[call.episode]]
        compared = replay(trajectory, connect(call.host, call.port))
    except StrapError as mistake:
        sys.exit(f"replay: {mistake}")
    print(f"{trajectory.id}: {trajectory.length} frames, {trajectory.instruction!r}")
    print("number of the action, mean error, mean error of the mean action")
    for number, (error, spread) in enumerate(zip(compared.error, compared.spread, strict=True)):
        print(f"{number:6d}  {error:.3f}  {spread:.3f}")


if __name__ == "__main__":
    main()
