"""`strap serve`."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.run_policies import find_policy


@dataclass(frozen=True)
class Command:
    """Serve a policy to robots over openpi's websocket protocol.

    A robot sends an observation, packed as `openpi-client` packs it, and receives the next action.
    Each connection has its own history; requests that arrive at the same time are computed as one
    batch. The cameras and proprioception that the policy needs are printed at the start, and sent
    to each client that connects. If an observation does not fit the policy, the reply is the reason
    instead of an action. Ctrl-C ends the server. docs/recipes/robot.md has the loop on the robot's
    side.
    """

    EXAMPLES: ClassVar = (
        "strap serve my-policy",
        "strap serve my-policy --host 0.0.0.0 --port 8000 --api-key-file key.txt",
    )
    checkpoint: Annotated[Path, tyro.conf.Positional]
    """a folder that `strap train` wrote, or the run that it was trained on"""
    port: int = 8000
    """the port that clients connect to; 0: any free port"""
    host: str = "127.0.0.1"
    """the address to listen on: 127.0.0.1: only this machine can connect; 0.0.0.0: every machine in
    its networks"""
    api_key_file: Path | None = None
    """a file with the key that clients must send"""
    which: Literal["last", "best"] = "last"
    """last: the last weights; best: those with the best held-out likelihood"""
    device: str = "auto"
    """where the policy runs: auto, cpu or cuda"""

    def run(self) -> None:
        """Load the policy and serve it."""
        from strap.errors import printable
        from strap.policies.acting import load_policy
        from strap.serving.contract import describe_inputs
        from strap.serving.websocket import LOOPBACK, read_key, serve_policy

        key = None if self.api_key_file is None else read_key(self.api_key_file)
        checkpoint = find_policy(self.checkpoint)
        policy = load_policy(checkpoint, device=self.device, which=self.which)
        if key is None and self.host not in LOOPBACK:
            warnings.warn(
                f"everybody who can reach {self.host} can use this policy: give --api-key-file, "
                "or leave --host out and connect through ssh -L",
                stacklevel=1,
            )

        def ready(port: int) -> None:
            print(f"serving {checkpoint} at ws://{self.host}:{port} (Ctrl-C ends)")
            for what, needed in describe_inputs(policy).items():
                print(f"  {what:<15} {printable(needed)}")
            sys.stdout.flush()

        serve_policy(policy, host=self.host, port=self.port, api_key=key, ready=ready)
