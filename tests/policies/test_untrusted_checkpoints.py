"""Checkpoints that somebody forged or damaged, and observations that are no numbers."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strap.errors import StrapError
from strap.policies import (
    Checkpoint,
    Interface,
    Observation,
    PolicySettings,
    build_policy,
    load_policy,
)
from strap.policies.checkpoints import Instructions, read_about, save_checkpoint
from strap.policies.frozen_vision import Projection

INTERFACE = Interface((), 32, {"ee_pos": 3, "gripper": 2}, 4, 8, (0, 0), 20.0)
SMALL = PolicySettings(layers=1, width=16, heads=2, modes=2)
DENOISING = PolicySettings(
    kind="diffusion",
    history=2,
    chunk=8,
    execute=4,
    first_action=-1,
    channels=(8, 16),
    groups=2,
    kernel=3,
    diffusion_steps=4,
    language=False,
)


def save(folder: Path, settings: PolicySettings = SMALL) -> Path:
    torch.manual_seed(0)
    told = Instructions(("pick", "place"), torch.randn(2, 8), "words")
    policy = build_policy(INTERFACE, settings)
    save_checkpoint(folder, Checkpoint(policy, INTERFACE, settings, told))
    return folder


@pytest.fixture(params=[SMALL, DENOISING], ids=["transformer", "diffusion"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return save(tmp_path / "policy", request.param)


def observation(state: Mapping[str, Any] | None = None, instruction: str = "pick") -> Observation:
    return Observation(
        {}, {"ee_pos": np.zeros(3), "gripper": np.ones(2), **(state or {})}, instruction
    )


def configure(folder: Path, part: str, **values: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    own = config[part] if part else config
    own.update(values)
    file.write_text(json.dumps(config))


def change_tensors(folder: Path, how: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / "policy.safetensors")
    how(tensors)
    save_file(tensors, folder / "policy.safetensors")


def test_what_was_saved_acts(folder: Path) -> None:
    assert np.isfinite(load_policy(folder, device="cpu").act(observation())).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    name = "policy.observation.state_std"
    change_tensors(folder, lambda tensors: tensors[name].__setitem__(1, value))
    with pytest.raises(StrapError, match=rf"'{name}' holds 1 of 5 values that are not finite"):
        load_policy(folder)


def test_instruction_vectors_that_are_not_finite_are_refused(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors["instructions"].fill_(float("nan")))
    with pytest.raises(StrapError, match="'instructions' holds 16 of 16 values that are not"):
        load_policy(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_proprioception_that_is_not_finite_is_refused_by_key(folder: Path, value: float) -> None:
    policy = load_policy(folder, device="cpu")
    with pytest.raises(StrapError, match=r"proprioception 'gripper' is \[1\.0, .*finite numbers"):
        policy.act(observation({"gripper": np.array([1.0, value])}))
    assert np.isfinite(policy.act(observation())).all()  # and nothing of it stays behind


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5), "has 5 numbers; this policy was trained with 3"),
        (np.zeros((1, 3)), r"has shape \(1, 3\) of numbers"),
        (np.float64(1), r"has shape \(\) of numbers"),
        (["a", "b", "c"], "it must hold finite numbers"),
        ([None, 0, 0], "it must hold finite numbers"),
    ],
)
def test_proprioception_of_another_kind_is_refused(folder: Path, values: Any, message: str) -> None:
    with pytest.raises(StrapError, match=f"proprioception 'ee_pos'.*{message}"):
        load_policy(folder, device="cpu").act(observation({"ee_pos": values}))


def test_weights_too_large_to_act_with_are_told(folder: Path) -> None:
    def blow_up(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.fill_(3e38)

    change_tensors(folder, blow_up)
    with pytest.raises(StrapError, match="the policy's action is not finite"):
        load_policy(folder, device="cpu").act(observation())


@pytest.mark.parametrize("image", [np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), None])
def test_an_image_of_another_kind_is_refused(tmp_path: Path, image: Any) -> None:
    policy = load_policy(save_frozen(tmp_path, 272), device="cpu")
    seen = Observation({"front": image}, {"ee_pos": np.zeros(3)}, "pick")
    with pytest.raises(StrapError, match=r"camera 'front' gives .*: give an image of uint8"):
        policy.act(seen)


SETTINGS: dict[str, tuple[Any, str]] = {
    "layers": (10**9, "layers is 1000000000: it must be a whole number, 1 to 1024"),
    "width": ("16", "width is '16': it must be a whole number"),
    "history": (True, "history is True"),
    "chunk": (10**12, "chunk is 1000000000000"),
    "diffusion_steps": (10**9, "diffusion_steps is 1000000000"),
    "dropout": (-0.1, "dropout is -0.1: it must be a number, 0 to 1"),
    "min_std": (float("nan"), "min_std is nan"),
    "language": ("yes", "language is 'yes': it has the wrong type"),
    "kind": (["transformer"], "kind is .*it has the wrong type"),
    "channels": ([64] * 1000, "a list of 1 to 16 numbers"),
    "first_action": (3, "first_action is 3: it must be a whole number, -4096 to 0"),
    "run": ("me", "unknown names: run"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_forged_settings_are_refused(folder: Path, name: str) -> None:
    value, message = SETTINGS[name]
    configure(folder, "settings", **{name: value})
    with pytest.raises(StrapError, match=message) as caught:
        load_policy(folder)
    assert "config.json' is damaged" in str(caught.value)
    assert "copy it again, or train again" in str(caught.value)


INTERFACES: dict[str, tuple[Any, str]] = {
    "cameras": ("front", "cameras is 'front': it must be a list of different names"),
    "image_size": (10**9, "image_size is 1000000000: it must be a whole number, 1 to 8192"),
    "action_size": ([4], r"action_size is \[4\]"),
    "proprioception": ([3, 2], r"proprioception is \[3, 2\]: it must be name -> size"),
    "map_size": (3, "TypeError"),
    "language_size": (-1, "language_size is -1"),
    "fps": ("fast", "fps is 'fast'"),
    "frame_sizes": ([3], r"frame_sizes is \[3\]: it must be camera -> height and width"),
}


@pytest.mark.parametrize("name", INTERFACES)
def test_a_forged_interface_is_refused(folder: Path, name: str) -> None:
    value, message = INTERFACES[name]
    configure(folder, "interface", **{name: value})
    with pytest.raises(StrapError, match=rf"config\.json' is damaged .*{message}"):
        load_policy(folder)


def test_forged_frame_sizes_are_refused(folder: Path) -> None:
    for sizes, message in (
        ({"front": [10**9, 3]}, "frame_sizes is 1000000000"),
        ({"a": 3}, "Type"),
    ):
        configure(folder, "interface", frame_sizes=sizes)
        with pytest.raises(StrapError, match=rf"config\.json' is damaged .*{message}"):
            load_policy(folder)


def test_sizes_are_compared_before_memory_is_taken(folder: Path) -> None:
    configure(folder, "settings", width=65536, heads=1, channels=[65536, 65536])
    with pytest.raises(StrapError, match=r"does not fit the policy in config\.json"):
        load_policy(folder)


@pytest.mark.parametrize("texts", [["pick"], ["pick", "place", "wait"]])
def test_instructions_without_vectors_are_refused(folder: Path, texts: list[str]) -> None:
    configure(folder, "", instructions=texts)
    with pytest.raises(StrapError, match=rf"holds float32 \[2, 8\], not vectors \[{len(texts)}, 8"):
        load_policy(folder)


@pytest.mark.parametrize("texts", [{"a": 1}, "pick", [["pick"], ["place"]]])
def test_instructions_that_are_no_texts_are_refused(folder: Path, texts: Any) -> None:
    configure(folder, "", instructions=texts)
    with pytest.raises(StrapError, match="instructions are not a list of texts"):
        load_policy(folder)


def test_an_instruction_of_another_size_of_vector_is_told(tmp_path: Path) -> None:
    policy = load_policy(save(tmp_path / "policy"), device="cpu")
    with pytest.raises(StrapError, match=r"'words' gives 64 numbers for 'fly'; .* trained with 8"):
        policy.act(observation(instruction="fly"))


def test_tensors_of_other_kinds_are_refused(folder: Path) -> None:
    name = "policy.observation.state_mean"
    for other in (torch.zeros(6), torch.zeros(5, dtype=torch.int64)):
        change_tensors(folder, lambda tensors, other=other: tensors.update({name: other}))
        with pytest.raises(StrapError, match=r"'observation\.state_mean' is .*, not float32 \[5\]"):
            load_policy(folder)
    change_tensors(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(StrapError, match=r"it has no 'observation\.state_mean'"):
        load_policy(folder)


def save_frozen(folder: Path, channels: int | None) -> Path:
    """A policy that sees through frozen vision; a projection of so many channels, or none."""
    interface = Interface(("front",), 32, {"ee_pos": 3}, 4, 8, (4, 3))
    settings = PolicySettings(vision="frozen", layers=1, width=16, heads=2, keypoints=4)
    told = Instructions(("pick",), torch.randn(1, 8), "words")
    made = channels and Projection(torch.zeros(channels), torch.zeros(channels, 3))
    policy = build_policy(interface, settings)
    save_checkpoint(folder, Checkpoint(policy, interface, settings, told, made or None))
    return folder


def test_frozen_vision_without_its_projection_is_refused(tmp_path: Path) -> None:
    save_frozen(tmp_path / "without", None)
    with pytest.raises(StrapError, match="its projection of feature maps to 3 channels is missing"):
        load_policy(tmp_path / "without")
    folder = save_frozen(tmp_path / "with", 272)
    load_policy(folder)
    configure(folder, "interface", image_size=48)
    with pytest.raises(StrapError, match="48 pixels a side do not give feature maps of 4 places"):
        load_policy(folder)


def test_a_header_that_claims_everything_is_refused(folder: Path) -> None:
    file = folder / "policy.safetensors"
    content = file.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    for forged in (
        struct.pack("<Q", 2**63) + content[8:],
        _with_header(content, {**header, name: {**header[name], "shape": [10**9, 10**9]}}),
        _with_header(content, {**header, name: {**header[name], "data_offsets": [0, 2**60]}}),
        _with_header(content, {**header, name: {**header[name], "dtype": "O"}}),
        b"",
    ):
        file.write_bytes(forged)
        with pytest.raises(StrapError, match=r"policy\.safetensors' is damaged .*copy it again"):
            load_policy(folder)


def _with_header(content: bytes, header: dict[str, Any]) -> bytes:
    (size,) = struct.unpack_from("<Q", content)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def test_what_a_header_says_about_itself_is_an_object(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "t.safetensors", metadata={"about": "[1]"})
    with pytest.raises(StrapError, match=r"is damaged .*its header holds no description"):
        read_about(tmp_path / "t.safetensors")


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_is_refused_and_does_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "policy.safetensors").write_bytes(pickle.dumps(Malice()))
    with pytest.raises(StrapError, match="is damaged"):
        load_policy(folder)
    torch.save(Malice(), folder / "policy.safetensors")
    with pytest.raises(StrapError, match="is damaged"):
        load_policy(folder)
    assert not (folder / "ran").exists()
