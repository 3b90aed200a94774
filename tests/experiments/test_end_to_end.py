"""A tiny table by the real commands, one of every kind, simulator and all; every recipe trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strap.cli import main
from strap.experiments.description import STAGES
from strap.types import Matches

SAMPLE = Path(__file__).parents[2] / "samples" / "libero-mini"
TEXT = """
name = "tiny"
target = "mug-mug"
prior = ["soup-*"]
demonstrations = "0:2"
encoder = "pixels"
top_k = 4

[cache]
text_encoder = "words"
image_size = 32

[train]
steps = 2
batch = 2
history = 2
chunk = 2
text_encoder = "words"
image_size = 32
device = "cpu"

[evaluate]
episodes = "1:2"
horizon = 2
videos = false
device = "cpu"

[tasks]
Mug-Mug = "put the white mug on the left plate and put the yellow and white mug on the right plate"

[[methods]]
name = "STRAP"
train = "strap"
retrieval = "strap"
pretrained = true
"""
OTHERS = """
[[methods]]
name = "BC"
train = "bc"

[[methods]]
name = "FT"
train = "ft"

[[methods]]
name = "MT"
train = "mt"
"""


def test_a_table_is_run_kept_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("libero")
    file, kept = tmp_path / "tiny.toml", tmp_path / "kept"
    words = ["experiment", str(file), "--data", str(SAMPLE / "target")]
    run = [*words, "--out", str(tmp_path / "work"), "--keep", str(kept), "--workers", "1"]
    file.write_text(TEXT + OTHERS)
    trained = main([*run, "--no-mps", "--stages", "cache", "pretrain", "train"])
    assert trained == 0, capsys.readouterr().out
    policies = tmp_path / "work" / "policies" / "Mug-Mug"
    assert {path.name for path in policies.iterdir()} == {
        f"{name}-seed1234" for name in ("BC", "FT", "MT")
    }
    file.write_text(TEXT)
    code = main([*run, "--no-mps", "--evaluations", "2"])
    assert code == 0, capsys.readouterr().out
    (manifest,) = kept.glob("cells/*/*/manifest.json")
    assert manifest.parent.name == "STRAP-k4-seed1234"
    assert set(json.loads(manifest.read_text())["seconds"]) == set(STAGES)
    (row,) = map(json.loads, (manifest.parent / "episodes.jsonl").read_text().splitlines())
    assert row["state"] == 1
    assert row["steps"] == 2
    matches = Matches.from_parquet(manifest.parent / "matches.parquet")
    assert len(matches) == 4
    assert {match.dataset for match in matches} <= {"soup-sauce", "soup-cheese"}
    assert main([*words, "--out", str(kept), "--report"]) == 0
    page = (kept / "report" / "results.md").read_text()
    assert "| task | STRAP |" in page
    assert "missing" not in page
