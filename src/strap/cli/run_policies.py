"""The policy that a run holds: commands that act take the run as well as the policy's folder."""

from __future__ import annotations

import warnings
from pathlib import Path

from strap.choices import fingerprint_matches
from strap.runs import POLICY, is_run, open_run


def fingerprint_run(run: Path) -> str:
    """Return a hash of a run's matches, by which a policy knows what it was trained on."""
    return fingerprint_matches(open_run(run).matches)


def find_policy(path: Path) -> Path:
    """Return the policy's folder: that of a run, where `path` is one, else itself.

    Says so where the run was made anew since its policy was trained.
    """
    from strap.policies.checkpoints import load_config

    if not is_run(path):
        return path
    folder = path / POLICY
    known = load_config(folder).get("matches")
    if known and known != fingerprint_run(path):
        warnings.warn(
            f"'{folder}' was trained before '{path}' was made anew, on other matches: remove it "
            f"and run `strap train {path}` again for a policy of these",
            stacklevel=2,
        )
    return folder
