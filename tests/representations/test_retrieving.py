"""BR and FR from the command line: features learned, embedded and searched."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from strap.cli import main
from strap.representations import RepresentationSettings
from strap.runs import open_run
from strap.synthetic import make_planted


@pytest.mark.parametrize("method", ["br", "fr"])
def test_methods_that_learn_features_make_a_run(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(RepresentationSettings, batch=2, image_size=64)  # the rest as by default
    monkeypatch.setattr("strap.representations.RepresentationSettings", small)
    data = make_planted(tmp_path, demos=1, sub_tasks=1, prior=2, length=8, size=64)
    call = ["retrieve", "--target", str(data.target), "--prior", str(data.prior)]
    call += ["--method", method, "--learning-steps", "1", "--stores", str(tmp_path / "stores")]
    assert main([*call, "--top-k", "5", "--out", str(tmp_path / "run")]) == 0
    matches = open_run(tmp_path / "run").matches
    assert len(matches) == 5
    assert all(len(match.query) == 1 and len(match.segment) <= 10 for match in matches)
    made = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "stores").iterdir())
    assert made == [method, f"prior-{method}", f"target-{method}"]
