"""The scores of a run."""

from __future__ import annotations

from strap.choices import ChoicesMode, choose_matches
from strap.datasets.labels import read_labels
from strap.runs import Run
from strap.scores.scoring import Scores, score
from strap.segments import read_segments


def score_run(run: Run, *, seed: int = 0, choices: ChoicesMode = "use") -> Scores:
    """Score the matches of a run by the skill labels of the datasets that it was made from.

    Args:
        run: what `strap retrieve` wrote, with any method.
        seed: seed of the random segments.
        choices: `use` the run's choices and score the remaining matches, or `ignore` the choices.
    """
    chosen = choose_matches(run.path, run.matches, choices)
    target, priors = run.datasets()
    prior = {dataset.name: read_labels(dataset) for dataset in priors}
    queries = read_segments(run.path / "segments.json")
    return score(chosen.matches, read_labels(target), prior, queries=queries, seed=seed)
