"""Rollouts with a toy simulator in real processes; statistics against known values."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.policies.toy import make

from strap.errors import StrapError
from strap.evaluation import EvaluationSettings, compare, mcnemar, open_evaluation, wilson
from strap.evaluation.comparison import comparison_to_json, format_comparison
from strap.evaluation.records import OUTCOME, read_description, read_records
from strap.evaluation.results import (
    check_interface,
    evaluate,
    rendered_size,
    require_states,
    run_episodes,
)
from strap.evaluation.statistics import sign_flips
from strap.locks import LOCK, exclusive_lock
from strap.policies import Policy, PolicySettings, load_policy
from strap.policies.checkpoints import WEIGHT_FILES
from strap.policies.settings import Interface
from strap.training import FrameCache, TrainingSettings, train

SETTINGS = EvaluationSettings(episodes=5, horizon=6, workers=2)
IDENTITY = {"checkpoint": "a", "suite": "toy", "task": "reach", "horizon": 6}


@pytest.fixture(scope="module")
def policy(frozen: FrameCache, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    out = tmp_path_factory.mktemp("policy")
    own = PolicySettings(vision="frozen", layers=1, width=32, keypoints=4, features=8)
    quick = TrainingSettings(recipe="bc", steps=1, batch=2)
    train(frozen, out, policy=own, training=quick, quiet=True)
    return load_policy(out, device="cpu")


def test_pictures_are_rendered_as_they_were_recorded() -> None:
    """The policy resizes them, as training did."""
    told = Interface(("agentview_rgb", "eye_in_hand_rgb"), 128, {}, 7, 64)
    assert rendered_size(told) == 128
    recorded = {"agentview_rgb": (256, 256), "eye_in_hand_rgb": (256, 256)}
    assert rendered_size(replace(told, frame_sizes=recorded)) == 256
    recorded["eye_in_hand_rgb"] = (240, 320)
    assert rendered_size(replace(told, frame_sizes=recorded)) == 128


def test_progress_goes_on_inside_an_episode(policy: Policy, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    told: list[tuple[str, int, int]] = []
    one = replace(SETTINGS, episodes=2, workers=1)
    run_episodes(
        policy,
        *("reach", one, make, (str(folder),), tmp_path / "out", IDENTITY),
        progress=lambda *call: told.append(call),
    )
    steps = [done for what, done, _ in told if what == "simulated steps"]
    assert steps == sorted(steps)
    assert len(set(steps)) > 6  # two episodes of up to six steps
    assert {total for what, _, total in told if what == "simulated steps"} == {12}


def test_rollouts_are_recorded_filmed_and_not_run_twice(policy: Policy, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    out = tmp_path / "out"
    few = replace(SETTINGS, episodes=2)
    run_episodes(policy, "reach", few, make, (str(folder),), out, IDENTITY)
    done = run_episodes(policy, "reach", SETTINGS, make, (str(folder),), out, IDENTITY)
    assert len((out / "episodes.jsonl").read_text().splitlines()) == 5
    assert done.successes == {0: True, 1: False, 2: True, 3: True, 4: True}
    row = done.records[1]
    assert (row["steps"], row["partial"]) == (6, 0.5)
    assert row["goals"] == {"near": 2, "there": None}
    assert done.records[0]["steps"] == 4
    assert (out / "videos" / "000-success.mp4").stat().st_size > 500
    assert (out / "videos" / "001-failure.mp4").is_file()
    assert "4 of 5 episodes succeeded: 80% (95 % interval 38% to 96%)" in str(done)
    with (
        exclusive_lock(out / LOCK, "rolling out"),
        pytest.raises(StrapError, match="another process is rolling out into"),
    ):
        run_episodes(policy, "reach", SETTINGS, make, (str(folder),), out, IDENTITY)
    other = {**IDENTITY, "checkpoint": "b"}
    with pytest.raises(StrapError, match="another checkpoint: choose another --out"):
        run_episodes(policy, "reach", SETTINGS, make, (str(folder),), out, other)


@pytest.mark.parametrize("changes", [{"acting": "sample", "execute": 3}, {"demos": "4b1d"}])
def test_rollouts_of_other_settings_are_not_pooled(
    policy: Policy, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Neither where a setting comes nor where it goes."""
    one, plain, changed = replace(SETTINGS, episodes=1, videos=False), IDENTITY, IDENTITY | changes
    for name, begun, resumed in (("a", plain, changed), ("b", changed, plain)):
        out = tmp_path / name
        run_episodes(policy, "reach", one, make, (str(tmp_path),), out, begun)
        message = f"another {', '.join(changes)}: choose another --out"
        with pytest.raises(StrapError, match=message):
            run_episodes(policy, "reach", SETTINGS, make, (str(tmp_path),), out, resumed)
        run_episodes(policy, "reach", one, make, (str(tmp_path),), out, begun)
        assert len((out / "episodes.jsonl").read_text().splitlines()) == 1


def test_demonstrations_are_known_by_what_they_hold(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WEIGHT_FILES["last"]).touch()
    told: list[Any] = []
    task = SimpleNamespace(name="reach", index=0, instruction="reach")
    for name, stand_in in (
        ("strap.libero.tasks.find_task", lambda *_: task),
        ("strap.libero.rendering.backend.select_backend", lambda: None),
        ("strap.evaluation.results.load_policy", lambda *_, **__: policy),
        ("strap.evaluation.results.check_interface", lambda _: None),
        ("strap.evaluation.results.run_episodes", lambda *call: told.append(call[6]["demos"])),
    ):
        monkeypatch.setattr(name, stand_in)
    for folder, content in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "demos.hdf5"
        file.write_bytes(content)
        evaluate(tmp_path, replace(SETTINGS, demos=str(file)))
    assert told[0] == told[2] != told[1]
    with pytest.raises(StrapError, match=r"none\.hdf5' does not exist: check the path"):
        evaluate(tmp_path, replace(SETTINGS, demos=str(tmp_path / "none.hdf5")))


def test_rollouts_may_begin_with_a_later_state(policy: Policy, tmp_path: Path) -> None:
    out, later = tmp_path / "out", replace(SETTINGS, episodes=2, first=3, videos=False)
    done = run_episodes(policy, "reach", later, make, (str(tmp_path),), out, IDENTITY)
    assert sorted(done.successes) == sorted(read_records(out)) == [3, 4]
    assert sorted(open_evaluation(out, range(4)).successes) == [3]
    before = replace(later, first=-1)
    with pytest.raises(StrapError, match="the first initial state is -1"):
        run_episodes(policy, "reach", before, make, (str(tmp_path),), out, IDENTITY)


def test_the_policy_leaves_the_environments_their_cpus(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strap.evaluation.rollouts.count_cpus", lambda: 5)
    used, act = [], Policy.act_many
    monkeypatch.setattr(
        Policy,
        "act_many",
        lambda self, seen: (used.append(torch.get_num_threads()), act(self, seen))[1],
    )
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        own = replace(SETTINGS, videos=False)  # two environments
        run_episodes(policy, "reach", own, make, (str(tmp_path),), tmp_path / "out", IDENTITY)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert set(used) == {3}


def test_a_crashed_environment_is_replaced(policy: Policy, tmp_path: Path) -> None:
    own = replace(SETTINGS, videos=False)
    done = run_episodes(
        policy, "reach", own, make, (str(tmp_path), -1, 2), tmp_path / "out", IDENTITY
    )
    assert sorted(done.successes) == [0, 1, 2, 3, 4]
    assert len((tmp_path / "made").read_text()) == 3  # two workers, one replaced


def test_one_that_always_crashes_costs_no_finished_episode(policy: Policy, tmp_path: Path) -> None:
    own, out = replace(SETTINGS, videos=False), tmp_path / "out"
    with pytest.raises(StrapError, match=r"failed 3 times on initial state 3: .*exit code 3.*kept"):
        run_episodes(policy, "reach", own, make, (str(tmp_path), 3), out, IDENTITY)
    assert sorted(read_records(out)) == [0, 1, 2, 4]
    with (out / "episodes.jsonl").open("a") as file:
        file.write('{"state": 3, "succ')  # killed while writing
    assert sorted(read_records(out)) == [0, 1, 2, 4]
    run_episodes(policy, "reach", own, make, (str(tmp_path),), out, IDENTITY)
    assert sorted(read_records(out)) == [0, 1, 2, 3, 4]  # on a line of its own


def test_an_error_that_would_come_again_is_not_repeated(policy: Policy, tmp_path: Path) -> None:
    late, out = replace(SETTINGS, first=48, workers=1, videos=False), tmp_path / "out"
    late = replace(late, episodes=3)
    with pytest.raises(StrapError, match=r"^initial state 50: .*0 to 49, not 50 \(2 finished"):
        run_episodes(policy, "reach", late, make, (str(tmp_path),), out, IDENTITY)
    assert sorted(read_records(out)) == [48, 49]
    assert (tmp_path / "made").read_text() == "x"  # one worker for all, and no other after it


def test_an_evaluation_ends_with_the_last_fixed_state() -> None:
    require_states(replace(SETTINGS, episodes=20, first=30), "reach", 50)
    for first, advice in ((45, "give --episodes 5 or fewer"), (50, "give a --first below 50")):
        message = f"'reach' has 50 fixed initial states.* episodes {first} to .*{advice}"
        with pytest.raises(StrapError, match=message):
            require_states(replace(SETTINGS, episodes=20, first=first), "reach", 50)


def test_states_are_counted_before_anything_starts(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = SimpleNamespace(name="reach", index=0, instruction="reach")
    for name, stand_in in (
        ("strap.libero.tasks.find_task", lambda *_: task),
        ("strap.libero.tasks.load_fixed_states", lambda _: np.zeros((4, 7))),
        ("strap.evaluation.results.load_policy", lambda *_, **__: policy),
        ("strap.evaluation.results.check_interface", lambda _: None),
    ):
        monkeypatch.setattr(name, stand_in)
    with pytest.raises(StrapError, match="give --episodes 4 or fewer"):
        evaluate(tmp_path, SETTINGS)
    assert not list(tmp_path.iterdir())


def test_what_a_rollout_does_depends_on_its_state_alone(policy: Policy, tmp_path: Path) -> None:
    """Mixed with others in a batch, or alone, a stream acts the same."""
    from strap.policies import Observation

    def seen(number: int) -> Observation:
        image = np.full((32, 32, 3), number, np.uint8)
        state = {"ee_pos": np.full(3, number / 9), "gripper_states": np.zeros(2)}
        return Observation({"agentview_rgb": image}, state, "reach")

    for stream in (0, 1):
        policy.reset(stream, seed=stream)
    both = [policy.act_many({0: seen(t), 1: seen(9 - t)})[1] for t in range(4)]
    policy.reset(0, seed=1)
    exclusive_lock = [policy.act(seen(9 - t)) for t in range(4)]
    np.testing.assert_allclose(both, exclusive_lock, atol=1e-4)


def test_looks_are_blended(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """At look t the plan is t, t + 10, t + 20 …: which looks an action is the mean of shows."""
    import torch

    from strap.policies import Observation

    looks = iter(range(100))

    def predict(features: torch.Tensor, _: object) -> torch.Tensor:
        plan = next(looks) + 10.0 * torch.arange(policy.settings.chunk)
        return plan[None, :, None].expand(len(features), -1, 4)

    monkeypatch.setattr(policy.module, "predict", predict)
    image = np.full((32, 32, 3), 3, np.uint8)
    state = {"ee_pos": np.zeros(3), "gripper_states": np.zeros(2)}

    def actions(count: int, word: str = "reach") -> list[float]:
        seen = Observation({"agentview_rgb": image}, state, word)
        return [float(policy.act(seen)[0]) for _ in range(count)]

    assert policy.settings.chunk == 5
    assert actions(3) == [0, 1, 2]
    policy.change(blend=2)
    policy.reset()
    assert actions(3) == [3, (4 + 13) / 2, (5 + 14) / 2]
    assert actions(1, "another") == [6]
    policy.change(blend=9, execute=2)  # more than a plan reaches: only what does counts
    policy.reset()
    assert actions(4) == [7, 17, (8 + 27) / 2, (18 + 37) / 2]
    assert actions(2) == [(9 + 28 + 47) / 3, (19 + 38) / 2]
    with pytest.raises(StrapError, match="blend is 0: it must be at least 1"):
        policy.change(blend=0)


def test_a_policy_can_be_made_to_act_otherwise(policy: Policy) -> None:
    from strap.policies import Observation

    image = np.full((32, 32, 3), 3, np.uint8)
    state = {"ee_pos": np.zeros(3), "gripper_states": np.zeros(2)}
    seen = Observation({"agentview_rgb": image}, state, "reach")

    def first(seed: int) -> tuple[float, ...]:
        policy.reset(seed=seed)
        return tuple(policy.act(seen))

    assert policy.settings.acting == "mode"
    assert len({first(seed) for seed in range(8)}) == 1
    policy.change(acting="sample", acting_std=0.1)
    assert len({first(seed) for seed in range(8)}) == 8
    policy.change(acting="mode", execute=2)
    policy.reset()
    policy.act(seen)
    assert len(policy._streams[0].pending) == 1
    policy.change(execute=1)
    with pytest.raises(StrapError, match="unknown acting 'guess'"):
        policy.change(acting="guess")


def test_wilson_and_mcnemar_are_the_textbooks() -> None:
    low, high = wilson(10, 20)
    assert (round(low, 4), round(high, 4)) == (0.2993, 0.7007)
    low, high = wilson(0, 20)
    assert (low, round(high, 4)) == (0.0, 0.1611)
    assert wilson(0, 0) == (0.0, 1.0)
    first = {state: state < 8 for state in range(10)}
    second = {state: state < 2 for state in range(11)}
    pair = mcnemar(first, second)
    assert (pair.both, pair.first_only, pair.second_only, pair.neither) == (2, 6, 0, 2)
    assert pair.p_value == pytest.approx(2 / 2**6)
    assert mcnemar(first, first).p_value == 1.0


@given(differences=st.lists(st.fractions(-1, 1, max_denominator=20), min_size=1, max_size=8))
def test_sign_flips_are_counted_exactly(differences: list[Fraction]) -> None:
    found = abs(sum(differences))
    sums = [
        abs(sum(sign * difference for sign, difference in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    assert sign_flips(differences) == sum(total >= found for total in sums) / len(sums)


def test_two_evaluations_are_compared_state_by_state(policy: Policy, tmp_path: Path) -> None:
    own = replace(SETTINGS, videos=False, episodes=2)
    runs = [
        run_episodes(policy, "reach", own, make, (str(tmp_path),), tmp_path / name, IDENTITY)
        for name in ("one", "two")
    ]
    assert "both 1, only the first 0" in format_comparison(*runs)
    values = comparison_to_json(*runs)
    assert (values["rate"], values["against"]["path"]) == (0.5, str(tmp_path / "two"))
    assert (values["comparison"]["both"], values["comparison"]["neither"]) == (1, 1)
    assert "comparison" not in comparison_to_json(runs[0], None)
    short = {**IDENTITY, "horizon": 3}
    less = replace(own, horizon=3)
    third = run_episodes(policy, "reach", less, make, (str(tmp_path),), tmp_path / "three", short)
    with pytest.raises(StrapError, match="differ in horizon"):
        compare(runs[0], third)
    with pytest.raises(StrapError, match="holds no evaluation"):
        open_evaluation(tmp_path)


def write_evaluation(out: Path, rows: list[Any], **about: Any) -> Path:
    out.mkdir()
    (out / "evaluation.json").write_text(json.dumps({**IDENTITY, "seed": 2, **about}))
    (out / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


def row_from(state: int, /, **changes: Any) -> dict[str, Any]:
    row = {"state": state, "seed": 200_000 + state, "success": True, "partial": 1.0, "seconds": 3}
    return {key: value for key, value in {**row, **changes}.items() if value is not ...}


def test_rollouts_that_began_elsewhere_are_not_compared(tmp_path: Path) -> None:
    rows = [row_from(state) for state in range(8)]
    fixed, same, begun = (
        open_evaluation(write_evaluation(tmp_path / name, rows, **about))
        for name, about in (("a", {}), ("b", {}), ("c", {"demos": "4b1d"}))
    )
    assert compare(fixed, same).both == 8
    for first, second in ((fixed, begun), (begun, fixed)):
        with pytest.raises(StrapError, match=r"differ in demos .*4b1d.*the same initial states"):
            compare(first, second)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (5, "'5' is not an episode"),
        (None, "'null' is not an episode"),
        ([], r"'\[\]' is not an episode"),
        ({}, "it has no state"),
        (row_from(1, partial=...), "it has no partial"),
        (row_from(1, success=...), "it has no success"),
        (row_from(1, state="x"), "state is 'x', not a whole number from 0 on"),
        (row_from(1, state=0.9), "state is 0.9, not"),
        (row_from(1, state=True), "state is True, not"),
        (row_from(1, success="false"), "success is 'false', not true or false"),
        (row_from(1, success=2), "success is 2, not"),
        (row_from(1, partial=float("nan")), "partial is nan, not a number from 0 to 1"),
        (row_from(1, partial=1.5), "partial is 1.5, not"),
        (row_from(1, seed="x"), "seed is 'x', not a whole number"),
        (row_from(1, seed=700_001), "seed is 700001, but .* of seed 2 has 200001"),
        (row_from(0, success=False), "state 0 is also on an earlier line, with other values"),
    ],
)
def test_rows_that_no_rollout_wrote_are_refused(
    policy: Policy, tmp_path: Path, row: Any, message: str
) -> None:
    out = write_evaluation(tmp_path / "out", [row_from(0), row])
    found = (
        rf"episodes\.jsonl' is damaged, line 2: {message}.*; restore it from a copy, or remove it"
    )
    with pytest.raises(StrapError, match=found):
        open_evaluation(out)
    own, identity = replace(SETTINGS, seed=2), {**IDENTITY, "seed": 2}
    with pytest.raises(StrapError, match=found):  # and nothing is run
        run_episodes(policy, "reach", own, make, (str(tmp_path),), out, identity)


def test_only_a_last_line_may_be_cut_off(tmp_path: Path) -> None:
    out = write_evaluation(tmp_path / "out", [row_from(0), row_from(0, seconds=4), row_from(1)])
    assert len(open_evaluation(out).records) == 2  # equal but for the seconds
    file = out / "episodes.jsonl"
    whole = file.read_bytes()
    for end in (b'{"state": 3, "succ', b"\xff\xfe", b"\n \n"):
        file.write_bytes(whole + end)
        assert sorted(read_records(out, seed=2, required=OUTCOME)) == [0, 1]
    for line in (b'{"state": 3, "succ\n', b"\xff\xfe\n"):
        file.write_bytes(line + whole)
        with pytest.raises(StrapError, match=r"is damaged, line 1: '.*' is not an episode"):
            read_records(out)
    for about in ("[]", '{"seed": "x"}'):
        (out / "evaluation.json").write_text(about)
        with pytest.raises(
            StrapError, match=r"evaluation\.json' does not describe an evaluation: restore"
        ):
            read_description(out)


def test_a_policy_for_another_robot_is_refused(policy: Policy) -> None:
    check_interface(policy)
    known = policy.interface
    for change, text in (
        ({"cameras": ("front",)}, "camera 'front': LIBERO has agentview_rgb"),
        ({"proprioception": {"ee_pos": 4}}, r"'ee_pos' \(4\): LIBERO has ee_pos \(3\)"),
        ({"action_size": 8}, "actions have 8 numbers: LIBERO's have 7"),
    ):
        policy.interface = replace(known, **change)
        with pytest.raises(StrapError, match=text):
            check_interface(policy)
    policy.interface = known
