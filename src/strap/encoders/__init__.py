"""Frame encoders, which turn images into one vector per frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strap.encoders.base import Encoder, check_vectors
from strap.encoders.custom import FunctionEncoder, import_encoder
from strap.encoders.pixels import PixelEncoder
from strap.errors import StrapError, unknown
from strap.extras import missing_extra

if TYPE_CHECKING:
    from strap.encoders.network import Precision
    from strap.encoders.transformer import Pooling

__all__ = [
    "Encoder",
    "EncoderSpec",
    "FunctionEncoder",
    "PixelEncoder",
    "check_vectors",
    "load_encoder",
    "resolve_devices",
]

NAMES = (
    *("dinov2-small", "dinov2-base", "dinov2-large"),
    *("dinov3-small", "dinov3-base", "dinov3-large"),
    *("clip-vit-b16", "clip-vit-b32", "clip-vit-l14"),
    *("siglip-base", "siglip-so400m", "resnet18", "resnet50"),
    *("efficientnet-lite0", "pixels"),
)
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class EncoderSpec:
    """The name and settings of an encoder, from which another process or machine can load it."""

    name: str
    pooling: Pooling | None = None
    layer: int | None = None
    preset: Literal["released"] | None = None
    precision: Precision = "auto"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderSpec:
        """Return the specification of the encoder that a store's configuration describes.

        A store is data: it may name a built-in encoder or an existing local folder, but never a
        module to import or a model to download.
        """
        name = str(config.get("name", ""))
        if not name:
            raise StrapError("the store names no encoder: name the dataset instead of the store")
        if name.partition("@")[0] not in NAMES and not Path(name).expanduser().is_dir():
            raise StrapError(
                f"the store's encoder '{name}' is loaded only on request: give --encoder {name}"
            )
        settings = config if "source" in config else {}  # only transformers have these settings
        squashed = config.get("preprocessing", {}).get("squash") is not None
        return cls(
            name,
            settings.get("pooling"),
            settings.get("layer"),
            "released" if squashed else None,
        )

    def load(self, device: str = "auto") -> Encoder:
        """Load the encoder onto a device."""
        return load_encoder(
            self.name,
            device=device,
            pooling=self.pooling,
            layer=self.layer,
            preset=self.preset,
            precision=self.precision,
        )


def load_encoder(
    name: str,
    *,
    device: str = "auto",
    pooling: Pooling | None = None,
    layer: int | None = None,
    preset: Literal["released"] | None = None,
    precision: Precision = "auto",
) -> Encoder:
    """Load an encoder by name.

    Args:
        name: `dinov2-base`, `clip-vit-b16`, … (`strap.encoders.NAMES`), a hub id
            (`facebook/dinov2-base`), a local folder with a transformers checkpoint,
            `efficientnet-lite0` (a small model whose weights come with the `encoders` extra;
            `efficientnet-lite0@128`: at 128×128 pixels, three times as fast), `pixels` (no
            model), or `module:name` for an encoder or function of your own.
        device: where the model runs: `auto`, `cpu`, `cuda` or `cuda:1`.
        pooling: `mean` over all tokens (default), `cls`, or `patches`.
        layer: which hidden layer to use; by default the last (CLIP: the one before it).
        preset: `released` embeds as the authors' code does: it squashes images to 224×224 first.
        precision: the number format of the model: `float32`, `bfloat16`, or `auto` (bfloat16 if
            the hardware is fast at it).
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if ":" in name and not Path(name).exists():
        return import_encoder(name)
    base, _, size = name.partition("@")
    is_path = "/" in name or Path(name).expanduser().is_dir()
    if base not in NAMES and not is_path:
        raise unknown("encoder", name, NAMES)
    has_size = base == "efficientnet-lite0" and size.isascii() and size.isdecimal()
    if name != base and base in NAMES and not is_path and not has_size:
        raise StrapError(
            f"encoder '{name}' has no size '{size}': only efficientnet-lite0 takes one, the "
            "side in pixels, as in efficientnet-lite0@128; leave @ out for the default"
        )
    if base in ("pixels", "efficientnet-lite0") and (pooling or layer is not None or preset):
        raise StrapError(
            f"encoder '{name}' has one way to pool: leave out --pooling, --layer and --preset"
        )
    if name == "pixels":
        return PixelEncoder()
    _require_torch(name)
    from strap.encoders.efficientnet import load_efficientnet
    from strap.encoders.network import choose_device, choose_dtype

    torch_device = choose_device(device)
    dtype = choose_dtype(precision, torch_device)
    if base == "efficientnet-lite0":
        options = {"size": int(size)} if has_size else {}
        return load_efficientnet(torch_device, dtype=dtype, **options)
    from strap.encoders.transformer import RECIPES, Recipe, load_transformer

    recipe = RECIPES.get(name) or Recipe(str(Path(name).expanduser()) if is_path else name)
    recipe = replace(
        recipe,
        pooling=pooling or recipe.pooling,
        layer=recipe.layer if layer is None else layer,
    )
    return load_transformer(name, recipe, torch_device, dtype=dtype, released=preset == "released")


def resolve_devices(encoder: Encoder | EncoderSpec, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices to use, one process each; `auto` means every GPU, or else the CPU."""
    if not isinstance(encoder, EncoderSpec):
        if len(devices) > 1:
            raise StrapError(
                f"several devices ({', '.join(devices)}) need an encoder that each process can "
                "load: give it by name"
            )
        return ("auto",)
    if "auto" not in devices:
        return tuple(devices) or ("auto",)
    if encoder.name == "pixels":
        return ("cpu",)
    _require_torch(encoder.name)
    from strap.encoders.network import all_devices

    return tuple(all_devices())


def _require_torch(name: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise missing_extra(f"encoder '{name}' needs torch", "encoders") from error
