"""Scores of a retrieval without rollouts, from labels of what the robot does in every frame."""

from __future__ import annotations

from strap.datasets.labels import Label, Labels, read_labels, write_labels
from strap.scores.correlation import RankCorrelation, rank_correlation
from strap.scores.labelled_frames import LabelledFrames
from strap.scores.run_scores import score_run
from strap.scores.scoring import Score, Scores, score

__all__ = [
    "Label",
    "LabelledFrames",
    "Labels",
    "RankCorrelation",
    "Score",
    "Scores",
    "rank_correlation",
    "read_labels",
    "score",
    "score_run",
    "write_labels",
]
