"""All frames of the prior in one array, with their labels as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from strap.datasets.labels import Label, Labels
from strap.errors import StrapError
from strap.types import Match, Segment

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelledFrames:
    """The labels of every frame of the prior datasets, trajectory after trajectory.

    frames    0 1 2 3 4 5 | 6 7 8 9 …
    codes     0 0 1 1 1 2 | 0 0 3 3 …     number of the label
              spans[0]    | spans[1]
    """

    codes: Numbers
    """[frame]"""
    numbers: Mapping[Label, int]
    """label -> its code"""
    spans: Sequence[tuple[int, int]]
    """number of a trajectory -> start and stop of its frames"""
    places: Mapping[tuple[str, str], int]
    """(dataset, trajectory id) -> number of the trajectory"""

    @classmethod
    def of(cls, prior: Mapping[str, Labels]) -> LabelledFrames:
        """Return the frames of datasets, given as name -> labels."""
        numbers: dict[Label, int] = {}
        places: dict[tuple[str, str], int] = {}
        codes: list[int] = []
        spans: list[tuple[int, int]] = []
        for name, labels in prior.items():
            for key, frame_labels in labels.items():
                places[name, key] = len(spans)
                spans.append((len(codes), len(codes) + len(frame_labels)))
                codes += [numbers.setdefault(label, len(numbers)) for label in frame_labels]
        return cls(np.array(codes, np.int64), numbers, spans, places)

    @cached_property
    def counts(self) -> Numbers:
        """The number of frames with each label, [label]."""
        return np.bincount(self.codes, minlength=len(self.numbers))

    @cached_property
    def border_distances(self) -> Numbers:
        """The distance in frames from each cut position to the nearest border.

        A border is a change of label or an end of the trajectory. A trajectory of n frames has n+1
        cut positions, 0 … n; those of trajectory t start at index `spans[t][0] + t`.
        The array is [frames + trajectories].
        """
        return np.concatenate([self._distances(*span) for span in self.spans])

    def _distances(self, first: int, last: int) -> Numbers:
        codes = self.codes[first:last]
        borders = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]])
        places = np.arange(len(codes) + 1)
        after = np.searchsorted(borders, places)
        before = np.maximum(after - 1, 0)
        nearest = np.minimum(borders[after] - places, abs(places - borders[before]))
        return np.asarray(nearest, np.int64)

    def border_distance(self, trajectory: int, start: int, stop: int) -> int:
        """Return the sum of the distances from a segment's start and stop to the nearest border."""
        first = self.spans[trajectory][0] + trajectory
        return int(self.border_distances[first + start] + self.border_distances[first + stop])

    def trajectory(self, match: Match) -> int:
        """Return the number of a match's trajectory; raise unless its frames have labels."""
        segment = match.segment
        place = self.places.get((match.dataset, segment.trajectory_id))
        if place is None:
            known = dict.fromkeys(name for name, _ in self.places)
            if match.dataset in known:
                raise StrapError(
                    f"trajectory '{segment.trajectory_id}' of '{match.dataset}' has no skill labels"
                )
            raise StrapError(
                f"a match is from '{match.dataset}', but there are skill labels only of "
                f"{', '.join(known) or 'nothing'}: read the labels of every prior dataset"
            )
        first, last = self.spans[place]
        _require_frames(segment, last - first)
        return place

    def wanted(self, labels: Iterable[Label]) -> Flags:
        """Return flags of the prior's labels that are among the given ones, [label]."""
        flags = np.zeros(len(self.numbers), bool)
        flags[[self.numbers[label] for label in set(labels) if label in self.numbers]] = True
        return flags


def query_labels(target: Labels, query: Segment) -> Sequence[Label]:
    """Return the labels of a query's frames."""
    if query.trajectory_id not in target:
        raise StrapError(f"trajectory '{query.trajectory_id}' has no skill labels")
    frame_labels = target[query.trajectory_id]
    _require_frames(query, len(frame_labels))
    return frame_labels[query.start : query.stop]


def _require_frames(segment: Segment, count: int) -> None:
    if segment.stop > count:
        raise StrapError(
            f"{segment} goes past the {count} frames that have skill labels: labels and matches "
            "must be of the same dataset"
        )
