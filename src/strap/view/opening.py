"""What lies at the paths that somebody wants to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strap.errors import StrapError
from strap.view.run_views import RunView
from strap.view.subjects import Subject


def open_subject(paths: Sequence[Path], *, against: Path | None = None) -> Subject:
    """Open what is to be looked at: a run."""
    if len(paths) != 1 or against is not None:
        raise StrapError("one run at a time can be viewed: give one folder of `strap retrieve`")
    return RunView.open(paths[0])
