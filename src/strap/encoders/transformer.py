"""Encoders that are vision models of the transformers library, from the hub or a local folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from strap.encoders.network import (
    NetworkEncoder,
    batch_for,
    prepare,
    weights_fingerprint,
)
from strap.encoders.preprocessing import from_processor
from strap.errors import StrapError

Pooling = Literal["mean", "cls", "patches"]
RELEASED_SQUASH = (224, 224)


@dataclass(frozen=True)
class Recipe:
    """The source of a model's weights, and which layer and pooling give its vectors."""

    source: str
    """hub id or local folder"""
    pooling: Pooling = "mean"
    """mean: over all tokens, CLS included; cls: the CLS token; patches: the mean without it"""
    layer: int = -1
    """which hidden layer; −1 is the model's last hidden state"""


RECIPES = {
    "dinov2-small": Recipe("facebook/dinov2-small"),
    "dinov2-base": Recipe("facebook/dinov2-base"),
    "dinov2-large": Recipe("facebook/dinov2-large"),
    "dinov3-small": Recipe("facebook/dinov3-vits16-pretrain-lvd1689m"),
    "dinov3-base": Recipe("facebook/dinov3-vitb16-pretrain-lvd1689m"),
    "dinov3-large": Recipe("facebook/dinov3-vitl16-pretrain-lvd1689m"),
    "clip-vit-b16": Recipe("openai/clip-vit-base-patch16", layer=-2),
    "clip-vit-b32": Recipe("openai/clip-vit-base-patch32", layer=-2),
    "clip-vit-l14": Recipe("openai/clip-vit-large-patch14", layer=-2),
    "siglip-base": Recipe("google/siglip-base-patch16-224"),
    "siglip-so400m": Recipe("google/siglip-so400m-patch14-384"),
    "resnet18": Recipe("microsoft/resnet-18"),
    "resnet50": Recipe("microsoft/resnet-50"),
}
"""Models by the names that users give, with the pooling and layer of the authors' released code."""

CLS_NAMES = ("cls_token", "class_embedding")


def load_transformer(
    name: str,
    recipe: Recipe,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    released: bool = False,
) -> NetworkEncoder:
    """Load a model and its preprocessing.

    Args:
        name: the encoder's name.
        recipe: the source of the weights, pooling and layer.
        device: where the model runs.
        dtype: the number format of the model.
        released: squash images to 224×224 first, as the authors' code does.
    """
    model, processor = _load(name, recipe.source)
    weights = weights_fingerprint(model)
    network = prepare(model, device, dtype)
    preprocessing = from_processor(processor)
    if released:
        preprocessing = replace(preprocessing, squash=RELEASED_SQUASH)
    has_cls = any(key.endswith(CLS_NAMES) for key, _ in model.named_parameters())
    if recipe.pooling != "mean" and not has_cls:
        raise StrapError(f"encoder '{name}' has no CLS token: pool by 'mean'")

    def features(model: nn.Module, pixels: Tensor) -> Tensor:
        return _pool(_tokens(model, pixels, recipe.layer), recipe.pooling, _n_registers(model))

    dim = _measure_dim(name, network, preprocessing, features, device, dtype)
    settings = {"source": recipe.source, "pooling": recipe.pooling, "layer": recipe.layer}
    return NetworkEncoder(
        name,
        network,
        preprocessing,
        features,
        dim,
        device,
        weights,
        settings,
        batch=batch_for(device),
        dtype=dtype,
    )


def _load(name: str, source: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoImageProcessor, AutoModel

    try:
        config = AutoConfig.from_pretrained(source)
        model = _vision_class(config, AutoModel).from_pretrained(source)
        processor: Any = AutoImageProcessor
        processor = processor.from_pretrained(source, use_fast=False)
    except (OSError, ValueError) as error:
        if Path(source).expanduser().is_dir():
            reason = str(error).splitlines()[0]
            raise StrapError(f"cannot load a vision model from '{source}': {reason}") from error
        raise StrapError(
            f"the weights of encoder '{name}' are not on this machine and could not be downloaded: "
            f"run `hf download {source}` on a machine with network, or give a local folder that "
            "holds them (--encoder FOLDER)"
        ) from error
    return model, processor


def _vision_class(config: Any, general: Any) -> Any:
    """Return the class to load; for models that also read text, that of the vision model alone."""
    import transformers

    names = {"clip": "CLIPVisionModel", "siglip": "SiglipVisionModel"}
    return (
        getattr(transformers, names[config.model_type]) if config.model_type in names else general
    )


def _tokens(model: nn.Module, pixels: Tensor, layer: int) -> Tensor:
    """Return the tokens [n t d] of a layer; a feature map [n d h w] becomes h·w tokens."""
    output = model(pixel_values=pixels, output_hidden_states=layer != -1)
    tokens: Tensor = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
    return tokens.flatten(2).transpose(1, 2) if tokens.ndim == 4 else tokens


def _n_registers(model: Any) -> int:
    """Return the number of register tokens, which DINOv2 and DINOv3 put between CLS and patches."""
    return int(getattr(model.config, "num_register_tokens", 0) or 0)


def _pool(tokens: Tensor, pooling: Pooling, n_registers: int) -> Tensor:
    if pooling == "cls":
        return tokens[:, 0]
    return tokens[:, 1 + n_registers :].mean(1) if pooling == "patches" else tokens.mean(1)


@torch.inference_mode()
def _measure_dim(
    name: str,
    network: nn.Module,
    preprocessing: Any,
    features: Any,
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """Return the length of a vector, measured by encoding one black image."""
    black = torch.zeros((1, 32, 32, 3), dtype=torch.uint8, device=device)
    try:
        return int(features(network, preprocessing(black, dtype)).shape[1])
    except IndexError as error:
        layers = getattr(getattr(network, "config", None), "num_hidden_layers", "few")
        raise StrapError(
            f"encoder '{name}' has no such layer: it has {layers}; count from the end (-1 is the "
            "last)"
        ) from error
