"""The one exception users meet: its text names the value, the rule and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class StrapError(Exception):
    """Something about the input, the output place or the machine that the user can mend."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with what a terminal would act on written out: `\x1b` for an escape.

    Instructions, ids and names come from files; control characters and invisible marks in them are
    shown, not sent. Characters in `keep` (a line break, say) pass.

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
    """Return the text, or so much of it, for an error message about what a file holds."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def name_some(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names; a mark says that there are more."""
    return ", ".join([*names[:limit], *(["…"] if len(names) > limit else [])])


def unknown(kind: str, value: object, known: Iterable[str]) -> StrapError:
    """Return an error for a name that is not known, with the nearest known name where one is near.

    >>> str(unknown("camera", "agent_view", ["agentview", "wrist"]))
    "unknown camera 'agent_view': did you mean 'agentview'? Known: agentview, wrist"
    """
    names = list(known)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.4)
    hint = f" did you mean '{near[0]}'?" if near else ""
    listing = ", ".join(names) if names else "none"
    return StrapError(f"unknown {kind} '{value}':{hint} Known: {listing}")
