"""Frame encoders: images in, one vector per frame out."""

from __future__ import annotations

from strap.artifacts import fingerprint_json
from strap.encoders.base import Encoder, checked_encode
from strap.encoders.pixels import PixelEncoder
from strap.errors import StrapError, unknown

__all__ = ["ENCODERS", "Encoder", "PixelEncoder", "checked_encode", "fingerprint", "load_encoder"]

ENCODERS = ("pixels", "efficientnet-lite0")


def load_encoder(name: str, *, device: str = "auto") -> Encoder:
    """An encoder by name.

    Args:
        name: `efficientnet-lite0` (a small real model), or `pixels` (no model).
        device: where a model runs: `auto`, `cpu` or `cuda`.
    """
    if name == "pixels":
        return PixelEncoder()
    if name == "efficientnet-lite0":
        _require_torch(name)
        from strap.encoders.efficientnet import load_efficientnet
        from strap.encoders.network import choose_device

        return load_efficientnet(choose_device(device))
    raise unknown("encoder", name, ENCODERS)


def fingerprint(encoder: Encoder) -> str:
    """A hash of the encoder's configuration."""
    return fingerprint_json(dict(encoder.config))


def _require_torch(name: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise StrapError(
            f"encoder '{name}' needs torch: pip install 'strap-robot[encoders]'"
        ) from error
