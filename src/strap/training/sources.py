"""What a training draws from: a run, a dataset, an augmented dataset; as stretches to be cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strap.artifacts import fingerprint_json
from strap.datasets import Dataset, OpenOptions, open_dataset
from strap.errors import StrapError
from strap.types import Matches, Trajectory

MARGIN = 16
"""Frames kept around a retrieved segment: more than any history or chunk in use."""


@dataclass(frozen=True)
class Piece:
    """A stretch of a trajectory that will be cached."""

    dataset: Dataset
    id: str
    role: str
    start: int
    stop: int

    def trajectory(self) -> Trajectory:
        """The whole trajectory it is a part of."""
        return self.dataset[self.id]


@dataclass(frozen=True)
class Found:
    """A retrieved segment of one of the pieces."""

    piece: int
    start: int
    stop: int
    cost: float
    query: str


@dataclass(frozen=True)
class Source:
    """Pieces and what was retrieved among them."""

    pieces: tuple[Piece, ...]
    found: tuple[Found, ...]

    def fingerprint(self) -> str:
        """Changes with the files, the pieces or the matches."""
        datasets = {piece.dataset.name: piece.dataset for piece in self.pieces}
        content: list[Any] = [[name, own.fingerprint()] for name, own in datasets.items()]
        content += [[p.dataset.name, p.id, p.role, p.start, p.stop] for p in self.pieces]
        content += [[f.piece, f.start, f.stop, f.cost, f.query] for f in self.found]
        return fingerprint_json(content)


def open_source(
    path: str | Path,
    *,
    prior: Sequence[str | Path] = (),
    whole_prior: bool = False,
    opening: OpenOptions | None = None,
) -> Source:
    """A run folder, a dataset of demonstrations, or an augmented dataset.

    Args:
        path: what to train on.
        prior: for a dataset: what to pre-train on, or to train on beside it.
        whole_prior: for a run: all of its prior, not only what was retrieved.
        opening: how to read datasets.
    """
    path, opening = Path(path).expanduser(), opening or OpenOptions()
    if (path / "matches.parquet").is_file():
        return _of_run(path, whole_prior=whole_prior)
    dataset = opening.open(path)
    if not len(dataset):
        raise StrapError(f"dataset '{path}' is empty: it holds no trajectory")
    if "is_pad" in dataset[dataset.ids[0]].extras:
        return _of_augmented(dataset)
    pieces = _whole(dataset, "target")
    for extra in prior:
        pieces += _whole(opening.open(extra), "prior")
    return Source(tuple(pieces), ())


def _of_run(path: Path, *, whole_prior: bool) -> Source:
    from strap.runs import open_run

    run = open_run(path)
    if not run.has_datasets():
        if whole_prior:
            raise StrapError(
                f"datasets of '{path}' are gone ({', '.join(run.manifest['arguments']['prior'])}): "
                "this method trains on all of the prior; put them back, or use --method strap"
            )
        return _of_augmented(open_dataset(run.augmented))
    target, priors = run.datasets()
    pieces = _whole(target, "target")
    if whole_prior:
        for dataset in priors:
            pieces += _whole(dataset, "prior")
        return Source(tuple(pieces), _locate(run.matches, pieces))
    pieces += _around(run.matches, priors)
    return Source(tuple(pieces), _locate(run.matches, pieces))


def _whole(dataset: Dataset, role: str) -> list[Piece]:
    return [Piece(dataset, t.id, role, 0, t.length) for t in dataset]


def _around(matches: Matches, priors: Sequence[Dataset]) -> list[Piece]:
    """The retrieved frames with margins, overlapping ones merged."""
    by_name = matches.locate(priors)
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for match in matches:
        key = (match.dataset, match.segment.trajectory_id)
        span = (match.segment.start - MARGIN, match.segment.stop + MARGIN)
        spans.setdefault(key, []).append(span)
    pieces = []
    for (name, trajectory_id), own in sorted(spans.items()):
        dataset = by_name[name]
        length = dataset[trajectory_id].length
        for start, stop in _merged(own):
            piece = Piece(dataset, trajectory_id, "prior", max(start, 0), min(stop, length))
            pieces.append(piece)
    return pieces


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _locate(matches: Matches, pieces: Sequence[Piece]) -> tuple[Found, ...]:
    where: dict[tuple[str, str], list[int]] = {}
    for index, piece in enumerate(pieces):
        if piece.role == "prior":
            where.setdefault((piece.dataset.name, piece.id), []).append(index)
    found = []
    for match in matches:
        segment = match.segment
        holding = [
            i
            for i in where.get((match.dataset, segment.trajectory_id), ())
            if pieces[i].start <= segment.start and segment.stop <= pieces[i].stop
        ]
        if not holding:
            raise StrapError(
                f"match {segment} lies in no prior dataset of the run: were they changed since?"
            )
        query = match.query.trajectory_id
        found.append(Found(holding[0], segment.start, segment.stop, match.cost, query))
    return tuple(found)


def _of_augmented(dataset: Dataset) -> Source:
    """Demonstrations and segments as `augment` wrote them; repeated edges are left out."""
    pieces: list[Piece] = []
    found: list[Found] = []
    for trajectory in dataset:
        real = np.flatnonzero(~np.asarray(trajectory.extras["is_pad"][:], np.bool_))
        start, stop = int(real[0]), int(real[-1]) + 1
        cost = trajectory.attributes.get("source_cost")
        role = "target" if cost is None else "prior"
        pieces.append(Piece(dataset, trajectory.id, role, start, stop))
        if cost is None:
            continue
        inside = np.flatnonzero(~np.asarray(trajectory.extras["is_context"][:], np.bool_))
        inside = inside[(inside >= start) & (inside < stop)]
        query = str(trajectory.attributes.get("source_query_trajectory", ""))
        first, last = int(inside[0]), int(inside[-1])
        found.append(Found(len(pieces) - 1, first, last + 1, float(cost), query))
    if not any(piece.role == "target" for piece in pieces):
        pieces = [replace(piece, role="target") for piece in pieces]
    return Source(tuple(pieces), tuple(found))
