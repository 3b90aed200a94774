"""`strap demo` on the sample data that ships with the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import strap
from strap.cli import main
from strap.cli.demo import SAMPLE
from strap.scores import read_labels


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    words = ["demo", "--out", str(out), "--encoder", "pixels", "--train-steps", "0"]
    words += ["--task", "soup-cheese"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "30 matches" in shown
    assert "skill precision" in shown
    run = out / "soup-cheese"
    for name in ("report.html", "augmented"):
        assert (run / name).stat().st_size > 1000
    assert main([*words[:-1], "soup-sause"]) == 2
    assert "did you mean 'soup-sauce'" in capsys.readouterr().err
    assert main(["demo", "--sample", str(tmp_path)]) == 2
    assert "no sample data" in capsys.readouterr().err


def test_the_sample_is_what_it_says() -> None:
    prior = strap.open_dataset(SAMPLE / "prior")
    assert len({trajectory.instruction for trajectory in prior}) >= 12
    assert len(prior) == 48
    for folder in sorted((SAMPLE / "target").iterdir()):
        target = strap.open_dataset(folder)
        assert len(target) == 5
        labels = read_labels(target)
        for trajectory in target:
            assert len(labels[trajectory.id]) == trajectory.length
            assert set(trajectory.cameras) == {"agentview_rgb", "eye_in_hand_rgb"}
            assert trajectory.actions.shape[1] == 7
    size = sum(file.stat().st_size for file in SAMPLE.rglob("*") if file.is_file())
    assert size < 20e6


def test_the_real_encoder_tells_objects_apart() -> None:
    """Frames in which the same kind of object is carried are nearer than those of another."""
    prior = strap.open_dataset(SAMPLE / "prior")
    labels = read_labels(prior)
    carried: dict[str, list[np.ndarray]] = {}
    for trajectory in prior:
        own = labels[trajectory.id]
        where = [i for i, (skill, _) in enumerate(own) if skill == "carry"]
        if where:
            middle = where[len(where) // 2]
            image = trajectory.frames("agentview_rgb", middle, middle + 1)[0]
            carried.setdefault(own[middle][1], []).append(image)
    encoder = strap.load_encoder("efficientnet-lite0@128", device="cpu")
    kinds = [kind for kind, images in carried.items() if len(images) >= 3][:5]
    vectors = {kind: encoder.encode(np.stack(carried[kind][:3])) for kind in kinds}
    same = [np.linalg.norm(v[0] - v[1]) for v in vectors.values()]
    other = [np.linalg.norm(vectors[a][0] - vectors[b][0]) for a in kinds for b in kinds if a != b]
    assert np.mean(same) < 0.85 * np.mean(other)
