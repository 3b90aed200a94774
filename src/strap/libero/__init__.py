"""LIBERO: the simulator, scripted demonstrations and their recording (needs the `libero` extra).

Importing this package loads neither the simulator nor a renderer; using the names below does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strap.libero.demonstrations.collection import Collection, collect
    from strap.libero.demonstrations.surveys import survey
    from strap.libero.doctor import render_check
    from strap.libero.environment import LiberoEnv, SimulatorObservation
    from strap.libero.tasks import Task, find_task, list_suites, list_tasks

_MODULES = {
    "demonstrations.collection": ("Collection", "collect"),
    "demonstrations.surveys": ("survey",),
    "doctor": ("render_check",),
    "environment": ("LiberoEnv", "SimulatorObservation"),
    "tasks": ("Task", "find_task", "list_suites", "list_tasks"),
}

__all__ = [
    "Collection",
    "LiberoEnv",
    "SimulatorObservation",
    "Task",
    "collect",
    "find_task",
    "list_suites",
    "list_tasks",
    "render_check",
    "survey",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"strap.libero.{module}"), name)
    raise AttributeError(f"module 'strap.libero' has no attribute '{name}'")
