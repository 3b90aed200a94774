"""Connections to Ray. Only this module starts Ray or uses its private interfaces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from strap.errors import StrapError
from strap.extras import missing_extra

ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
RETRIES = 10
"""How often a task whose worker is lost is started again."""


def require_ray() -> None:
    """Raise an error if Ray is not installed."""
    if find_spec("ray") is None:
        raise missing_extra("--engine ray needs Ray", "ray")


@contextmanager
def connect(address: str | None, workers: int) -> Iterator[Any]:
    """Yield Ray, connected to `address`, or to a new cluster on this machine's loopback."""
    if address is None:
        # Even on one machine Ray listens on all network interfaces, unless it believes that
        # clusters are not supported here. It reads this variable when it is imported.
        os.environ[ONE_MACHINE] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require_ray()
    import ray

    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        _stay_on_loopback()
        options |= {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(address=address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        # Only Ray's own log distinguishes an unreachable address from a refused token.
        hint = "" if address is None else "; a cluster with a token needs RAY_AUTH_MODE=token here"
        raise StrapError(f"cannot reach Ray at '{address or 'local'}': {error}{hint}") from error
    try:
        if address is None:
            nodes: Any = ray.nodes
            _require_loopback(nodes())
        yield ray
    finally:
        ray.shutdown()


def _stay_on_loopback() -> None:
    """Do what `ONE_MACHINE` does, in case Ray was imported before the variable was set.

    For a version of Ray without this constant, `_require_loopback` raises if needed.
    """
    try:
        from ray._private import ray_constants
    except ImportError:
        return
    if hasattr(ray_constants, "ENABLE_RAY_CLUSTER"):
        ray_constants.ENABLE_RAY_CLUSTER = False


def _require_loopback(nodes: Sequence[Mapping[str, Any]]) -> None:
    for node in nodes:
        ip = node["NodeManagerAddress"]
        if ip not in ("127.0.0.1", "::1"):
            raise StrapError(
                f"Ray would listen on {ip}, where everybody in the network can reach it: set "
                f"{ONE_MACHINE}=0 in the environment, or start a cluster yourself and give its "
                "address"
            )


def place_near(machine: str | None, *, soft: bool = True) -> dict[str, Any]:
    """Return Ray's options to run a task on a machine; if `soft`, elsewhere if that one is lost."""
    if machine is None:
        return {}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=soft)}


def get_result(ray: Any, task: object) -> Any:
    """Return a task's result; a StrapError in the task is raised with its own text."""
    try:
        return ray.get(task)
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, StrapError):
            raise StrapError(str(cause)) from error
        if isinstance(error, ray.exceptions.ActorDiedError):
            raise StrapError(f"a Ray worker could not be started: {error}") from error
        raise
