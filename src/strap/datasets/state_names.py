"""Which names say that an array is proprioception, where its place in a dataset does not."""

from __future__ import annotations

import re

STATE_WORDS = (
    *("state", "pos", "pose", "position", "joint", "qpos", "ee", "eef", "tcp", "cartesian"),
    *("gripper", "proprio", "proprioception"),
)
"""words, also with an s, of proprioception in datasets that name no observations"""
NO_STATE_WORDS = ("action", "next", "goal", "target", "command", "env", "environment", "object")
"""words of what has such a name too and is no proprioception"""


def is_state_name(name: str) -> bool:
    """Return whether an array of this name is proprioception.

    >>> [is_state_name(name) for name in ("state", "joint_positions", "goal_state", "reward")]
    [True, True, False, False]
    """
    written = re.split(r"[^a-z0-9]+", name.lower())
    words = {*written, *(word.removesuffix("s") for word in written)}
    return not words.isdisjoint(STATE_WORDS) and words.isdisjoint(NO_STATE_WORDS)
