"""`examples/replay.py`: a recorded demonstration, shown to a real server by the real client."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openpi_client", reason="installed by `make test`, without its dependencies")

from examples import replay
from tests.policies.small_policies import observe, save_small_policy, serving

import strap
from strap.datasets.robomimic import write_robomimic
from strap.policies import load_policy
from strap.types import Source, Trajectory

FRAMES = 5


def record() -> Trajectory:
    """A demonstration whose images lie upside down on disk, as LIBERO's do."""
    seen = [observe(moment) for moment in range(FRAMES)]
    return Trajectory(
        "demo_0",
        FRAMES,
        "pick",
        {"front": np.stack([one.images["front"][::-1] for one in seen])},
        {key: np.stack([one.proprioception[key] for one in seen]) for key in ("ee_pos", "gripper")},
        np.random.default_rng(0).uniform(-1, 1, (FRAMES, 4)),
        Source(Path("made"), "up"),
        fps=20.0,
        orientation="flipped",
    )


def test_a_demonstration_is_compared_with_what_the_policy_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, file = save_small_policy(tmp_path / "policy"), tmp_path / "demos.hdf5"
    recorded = record()
    write_robomimic(file, [recorded])
    policy = load_policy(checkpoint, device="cpu")
    said = np.stack([policy.act(observe(moment)) for moment in range(FRAMES)])
    expected = np.abs(said - recorded.actions[:]).mean(axis=0)
    with serving(load_policy(checkpoint, device="cpu")) as port:
        client = replay.WebsocketClientPolicy("127.0.0.1", port)
        dataset = strap.open_dataset(file)
        compared = replay.replay(dataset[dataset.ids[0]], client)
        np.testing.assert_allclose(compared.error, expected, atol=1e-5)
        as_lerobot = {f"observation.{k}": v for k, v in recorded.proprioception.items()}
        named = replace(recorded, proprioception=as_lerobot)
        np.testing.assert_allclose(replay.replay(named, client).error, expected, atol=1e-5)
        monkeypatch.setattr(sys, "argv", ["replay.py", str(file), "--port", str(port)])
        replay.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo_0: 5 frames, 'pick'"
    assert [line.split()[1] for line in lines[2:]] == [f"{error:.3f}" for error in expected]


def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "demos.hdf5"
    write_robomimic(file, [record()])
    monkeypatch.setattr(sys, "argv", ["replay.py", str(file), "--port", "1"])
    with pytest.raises(SystemExit, match=r"no policy server at 127\.0\.0\.1:1 .*start one with"):
        replay.main()
    monkeypatch.setattr(sys, "argv", ["replay.py", str(tmp_path / "absent")])
    with pytest.raises(SystemExit, match=r"replay: .*absent"):
        replay.main()
    for episode in ("1", "-1"):
        monkeypatch.setattr(sys, "argv", ["replay.py", str(file), "--episode", episode])
        with pytest.raises(SystemExit):
            replay.main()
        assert f"error: --episode is {episode}: give 0 to 0" in capsys.readouterr().err
