"""The marks that users give to matches and tasks, and the matches that remain after them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strap.errors import StrapError
from strap.types import Match, Matches, Segment

Verdict = Literal["", "accepted", "rejected"]


@dataclass(frozen=True)
class Mark:
    """A user's verdict on a match or task, and its weight."""

    verdict: Verdict = ""
    weight: float = 1.0


@dataclass(frozen=True)
class Step:
    """New marks of some matches and tasks; all other marks stay as they are."""

    matches: Mapping[int, Mark] = field(default_factory=dict)
    """row of matches.parquet -> its mark"""
    tasks: Mapping[str, Mark] = field(default_factory=dict)
    """instruction -> its mark"""
    top_k: tuple[int | None, ...] = ()
    """the new limit, or None for no limit; empty: unchanged"""

    def __len__(self) -> int:
        return len(self.matches) + len(self.tasks) + len(self.top_k)


@dataclass(frozen=True)
class Choices:
    """A user's choices among a run's matches, with the steps that undo and redo them."""

    fingerprint: str | None = None
    """fingerprint of the matches; None if nothing was chosen yet"""
    matches: Mapping[int, Mark] = field(default_factory=dict)
    """row of matches.parquet -> the mark of that match"""
    tasks: Mapping[str, Mark] = field(default_factory=dict)
    """instruction -> the mark of all matches with it"""
    top_k: int | None = None
    """how many matches to keep in total, the cheapest of each query; None: all"""
    undo: tuple[Step, ...] = ()
    redo: tuple[Step, ...] = ()
    """steps to undo and to redo; the last one comes first"""

    def is_of(self, matches: Matches) -> bool:
        """Return whether the choices were made among these matches; empty choices fit any."""
        return self.fingerprint is None or self.fingerprint == fingerprint_matches(matches)

    def weights(self, matches: Matches) -> list[float]:
        """Return the weight of each match that remains: its own weight × its task's."""
        return [self._weight(row, matches[row]) for row in self.rows(matches)]

    def rows(self, matches: Matches) -> list[int]:
        """Return the rows of the matches that remain.

        An accepted match always remains, a rejected one never. Any other match remains unless its
        task is rejected or it is beyond its query's share of `top_k`.
        """
        self.require_of(matches)
        within = _within_share(matches, self.top_k)
        return [row for row, match in enumerate(matches) if self._keeps(row, match, within)]

    def describe(self, matches: Matches) -> dict[str, Any]:
        """Return the choices as JSON values."""
        marks = sorted(self.matches.items())
        tasks = sorted(self.tasks.items())
        return {
            "rejected": [row for row, mark in marks if mark.verdict == "rejected"],
            "accepted": [row for row, mark in marks if mark.verdict == "accepted"],
            "match_weights": {str(row): mark.weight for row, mark in marks if mark.weight != 1},
            "task_weights": {task: mark.weight for task, mark in tasks if mark.weight != 1},
            "rejected_tasks": [task for task, mark in tasks if mark.verdict == "rejected"],
            "top_k": self.top_k,
            "undo": len(self.undo),
            "redo": len(self.redo),
            "kept": len(self.rows(matches)),
        }

    def lost_tasks(self, matches: Matches) -> list[str]:
        """Return the tasks that have a mark but no match (any more)."""
        instructions = {match.instruction for match in matches}
        return sorted(set(self.tasks) - instructions)

    def require_of(self, matches: Matches) -> None:
        """Raise if the choices were made among other matches."""
        if not self.is_of(matches):
            raise StrapError(
                f"the choices are of other matches than these {len(matches)}: retrieve with the "
                "same options again, or remove choices.json"
            )
        if beyond := [row for row in self.matches if row >= len(matches)]:
            raise StrapError(
                f"the choices are damaged: they name match {beyond[0]} of {len(matches)}; remove "
                "choices.json to start again"
            )

    def _keeps(self, row: int, match: Match, within: frozenset[int]) -> bool:
        verdict = self.matches.get(row, Mark()).verdict
        if verdict:
            return verdict == "accepted"
        return row in within and self.tasks.get(match.instruction, Mark()).verdict != "rejected"

    def _weight(self, row: int, match: Match) -> float:
        mark, task = self.matches.get(row, Mark()), self.tasks.get(match.instruction, Mark())
        return mark.weight * task.weight


@dataclass(frozen=True)
class ChosenMatches:
    """The matches of a run that remain after its choices."""

    matches: Matches
    weights: tuple[float, ...]
    """the weight of each match that remains"""
    rows: tuple[int, ...]
    """their rows in matches.parquet"""
    total: int
    """the number of matches without choices"""
    fingerprint: str | None
    """fingerprint of the choices; None if none were made or used"""

    def to_json(self) -> dict[str, Any] | None:
        """Return a manifest's entry about the choices; None if none were made or used."""
        if self.fingerprint is None:
            return None
        counts = {"matches": self.total, "kept": len(self.rows), "reweighed": self.n_reweighed}
        return {"fingerprint": self.fingerprint, **counts}

    @property
    def n_reweighed(self) -> int:
        """The number of remaining matches whose weight is not 1."""
        return sum(weight != 1 for weight in self.weights)

    def __str__(self) -> str:
        return (
            f"choices: {len(self.rows)} of {self.total} matches kept, {self.n_reweighed} "
            "re-weighed (strap view)"
        )


def fingerprint_matches(matches: Matches) -> str:
    """Return a hash of the query, segment and dataset of every match, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for match in matches:
        digest.update(repr((match.query, match.segment, match.dataset)).encode())
    return digest.hexdigest()


def _within_share(matches: Matches, top_k: int | None) -> frozenset[int]:
    """Return the rows that remain if retrieval's rule `even` keeps `top_k` matches."""
    if top_k is None:
        return frozenset(range(len(matches)))
    from strap.retrieval.selection import quotas  # imported here: it imports the whole search

    rows: dict[Segment, list[int]] = {}
    for row in sorted(range(len(matches)), key=lambda row: matches[row].rank):
        rows.setdefault(matches[row].query, []).append(row)
    ordered = [rows[query] for query in matches.queries]
    shares = quotas([[matches[row].cost for row in of_query] for of_query in ordered], top_k)
    kept = (of_query[:share] for of_query, share in zip(ordered, shares, strict=True))
    return frozenset(row for of_query in kept for row in of_query)
