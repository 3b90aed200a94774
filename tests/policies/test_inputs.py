"""Observations on which a policy would act wrongly are refused, and nothing of them stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.policies.small_policies import observe, save_small_policy

import strap
from strap.errors import StrapError
from strap.policies import Policy, acting, load_policy
from strap.policies.images import resize_square
from strap.policies.inputs import MAX_INSTRUCTION
from strap.synthetic import Planted
from strap.training import FrameCache

IMAGE = observe(1).images["front"]
STATE = observe(1).proprioception


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def policy(folder: Path) -> Policy:
    return load_policy(folder, device="cpu")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "float image in 0 to 1": (
        {"images": {"front": IMAGE / 255.0}},
        r"camera 'front' gives float64 \(32, 32, 3\) with values 0\S* to 1: give an image of uint8 "
        r"\[height width 3\], upright; if 1 is white, send \(255 \* image\)",
    ),
    "float image in 0 to 255": (
        {"images": {"front": IMAGE.astype(np.float32)}},
        r"gives float32 \(32, 32, 3\) with values 0 to 255: give an image of uint8",
    ),
    "channels first": (
        {"images": {"front": IMAGE.transpose(2, 0, 1)}},
        r"camera 'front' gives uint8 \(3, 32, 32\), channels first: .*image\.transpose\(1, 2, 0\)",
    ),
    "four channels": (
        {"images": {"front": np.zeros((32, 32, 4), np.uint8)}},
        r"gives uint8 \(32, 32, 4\): give an image of uint8 \[height width 3\]",
    ),
    "a batch": ({"images": {"front": IMAGE[None]}}, r"gives uint8 \(1, 32, 32, 3\): give an image"),
    "another size": (
        {"images": {"front": np.zeros((64, 48, 3), np.uint8)}},
        r"camera 'front' gives an image of 64×48 \(height×width\): this policy takes 48×64 or "
        r"32×32, as in its training; set the camera to that size, or resize",
    ),
    "ragged image": ({"images": {"front": [[1], [1, 2]]}}, "camera 'front' is not an array"),
    "missing camera": ({"images": {}}, "this policy needs camera 'front'; there is: none"),
    "misspelt camera": (
        {"images": {"fromt": IMAGE}},
        "needs camera 'front'; there is: fromt",
    ),
    "extra camera": (
        {"images": {"front": IMAGE, "wrist": IMAGE}},
        "camera 'wrist' is not an input of this policy, whose cameras are: front; leave it out",
    ),
    "missing proprioception": (
        {"proprioception": {"ee_pos": np.zeros(3)}},
        "this policy needs proprioception 'gripper'; there is: ee_pos",
    ),
    "another size of proprioception": (
        {"proprioception": {**STATE, "ee_pos": np.zeros(7)}},
        "proprioception 'ee_pos' has 7 numbers; this policy was trained with 3",
    ),
    "NaN": (
        {"proprioception": {**STATE, "gripper": np.array([0, np.nan])}},
        r"proprioception 'gripper' is \[0\.0, nan\]: it must hold finite numbers; check",
    ),
    "infinite": (
        {"proprioception": {**STATE, "gripper": np.array([np.inf, 0])}},
        r"proprioception 'gripper' is \[inf, 0\.0\]: it must hold finite numbers",
    ),
    "infinite in float32": (
        {"proprioception": {**STATE, "gripper": np.array([1e300, 0])}},
        r"proprioception 'gripper' is \[1e\+300, 0\.0\]: it must hold finite numbers",
    ),
    "no text": ({"instruction": b"pick"}, "the instruction is b'pick', not text: give an"),
    "no instruction": ({"instruction": None}, "the instruction is None, not text"),
    "endless text": (
        {"instruction": "a" * (MAX_INSTRUCTION + 1)},
        "the instruction has 4097 characters, more than the maximum of 4096; give one sentence",
    ),
    "another rate": (
        {"rate": 15},
        "the robot executes 15 actions per second, but this policy was trained on data with 20 per "
        "second: act at that rate, or train on data with 15",
    ),
    "no rate": ({"rate": 0}, "the rate is 0: it must be a number above 0"),
    "a rate that is none": ({"rate": "fast"}, "the rate is 'fast': it must be a number above 0"),
    "a rate that is no number": ({"rate": np.nan}, "the rate is nan: it must be a number above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_act_wrongly_is_refused(policy: Policy, case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(StrapError, match=message):
        policy.act(observe(1, **changes))


@pytest.mark.parametrize("kind", ["transformer", "diffusion"])
def test_a_refused_observation_changes_no_stream(tmp_path: Path, kind: str) -> None:
    folder = save_small_policy(tmp_path, kind)
    policy, other = load_policy(folder, device="cpu"), load_policy(folder, device="cpu")
    for moment in range(8):
        with pytest.raises(StrapError, match="not text"):
            policy.act_many(
                {0: observe(90 + moment, instruction="place"), 1: observe(9, instruction=0)}
            )
        np.testing.assert_array_equal(policy.act(observe(moment)), other.act(observe(moment)))


@pytest.mark.parametrize("kind", ["transformer", "diffusion"])
def test_a_failed_batch_changes_no_stream(tmp_path: Path, kind: str) -> None:
    """Numbers can be finite and yet too large to compute with."""
    folder = save_small_policy(tmp_path, kind)
    policy, other = load_policy(folder, device="cpu"), load_policy(folder, device="cpu")
    far = {"ee_pos": np.full(3, 3e38), "gripper": np.zeros(2)}
    for moment in range(8):
        policy.reset(1)
        with pytest.raises(StrapError, match="the policy's action is not finite"):
            policy.act_many({0: observe(moment), 1: observe(9, proprioception=far)})
        np.testing.assert_array_equal(policy.act(observe(moment)), other.act(observe(moment)))


@pytest.mark.parametrize("kind", ["transformer", "diffusion"])
def test_a_frame_that_is_far_off_stays_in_no_history(tmp_path: Path, kind: str) -> None:
    """Also where a chunk is under way and nothing is planned on it."""
    folder = save_small_policy(tmp_path, kind)
    policy, other = load_policy(folder, device="cpu"), load_policy(folder, device="cpu")
    far = {"ee_pos": np.full(3, 1e30), "gripper": np.zeros(2)}
    for moment in range(8):
        np.testing.assert_array_equal(policy.act(observe(moment)), other.act(observe(moment)))
        with pytest.raises(StrapError, match="far from its training data"):
            policy.act(observe(9, proprioception=far))


def test_vectors_of_new_instructions_are_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "MAX_LANGUAGE", 2)
    policy = load_policy(save_small_policy(tmp_path, language_size=64), device="cpu")
    first = policy.act(observe(1, instruction="word 0"))
    for number in range(5):
        policy.act(observe(1, instruction=f"word {number}"))
    assert [policy.knows(f"word {number}") for number in range(5)] == [False] * 3 + [True] * 2
    assert all(map(policy.knows, policy.instructions))
    np.testing.assert_array_equal(policy.act(observe(1, instruction="word 0")), first)


@pytest.mark.parametrize("rate", [None, 20, 20.5, 19.01])
def test_a_rate_near_the_data_s_is_accepted(policy: Policy, rate: float | None) -> None:
    assert np.isfinite(policy.act(observe(1, rate=rate))).all()


def test_where_the_data_s_rate_is_unknown_any_is_accepted(tmp_path: Path) -> None:
    policy = load_policy(save_small_policy(tmp_path, fps=None), device="cpu")
    assert np.isfinite(policy.act(observe(1, rate=3.5))).all()


def test_an_image_of_the_recorded_size_is_made_small_as_in_training(policy: Policy) -> None:
    image = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    recorded = policy.act(observe(1, images={"front": image}))
    policy.reset()
    small = policy.act(observe(1, images={"front": resize_square(image[None], 32)[0]}))
    np.testing.assert_array_equal(recorded, small)


def test_a_cache_keeps_the_size_of_the_recorded_images(
    frozen: FrameCache, planted: Planted
) -> None:
    trajectory = strap.open_dataset(planted.target)["demo_0"]
    height, width = trajectory.frames("agentview_rgb", 0, 1).shape[1:3]
    assert frozen.interface.frame_sizes == {"agentview_rgb": (height, width)}


def test_a_forgotten_stream_begins_anew(policy: Policy) -> None:
    first = policy.act(observe(1))
    policy.act(observe(2))
    policy.forget(0)
    policy.forget(7)  # which never was
    np.testing.assert_array_equal(policy.act(observe(1)), first)
