"""Changes of choices: from a user's request to new choices and the step that undoes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strap.choices.marks import Choices, Mark, Step, Verdict, fingerprint_matches
from strap.errors import StrapError, printable, shorten
from strap.types import Matches

MAX_STEPS = 200
"""maximum number of steps that can be undone"""
MAX_MARKS = 200_000
"""maximum number of marks in these steps together; beyond it the oldest steps are dropped"""
MAX_WEIGHT = 1000.0
CHANGES = (
    *({"reject"}, {"accept"}, {"clear"}, {"weight", "rows"}),
    *({"task", "weight"}, {"reject_task"}, {"clear_task"}, {"top_k"}, {"undo"}, {"redo"}),
)
"""the sets of keys that a change can have"""


def apply_change(choices: Choices, matches: Matches, change: Mapping[str, Any]) -> Choices:
    """Return the choices after a change, or the same object if nothing changes.

    A change has the keys of one entry of CHANGES, see `change_choices`. Raise if it has others, or
    if a row, task, weight or top_k is not valid.
    """
    if set(change) not in CHANGES:
        known = "; ".join(" and ".join(sorted(keys)) for keys in CHANGES)
        given = shorten(printable(" and ".join(sorted(map(str, change))))) or "nothing"
        raise StrapError(f"unknown change of choices '{given}': give one of {known}")
    if "undo" in change or "redo" in change:
        return _retrace(choices, change)
    step = _keep_effective(choices, _make_step(choices, matches, change))
    if not len(step):
        return choices
    after, back = _apply(choices, step)
    return Choices(
        fingerprint_matches(matches),
        after.matches,
        after.tasks,
        after.top_k,
        _drop_oldest([*choices.undo, back]),
    )


def _retrace(choices: Choices, change: Mapping[str, Any]) -> Choices:
    """Return the choices after an undo or redo; the same object if there is no step for it."""
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
    """Return the choices after a step, and the step that undoes it."""
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


def _keep_effective(choices: Choices, step: Step) -> Step:
    """Return the step without the marks that would change nothing."""
    matches = {r: m for r, m in step.matches.items() if choices.matches.get(r, Mark()) != m}
    tasks = {t: m for t, m in step.tasks.items() if choices.tasks.get(t, Mark()) != m}
    return Step(matches, tasks, step.top_k if step.top_k != (choices.top_k,) else ())


def _drop_oldest(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the newest steps within MAX_STEPS and MAX_MARKS, but at least one."""
    kept: list[Step] = []
    size = 0
    for step in reversed(steps[-MAX_STEPS:]):
        size += len(step)
        if kept and size > MAX_MARKS:
            break
        kept.append(step)
    return tuple(reversed(kept))


def _make_step(choices: Choices, matches: Matches, change: Mapping[str, Any]) -> Step:
    """Return the new marks of matches or of a task, or the new `top_k`, of a change.

    If the change is of a task, the step also clears the marks of tasks that no match has any more.
    """
    lost = dict.fromkeys(choices.lost_tasks(matches), Mark())
    if "top_k" in change:
        return Step(top_k=(require_top_k(change["top_k"]),))
    if "rows" in change:
        weight = require_weight(change["weight"])
        rows = _rows(change["rows"], matches)
        return Step({row: _reweigh(choices.matches.get(row, Mark()), weight) for row in rows})
    if "task" in change:
        weight, task = require_weight(change["weight"]), _task(change["task"], matches)
        mark = _reweigh(choices.tasks.get(task, Mark()), weight)
        return Step(tasks={**lost, task: mark})
    (name, value), *_ = change.items()
    if name in ("reject_task", "clear_task"):
        if name == "clear_task" and value in list(lost):  # the value need not be hashable
            return Step(tasks=lost)
        task = _task(value, matches)
        rejected = Mark("rejected", choices.tasks.get(task, Mark()).weight)
        return Step(tasks={**lost, task: rejected if name == "reject_task" else Mark()})
    rows = _rows(value, matches)
    if name == "clear":
        return Step(dict.fromkeys(rows, Mark()))
    verdict: Verdict = "rejected" if name == "reject" else "accepted"
    return Step({row: Mark(verdict, choices.matches.get(row, Mark()).weight) for row in rows})


def _reweigh(mark: Mark, weight: float) -> Mark:
    """Return a mark with a new weight: 0 rejects, any other weight takes back a rejection."""
    if weight == 0:
        return Mark("rejected", mark.weight)
    return Mark("" if mark.verdict == "rejected" else mark.verdict, weight)


def require_weight(value: Any) -> float:
    """Return a weight as a float; raise if it is not a valid weight."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_WEIGHT:
        raise StrapError(
            f"weight is {shorten(repr(value))}: it must be a number from 0 (rejected) to "
            f"{MAX_WEIGHT:g}; 1 is the default"
        )
    return float(value)


def require_top_k(value: Any) -> int | None:
    """Return how many matches to keep, or None for all; raise if the value is neither."""
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
                f"row {shorten(repr(row))} is not in matches.parquet, which has rows 0 to "
                f"{len(matches) - 1}"
            )
    return list(dict.fromkeys(value))


def _task(value: Any, matches: Matches) -> str:
    known = dict.fromkeys(match.instruction for match in matches)
    if not isinstance(value, str) or value not in known:
        raise StrapError(
            f"no match has task {shorten(repr(value))}: give the whole instruction of a match, as "
            f"{shorten(repr(next(iter(known), '')))}"
        )
    return value
