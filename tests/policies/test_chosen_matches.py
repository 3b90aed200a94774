"""What was rejected in a run is not trained on; what was re-weighed is drawn more or less often."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strap.choices import change_choices, choose_matches
from strap.cli import main
from strap.cli.run_policies import find_policy
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.policies import load_checkpoint
from strap.runs import open_run
from strap.synthetic import make_planted
from strap.training import FrameCache, loop
from strap.training.cache_builder import build_cache
from strap.training.data import open_training_data
from strap.training.windows import Windows, training_windows, weigh_by_choices, weigh_by_cost
from strap.types import Matches

from .conftest import OPTIONS

WORDS = ["--vision", "frozen", "--text-encoder", "words", "--image-size", "32", "--steps", "2"]
WORDS += ["--batch", "2", "--device", "cpu"]
Seen = list[tuple[FrameCache, Windows]]


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to choose in."""
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The windows that each training draws from, as they are made."""
    found: Seen = []

    def watch(cache: FrameCache, *arguments: Any, **options: Any) -> Windows:
        windows = training_windows(cache, *arguments, **options)
        found.append((cache, windows))
        return windows

    monkeypatch.setattr(loop, "training_windows", watch)
    return found


def trained_frames(cache: FrameCache, windows: Windows) -> dict[tuple[str, int], float]:
    """(trajectory, frame) of the prior -> the weight with which it is drawn."""
    frames: dict[tuple[str, int], float] = {}
    for clip in cache.clips:
        for row in range(clip.row, clip.row + clip.length):
            weight = float(windows.weight[(windows.anchor == row) & ~windows.is_target].sum())
            if weight:
                frames[clip.id, clip.start + row - clip.row] = weight
    return frames


def frames_of(matches: Matches, weights: tuple[float, ...]) -> dict[tuple[str, int], float]:
    frames: dict[tuple[str, int], float] = {}
    for match, weight in zip(matches, weights, strict=True):
        for frame in range(match.segment.start, match.segment.stop):
            place = (match.segment.trajectory_id, frame)
            frames[place] = frames.get(place, 0.0) + weight
    return frames


def test_training_sees_what_remains(
    own_run: Path, tmp_path: Path, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    matches = open_run(own_run).matches
    every = frames_of(matches, (1.0,) * 6)
    change_choices(own_run, matches, {"weight": 2.0, "rows": [1]})
    change_choices(own_run, matches, {"reject": [0, 4]})
    assert main(["train", str(own_run), *WORDS]) == 0
    assert "choices: 4 of 6 matches kept, 1 re-weighed (strap view)" in capsys.readouterr().out
    chosen = choose_matches(own_run, matches)
    expected = frames_of(chosen.matches, chosen.weights)
    rejected = set(every) - set(expected)
    assert rejected  # frames that no other match has
    assert trained_frames(*seen[0]) == expected
    config = json.loads((own_run / "policy" / "config.json").read_text())
    assert config["choices"] == chosen.to_json()
    assert load_checkpoint(own_run / "policy").about["choices"]["kept"] == 4

    assert main(["train", str(own_run), *WORDS]) == 0  # the same again has finished
    change_choices(own_run, matches, {"undo": True})
    assert main(["train", str(own_run), *WORDS]) == 2
    assert "other data: files, matches or choices have changed" in capsys.readouterr().err
    change_choices(own_run, matches, {"undo": True})
    assert main(["train", str(own_run), *WORDS, "--out", str(tmp_path / "all")]) == 0
    assert "choices" not in capsys.readouterr().out
    assert trained_frames(*seen[-1]) == every
    assert "choices" not in json.loads((tmp_path / "all" / "config.json").read_text())


def test_training_may_ignore_the_choices(own_run: Path, tmp_path: Path, seen: Seen) -> None:
    matches = open_run(own_run).matches
    change_choices(own_run, matches, {"reject": [0, 1, 2]})
    out = str(tmp_path / "all")
    assert main(["train", str(own_run), *WORDS, "--choices", "ignore", "--out", out]) == 0
    assert trained_frames(*seen[0]) == frames_of(matches, (1.0,) * 6)


def test_nothing_left_is_no_silent_behaviour_cloning(
    own_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_choices(own_run, open_run(own_run).matches, {"reject": list(range(6))})
    assert main(["train", str(own_run), *WORDS]) == 2
    assert "all 6 matches of" in capsys.readouterr().err


def test_behaviour_cloning_has_no_matches_to_weigh(
    own_run: Path, tmp_path: Path, seen: Seen
) -> None:
    change_choices(own_run, open_run(own_run).matches, {"weight": 2.0, "rows": [1]})
    words = [*WORDS, "--recipe", "bc", "--out", str(tmp_path / "bc")]
    assert main(["train", str(own_run), *words]) == 0
    assert seen[0][1].is_target.all()


def test_weights_of_choices_multiply_the_others(
    own_run: Path, tmp_path: Path, seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    matches = open_run(own_run).matches
    change_choices(own_run, matches, {"reject": [2]})
    change_choices(own_run, matches, {"weight": 3.0, "rows": [5]})
    given = tmp_path / "w.json"
    given.write_text("[1, 2, 3, 4, 5, 6]")
    words = [*WORDS, "--match-weights", str(given)]
    assert main(["train", str(own_run), *words]) == 0
    chosen = choose_matches(own_run, matches)
    assert trained_frames(*seen[0]) == frames_of(chosen.matches, (1.0, 2.0, 4.0, 5.0, 18.0))
    given.write_text("[1, 2, 4, 5, 6]")  # of those that remain, not of all
    assert main(["train", str(own_run), *words]) == 2
    assert "5 match weights for 6 matches" in capsys.readouterr().err
    given.write_text("[0, 0, 9, 0, 0, 0]")  # only the rejected match has a weight
    assert main(["train", str(own_run), *words]) == 2
    assert "each of the 5 matches to train on has the weight 0" in capsys.readouterr().err
    retrieved = open_training_data(own_run).retrieved
    by_cost = weigh_by_cost(retrieved)
    assert weigh_by_choices("cost", chosen, retrieved) == [*by_cost[:4], 3.0 * by_cost[4]]
    plain = choose_matches(own_run, matches, "ignore")
    assert weigh_by_choices("cost", plain, retrieved) == "cost"
    assert weigh_by_choices(None, plain, retrieved) is None


def test_where_the_datasets_are_gone_the_augmented_one_is_read_without_what_is_rejected(
    tmp_path: Path,
) -> None:
    planted = make_planted(tmp_path / "planted")
    options = RetrievalOptions(encoder="pixels", top_k=6)
    run = run_retrieval(
        planted.target, [planted.prior], tmp_path / "run", options, stores=tmp_path / "stores"
    )
    change_choices(run.path, run.matches, {"reject": [1, 3]})
    change_choices(run.path, run.matches, {"weight": 2.0, "rows": [4]})
    here = build_cache(open_training_data(run.path), tmp_path / "a", OPTIONS)
    shutil.rmtree(tmp_path / "planted")
    data = open_training_data(run.path)
    assert data.chosen is not None
    assert len(data.clips) == 2 + 4
    there = build_cache(data, tmp_path / "b", OPTIONS)
    weights = list(data.chosen.weights)
    one, two = (training_windows(cache, "strap", match_weights=weights) for cache in (here, there))
    assert np.array_equal(one.weight, two.weight)
    assert np.array_equal(here.actions[one.anchor], there.actions[two.anchor])
    run.matches[:5].to_parquet(run.path / "matches.parquet")
    with pytest.raises(StrapError, match=r"holds 6 segments, but matches\.parquet has 5"):
        open_training_data(run.path, choices="ignore")


def test_a_policy_of_earlier_matches_is_told(own_run: Path) -> None:
    assert main(["train", str(own_run), *WORDS, "--steps", "1"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_policy(own_run) == own_run / "policy"
        assert find_policy(own_run / "policy") == own_run / "policy"
    file = own_run / "matches.parquet"
    Matches(tuple(open_run(own_run).matches)[1:]).to_parquet(file)
    with pytest.warns(UserWarning, match=r"policy' was trained on other matches than '.*' has now"):
        assert find_policy(own_run) == own_run / "policy"
