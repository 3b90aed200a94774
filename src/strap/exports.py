"""Exports of a retrieval without images, for any trainer.

    manifest   one row per span of frames: dataset, episode, start, stop, weight
    weights    one row per frame of one dataset: index, weight (for a sampler)
    filter     for each dataset the episodes and frame ranges to keep

The weight of a retrieved segment is the sum of the weights of its matches, by default 1 each: a
segment that was retrieved twice has weight 2. Target demonstrations have weight 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strap.atomic import read_json, replacing, write_json
from strap.datasets.base import Dataset, natural_sort_key
from strap.errors import StrapError, unknown
from strap.types import Matches, Segment

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".json", ".parquet")
"""Endings of a manifest's file."""
WEIGHTS = ("index", "weight")
MANIFEST = ("dataset", "episode", "start", "stop", "weight")
FILTER = ("episodes", "frames")


@dataclass(frozen=True)
class WeightedSpan:
    """Frames start … stop−1 of an episode, and their weight."""

    dataset: str
    episode: str
    start: int
    stop: int
    weight: float


def weighted_spans(
    target: Dataset, matches: Matches, weights: Sequence[float] | None = None
) -> list[WeightedSpan]:
    """Return the whole target demonstrations, then each retrieved segment once with its weight."""
    targets = [WeightedSpan(target.name, t.id, 0, t.length, 1.0) for t in target]
    found = _total_weights(matches, weights)
    ordered = sorted(
        found, key=lambda key: (key[0], natural_sort_key(key[1].trajectory_id), key[1])
    )
    retrieved = [
        WeightedSpan(dataset, s.trajectory_id, s.start, s.stop, found[dataset, s])
        for dataset, s in ordered
    ]
    return targets + retrieved


def _total_weights(
    matches: Matches, weights: Sequence[float] | None
) -> dict[tuple[str, Segment], float]:
    """Return the total weight of the matches of each (dataset, segment)."""
    match_weights = [1.0] * len(matches) if weights is None else weights
    found: dict[tuple[str, Segment], float] = {}
    for match, weight in zip(matches, match_weights, strict=True):
        place = (match.dataset, match.segment)
        found[place] = found.get(place, 0.0) + weight
    return found


def write_manifest(
    out: str | Path, target: Dataset, matches: Matches, weights: Sequence[float] | None = None
) -> Path:
    """Write the stretches of frames as `.json` or `.parquet`."""
    import pyarrow as pa

    out = Path(out)
    if out.suffix.lower() not in ENDINGS:
        raise unknown("ending of a manifest", out.suffix or out.name, ENDINGS)
    rows = [asdict(row) for row in weighted_spans(target, matches, weights)]
    if out.suffix.lower() == ".json":
        write_json(out, rows)
    else:
        _write_table(out, pa.Table.from_pylist(rows))
    return out


def frame_weights(
    dataset: Dataset,
    matches: Matches,
    weights: Sequence[float] | None = None,
    *,
    is_target: bool = False,
) -> pa.Table:
    """Return each frame's `index` (over the whole dataset, as in LeRobot) and `weight`.

    Only matches in this dataset count. Frames that were not retrieved, and frames of trajectories
    that a selection leaves out, are listed with weight 0, because LeRobot gives weight 1 to frames
    that are not listed.

    Args:
        dataset: the target or a prior.
        matches: the retrieved segments.
        weights: the weight of each match; by default 1.
        is_target: whether the dataset is the target, whose own frames have weight 1.
    """
    import pyarrow as pa

    found = _segments_in(dataset, matches, weights)
    own = set(dataset.ids) if is_target else set()
    indices, values = [], []
    for first, trajectory_id, length in _numbered(dataset.full_dataset):
        trajectory_weights = np.full(length, 1.0 if trajectory_id in own else 0.0, np.float32)
        for start, stop, weight in found.get(trajectory_id, ()):
            if stop > length:
                raise StrapError(
                    f"match {trajectory_id}[{start}:{stop}] goes past the {length} frames of "
                    f"'{dataset.path}': if that dataset was changed, run `strap retrieve` again"
                )
            trajectory_weights[start:stop] += weight
        indices.append(np.arange(first, first + length))
        values.append(trajectory_weights)
    return pa.table({"index": np.concatenate(indices), "weight": np.concatenate(values)})


def write_weights(
    out: str | Path,
    dataset: Dataset,
    matches: Matches,
    weights: Sequence[float] | None = None,
    *,
    is_target: bool = False,
) -> Path:
    """Write the frame weights of one dataset as Parquet."""
    _write_table(Path(out), frame_weights(dataset, matches, weights, is_target=is_target))
    return Path(out)


def write_filter(out: str | Path, target: Dataset, matches: Matches) -> Path:
    """Write the episodes and merged frame ranges to keep in each dataset, as JSON."""
    spans: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for row in weighted_spans(target, matches):
        spans.setdefault(row.dataset, {}).setdefault(row.episode, []).append((row.start, row.stop))
    content: dict[str, dict[str, object]] = {}
    for dataset, episodes in spans.items():
        ids = sorted(episodes, key=natural_sort_key)
        content[dataset] = {
            "episodes": [_episode_number(key) for key in ids],
            "frames": {key: _merge_spans(episodes[key]) for key in ids},
        }
    write_json(Path(out), content)
    return Path(out)


def require_earlier_export(out: Path) -> None:
    """Raise if a file exists and is no export of STRAP, which may be overwritten by another one.

    An export is known by its columns or keys, an augmented HDF5 file by its masks.
    """
    if not out.is_file() or out.stat().st_size == 0:
        return
    known = {".json": _is_json_export, ".parquet": _is_table_export}
    try:
        is_export = known.get(out.suffix.lower(), _is_augmented)(out)
    except (OSError, ValueError, StrapError):  # not a file of the kind that its ending names
        is_export = False
    if not is_export:
        raise StrapError(
            f"'{out}' exists already and is not an export of STRAP: choose another output or "
            "remove it first"
        )


def _is_json_export(file: Path) -> bool:
    content = read_json(file)
    if isinstance(content, list):  # a manifest
        return all(isinstance(row, dict) and tuple(row) == MANIFEST for row in content)
    rows = content.values() if isinstance(content, dict) else [None]
    return all(isinstance(row, dict) and tuple(row) == FILTER for row in rows)


def _is_table_export(file: Path) -> bool:
    import pyarrow.parquet as pq

    return tuple(pq.read_schema(file).names) in (WEIGHTS, MANIFEST)


def _is_augmented(file: Path) -> bool:
    import h5py

    with h5py.File(file) as content:
        return all(f"mask/{name}" in content for name in ("target", "retrieved", "all"))


def _segments_in(
    dataset: Dataset, matches: Matches, weights: Sequence[float] | None
) -> dict[str, list[tuple[int, int, float]]]:
    """Return the retrieved (start, stop, weight) of each trajectory."""
    rows: dict[str, list[tuple[int, int, float]]] = {}
    for (name, segment), weight in _total_weights(matches, weights).items():
        if name == dataset.name:
            rows.setdefault(segment.trajectory_id, []).append((segment.start, segment.stop, weight))
    return rows


def _numbered(dataset: Dataset) -> Iterator[tuple[int, str, int]]:
    """Yield (first frame's index over the whole dataset, trajectory id, length).

    LeRobot stores the index. It is ignored in other formats, because a file that was converted from
    a LeRobot dataset has the index in the original.
    """
    count = 0
    for trajectory in dataset:
        said = trajectory.attributes.get("dataset_from_index", count)
        first = int(said) if dataset.format.startswith("lerobot") else count
        yield first, trajectory.id, trajectory.length
        count = first + trajectory.length


def _merge_spans(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the spans (start, stop) in order; those that touch or overlap are merged."""
    merged: list[list[int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return merged


def _episode_number(trajectory_id: str) -> int | str:
    """Return the episode's number, as LeRobot's trainers need it; for other formats the id."""
    number = trajectory_id.removeprefix("episode_")
    return int(number) if number.isdecimal() and len(number) < 19 else trajectory_id


def _write_table(out: Path, table: Any) -> None:
    import pyarrow.parquet as pq

    with replacing(out) as temporary:
        pq.write_table(table, temporary)
