"""A policy's settings, the interface to its data, and the named presets."""

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
"""side of a random crop, as a fraction of the image's side"""
MAX_SIDE = 8192
"""largest side, in pixels, of a policy's images"""
MAX_WIDTH = 1 << 16
"""largest width of a layer, an input or an output that is accepted from a checkpoint"""
MAX_LEVELS = 16
INTEGER_LIMITS = {
    **dict.fromkeys(("history", "chunk", "execute", "blend"), (1, 4096)),
    "first_action": (-4096, 0),
    **dict.fromkeys(("layers", "heads", "modes", "kernel"), (1, 1024)),
    **dict.fromkeys(("width", "keypoints", "features", "groups"), (1, MAX_WIDTH)),
    "diffusion_steps": (1, 10_000),
    "horizon": (1, 1_000_000),
}
"""smallest and largest value that is accepted from a checkpoint"""
REAL_LIMITS = {"dropout": 1.0, "attention_dropout": 1.0, "min_std": 1e6, "acting_std": 1e6}
"""largest value that is accepted from a checkpoint; the smallest is 0"""


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
        """Read settings from a checkpoint's JSON; unknown names are an error."""
        known = {entry.name for entry in fields(cls)}
        if extra := sorted(set(values) - known):
            raise StrapError(f"policy settings have unknown names: {', '.join(extra)}")
        for name, value in values.items():
            if name in INTEGER_LIMITS:
                _require_integer(value, name, *INTEGER_LIMITS[name])
            elif name in REAL_LIMITS:
                _require_real(value, name, REAL_LIMITS[name])
            elif name != "channels" and type(value) is not type(
                cls.__dataclass_fields__[name].default
            ):
                raise StrapError(f"{name} is {value!r:.60}: it has the wrong type")
        channels = values.get("channels", cls.channels)
        if not isinstance(channels, list | tuple) or not 1 <= len(channels) <= MAX_LEVELS:
            raise StrapError(
                f"channels is {channels!r:.60}: it must be a list of 1 to {MAX_LEVELS} numbers"
            )
        for width in channels:
            _require_integer(width, "channels", 1, MAX_WIDTH)
        return cls(**{**values, "channels": tuple(channels)})


@dataclass(frozen=True)
class Interface:
    """A policy's inputs and outputs, determined by the data it is trained on."""

    cameras: tuple[str, ...]
    image_size: int
    """side of the square images"""
    proprioception: Mapping[str, int]
    """key -> size, in the order of concatenation"""
    action_size: int
    language_size: int
    map_size: tuple[int, int] = (0, 0)
    """frozen vision: (cells, channels) of a camera's feature map"""
    fps: float | None = None
    frame_sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """camera -> (height, width) of the training data's images, if known; a camera that is missing
    here has square images of `image_size`"""

    @property
    def crop(self) -> int:
        """The side of a ResNet's input crop, in pixels."""
        return max(1, round(self.image_size * CROP))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Interface:
        """Read an interface from the JSON of a checkpoint or cache."""
        cameras, proprioception = values["cameras"], values["proprioception"]
        if not isinstance(cameras, list | tuple) or len(set(cameras)) < len(cameras):
            raise StrapError(f"cameras is {cameras!r:.60}: it must be a list of different names")
        if not isinstance(proprioception, Mapping):
            raise StrapError(f"proprioception is {proprioception!r:.60}: it must be name -> size")
        if not all(isinstance(name, str) for name in (*cameras, *proprioception)):
            raise StrapError("the name of a camera or of proprioception is not text")
        for name, most in (("image_size", MAX_SIDE), ("action_size", MAX_WIDTH)):
            _require_integer(values[name], name, 1, most)
        _require_integer(values["language_size"], "language_size", 0, MAX_WIDTH)
        n_cells, channels = values["map_size"]
        for size in (n_cells, channels, *proprioception.values()):
            _require_integer(size, "map_size or proprioception", 0, MAX_WIDTH)
        if values.get("fps") is not None:
            _require_real(values["fps"], "fps", 1e6)
        sizes = values.get("frame_sizes", {})
        if not isinstance(sizes, Mapping):
            raise StrapError(f"frame_sizes is {sizes!r:.60}: it must be camera -> height and width")
        for height, width in sizes.values():
            for side in (height, width):
                _require_integer(side, "frame_sizes", 1, MAX_SIDE)
        return cls(
            cameras=tuple(cameras),
            image_size=values["image_size"],
            proprioception=dict(proprioception),
            action_size=values["action_size"],
            language_size=values["language_size"],
            map_size=(n_cells, channels),
            fps=values.get("fps"),
            frame_sizes={name: (height, width) for name, (height, width) in sizes.items()},
        )

    def difference(self, other: Interface) -> str | None:
        """Describe the first difference from another interface; return None if there is none."""
        for name in ("cameras", "image_size", "action_size", "language_size"):
            if getattr(self, name) != getattr(other, name):
                ours, theirs = getattr(self, name), getattr(other, name)
                return f"{name.replace('_', ' ')} {_words(ours)}, not {_words(theirs)}"
        ours, theirs = dict(self.proprioception), dict(other.proprioception)
        if list(ours.items()) != list(theirs.items()):  # their order matters: they form one vector
            description = f"proprioception {_words(ours)}, not {_words(theirs)}"
            order = f"--proprioception {' '.join(theirs)}"
            return f"{description} ({order} orders it)" if ours == theirs else description
        return None


def _require_integer(value: Any, name: str, least: int, most: int) -> None:
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
"""sizes of a policy with frozen vision; two CPU cores train it at a hundred steps per second"""


def policy_preset(
    name: Preset = "fixed", *, kind: Kind = "transformer", vision: Vision = "resnet"
) -> PolicySettings:
    """Return the policy settings of a preset.

    `paper` follows the paper, and the authors' code for everything the paper leaves out.
    `released` follows that code alone: its attention is causal and its episodes end after 300
    steps. `fixed` uses full attention and normalised proprioception (fingers move by centimetres,
    joints by radians), acts on the mode with the largest weight instead of a random one, and keeps
    deviations above 0.05. With smaller deviations, the easily predicted actions have the largest
    gradients: the likelihood refines these and neglects the hard ones (starting to move, closing
    the fingers).
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
    """Return the text encoder of a preset: CLIP ViT-L/14 as in the paper, or MiniLM for `fixed`.

    It does not matter for diffusion policies, which see no instruction.
    """
    return "clip" if name != "fixed" and kind == "transformer" else TEXT_ENCODER


def imagenet_preset(
    name: Preset = "fixed", *, kind: Kind = "transformer", vision: Vision = "resnet"
) -> str | None:
    """Return the hub id of the ResNets' initial weights, or None for random ones.

    The paper's diffusion policies start from ImageNet weights.
    """
    is_pretrained = name != "fixed" and kind == "diffusion" and vision == "resnet"
    return "microsoft/resnet-18" if is_pretrained else None
