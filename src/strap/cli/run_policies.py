"""The policy inside a run: `strap evaluate` and `strap serve` accept the run's folder too."""

from __future__ import annotations

import warnings
from pathlib import Path

from strap.choices import fingerprint_matches
from strap.runs import POLICY, is_run, open_run


def fingerprint_run(run: Path) -> str:
    """Return a hash of a run's matches; a policy stores it to record what it was trained on."""
    return fingerprint_matches(open_run(run).matches)


def find_policy(path: Path) -> Path:
    """Return the policy's folder: that inside a run if `path` is a run, else `path` itself.

    Warns if the run's matches have changed since its policy was trained.
    """
    from strap.policies.checkpoints import load_config

    if not is_run(path):
        return path
    folder = path / POLICY
    known = load_config(folder).get("matches")
    if known and known != fingerprint_run(path):
        warnings.warn(
            f"'{folder}' was trained on other matches than '{path}' has now: remove it and run "
            f"`strap train {path}` again",
            stacklevel=2,
        )
    return folder
