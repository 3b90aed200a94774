"""RUN/choices.json: reading it, changing it under a lock, and applying it to the run's matches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, get_args

from strap.atomic import read_json, write_json
from strap.choices.changes import apply_change, require_top_k, require_weight
from strap.choices.marks import Choices, ChosenMatches, Mark, Step, Verdict, fingerprint_matches
from strap.errors import StrapError, name_some, printable, shorten, unknown
from strap.locks import hold_lock
from strap.provenance import fingerprint_json
from strap.types import Match, Matches, Segment

FILE = "choices.json"
OLDER = "choices-older"
"""prefix of the files that choices are moved to when a user chooses among other matches:
choices-older.json, choices-older-2.json, …"""
LOCK_FILE = ".choices.lock"
FORMAT = "strap-choices"
ChoicesMode = Literal["use", "ignore"]
"""Whether a command applies the choices of a run."""


def open_choices(run_path: str | Path) -> Choices:
    """Open the choices of a run; without a file there are none."""
    file = Path(run_path).expanduser() / FILE
    if not file.exists():
        return Choices()
    content = read_json(file)
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, AttributeError, StrapError) as error:
        raise StrapError(
            f"'{file}' is damaged ({shorten(printable(str(error)))}): restore it from a copy, or "
            "remove it to start again"
        ) from error


def choose_matches(
    run_path: str | Path, matches: Matches, use: ChoicesMode = "use"
) -> ChosenMatches:
    """Return the matches that remain after the choices of a run; all, if there are no choices.

    If the choices were made among other matches, for instance before the retrieval was repeated,
    there is a warning and they are not applied.

    Args:
        run_path: the run's folder.
        matches: all matches of the run.
        use: `use` the choices, or `ignore` them.
    """
    if use not in get_args(ChoicesMode):
        raise unknown("use of choices", use, get_args(ChoicesMode))
    choices = open_choices(run_path) if use == "use" else Choices()
    file = Path(run_path).expanduser() / FILE
    if not choices.is_of(matches):
        warnings.warn(
            f"'{file}' is of other matches than the run has now: it is not applied; choose again "
            f"with `strap view`, which keeps the old file as '{_older(file.parent).name}', or "
            "remove it",
            stacklevel=2,
        )
        choices = Choices()
    if lost := choices.lost_tasks(matches):
        warnings.warn(
            f"'{file}' rejects or weighs {name_some([_quote(task) for task in lost])}, which no "
            "match of the run has any more: this has no effect; choose again with `strap view`, "
            "where the task has another name now",
            stacklevel=2,
        )
    rows = choices.rows(matches)
    if len(matches) and not rows:
        raise StrapError(
            f"all {len(matches)} matches of '{run_path}' are rejected: keep some with `strap "
            "view`, or give --choices ignore"
        )
    has_choices = choices.matches or choices.tasks or choices.top_k is not None
    return ChosenMatches(
        Matches(tuple(matches[row] for row in rows)),
        tuple(choices.weights(matches)),
        tuple(rows),
        len(matches),
        _fingerprint(choices) if has_choices else None,
    )


def change_choices(run_path: str | Path, matches: Matches, change: Mapping[str, Any]) -> Choices:
    """Change the choices of a run on disk and return them; safe for several processes at a time.

    Choices among other matches are moved to a file of their own. Raise if `matches` are not the
    run's matches on disk any more.

    Args:
        run_path: the run's folder.
        matches: all matches of the run.
        change: {"reject": rows}, {"accept": rows}, {"clear": rows}, {"weight": w, "rows": rows},
            {"task": text, "weight": w}, {"reject_task": text}, {"clear_task": text},
            {"top_k": number or None}, {"undo": True} or {"redo": True}. Weight 0 rejects.
    """
    run_path = Path(run_path).expanduser()
    with hold_lock(run_path / LOCK_FILE):
        _require_present(run_path, matches)
        before = open_choices(run_path)
        if not before.is_of(matches):
            (run_path / FILE).replace(_older(run_path))
            before = Choices()
        after = apply_change(before, matches, change)
        if after != before:
            _write(run_path, after)
    return after


def carry_over(run_path: str | Path, before: Matches, after: Matches) -> Choices:
    """Keep the choices of matches and tasks that a repeated run still has, and return them.

    Steps before the repetition cannot be undone.

    Args:
        run_path: the run's folder.
        before: the run's matches before it was repeated.
        after: its matches now.
    """
    run_path = Path(run_path).expanduser()
    with hold_lock(run_path / LOCK_FILE):
        choices = open_choices(run_path)
        if choices.fingerprint is None or not choices.is_of(before):
            return choices
        rows = {_identity(match): row for row, match in enumerate(after)}
        found = [(rows.get(_identity(before[row])), mark) for row, mark in choices.matches.items()]
        instructions = {match.instruction for match in after}
        kept = Choices(
            fingerprint_matches(after),
            {row: mark for row, mark in found if row is not None},
            {task: mark for task, mark in choices.tasks.items() if task in instructions},
            choices.top_k,
        )
        _write(run_path, kept)
    return kept


def _identity(match: Match) -> tuple[Segment, Segment, str]:
    return match.query, match.segment, match.dataset


def _require_present(run_path: Path, matches: Matches) -> None:
    """Raise unless the run's matches on disk are the given ones."""
    file = (run_path / "matches.parquet").resolve()
    found = file.stat() if file.exists() else None  # if the file is missing, reading it raises
    stamp = (found.st_mtime_ns, found.st_size, found.st_ino) if found else None
    if _fingerprint_file(file, stamp) != fingerprint_matches(matches):
        raise StrapError(
            f"'{run_path}' was made again and has other matches now: open it again (reload the "
            "page), then choose"
        )


@lru_cache(maxsize=16)
def _fingerprint_file(file: Path, _stamp: tuple[int, ...] | None) -> str:
    """Return the fingerprint of a file's matches; the file is read again if its stamp changes."""
    return fingerprint_matches(Matches.from_parquet(file))


def _older(run_path: Path) -> Path:
    """Return the first unused file for choices among other matches."""
    names = chain([OLDER], (f"{OLDER}-{number}" for number in count(2)))
    files = (run_path / f"{name}.json" for name in names)
    return next(file for file in files if not file.exists())


def _quote(task: str) -> str:
    return f"task '{shorten(printable(task))}'"


def _fingerprint(choices: Choices) -> str:
    """Return a hash of the choices and of the matches that they are made among."""
    marks = _step_to_json(Step(choices.matches, choices.tasks, (choices.top_k,)))
    return fingerprint_json([choices.fingerprint, marks])


def _write(run_path: Path, choices: Choices) -> None:
    marks = Step(choices.matches, choices.tasks, (choices.top_k,))
    content = {
        "format": FORMAT,
        "matches": choices.fingerprint,
        "choices": _step_to_json(marks),
        "undo": [_step_to_json(step) for step in choices.undo],
        "redo": [_step_to_json(step) for step in choices.redo],
    }
    write_json(run_path / FILE, content)


def _step_to_json(step: Step) -> dict[str, Any]:
    return {
        "matches": {str(row): [m.verdict, m.weight] for row, m in sorted(step.matches.items())},
        "tasks": {task: [mark.verdict, mark.weight] for task, mark in sorted(step.tasks.items())},
        "top_k": list(step.top_k),
    }


def _parse(content: Any) -> Choices:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("it holds no choices")
    if not isinstance(content["matches"], str):
        raise ValueError("it does not say for which matches")
    marks = _parse_step(content["choices"])
    undo, redo = (tuple(map(_parse_step, content[name])) for name in ("undo", "redo"))
    top_k = marks.top_k[0] if marks.top_k else None
    return Choices(content["matches"], marks.matches, marks.tasks, top_k, undo, redo)


def _parse_step(row: Any) -> Step:
    top_k = tuple(require_top_k(value) for value in row["top_k"])
    if len(top_k) > 1:
        raise ValueError("more than one top_k")
    matches = {_parse_row(key): _parse_mark(value) for key, value in row["matches"].items()}
    return Step(matches, {k: _parse_mark(value) for k, value in row["tasks"].items()}, top_k)


def _parse_row(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"'{text}' is not a row")
    return int(text)


def _parse_mark(value: Any) -> Mark:
    verdict, weight = value
    if verdict not in get_args(Verdict):
        raise unknown("verdict", verdict, get_args(Verdict))
    if not require_weight(weight):
        raise ValueError("a weight is 0: it must be above 0")
    return Mark(verdict, float(weight))
