"""Recognise proprioception by the names of arrays, for datasets that do not mark it otherwise."""

from __future__ import annotations

import re

STATE_WORDS = (
    *("state", "pos", "pose", "position", "joint", "qpos", "ee", "eef", "tcp", "cartesian"),
    *("gripper", "proprio", "proprioception"),
)
"""words in the names of proprioception, also in the plural"""
NO_STATE_WORDS = ("action", "next", "goal", "target", "command", "env", "environment", "object")
"""words in the names of arrays that are not proprioception, even with one of `STATE_WORDS`"""


def is_state_name(name: str) -> bool:
    """Return whether an array with this name is proprioception.

    >>> [is_state_name(name) for name in ("state", "joint_positions", "goal_state", "reward")]
    [True, True, False, False]
    """
    written = re.split(r"[^a-z0-9]+", name.lower())
    words = {*written, *(word.removesuffix("s") for word in written)}
    return not words.isdisjoint(STATE_WORDS) and words.isdisjoint(NO_STATE_WORDS)
