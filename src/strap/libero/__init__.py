"""LIBERO: the simulator, scripted demonstrations and their recording (needs the `libero` extra).

Importing this package loads neither the simulator nor a renderer; the names below do, on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strap.libero.demonstrations.collection import Collection, collect
    from strap.libero.demonstrations.surveys import survey
    from strap.libero.environment import LiberoEnv, Observation
    from strap.libero.rendering.backend import render_check
    from strap.libero.tasks import Task, find_task, list_suites, list_tasks

_HOME = {
    "Collection": "demonstrations.collection",
    "LiberoEnv": "environment",
    "Observation": "environment",
    "Task": "tasks",
    "collect": "demonstrations.collection",
    "find_task": "tasks",
    "list_suites": "tasks",
    "list_tasks": "tasks",
    "render_check": "rendering.backend",
    "survey": "demonstrations.surveys",
}

__all__ = [
    "Collection",
    "LiberoEnv",
    "Observation",
    "Task",
    "collect",
    "find_task",
    "list_suites",
    "list_tasks",
    "render_check",
    "survey",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'strap.libero' has no attribute '{name}'")
    return getattr(import_module(f"strap.libero.{_HOME[name]}"), name)
