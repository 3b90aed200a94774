"""A run as plain data for a page: its demonstrations, queries and matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.atomic import read_json
from strap.choices import fingerprint_matches
from strap.datasets import Dataset
from strap.errors import StrapError
from strap.features.cameras import compared_cameras
from strap.runs import Run
from strap.segments import is_tiled, read_segments
from strap.stop_frames import Movements, measure_movements
from strap.store import open_store
from strap.types import Matches, Segment

FRAME_RATE = 20.0
"""frames per second of a dataset that does not record its rate"""
DIGITS = 4
"""significant digits of a movement"""


@dataclass(frozen=True)
class Sources:
    """A run with the datasets that it was made from."""

    run: Run
    target: Dataset
    priors: Sequence[Dataset]
    queries: Sequence[Segment]

    @classmethod
    def of(cls, run: Run) -> Sources:
        """Open a run's datasets; raise if one has changed since the run was made."""
        target, priors = run.datasets()
        run.matches.locate(priors)
        return cls(run, target, priors, list_queries(run))

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the retrieval."""
        found: Mapping[str, Any] = self.run.manifest["arguments"]
        return found


def describe_run(sources: Sources) -> dict[str, Any]:
    """Return the run as a page shows it, without the user's choices.

    `matches` has one list per column, in the order of `matches.parquet`. Its queries, datasets and
    instructions are indices into the lists of these names.
    """
    run, target = sources.run, sources.target
    first = target[target.ids[0]]
    compared = compared_cameras(run.manifest, target) if first.cameras else ()
    return {
        "kind": "run",
        "title": first.instruction or target.label,
        "name": run.path.resolve().name,
        "facts": _facts(sources),
        "cameras": list(dict.fromkeys((*compared, *first.cameras))),
        "fps": first.fps or FRAME_RATE,
        **_describe_queries(sources),
        **_describe_matches(sources),
        "quality": grade_costs(run.matches),
        "fingerprint": fingerprint_matches(run.matches),
    }


def list_queries(run: Run) -> list[Segment]:
    """Return the queries of a run: its segments, or for state methods the matches' queries."""
    named = run.matches.queries
    file = run.path / "segments.json"
    segments = read_segments(file) if file.is_file() else []
    return segments if set(named) <= set(segments) else sorted(named)


def grade_costs(matches: Matches) -> dict[str, float]:
    """Return two costs per frame: up to `good` a match is good in this run, above `poor` poor."""
    if not len(matches):
        return {"good": 0.0, "poor": 0.0}
    good, poor = np.quantile([match.cost_per_frame for match in matches], (1 / 3, 2 / 3))
    return {"good": float(good), "poor": float(poor)}


def significant(values: npt.ArrayLike, digits: int = DIGITS) -> list[Any]:
    """Return numbers rounded to `digits` significant digits, as nested lists."""
    array = np.asarray(values, np.float64)
    with np.errstate(divide="ignore"):
        magnitude = np.floor(np.log10(np.abs(array)))
    magnitude = np.where(np.isfinite(magnitude), magnitude, 0)
    factor = 10.0 ** (digits - 1 - magnitude)
    rounded = np.round(array * factor) / factor
    listed: list[Any] = np.where(np.isfinite(rounded), rounded, 0.0).tolist()
    return listed


def _describe_queries(sources: Sources) -> dict[str, Any]:
    target, movements = sources.target, _movements(sources)
    threshold = _threshold(sources.run)
    numbers = {key: number for number, key in enumerate(target.ids)}
    by_demonstration: list[list[int]] = [[] for _ in target.ids]
    rows = []
    for index, query in enumerate(sources.queries):
        if query.trajectory_id not in numbers:
            raise StrapError(
                f"'{sources.run.path}' has query {query}, which is not part of a demonstration in "
                f"'{target.path}': run `strap retrieve` again"
            )
        number = numbers[query.trajectory_id]
        by_demonstration[number].append(index)
        rows.append({"demonstration": number, "start": query.start, "stop": query.stop})
    demonstrations = [
        {
            "id": trajectory.id,
            "length": trajectory.length,
            "instruction": trajectory.instruction,
            "movement": _movement(movements, trajectory.id),
            "threshold": threshold if movements else None,
            "queries": indices,
            "is_tiled": is_tiled([sources.queries[i] for i in indices], trajectory.length),
        }
        for trajectory, indices in zip(target, by_demonstration, strict=True)
    ]
    return {"demonstrations": demonstrations, "queries": rows}


def _movements(sources: Sources) -> Movements | None:
    """Return the movements of the demonstrations; None if they cannot be measured."""
    saved = sources.arguments.get("segmentation") or {}
    position, norm, unit = (saved.get(name) for name in ("position", "norm", "unit"))
    with suppress(StrapError):
        return measure_movements(
            sources.target, position=position, norm=norm or "l1", unit=unit or "step"
        )
    return None


def _movement(movements: Movements | None, trajectory_id: str) -> list[float] | None:
    """Return the movement from every frame to the next; the last frame repeats the one before."""
    if movements is None:
        return None
    moved = movements.values[trajectory_id]
    return significant(np.append(moved, moved[-1:] if len(moved) else 0.0))


def _threshold(run: Run) -> float | None:
    """Return the movement threshold at which queries were cut; None if they were cut otherwise."""
    file = run.path / "segments.json"
    content = read_json(file) if file.is_file() else {}
    saved = content.get("segmentation") if isinstance(content, dict) else None
    saved = saved if isinstance(saved, dict) else {}
    epsilon = saved.get("epsilon") if saved.get("method") == "stops" else None
    return float(epsilon) if isinstance(epsilon, int | float) else None


def _describe_matches(sources: Sources) -> dict[str, Any]:
    matches = sources.run.matches
    places = {query: index for index, query in enumerate(sources.queries)}
    datasets = {prior.name: index for index, prior in enumerate(sources.priors)}
    instructions = {text: i for i, text in enumerate(dict.fromkeys(m.instruction for m in matches))}
    lengths = _lengths(sources)
    columns: dict[str, list[Any]] = {
        "query": [places[m.query] for m in matches],
        "rank": [m.rank for m in matches],
        "dataset": [datasets[m.dataset] for m in matches],
        "instruction": [instructions[m.instruction] for m in matches],
        "trajectory": [m.segment.trajectory_id for m in matches],
        "start": [m.segment.start for m in matches],
        "stop": [m.segment.stop for m in matches],
        "length": [lengths[m.dataset, m.segment.trajectory_id] for m in matches],
        "cost": [m.cost for m in matches],
        "cost_per_frame": [m.cost_per_frame for m in matches],
    }
    return {"datasets": list(datasets), "instructions": list(instructions), "matches": columns}


def _lengths(sources: Sources) -> dict[tuple[str, str], int]:
    """Return the length of each matched trajectory, from its store if possible: that is faster."""
    by_name = sources.run.matches.locate(sources.priors)
    stored = {}
    for name, folder in sources.run.manifest.get("stores", {}).items():
        with suppress(StrapError):
            stored[name] = open_store(folder)
    found = {}
    for dataset, key in {(m.dataset, m.segment.trajectory_id) for m in sources.run.matches}:
        store = stored.get(dataset)
        is_stored = store is not None and key in store
        found[dataset, key] = (
            store.entry(key).length if store and is_stored else by_name[dataset][key].length
        )
    return found


def _facts(sources: Sources) -> list[list[str]]:
    """Return the facts to show about a run, as [name, text]."""
    arguments, manifest = sources.arguments, sources.run.manifest
    reasons = manifest.get("reasons", {})
    kept, priors = arguments.get("top_k"), arguments["prior"]
    facts = {
        "target": _target(arguments),
        "prior": ", ".join(Path(place).name for place in priors),
        "demonstrations": str(len(sources.target)),
        "queries": str(len(sources.queries)),
        "matches": str(len(sources.run.matches)),
        "top-k": "" if kept is None else str(kept),
        "method": str(arguments.get("method", "")),
        "encoder": str(arguments.get("encoder") or manifest.get("encoder", {}).get("name", "")),
        "fused": ", ".join(map(str, arguments.get("fuse") or ())),
        "cut by": _cut(arguments.get("segmentation") or {}),
        "step set": str(arguments.get("steps") or ""),
        "metric": str(arguments.get("metric") or ""),
        **{f"why {name}": str(reason) for name, reason in reasons.items()},
        "retrieved in": f"{sum(manifest['seconds'].values()):.1f} s",
    }
    return [[name, text] for name, text in facts.items() if text]


def _target(arguments: Mapping[str, Any]) -> str:
    """Return the target's name, with the tasks and episodes that were selected from it."""
    selection = arguments.get("target_selection") or {}
    chosen = [f"'{task}'" for task in selection.get("tasks") or ()]
    if selection.get("episodes"):
        chosen.append(f"episodes {selection['episodes']}")
    return ", ".join((Path(arguments["target"]).name, *chosen))


def _cut(segmentation: Mapping[str, Any]) -> str:
    """Return how demonstrations were cut; for stops, with the movement threshold."""
    method, epsilon = str(segmentation.get("method", "")), segmentation.get("epsilon")
    shown = f"{epsilon:g}" if isinstance(epsilon, float) else epsilon  # a number, or `auto`
    return f"{method}, epsilon {shown}" if method == "stops" and epsilon else method
