"""BR and FR from the command line: features learned, embedded and searched."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.writers import write_rlds

from strap.cli import main
from strap.representations import RepresentationSettings
from strap.runs import open_run
from strap.store import open_store
from strap.synthetic import make_planted

from .conftest import write_cameras


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


def test_features_are_learned_from_the_camera_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = partial(RepresentationSettings, batch=2, image_size=64)
    monkeypatch.setattr("strap.representations.RepresentationSettings", small)
    for name in ("target", "prior"):
        write_cameras(tmp_path / f"{name}.hdf5", ("left", "right"), 7)
    call = ["retrieve", "--target", str(tmp_path / "target.hdf5")]
    call += ["--prior", str(tmp_path / "prior.hdf5"), "--method", "br", "--learning-steps", "1"]
    call += ["--stores", str(tmp_path / "stores"), "--augmented", "none", "--report", "none"]
    call += ["--shared", "keep"]  # both datasets are the same noise
    assert main([*call, "--out", str(tmp_path / "any")]) == 2
    assert "2 cameras (left, right): name one with --cameras" in capsys.readouterr().err
    assert main([*call, "--cameras", "left", "right", "--out", str(tmp_path / "both")]) == 2
    assert "method 'br' uses one camera, but 2 are given" in capsys.readouterr().err
    vectors = []
    for camera in ("left", "right"):
        out = tmp_path / camera
        assert main([*call, "--cameras", camera, "--top-k", "3", "--out", str(out)]) == 0
        manifest = open_run(out).manifest
        store = open_store(next(path for path in manifest["stores"].values() if "prior" in path))
        vectors.append(store["demo_0"])
    assert not np.array_equal(*vectors)


def test_features_are_learned_apart_for_each_way_to_read_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(RepresentationSettings, batch=2, image_size=64)
    monkeypatch.setattr("strap.representations.RepresentationSettings", small)
    target, prior = tmp_path / "t" / "1.0.0", tmp_path / "p" / "1.0.0"
    write_rlds(target, ((4,),))
    write_rlds(prior, ((6, 7), (5,)))
    call = ["retrieve", "--target", str(target), "--prior", str(prior), "--method", "br"]
    call += ["--cameras", "wrist_image_left", "--learning-steps", "1", "--shared", "keep"]
    call += ["--stores", str(tmp_path / "stores"), "--augmented", "none", "--report", "none"]
    ways = (
        ("any",),
        ("action", "--rlds-action", "observation/cartesian_position"),
        ("flipped", "--orientation", "flipped"),
    )
    stores = []
    for name, *words in ways:
        out = tmp_path / name
        assert main([*call, *words, "--top-k", "3", "--out", str(out)]) == 0
        stores += [open_store(place) for place in open_run(out).manifest["stores"].values()]
    assert len({store.path for store in stores}) == 6
    assert [store.dim - 128 for store in stores] == [7, 7, 6, 6, 7, 7]  # with the action
