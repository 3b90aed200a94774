"""Camera networks: ResNet-18 with FiLM and spatial softmax, and a head for frozen feature maps.

The ResNet's parameters have the names of torchvision, so published ImageNet weights load by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strap.errors import StrapError
from strap.policies.settings import CROP, Interface, Norm, PolicySettings

WIDTHS = (64, 128, 256, 512)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's mean and deviation of pixels, which published weights expect"""
SHIFT = 1 - CROP
"""largest random shift of a keypoint, in half sides of the image; a random crop shifts as much"""


def _norm(kind: Norm, channels: int) -> nn.Module:
    # Diffusion policies use groups of 16 channels: batch norm's running statistics do not match an
    # exponential average of the weights.
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(channels // 16, channels)


class BasicBlock(nn.Module):
    """A residual block: two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = _norm(norm, outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(norm, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map [n i h w] to [n o h/s w/s]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + shortcut, inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 up to its last feature map, with optional FiLM after each of its 8 blocks."""

    def __init__(self, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = _norm(norm, 64)
        self.layer1 = _stage(64, 64, 1, norm)
        self.layer2 = _stage(64, 128, 2, norm)
        self.layer3 = _stage(128, 256, 2, norm)
        self.layer4 = _stage(256, 512, 2, norm)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor, film: Sequence[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Map [n 3 h w] to [n 512 h/32 w/32]; `film` holds (γ, β), each [n c], for every block."""
        x = convolve_blocks(x, self.conv1.weight) if x.is_cuda else self.conv1(x)
        x = F.relu(self.bn1(x), inplace=True)
        x = F.max_pool2d(x, 3, 2, 1)
        for index, block in enumerate(self.blocks()):
            x = block(x)
            if film is not None:
                x = modulate(x, *film[index])
        return x

    def blocks(self) -> Iterator[nn.Module]:
        """Yield the 8 residual blocks in order."""
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            yield from stage


def _stage(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(inputs, outputs, stride, norm), BasicBlock(outputs, outputs, 1, norm)
    )


def convolve_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """Compute a 7×7 convolution of stride 2 as a 4×4 one over blocks of 2×2 pixels.

    The result is the same, but the convolution has 12 input channels: with 3, a GPU's matrix units
    are mostly idle.

        output row                    i
        input rows               2i−3 … 2i+3
        padded by a weight of 0  2i−4, 2i−3 … 2i+3: two rows of each of the blocks i−2 … i+1

    Args:
        x: [n c h w].
        weight: [o c 7 7].

    Returns:
        [n o ⌈h/2⌉ ⌈w/2⌉].
    """
    below, right = (2 * ((size + 1) // 2) + 2 - size for size in x.shape[2:])
    blocks = F.pixel_unshuffle(F.pad(x, (4, right, 4, below)), 2)
    return F.conv2d(blocks, F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2))


def modulate(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """Return ReLU((1+γ)x+β) per channel, for x [n c h w], γ and β [n c]."""
    gamma, beta = gamma.to(x.dtype)[:, :, None, None], beta.to(x.dtype)[:, :, None, None]
    return F.relu(torch.addcmul(beta, x, 1 + gamma))


class Film(nn.Module):
    """Predicts FiLM's (γ, β) for each of a ResNet's 8 blocks from an instruction's vector."""

    def __init__(self, language: int, *, is_zero: bool) -> None:
        """Create the layer; `is_zero`: start with γ = β = 0."""
        super().__init__()
        self.widths = [width for width in WIDTHS for _ in range(2)]
        self.linear = nn.Linear(language, 2 * sum(self.widths))
        if is_zero:
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    def forward(self, language: Tensor, repeat: int) -> list[tuple[Tensor, Tensor]]:
        """Map language [b l] to 8 pairs (γ, β), each [b·repeat c]."""
        out = self.linear(language).repeat_interleave(repeat, dim=0)
        parts = out.split([2 * width for width in self.widths], dim=1)
        return [(part[:, : part.shape[1] // 2], part[:, part.shape[1] // 2 :]) for part in parts]


class SpatialSoftmax(nn.Module):
    """Turns a feature map into the expected positions (x, y) of its keypoints, −1 … 1."""

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.heat = nn.Conv2d(channels, keypoints, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n c h w] to [n 2·k]: x and y of each keypoint."""
        heat = self.heat(x)
        return expected_positions(heat.flatten(2).float().softmax(-1), heat.shape[-2:])


def expected_positions(attention: Tensor, size: Sequence[int]) -> Tensor:
    """Return the mean position under each attention map: [n k h·w] -> [n 2·k]."""
    return (attention @ positions(size, attention.device)).flatten(1)


def positions(size: Sequence[int], device: torch.device) -> Tensor:
    """Return (x, y) of every cell of an h×w map, row by row [h·w 2]; −1 is left and top."""
    height, width = size
    y = torch.linspace(-1, 1, height, device=device)
    x = torch.linspace(-1, 1, width, device=device)
    return torch.stack([x.repeat(height), y.repeat_interleave(width)], dim=1)


class ResNetCamera(nn.Module):
    """Encodes uint8 crops of one camera as a vector per frame, conditioned on language."""

    _scale: Tensor
    _shift: Tensor

    def __init__(self, interface: Interface, settings: PolicySettings) -> None:
        super().__init__()
        self.resnet = ResNet18(settings.norm)
        is_zero = settings.initial == "normal"
        self.film = Film(interface.language_size, is_zero=is_zero) if settings.language else None
        self.softmax = SpatialSoftmax(WIDTHS[-1], settings.keypoints)
        self.linear = nn.Linear(2 * settings.keypoints, settings.features)
        mean, std = (MEAN, STD) if settings.pixels == "imagenet" else ((0.0,) * 3, (1.0,) * 3)
        self.register_buffer("_scale", 1 / (255 * torch.tensor(std)), persistent=False)
        self.register_buffer("_shift", -torch.tensor(mean) / torch.tensor(std), persistent=False)

    def forward(self, images: Tensor, language: Tensor) -> Tensor:
        """Encode uint8 crops [b h s s 3] and language [b l] as [b h f]."""
        clips, frames = images.shape[:2]
        # Channels last: convolutions are fastest in this order, in which the cache stores pixels.
        pixels = images.flatten(0, 1) * self._scale + self._shift
        pixels = pixels.permute(0, 3, 1, 2)
        film = self.film(language, frames) if self.film is not None else None
        keypoints = self.softmax(self.resnet(pixels, film))
        features: Tensor = self.linear(keypoints)
        return features.view(clips, frames, -1)


class MapCamera(nn.Module):
    """Encodes a frozen encoder's feature maps of one camera as a vector per frame.

    Each keypoint is a direction in the map's channels. Its position (x, y) and its strength there
    enter the vector. All frames share one matrix product, because hundreds of small products are
    slow on a CPU.
    """

    _position: Tensor

    def __init__(self, interface: Interface, settings: PolicySettings) -> None:
        super().__init__()
        n_cells, channels = interface.map_size
        side = round(n_cells**0.5)
        self.heat = nn.Linear(channels, settings.keypoints)
        self.linear = nn.Linear(3 * settings.keypoints, settings.features)
        position = positions((side, side), torch.device("cpu"))
        self.register_buffer("_position", position, persistent=False)

    def forward(self, maps: Tensor, language: Tensor) -> Tensor:  # noqa: ARG002
        """Encode maps [b h p c] as [b h f]; the instruction only enters through the token."""
        clips, frames = maps.shape[:2]
        heat = self.heat(maps.to(self.heat.weight.dtype).flatten(0, 1))  # [n p k]
        attention = heat.softmax(1)
        strength = (attention * heat).sum(1)  # [n k]
        x = (attention * self._position[:, 0, None]).sum(1)
        y = (attention * self._position[:, 1, None]).sum(1)
        if self.training:
            # Like a random crop of images: all frames of a clip shift by the same amount.
            shift = (2 * torch.rand(clips, 1, 2, device=x.device) - 1) * SHIFT
            shift = shift.expand(-1, frames, -1).reshape(-1, 2)
            x, y = x + shift[:, :1], y + shift[:, 1:]
        features: Tensor = self.linear(torch.cat([x, y, strength], dim=-1))
        return features.view(clips, frames, -1)


def load_imagenet(resnet: ResNet18, weights: Path) -> None:
    """Load published ImageNet weights, named as in torchvision, timm or transformers."""
    named = {_torchvision_name(key): value for key, value in read_weights(weights).items()}
    expected = resnet.state_dict()
    missing = [key for key in expected if key not in named and "num_batches" not in key]
    if missing:
        raise StrapError(
            f"'{weights}' holds no ResNet-18 weights: '{missing[0]}' is missing; give a file of "
            "torchvision, timm or transformers (microsoft/resnet-18)"
        )
    resnet.load_state_dict({key: named.get(key, value) for key, value in expected.items()})


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors` file, or of a `.pth` without unpickling objects."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        return loaded
    except Exception as error:
        raise StrapError(f"cannot read weights from '{path}': {error}") from error


def _torchvision_name(key: str) -> str:
    """Translate a name of transformers to torchvision's.

    `resnet.encoder.stages.0.layers.1.layer.0.convolution.weight` becomes `layer1.1.conv1.weight`.
    """
    key = key.removeprefix("resnet.")
    key = key.replace("embedder.embedder.convolution", "conv1")
    key = key.replace("embedder.embedder.normalization", "bn1")
    found = re.match(r"encoder\.stages\.(\d)\.layers\.(\d)\.(.*)", key)
    if not found:
        return key
    stage, block, rest = int(found[1]) + 1, found[2], found[3]
    rest = re.sub(r"layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}", rest)
    rest = re.sub(r"layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}", rest)
    rest = rest.replace("shortcut.convolution", "downsample.0")
    rest = rest.replace("shortcut.normalization", "downsample.1")
    return f"layer{stage}.{block}.{rest}"
