"""Runs side by side, rollouts side by side, or a dataset, as plain data for a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strap.atomic import read_json
from strap.datasets import Dataset
from strap.errors import StrapError, printable
from strap.evaluation.records import DESCRIPTION, FPS, read_records, require_same_task
from strap.evaluation.statistics import mcnemar, wilson
from strap.runs import Run
from strap.types import Trajectory
from strap.view.contents import FRAME_RATE

Description = Mapping[str, Any]
"""a run as plain data for a page, see `describe_run`"""


def describe_comparison(runs: Sequence[Run], descriptions: Sequence[Description]) -> dict[str, Any]:
    """Return runs of one target side by side.

    `alignment` has an entry for each query of the first run. Its `queries` are the query of each
    run that has most frames in common with it (None if no query has any). Its `only` are, for each
    run, the rows of that query's matches that overlap with no match of the other runs.

    Args:
        runs: two or more runs.
        descriptions: each run as plain data, with its demonstrations, queries and matches.
    """
    for run in runs[1:]:
        targets = [_describe_target(compared) for compared in (runs[0], run)]
        if targets[0] != targets[1]:
            raise StrapError(
                f"'{runs[0].path}' and '{run.path}' have different targets ({targets[0]}; "
                f"{targets[1]}): only runs of the same demonstrations can be compared"
            )
    first, names = descriptions[0], tell_apart([run.path for run in runs])
    rows = [_rows_of_queries(run) for run in descriptions]
    alignment = []
    for number in range(len(first["queries"])):
        queries = [_find_aligned_query(first, number, run) for run in descriptions]
        pairs = zip(rows, queries, strict=True)
        found = [by_query[q] if q is not None else [] for by_query, q in pairs]
        alignment.append({"queries": queries, "only": _list_unshared(descriptions, found)})
    named = [{**run, "name": name} for run, name in zip(descriptions, names, strict=True)]
    return {
        "kind": "comparison",
        "title": first["title"],
        "name": " and ".join(names),
        "read_only": True,
        "runs": named,
        "alignment": alignment,
    }


def _describe_target(run: Run) -> str:
    """Return the target of a run, with the tasks and episodes that were selected from it."""
    arguments = run.manifest["arguments"]
    chosen = arguments.get("target_selection") or {}
    parts = [str(arguments["target"]), *chosen.get("tasks", ())]
    return printable(", ".join([*parts, *filter(None, [chosen.get("episodes")])]))


def _query(run: Description, number: int) -> tuple[str, int, int]:
    query = run["queries"][number]
    return run["demonstrations"][query["demonstration"]]["id"], query["start"], query["stop"]


def _find_aligned_query(first: Description, number: int, run: Description) -> int | None:
    """Return the query of a run with most frames in common with a query of the first run.

    Of several such queries, it is the first; None if no query has a frame in common.
    """
    if run is first:
        return number
    key, start, stop = _query(first, number)
    best, most = None, 0
    for other in range(len(run["queries"])):
        other_key, begin, end = _query(run, other)
        common = min(stop, end) - max(start, begin) if other_key == key else 0
        if common > most:
            best, most = other, common
    return best


def _rows_of_queries(run: Description) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in run["queries"]]
    for row, query in enumerate(run["matches"]["query"]):
        rows[query].append(row)
    return rows


def _list_unshared(runs: Sequence[Description], found: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each run the found rows that overlap with no found row of another run."""
    spans: list[dict[tuple[str, str], list[tuple[int, int]]]] = []
    for run, rows in zip(runs, found, strict=True):
        by_place: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for row in rows:
            by_place.setdefault(_place(run, row), []).append(_span(run, row))
        spans.append(by_place)

    def is_shared(number: int, row: int) -> bool:
        start, stop = _span(runs[number], row)
        place = _place(runs[number], row)
        others = (by_place for other, by_place in enumerate(spans) if other != number)
        of_place = (span for by_place in others for span in by_place.get(place, ()))
        return any(first < stop and start < last for first, last in of_place)

    return [
        [row for row in rows if not is_shared(number, row)] for number, rows in enumerate(found)
    ]


def _place(run: Description, row: int) -> tuple[str, str]:
    matches = run["matches"]
    return run["datasets"][matches["dataset"][row]], matches["trajectory"][row]


def _span(run: Description, row: int) -> tuple[int, int]:
    return run["matches"]["start"][row], run["matches"]["stop"][row]


def tell_apart(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each path: the last part in which all paths differ, or else the path.

    >>> tell_apart([Path("/a/bc/evaluation/task-0"), Path("/a/strap/evaluation/task-0")])
    ['bc', 'strap']
    """
    parts = [path.expanduser().resolve().parts for path in paths]
    for depth in range(1, min(map(len, parts), default=0)):
        names = [part[-depth] for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def is_evaluation(path: Path) -> bool:
    """Return whether `strap evaluate` wrote a folder."""
    return (path / DESCRIPTION).is_file()


def describe_evaluations(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the rollouts of one or more policies on one task as plain data."""
    for path in paths:
        if not is_evaluation(path):
            raise StrapError(f"'{path}' holds no evaluation: make one with `strap evaluate`")
    for other in paths[1:]:
        require_same_task(paths[0], other)
    records = [_read(path) for path in paths]
    names = tell_apart(paths)
    about = read_json(paths[0] / DESCRIPTION)
    evaluations = [
        {
            "name": name,
            "episodes": [_episode(path, episodes[state]) for state in sorted(episodes)],
        }
        for name, path, episodes in zip(names, paths, records, strict=True)
    ]
    return {
        "kind": "evaluation",
        "title": str(about.get("task", "")) or names[0],
        "name": " and ".join(names),
        "read_only": True,
        "facts": _evaluation_facts(about, names, records),
        "fps": FPS,
        "evaluations": evaluations,
    }


def find_video(path: Path, state: int) -> Path:
    """Return the video of the episode that started from an initial state."""
    row = _read(path).get(state)
    if row is None:
        raise StrapError(f"'{path}' has no episode from initial state {state}")
    file = _video(path, row)
    if file is None:
        raise StrapError(f"the episode from initial state {state} of '{path}' has no video")
    return file


def _read(path: Path) -> dict[int, Mapping[str, Any]]:
    """Return initial state -> episode of an evaluation; raise if the records are damaged."""
    try:
        rows = read_records(path)
        for row in rows.values():
            if type(row["success"]) is not bool or type(row["steps"]) is not int:
                raise TypeError(f"success {row['success']!r}, steps {row['steps']!r}")
            if not isinstance(row.get("goals", {}), dict):
                raise TypeError(f"goals {row['goals']!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StrapError(
            f"'{path / 'episodes.jsonl'}' is damaged ({printable(repr(error))[:80]}): restore it "
            "from a copy, or evaluate again"
        ) from error
    return rows


def _episode(path: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    goals = row.get("goals", {}).items()
    return {
        "state": int(row["state"]),
        "success": row["success"],
        "steps": row["steps"],
        "sub_goals": sorted(
            ({"name": name, "step": step} for name, step in goals if type(step) is int),
            key=lambda goal: goal["step"],
        ),
        "video": _video(path, row) is not None,
    }


def _video(path: Path, row: Mapping[str, Any]) -> Path | None:
    """Return an episode's video; None if there is none in the evaluation's folder of videos."""
    name = row.get("video")
    if not isinstance(name, str) or "\0" in name:
        return None
    file, folder = (path / name).resolve(), (path / "videos").resolve()
    return file if file.parent == folder and file.suffix == ".mp4" and file.is_file() else None


def _evaluation_facts(
    about: Mapping[str, Any],
    names: Sequence[str],
    records: Sequence[Mapping[int, Mapping[str, Any]]],
) -> list[list[str]]:
    facts = [[name, str(about[name])] for name in ("suite", "horizon") if name in about]
    successes = [{state: row["success"] for state, row in rows.items()} for rows in records]
    for name, by_state in zip(names, successes, strict=True):
        n_successes, count = sum(by_state.values()), len(by_state)
        low, high = wilson(n_successes, count)
        facts.append([name, f"{n_successes} of {count} succeed ({low:.0%} to {high:.0%})"])
    if len(successes) == 2:
        found = mcnemar(*successes)
        facts += [
            [f"only {names[0]}", str(found.first_only)],
            [f"only {names[1]}", str(found.second_only)],
            ["p of the difference", f"{found.p_value:.2g}"],
        ]
    return facts


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the episodes of a dataset as plain data."""
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    episodes, tasks = [], Counter[str]()
    for trajectory in dataset:
        tasks[trajectory.instruction] += 1
        named = {"id": trajectory.id, "instruction": trajectory.instruction}
        episodes.append({**named, "length": trajectory.length})
    first = dataset[dataset.ids[0]]
    return {
        "kind": "dataset",
        "title": dataset.label,
        "name": dataset.label,
        "read_only": True,
        "facts": _dataset_facts(dataset, first, episodes, len(tasks)),
        "cameras": list(first.cameras),
        "fps": first.fps or FRAME_RATE,
        "episodes": episodes,
    }


def _dataset_facts(
    dataset: Dataset, first: Trajectory, episodes: Sequence[Mapping[str, Any]], n_tasks: int
) -> list[list[str]]:
    sizes = [f"{name} {c.shape[2]}×{c.shape[1]}" for name, c in first.cameras.items()]
    facts = {
        "format": dataset.format,
        "episodes": f"{len(episodes):,}",
        "frames": f"{sum(episode['length'] for episode in episodes):,}",
        "instructions": f"{n_tasks:,}",
        "frames a second": f"{first.fps:g}" if first.fps else "",
        "cameras": ", ".join(sizes),
        "proprioception": ", ".join(first.proprioception),
        "numbers of an action": str(first.actions.shape[1]) if len(first.actions.shape) > 1 else "",
    }
    return [[name, text] for name, text in facts.items() if text]
