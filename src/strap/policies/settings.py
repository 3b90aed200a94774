"""What a policy is made of, as plain data: its sizes, what goes in, and the named presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError, unknown

Kind = Literal["transformer", "diffusion"]
Vision = Literal["resnet", "frozen"]
Attention = Literal["full", "causal"]
Norm = Literal["batch", "group"]
Normalize = Literal["none", "proprioception", "all"]
Acting = Literal["mode", "sample"]
Initial = Literal["normal", "backbone"]
Pixels = Literal["imagenet", "unit"]
Preset = Literal["fixed", "paper", "released"]

CROP = 116 / 128
"""The side of a random crop as a part of the image's side."""


MAX_SIDE = 8192
"""pixels a side of the images that a policy may ask for"""
MAX_WIDTH = 1 << 16
"""of a layer, or of what goes in or comes out, in a checkpoint's description"""
MAX_LEVELS = 16
WHOLE = {
    **dict.fromkeys(("history", "chunk", "execute", "blend"), (1, 4096)),
    "first_action": (-4096, 0),
    **dict.fromkeys(("layers", "heads", "modes", "kernel"), (1, 1024)),
    **dict.fromkeys(("width", "keypoints", "features", "groups"), (1, MAX_WIDTH)),
    "diffusion_steps": (1, 10_000),
    "horizon": (1, 1_000_000),
}
"""the least and the greatest value that is taken from a checkpoint's description"""
SHARES = {"dropout": 1.0, "attention_dropout": 1.0, "min_std": 1e6, "acting_std": 1e6}
"""the greatest; the least is 0"""


@dataclass(frozen=True)
class PolicySettings:
    """A policy's shape. The defaults are the paper's transformer, with full attention."""

    kind: Kind = "transformer"
    vision: Vision = "resnet"
    history: int = 5
    """frames it sees"""
    chunk: int = 5
    """actions it predicts"""
    execute: int = 1
    """actions it executes before it looks again"""
    blend: int = 1
    """what the last so many looks say of this moment is averaged (1: the last one alone)"""
    first_action: int = 0
    """the first predicted action, counted from the last frame seen"""
    attention: Attention = "full"
    """causal as released: the executed action, token 0, then sees the oldest frame only"""
    layers: int = 8
    width: int = 256
    heads: int = 4
    dropout: float = 0.1
    attention_dropout: float = 0.1
    modes: int = 5
    """components of the Gaussian mixture"""
    min_std: float = 0.005
    """the least standard deviation of a component"""
    acting: Acting = "mode"
    """what it does: the mean of the heaviest mode, or a mode drawn by weight (sample); a stray draw
    once in fifty steps is enough to miss a grasp"""
    acting_std: float = 1e-4
    """standard deviation when it acts by sampling"""
    keypoints: int = 32
    features: int = 64
    """numbers per camera that go into a token"""
    norm: Norm = "batch"
    """of the ResNets"""
    language: bool = True
    """whether the instruction conditions it, by FiLM and in the token"""
    normalize: Normalize = "proprioception"
    """what is brought to mean 0, deviation 1 (proprioception) or to −1 … 1 (actions, with all)"""
    initial: Initial = "normal"
    """weights at first: the transformer's all from N(0, 0.02) and FiLM's 0, so that it changes
    nothing; or, as robomimic has it, from N(0, 0.02) in the transformer's blocks alone (backbone):
    tokens, head and FiLM by PyTorch's default, positions 0"""
    qkv_bias: bool = True
    """whether the attention's queries, keys and values have biases; robomimic's have none"""
    pixels: Pixels = "imagenet"
    """what a ResNet sees: pixels by ImageNet's mean and deviation, or from 0 to 1 (unit)"""
    horizon: int = 520
    """steps after which an evaluated episode has failed"""
    channels: tuple[int, ...] = (256, 512, 1024)
    """diffusion: of the U-Net's levels"""
    kernel: int = 5
    groups: int = 8
    diffusion_steps: int = 100

    def __post_init__(self) -> None:
        for name, known in (
            ("kind", get_args(Kind)),
            ("vision", get_args(Vision)),
            ("attention", get_args(Attention)),
            ("norm", get_args(Norm)),
            ("normalize", get_args(Normalize)),
            ("acting", get_args(Acting)),
            ("initial", get_args(Initial)),
            ("pixels", get_args(Pixels)),
        ):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        for name in (
            *("history", "chunk", "execute", "blend", "horizon"),
            *("layers", "width", "heads", "modes"),
        ):
            if getattr(self, name) < 1:
                raise StrapError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.kind == "transformer" and self.chunk > self.history:
            raise StrapError(
                f"chunk {self.chunk} exceeds history {self.history}: the transformer predicts one "
                "action per frame it sees; lower --chunk or raise --history"
            )
        if not self.min_std >= 0:
            raise StrapError(f"min_std is {self.min_std}: it must be at least 0")
        if self.width % self.heads:
            raise StrapError(f"width {self.width} must be a multiple of heads {self.heads}")
        if self.execute > self.chunk + self.first_action:
            raise StrapError(
                f"execute {self.execute} exceeds the {self.chunk + self.first_action} future "
                "actions that are predicted: lower --execute"
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PolicySettings:
        """From a checkpoint's JSON; unknown names are an error."""
        known = {entry.name for entry in fields(cls)}
        if odd := sorted(set(values) - known):
            raise StrapError(f"policy settings have unknown names: {', '.join(odd)}")
        for name, value in values.items():
            if name in WHOLE:
                _require_whole(value, name, *WHOLE[name])
            elif name in SHARES:
                _require_real(value, name, SHARES[name])
            elif name != "channels" and type(value) is not type(
                cls.__dataclass_fields__[name].default
            ):
                raise StrapError(f"{name} is {value!r:.60}: another kind of value belongs there")
        channels = values.get("channels", cls.channels)
        if not isinstance(channels, list | tuple) or not 1 <= len(channels) <= MAX_LEVELS:
            raise StrapError(f"channels is {channels!r:.60}: a list of 1 to {MAX_LEVELS} numbers")
        for width in channels:
            _require_whole(width, "channels", 1, MAX_WIDTH)
        return cls(**{**values, "channels": tuple(channels)})


@dataclass(frozen=True)
class Interface:
    """What goes in and comes out: fixed by the data a policy is trained on."""

    cameras: tuple[str, ...]
    image_size: int
    """side of the square images"""
    proprioception: Mapping[str, int]
    """key -> size, in the order they are concatenated"""
    action_size: int
    language_size: int
    map_size: tuple[int, int] = (0, 0)
    """frozen vision: (positions, channels) of a camera's feature map"""
    fps: float | None = None
    frame_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """camera -> (height, width) of the training data's images, where known; a camera that is not
    named here has square ones of `image_size`"""

    @property
    def crop(self) -> int:
        """Side of the crop that a ResNet sees."""
        return max(1, round(self.image_size * CROP))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interface:
        """From a checkpoint's or cache's JSON."""
        cameras, proprioception = values["cameras"], values["proprioception"]
        if not isinstance(cameras, list | tuple) or len(set(cameras)) < len(cameras):
            raise StrapError(f"cameras is {cameras!r:.60}: it must be a list of different names")
        if not isinstance(proprioception, Mapping):
            raise StrapError(f"proprioception is {proprioception!r:.60}: it must be name -> size")
        if not all(isinstance(name, str) for name in (*cameras, *proprioception)):
            raise StrapError("the name of a camera or of proprioception is no text")
        for name, most in (("image_size", MAX_SIDE), ("action_size", MAX_WIDTH)):
            _require_whole(values[name], name, 1, most)
        _require_whole(values["language_size"], "language_size", 0, MAX_WIDTH)
        places, channels = values["map_size"]
        for size in (places, channels, *proprioception.values()):
            _require_whole(size, "map_size or proprioception", 0, MAX_WIDTH)
        if values.get("fps") is not None:
            _require_real(values["fps"], "fps", 1e6)
        sizes = values.get("frame_sizes", {})
        if not isinstance(sizes, Mapping):
            raise StrapError(f"frame_sizes is {sizes!r:.60}: it must be camera -> height and width")
        for height, width in sizes.values():
            for side in (height, width):
                _require_whole(side, "frame_sizes", 1, MAX_SIDE)
        return cls(
            cameras=tuple(cameras),
            image_size=values["image_size"],
            proprioception=dict(proprioception),
            action_size=values["action_size"],
            language_size=values["language_size"],
            map_size=(places, channels),
            fps=values.get("fps"),
            frame_sizes={name: (height, width) for name, (height, width) in sizes.items()},
        )

    def difference(self, other: Interface) -> str | None:
        """What differs from another interface, in words; None when nothing does."""
        for name in ("cameras", "image_size", "action_size", "language_size"):
            if getattr(self, name) != getattr(other, name):
                ours, theirs = getattr(self, name), getattr(other, name)
                return f"{name.replace('_', ' ')} {_words(ours)}, not {_words(theirs)}"
        ours, theirs = dict(self.proprioception), dict(other.proprioception)
        if list(ours.items()) != list(theirs.items()):  # in their order they are one vector
            told = f"proprioception {_words(ours)}, not {_words(theirs)}"
            order = f"--proprioception {' '.join(theirs)}"
            return f"{told} ({order} orders it)" if ours == theirs else told
        return None


def _require_whole(value: Any, name: str, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise StrapError(f"{name} is {value!r:.60}: it must be a whole number, {least} to {most}")


def _require_real(value: Any, name: str, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise StrapError(f"{name} is {value!r:.60}: it must be a number, 0 to {most:g}")


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({size})" for key, size in value.items()) or "none"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


SMALL = {"layers": 2, "width": 64, "keypoints": 16, "attention_dropout": 0.0}
"""A frozen-feature policy: small enough for a hundred steps a second on two cores."""


def policy_preset(
    name: Preset = "fixed", *, kind: Kind = "transformer", vision: Vision = "resnet"
) -> PolicySettings:
    """The settings of a preset.

    `paper`: the text, and where it says nothing the authors' code. `released`: that code alone,
    whose attention mask is causal and whose episodes end after 300 steps. `fixed`: full
    attention, proprioception normalised (fingers move by centimetres, joints by radians), the
    heaviest mode is acted on instead of one drawn, and no deviation below 0.05: with smaller ones
    a likelihood polishes the actions that are easy to predict, whose gradients are the largest,
    and leaves the hard ones (setting off, closing the fingers) as they are.
    """
    if name not in get_args(Preset):
        raise unknown("preset", name, get_args(Preset))
    base = PolicySettings(kind=kind, vision=vision)
    if kind == "diffusion":
        base = replace(
            base, history=2, chunk=16, execute=8, first_action=-1, norm="group", language=False
        )
    if vision == "frozen":
        small: dict[str, Any] = dict(SMALL)
        if kind == "diffusion":
            small["channels"] = (64, 128)
        base = replace(base, **small)
    if name != "fixed":
        base = replace(base, normalize="none", acting="sample", initial="backbone")
        base = replace(base, qkv_bias=kind != "transformer")
        base = replace(base, pixels="unit" if vision == "resnet" else "imagenet")
    elif kind == "diffusion":
        base = replace(base, normalize="all")
    else:
        base = replace(base, min_std=0.05)
    if name == "released":
        base = replace(base, horizon=300)
    if name == "released" and kind == "transformer":
        base = replace(base, attention="causal")
    return base


def text_encoder_preset(name: Preset = "fixed", *, kind: Kind = "transformer") -> str:
    """Return what embeds instructions: CLIP ViT-L/14 as in the paper, or `fixed`'s MiniLM.

    Diffusion policies see no instruction.
    """
    return "clip" if name != "fixed" and kind == "transformer" else TEXT_ENCODER


def imagenet_preset(
    name: Preset = "fixed", *, kind: Kind = "transformer", vision: Vision = "resnet"
) -> str | None:
    """Return where the ResNets' first weights come from: a hub id, or None for random ones.

    The paper's diffusion policies begin with ImageNet's.
    """
    begins = name != "fixed" and kind == "diffusion" and vision == "resnet"
    return "microsoft/resnet-18" if begins else None
