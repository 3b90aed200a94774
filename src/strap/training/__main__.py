"""Training from a frame cache alone: `python -m strap.training CACHE --out CKPT …`.

For machines that have torch but neither the datasets nor their decoders. A packed cache is unpacked
beside itself first. `python -m strap.training pack CACHE OUT` makes one to carry, and `python -m
strap.training slim CKPT OUT` a checkpoint to carry back.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from strap.errors import StrapError
from strap.policies.checkpoints import slim
from strap.policies.settings import PolicySettings, Vision, policy_preset
from strap.training.cache import FrameCache, open_cache
from strap.training.packing import CRF, pack, unpack
from strap.training.settings import TrainingSettings, training_preset
from strap.training.trainer import train

POLICY = (
    *("history", "chunk", "execute", "layers", "width", "heads", "dropout", "modes", "norm"),
    *("normalize", "attention", "keypoints", "min_std"),
)


def main(words: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        if words[:1] == ["pack"]:
            return _pack(words[1:])
        if words[:1] == ["slim"]:
            return _slim(words[1:])
        return _train(words)
    except StrapError as error:
        print(f"strap: error: {error}", file=sys.stderr)
        return 2


def _pack(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m strap.training pack")
    parser.add_argument("cache", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--crf", type=int, default=CRF)
    call = parser.parse_args(words)
    out = pack(call.cache, call.out, crf=call.crf)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.1f} MB")
    return 0


def _slim(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m strap.training slim")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    call = parser.parse_args(words)
    out = slim(call.checkpoint, call.out)
    print(f"{out}: {sum(file.stat().st_size for file in out.iterdir()) / 1e6:.1f} MB")
    return 0


def _train(words: Sequence[str]) -> int:
    call = _parser().parse_args(words)
    cache = open_any(call.cache, call.unpacked)
    vision: Vision = "resnet" if cache.has_frames else "frozen"
    policy = policy_preset(call.preset, kind=call.kind, vision=vision)
    training = training_preset(call.preset, kind=call.kind, vision=vision)
    policy = replace(policy, **_given(call, POLICY))
    names = tuple(entry.name for entry in fields(TrainingSettings))
    training = replace(training, **_given(call, names))
    done = train(
        cache,
        call.out,
        policy=policy,
        training=training,
        imagenet=call.imagenet,
        device=call.device,
    )
    print(f"{done.path}: {done.step} steps, loss {done.loss:.4g}")
    if done.best is not None:
        print(f"held-out −log π: {done.held_out:.4g}, best {done.best:.4g} at {done.best_step}")
    return 0


def open_any(path: Path, unpacked: Path | None = None) -> FrameCache:
    """A cache, or a packed one unpacked beside it."""
    if not (path / "packed.json").is_file():
        return open_cache(path)
    return unpack(path, unpacked or path.with_name(f"{path.name}-unpacked"))


def _given(call: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(call, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m strap.training", description=__doc__)
    parser.add_argument("cache", type=Path, help="a frame cache, or a packed one")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint folder")
    parser.add_argument("--preset", default="fixed", help="fixed, paper or released")
    parser.add_argument("--kind", default="transformer", help="transformer or diffusion")
    parser.add_argument("--unpacked", type=Path, help="where a packed cache is unpacked to")
    parser.add_argument("--imagenet", type=Path, help="ResNet-18 weights to begin from")
    parser.add_argument("--device", default="auto")
    defaults = PolicySettings()
    for name in POLICY:
        _add(parser, name, type(getattr(defaults, name)))
    training = TrainingSettings()
    for entry in fields(TrainingSettings):
        value = getattr(training, entry.name)
        known = {"alpha": float, "pretrain_steps": int}
        _add(parser, entry.name, known.get(entry.name, type(value)))
    return parser


def _add(parser: argparse.ArgumentParser, name: str, kind: type) -> None:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
    else:
        parser.add_argument(flag, type=kind, default=None)


if __name__ == "__main__":
    sys.exit(main())
