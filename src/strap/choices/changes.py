"""A change of choices, from a user's words to new choices and the step that undoes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strap.choices.marks import Choices, Mark, Step, Verdict, fingerprint_matches
from strap.errors import StrapError, printable, shorten
from strap.types import Matches

MAX_STEPS = 200
"""that can be undone"""
MAX_MARKS = 200_000
"""in all steps that can be undone, together; the oldest steps are dropped for it"""
MAX_WEIGHT = 1000.0
CHANGES = (
    *({"reject"}, {"accept"}, {"clear"}, {"weight", "rows"}),
    *({"task", "weight"}, {"reject_task"}, {"clear_task"}, {"top_k"}, {"undo"}, {"redo"}),
)
"""which keys a change has"""


def apply_change(choices: Choices, matches: Matches, change: Mapping[str, Any]) -> Choices:
    """Return the choices after a change, as `change_choices` takes it; the same if it says nothing.

    A change takes one of the forms of CHANGES; others, rows that are none, and weights that are no
    weights are errors.
    """
    if set(change) not in CHANGES:
        known = "; ".join(" and ".join(sorted(keys)) for keys in CHANGES)
        given = shorten(printable(" and ".join(sorted(map(str, change))))) or "nothing"
        raise StrapError(f"unknown change of choices '{given}': say one of {known}")
    if "undo" in change or "redo" in change:
        return _retrace(choices, change)
    step = _without_no_change(choices, _step(choices, matches, change))
    if not len(step):
        return choices
    after, back = _apply(choices, step)
    return Choices(
        fingerprint_matches(matches),
        after.matches,
        after.tasks,
        after.top_k,
        _bounded([*choices.undo, back]),
    )


def _retrace(choices: Choices, change: Mapping[str, Any]) -> Choices:
    """Return the choices one step back or forth; the same where there is no such step."""
    (name, value), *_ = change.items()
    if value is not True:
        raise StrapError(f'{name} is {shorten(repr(value))}: say {{"{name}": true}}')
    steps = choices.undo if name == "undo" else choices.redo
    if not steps:
        return choices
    after, back = _apply(choices, steps[-1])
    undo, redo = (
        (steps[:-1], (*choices.redo, back))
        if name == "undo"
        else ((*choices.undo, back), steps[:-1])
    )
    fields = (choices.fingerprint, after.matches, after.tasks, after.top_k)
    return Choices(*fields, undo, redo)


def _apply(choices: Choices, step: Step) -> tuple[Choices, Step]:
    """Return the choices after a step, and the step that leads back."""
    back = Step(
        {row: choices.matches.get(row, Mark()) for row in step.matches},
        {task: choices.tasks.get(task, Mark()) for task in step.tasks},
        (choices.top_k,) if step.top_k else (),
    )
    matches = {**choices.matches, **step.matches}
    tasks = {**choices.tasks, **step.tasks}
    return Choices(
        choices.fingerprint,
        {row: mark for row, mark in matches.items() if mark != Mark()},
        {task: mark for task, mark in tasks.items() if mark != Mark()},
        step.top_k[0] if step.top_k else choices.top_k,
    ), back


def _without_no_change(choices: Choices, step: Step) -> Step:
    """Return what of a step would change anything."""
    matches = {r: m for r, m in step.matches.items() if choices.matches.get(r, Mark()) != m}
    tasks = {t: m for t, m in step.tasks.items() if choices.tasks.get(t, Mark()) != m}
    return Step(matches, tasks, step.top_k if step.top_k != (choices.top_k,) else ())


def _bounded(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the last steps, so many that they are neither too many nor too large; one at least."""
    kept: list[Step] = []
    size = 0
    for step in reversed(steps[-MAX_STEPS:]):
        size += len(step)
        if kept and size > MAX_MARKS:
            break
        kept.append(step)
    return tuple(reversed(kept))


def _step(choices: Choices, matches: Matches, change: Mapping[str, Any]) -> Step:
    """Return what a change says of matches, of a task, or of how many are kept.

    With a task, what was said of tasks that no match has any more is taken back.
    """
    lost = dict.fromkeys(choices.lost_tasks(matches), Mark())
    if "top_k" in change:
        return Step(top_k=(require_top_k(change["top_k"]),))
    if "rows" in change:
        weight = require_weight(change["weight"])
        rows = _rows(change["rows"], matches)
        return Step({row: _weighed(choices.matches.get(row, Mark()), weight) for row in rows})
    if "task" in change:
        weight, task = require_weight(change["weight"]), _task(change["task"], matches)
        mark = _weighed(choices.tasks.get(task, Mark()), weight)
        return Step(tasks={**lost, task: mark})
    (name, value), *_ = change.items()
    if name in ("reject_task", "clear_task"):
        if name == "clear_task" and value in [*lost]:
            return Step(tasks=lost)
        task = _task(value, matches)
        said = choices.tasks.get(task, Mark())
        rejected = Mark("rejected", said.weight)
        return Step(tasks={**lost, task: rejected if name == "reject_task" else Mark()})
    rows = _rows(value, matches)
    if name == "clear":
        return Step(dict.fromkeys(rows, Mark()))
    verdict: Verdict = "rejected" if name == "reject" else "accepted"
    return Step({row: Mark(verdict, choices.matches.get(row, Mark()).weight) for row in rows})


def _weighed(mark: Mark, weight: float) -> Mark:
    """Return a mark with a new weight: 0 rejects, and any other takes a rejection back."""
    if weight == 0:
        return Mark("rejected", mark.weight)
    return Mark("" if mark.verdict == "rejected" else mark.verdict, weight)


def require_weight(value: Any) -> float:
    """Return a weight; raise where it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_WEIGHT:
        raise StrapError(
            f"weight is {shorten(repr(value))}: it must be a number from 0, which rejects, to "
            f"{MAX_WEIGHT:g}; 1 is as usual"
        )
    return float(value)


def require_top_k(value: Any) -> int | None:
    """Return how many to keep, or None for all; raise where it says neither."""
    if value is not None and (type(value) is not int or value < 1):
        raise StrapError(
            f"top_k is {shorten(repr(value))}: it must be at least 1, or null to keep all"
        )
    return value


def _rows(value: Any, matches: Matches) -> list[int]:
    if not isinstance(value, list | tuple):
        raise StrapError(f"rows are {shorten(repr(value))}: give a list of rows of matches.parquet")
    for row in value:
        if type(row) is not int or not 0 <= row < len(matches):
            raise StrapError(
                f"row {shorten(repr(row))} is none of matches.parquet: it has rows 0 to "
                f"{len(matches) - 1}"
            )
    return list(dict.fromkeys(value))


def _task(value: Any, matches: Matches) -> str:
    known = dict.fromkeys(match.instruction for match in matches)
    if not isinstance(value, str) or value not in known:
        raise StrapError(
            f"task {shorten(repr(value))} is none of the matches': give the whole instruction of "
            f"one of them, as {shorten(repr(next(iter(known), '')))}"
        )
    return value
