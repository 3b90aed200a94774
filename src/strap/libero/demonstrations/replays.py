"""Playing a recorded demonstration's actions again from its first state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py

from strap.errors import StrapError
from strap.libero.environment import LiberoEnv
from strap.libero.tasks import Task, find_task


def replay(env: LiberoEnv, file: str | Path, demo: str) -> bool:
    """Whether the actions of `data/<demo>` solve the task again, in the physics alone.

    Where a file holds intended actions, those that were executed beside them are played.
    """
    with h5py.File(file, "r") as stored:
        if demo not in stored["data"]:
            raise StrapError(f"{file} has no '{demo}': it has {', '.join(stored['data'])}")
        group = stored["data"][demo]
        executed = group["executed_actions" if "executed_actions" in group else "actions"]
        actions, state = executed[()], group["states"][0]
        model_xml = str(group.attrs["model_file"])
    env.place_fixtures(model_xml)
    env.restore(state)
    solved = False
    for action in actions:
        solved = env.step(action)
    return solved


def replay_all(file: str | Path, suite: str) -> Iterator[tuple[str, bool]]:
    """Replay every demonstration of a file: its name, and whether it was solved again."""
    with h5py.File(file, "r") as stored:
        demos = sorted(stored["data"], key=lambda name: int(name.split("_")[1]))
    with LiberoEnv(task_of(file, suite), cameras=False) as env:
        for demo in demos:
            yield demo, replay(env, file, demo)


def task_of(file: str | Path, suite: str) -> Task:
    """The task that a file's name says it is of."""
    return find_task(suite, Path(file).stem.removesuffix("_demo"))
