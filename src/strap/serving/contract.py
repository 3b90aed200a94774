"""What clients of a policy server are told, and what they must send."""

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
"""the keys of a message besides the policy's cameras and proprioception"""
LEAST_LIMIT = 16 << 20
"""bytes that a message may always have, so that an image of a wrong size is told as that"""
WIDEST = 8
"""bytes of the widest number: an image that was made float64 is told as that, too"""


@dataclass(frozen=True, eq=False)
class Request:
    """A message of a client, read."""

    observation: Observation
    is_first: bool
    """whether an episode begins with it"""


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Return what a client is told when it connects."""
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


def describe_wants(policy: Policy) -> dict[str, str]:
    """Return in words what the policy wants to be sent, for whoever starts its server."""
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
    """Raise where a message's keys would not tell what is meant."""
    names = [*interface.cameras, *interface.proprioception, *MESSAGE_KEYS]
    if double := [name for name in names if names.count(name) > 1]:
        raise StrapError(
            f"this policy's '{double[0]}' is the name of two things in a message: train it with "
            f"cameras and proprioception of different names, none of them {', '.join(MESSAGE_KEYS)}"
        )


def message_limit(interface: Interface) -> int:
    """Return how many bytes a client's message may have."""
    pixels = sum(
        math.prod(max(frame_sizes(name, interface), key=math.prod)) * 3
        for name in interface.cameras
    )
    numbers = sum(interface.proprioception.values())
    return LEAST_LIMIT + WIDEST * (pixels + numbers)


def read_request(message: Mapping[str, Any], interface: Interface) -> Request:
    """Return what a message asks for; whether its values fit is the policy's to say."""
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
            "else leave it out"
        )
    images = {name: message[name] for name in interface.cameras if name in message}
    state = {key: message[key] for key in interface.proprioception if key in message}
    seen = Observation(images, state, message["prompt"], message.get("rate"))
    return Request(seen, is_first)
