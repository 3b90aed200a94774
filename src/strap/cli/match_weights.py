"""The match weights that `strap train --match-weights` selects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strap.errors import StrapError
from strap.runs import is_run, open_run

if TYPE_CHECKING:
    from strap.choices import ChosenMatches
    from strap.training import FrameCache


def choose_match_weights(
    given: str | None, data: Path, cache: FrameCache, chosen: ChosenMatches | None
) -> Sequence[float] | Literal["cost"] | None:
    """Return the weights of the matches to train on.

    Args:
        given: `cost`, `importance`, or a file with a JSON list; None: equal weights.
        data: the run or the dataset to train on.
        cache: its decoded frames.
        chosen: the matches of the run that were not rejected, whose weights multiply the others.
    """
    from strap.training.windows import weigh_by_choices

    weights = _read(given, data)
    return weights if chosen is None else weigh_by_choices(weights, chosen, cache.retrieved)


def _read(given: str | None, data: Path) -> list[float] | Literal["cost"] | None:
    from strap.training.windows import read_weights

    if given is None:
        return None
    if given == "cost":
        return "cost"
    return _importance(data) if given == "importance" else read_weights(given)


def _importance(data: Path) -> list[float]:
    from strap.training.importance import weigh_by_importance

    if not is_run(data):
        raise StrapError(
            f"'{data}' is not a run: --match-weights importance needs the features that a run of "
            "`strap retrieve` compared; train on that run"
        )
    return weigh_by_importance(open_run(data))
