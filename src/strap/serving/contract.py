"""The messages between clients and a policy server: metadata, requests and their limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strap.errors import StrapError, name_some, shorten, unknown
from strap.policies.acting import Policy
from strap.policies.inputs import Observation, frame_sizes
from strap.policies.settings import Interface

MESSAGE_KEYS = ("prompt", "reset", "rate")
"""keys of a message in addition to the policy's cameras and proprioception"""
MIN_MESSAGE_LIMIT = 16 << 20
"""bytes that every message may have, so that the error for a too large image names its size"""
MAX_ITEM_BYTES = 8
"""bytes of the largest dtype, so that the error for a float64 image names its dtype"""


@dataclass(frozen=True, eq=False)
class Request:
    """A client's message after parsing."""

    observation: Observation
    is_first: bool
    """whether it is the first of an episode"""


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Return the metadata that a client receives when it connects."""
    interface, settings = policy.interface, policy.settings
    return {
        "server": "strap",
        "cameras": {
            name: {"shapes": [[*size, 3] for size in frame_sizes(name, interface)]}
            | {"dtype": "uint8"}
            for name in interface.cameras
        },
        "proprioception": {
            key: {"shape": [size], "dtype": "float32"}
            for key, size in interface.proprioception.items()
        },
        "actions": {"shape": [1, interface.action_size], "dtype": "float64"},
        "history": settings.history,
        "chunk": settings.chunk,
        "execute": settings.execute,
        "fps": interface.fps,
        "instructions": list(policy.instructions),
    }


def describe_inputs(policy: Policy) -> dict[str, str]:
    """Describe the inputs of the policy in words, for the person who starts the server."""
    interface = policy.interface
    cameras = [
        f"{name} {' or '.join(f'{h}×{w}' for h, w in frame_sizes(name, interface))} (height×width)"
        for name in interface.cameras
    ]
    state = [f"{key} [{size}]" for key, size in interface.proprioception.items()]
    rate = f"{interface.fps:g} actions a second" if interface.fps else "not known: the data's own"
    return {
        "cameras": ", ".join(cameras) or "none",
        "proprioception": ", ".join(state) or "none",
        "actions": f"[{interface.action_size}]",
        "rate": rate,
        "instructions": name_some(policy.instructions),
    }


def require_distinct_names(interface: Interface) -> None:
    """Raise if two parts of a message would have the same key."""
    names = [*interface.cameras, *interface.proprioception, *MESSAGE_KEYS]
    if double := [name for name in names if names.count(name) > 1]:
        raise StrapError(
            f"this policy's '{double[0]}' is the name of two things in a message: train with "
            f"different names for cameras and proprioception, not {', '.join(MESSAGE_KEYS)}"
        )


def message_limit(interface: Interface) -> int:
    """Return the largest number of bytes that a client's message may have."""
    pixels = sum(
        math.prod(max(frame_sizes(name, interface), key=math.prod)) * 3
        for name in interface.cameras
    )
    numbers = sum(interface.proprioception.values())
    return MIN_MESSAGE_LIMIT + MAX_ITEM_BYTES * (pixels + numbers)


def read_request(message: Mapping[str, Any], interface: Interface) -> Request:
    """Parse the keys of a message; the policy checks the values later."""
    known = (*interface.cameras, *interface.proprioception, *MESSAGE_KEYS)
    for name in message:
        if name not in known:
            raise unknown("key", shorten(name), known)
    if "prompt" not in message:
        raise StrapError("the message has no 'prompt': send the instruction with every observation")
    is_first = message.get("reset", False)
    if not isinstance(is_first, bool):
        raise StrapError(
            f"'reset' is {shorten(repr(is_first))}: send true with an episode's first observation, "
            "and leave it out otherwise"
        )
    images = {name: message[name] for name in interface.cameras if name in message}
    state = {key: message[key] for key in interface.proprioception if key in message}
    seen = Observation(images, state, message["prompt"], message.get("rate"))
    return Request(seen, is_first)
