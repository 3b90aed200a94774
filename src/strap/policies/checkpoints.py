"""Read and write policies: weights as safetensors, everything else as JSON; no pickles.

CKPT/
  policy.safetensors   weights (with --ema: their exponential average), instruction vectors, the
                       projection of frozen vision
  best.safetensors     the same at the best held-out likelihood, if demonstrations were held out
  config.json          interface, settings, normalisation, instructions, versions; written last
  resume.safetensors   weights, optimiser and random state, from which a training resumes
  log.jsonl, tensorboard/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from strap.atomic import read_json, replacing, write_json
from strap.datasets.untrusted import describe_error
from strap.errors import StrapError
from strap.policies.diffusion import DiffusionPolicy
from strap.policies.frozen_vision import Projection
from strap.policies.settings import Interface, PolicySettings
from strap.policies.transformer import TransformerPolicy
from strap.policies.validation import (
    REMEDY,
    require_instructions,
    require_numbers,
    require_projection,
    require_weights,
)
from strap.provenance import versions

FORMAT = "strap-policy"
Which = Literal["last", "best"]
WEIGHT_FILES = {"last": "policy.safetensors", "best": "best.safetensors"}


@dataclass(frozen=True, eq=False)
class Instructions:
    """The instructions a policy was trained on, as vectors."""

    texts: tuple[str, ...]
    vectors: Tensor
    """[n l]"""
    encoder: str
    """the text encoder that made the vectors"""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A policy and everything that is needed to run it."""

    policy: nn.Module
    interface: Interface
    settings: PolicySettings
    instructions: Instructions
    projection: Projection | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """how it was trained"""


def build_policy(interface: Interface, settings: PolicySettings) -> nn.Module:
    """Return a new policy with random weights."""
    if settings.vision == "frozen" and not interface.map_size[0]:
        raise StrapError(
            "the cache holds no feature maps: build it with --vision frozen, or train a ResNet"
        )
    if settings.kind == "diffusion":
        return DiffusionPolicy(interface, settings)
    return TransformerPolicy(interface, settings)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, which: Which = "last") -> None:
    """Write the weights, then config.json; each file is written completely or not at all."""
    tensors = {f"policy.{k}": v for k, v in checkpoint.policy.state_dict().items()}
    tensors["instructions"] = checkpoint.instructions.vectors
    if checkpoint.projection is not None:
        tensors["projection.mean"] = checkpoint.projection.mean
        tensors["projection.directions"] = checkpoint.projection.directions
    write_tensors(folder / WEIGHT_FILES[which], tensors)
    config = {
        "format": FORMAT,
        "policy": type(checkpoint.policy).__name__,
        "interface": asdict(checkpoint.interface),
        "settings": asdict(checkpoint.settings),
        "instructions": list(checkpoint.instructions.texts),
        "language": checkpoint.instructions.encoder,
        **checkpoint.about,
        "versions": versions(),
    }
    write_json(folder / "config.json", config)


def load_checkpoint(
    path: str | Path, *, which: Which = "last", policy: nn.Module | None = None
) -> Checkpoint:
    """Read a checkpoint folder; load the weights into `policy` if you pass your own module."""
    folder = Path(path).expanduser()
    config = load_config(folder)
    interface, settings = config["interface"], config["settings"]
    file = folder / WEIGHT_FILES[which]
    tensors = read_tensors(file)
    if policy is None:
        if config.get("policy") not in ("TransformerPolicy", "DiffusionPolicy"):
            raise StrapError(
                f"'{folder}' holds the weights of a module of your own ({config.get('policy')}): "
                "pass one as `policy` to load them into"
            )
        policy = _build(interface, settings, tensors, file)
    else:
        require_weights(tensors, policy, file)
    texts, vectors = config["instructions"], tensors.get("instructions")
    require_numbers(tensors, file)
    require_instructions(texts, vectors, interface, file)
    require_projection(tensors, interface, settings, file)
    policy.load_state_dict(
        {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
    )
    return Checkpoint(
        policy,
        interface,
        settings,
        Instructions(texts, tensors["instructions"], str(config.get("language"))),
        _projection(tensors),
        {k: config[k] for k in ("training", "step", "init", "choices", "matches") if k in config},
    )


def fingerprint_weights(folder: Path) -> str:
    """Return a hash of a checkpoint's last weights."""
    file = folder / WEIGHT_FILES["last"]
    if not file.is_file():
        raise StrapError(f"no such file: '{file}'; was the training interrupted before it saved?")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def load_config(folder: Path) -> dict[str, Any]:
    """Read config.json; check its interface, settings and instructions."""
    file = folder.expanduser() / "config.json"
    if not file.is_file():
        raise StrapError(
            f"'{folder}' is not a checkpoint (it has no config.json): make one with `strap train`"
        )
    config = read_json(file)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise StrapError(f"'{file}' does not describe a policy; {REMEDY}")
    try:
        interface = Interface.from_json(config["interface"])
        settings = PolicySettings.from_json(config["settings"])
        texts = config["instructions"]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("instructions are not a list of texts")
    except (KeyError, TypeError, ValueError, StrapError) as error:
        wrong = error if isinstance(error, StrapError) else describe_error(error)
        raise StrapError(f"'{file}' is damaged ({wrong}); {REMEDY}") from error
    about = {"interface": interface, "settings": settings, "instructions": tuple(texts)}
    return {**config, **about}


def _build(
    interface: Interface, settings: PolicySettings, tensors: Mapping[str, Tensor], file: Path
) -> nn.Module:
    """Build a policy; before that, check that its sizes are those of the tensors."""
    try:
        with torch.device("meta"):
            outline = build_policy(interface, settings)  # allocates no memory
    except StrapError:
        raise
    except Exception as error:  # torch raises many types for sizes that do not fit
        raise StrapError(
            f"'{file.with_name('config.json')}' describes a policy that cannot be built "
            f"({describe_error(error)}); {REMEDY}"
        ) from error
    require_weights(tensors, outline, file)
    return build_policy(interface, settings)


def _projection(tensors: Mapping[str, Tensor]) -> Projection | None:
    if "projection.mean" not in tensors:
        return None
    return Projection(tensors["projection.mean"], tensors["projection.directions"])


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None
) -> None:
    """Write safetensors, completely or not at all; store `about` as JSON in the header."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"about": json.dumps(about or {})})
        except SafetensorError as error:
            if number := re.search(
                r"\(os error (\d+)\)", str(error)
            ):  # such as a full disk, reported as text
                raise OSError(int(number[1]), str(error)) from error
            raise


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors; errors name the file."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise StrapError(f"no such file: '{path}'; was the training interrupted before it saved?")
    try:
        return load_file(path)
    except Exception as error:
        raise StrapError(f"'{path}' is damaged ({describe_error(error)}): {REMEDY}") from error


def read_about(path: Path) -> dict[str, Any]:
    """Return the JSON in the header of a safetensors file."""
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
            if not isinstance(about, dict):
                raise ValueError("its header holds no description")
            return about
    except Exception as error:
        raise StrapError(f"'{path}' is damaged ({describe_error(error)}): {REMEDY}") from error
