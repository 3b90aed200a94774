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
    """Let a policy act for robots: a server that speaks openpi's websocket protocol.

    A robot sends its observation, packed as `openpi-client` does, and gets the next action. Each
    connection has a history of its own; requests that wait at the same moment are one batch.
    Which cameras and proprioception the policy wants is printed, and told to clients when they
    connect. An observation on which it would act wrongly is answered with the reason instead of an
    action. Ctrl-C ends it. docs/recipes/robot.md has the loop on the robot's side.
    """

    EXAMPLES: ClassVar = (
        "strap serve my-policy",
        "strap serve my-policy --host 0.0.0.0 --port 8000 --api-key-file key.txt",
    )
    checkpoint: Annotated[Path, tyro.conf.Positional]
    """a folder that `strap train` wrote, or a run that it trained on"""
    port: int = 8000
    """where clients connect; 0: any free port"""
    host: str = "127.0.0.1"
    """the address that clients connect to: 127.0.0.1 is this machine alone, 0.0.0.0 every network
    that it is in"""
    api_key_file: Path | None = None
    """a file with the key that clients must send"""
    which: Literal["last", "best"] = "last"
    """the last weights, or those with the best held-out likelihood"""
    device: str = "auto"
    """where the policy runs: auto, cpu, cuda"""

    def run(self) -> None:
        """Load the policy and serve it."""
        from strap.errors import printable
        from strap.policies.acting import load_policy
        from strap.serving.contract import describe_wants
        from strap.serving.websocket import LOOPBACK, read_key, serve_policy

        key = None if self.api_key_file is None else read_key(self.api_key_file)
        checkpoint = find_policy(self.checkpoint)
        policy = load_policy(checkpoint, device=self.device, which=self.which)
        if key is None and self.host not in LOOPBACK:
            warnings.warn(
                f"whoever reaches {self.host} may let this policy act: give --api-key-file, or "
                "leave --host out and connect through ssh -L",
                stacklevel=1,
            )

        def ready(port: int) -> None:
            print(f"serving {checkpoint} at ws://{self.host}:{port} (Ctrl-C ends)")
            for what, told in describe_wants(policy).items():
                print(f"  {what:<15} {printable(told)}")
            sys.stdout.flush()

        serve_policy(policy, host=self.host, port=self.port, api_key=key, ready=ready)
