"""The exception for users' errors. Its text names the value, the rule and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class StrapError(Exception):
    """An error in the input, the output folder or the machine that the user can correct."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with its control characters escaped, for example `\x1b`.

    Instructions, ids and names come from files. Their control characters and invisible marks must
    be shown in the terminal, not executed by it. Characters in `keep` stay as they are.

    >>> printable("put\x1b[2J the\nbowl")
    'put\\x1b[2J the\\nbowl'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def shorten(text: str, limit: int = 60) -> str:
    """Return the text cut to `limit` characters, for an error message about a file's content."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def name_some(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names, with `…` if there are more."""
    return ", ".join([*names[:limit], *(["…"] if len(names) > limit else [])])


def unknown(kind: str, value: object, known: Iterable[str]) -> StrapError:
    """Return an error for an unknown name, with the most similar known name as a suggestion.

    >>> str(unknown("camera", "agent_view", ["agentview", "wrist"]))
    "unknown camera 'agent_view': did you mean 'agentview'? Known: agentview, wrist"
    """
    names = list(known)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    hint = f" did you mean '{near[0]}'?" if near else ""
    listing = ", ".join(names) if names else "none"
    return StrapError(f"unknown {kind} '{value}':{hint} Known: {listing}")
