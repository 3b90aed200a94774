"""Resume a training: save and restore its state, and check that nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from strap.errors import StrapError, shorten
from strap.policies.learning_state import collect_learning, restore_learning, strip_prefix
from strap.policies.settings import PolicySettings
from strap.provenance import fingerprint_json
from strap.training.cache import FrameCache
from strap.training.settings import TrainingSettings

IRRELEVANT = ("eval_every", "save_every", "log_every", "graphs", "compile")
"""settings that may change while a training is interrupted"""
DIFFERENCES = {  # part of the identity -> how it is named in an error
    "settings": "other settings",
    "data": "other data: files, matches or choices have changed, or are read with other options",
}


def identify_training(
    cache: FrameCache, policy: PolicySettings, training: TrainingSettings, *others: Any
) -> dict[str, str]:
    """Return hashes of everything that must stay the same when a training resumes.

    The number of steps can change if it does not affect earlier steps. `shown` holds the settings
    as JSON, by which an error names those that differ.

    Args:
        cache: the data.
        policy: the policy's settings.
        training: the training's settings.
        others: JSON-able values of everything else that affects the weights.
    """
    settings = {k: v for k, v in asdict(training).items() if k not in IRRELEVANT}
    if not training.first_phase and not training.decay:
        settings.pop("steps")
    return {
        "settings": fingerprint_json([asdict(policy), settings, *others]),
        # The order of proprioception matters, but the hash of a mapping ignores order.
        "data": fingerprint_json([cache.to_json(), list(cache.interface.proprioception)]),
        "shown": json.dumps({**asdict(policy), **settings}),
    }


def require_same_training(out: Path, held: Any, identity: dict[str, str]) -> None:
    """Raise if a folder holds another training, and name the difference.

    Args:
        out: the folder.
        held: the identity (`identify_training`) in the folder's saved state.
        identity: the identity of the training that would resume.
    """
    if not isinstance(held, dict):
        raise StrapError(
            f"'{out}' holds a training of an older version of strap, which cannot be resumed: "
            "choose another --out, or remove it"
        )
    wrong = [text for name, text in DIFFERENCES.items() if held.get(name) != identity[name]]
    if wrong:
        changes = _list_changes(_read_shown(held), _read_shown(identity))
        raise StrapError(
            f"'{out}' holds a training with other settings or data: choose another --out, or "
            f"remove it (it has {' and '.join(wrong)}){changes}"
        )


def _read_shown(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in an identity; none if an older version of strap saved it."""
    try:
        shown = json.loads(identity["shown"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return shown if isinstance(shown, dict) else {}


def _list_changes(held: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the settings that differ, for the end of an error.

    >>> _list_changes({"batch": 2, "seed": 1}, {"batch": 3, "seed": 1})
    '; changed: batch 2 → 3'
    """
    found = [name for name in now if name in held and held[name] != now[name]]
    parts = [f"{name} {shorten(str(held[name]))} → {shorten(str(now[name]))}" for name in found]
    if "steps" in found:
        why = "the learning rate decays" if now.get("decay") else "its phases depend on them"
        parts[found.index("steps")] += f" ({why}, so --steps can't be raised)"
    return f"; changed: {', '.join(parts)}" if parts else ""


def training_state(
    policy: nn.Module,
    average: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return everything that `restore_training` needs to resume without any difference."""
    tensors = collect_learning(policy, optimizer, "policy")
    if average is not None:
        tensors |= {f"average.{k}": v for k, v in average.state_dict().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def restore_training(
    tensors: dict[str, Tensor],
    policy: nn.Module,
    average: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> None:
    """Restore policy, average, optimiser and random state from the tensors of a saved state."""
    restore_learning(tensors, policy, optimizer, "policy")
    if average is not None:
        average.load_state_dict(strip_prefix(tensors, "average"))
    torch.set_rng_state(tensors["random.cpu"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)
