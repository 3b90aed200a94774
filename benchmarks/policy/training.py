"""Training steps per second: the paper's setting on a GPU, the frozen-feature policy on a CPU.

    PYTHONPATH=src python benchmarks/policy/training.py --device cuda
    PYTHONPATH=src python benchmarks/policy/training.py --device cpu --threads 2

The cache is made up (speed does not depend on what is in it) but lies on disk as a real one. Rows
are measured in one run: plain (float32, eager, as one would write it), bfloat16, recorded
as a graph, and compiled besides. Then where the time of a step goes.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from strap.policies import Interface, policy_preset
from strap.training import FrameCache, open_cache, training_preset
from strap.training.cache import FORMAT
from strap.training.loop import _Trainer
from strap.training.updates import avoid_onednn_on_arm

CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
STATES = {"ee_ori": 3, "ee_pos": 3, "ee_states": 6, "gripper_states": 2, "joint_states": 7}


def made_up_cache(folder: Path, vision: str, trajectories: int, length: int) -> FrameCache:
    rng, rows = np.random.default_rng(0), trajectories * length
    frozen = vision == "frozen"
    interface = Interface(CAMERAS, 128, STATES, 7, 384, (64, 32) if frozen else (0, 0), 20.0)
    for name in CAMERAS:
        if frozen:
            maps = rng.standard_normal((rows, 64, 32), np.float32).astype(np.float16)
            np.save(folder / f"maps-{name}.npy", maps)
        else:
            frames = rng.integers(0, 256, (rows, 128, 128, 3), np.uint8)
            np.save(folder / f"frames-{name}.npy", frames)
    np.save(folder / "actions.npy", rng.uniform(-1, 1, (rows, 7)).astype(np.float32))
    np.save(folder / "states.npy", rng.standard_normal((rows, 21), np.float32))
    np.save(folder / "language.npy", rng.standard_normal((1, 384), np.float32))
    clips = [
        {
            "id": f"demo_{i}",
            "dataset": "made up",
            "role": "target",
            "instruction": 0,
            "start": 0,
            "stop": length,
            "row": i * length,
        }
        for i in range(trajectories)
    ]
    content = {
        "format": FORMAT,
        "interface": asdict(interface),
        "clips": clips,
        "retrieved": [],
        "instructions": ["do it"],
        "language": "words",
        "frames": not frozen,
        "context": None,
    }
    (folder / "content.json").write_text(json.dumps(content))
    (folder / "manifest.json").write_text("{}")
    return open_cache(folder)


def trainer(cache: FrameCache, vision: str, device: str, **changes) -> _Trainer:
    settings = replace(training_preset("fixed", vision=vision), recipe="bc", batch=32, **changes)
    policy = policy_preset("fixed", vision=vision)
    made = _Trainer(cache, cache.path / "out", policy, settings, torch.device(device))
    made.prepare(None, None, None)
    made.policy.train()
    return made


def steps_per_second(made: _Trainer, warmup: int, steps: int) -> float:
    def go(first: int, count: int) -> None:
        for step in range(first, first + count):
            made.updater.update(made.sampler.draw(step), 1e-4)

    go(0, warmup)
    synchronise(made.device)
    start = time.perf_counter()
    go(warmup, steps)
    synchronise(made.device)
    return steps / (time.perf_counter() - start)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def breakdown(made: _Trainer, steps: int = 20) -> dict[str, float]:
    """Milliseconds of each part, eager, each waited for."""
    spent: dict[str, float] = {}
    device = made.device

    def timed(name: str, work):
        synchronise(device)
        start = time.perf_counter()
        result = work()
        synchronise(device)
        spent[name] = spent.get(name, 0.0) + (time.perf_counter() - start) * 1e3 / steps
        return result

    policy, loader = made.policy, made.loader
    for step in range(steps):
        draw = made.sampler.draw(step).to(device)
        batch = timed("gather and crop", lambda draw=draw: loader.gather(draw))
        with made.updater.autocast():
            features = timed(
                "cameras, forward",
                lambda b=batch: policy.observation(b.images, b.proprioception, b.language),
            )
            mixture = timed("transformer, forward", lambda f=features: policy.mixture(f))
            loss = timed("likelihood", lambda m=mixture, b=batch: -m.log_prob(b.actions).mean())
        made.optimizer.zero_grad(set_to_none=True)
        timed("backward", lambda value=loss: value.backward())
        timed("optimiser", made.optimizer.step)
    return {name: round(value, 3) for name, value in spent.items()}


def kernels(made: _Trainer, limit: int = 15) -> str:
    from torch.profiler import ProfilerActivity, profile

    on_gpu = made.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        for step in range(10):
            made.updater.update(made.sampler.draw(step), 1e-4)
        synchronise(made.device)
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return found.key_averages().table(sort_by=by, row_limit=limit, max_name_column_width=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--vision", choices=("resnet", "frozen"), default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    call = parser.parse_args()
    on_gpu = call.device == "cuda"
    vision = call.vision or ("resnet" if on_gpu else "frozen")
    if not on_gpu:
        torch.set_num_threads(call.threads)
    variants: dict[str, dict[str, object]] = {
        "float32, eager": {"precision": "float32", "graphs": False, "compile": "off"}
    }
    if on_gpu:
        variants["bfloat16, eager"] = {"graphs": False, "compile": "off"}
        variants["bfloat16, graph"] = {"graphs": True, "compile": "off"}
        if not call.no_compile:
            variants["bfloat16, compiled, graph"] = {"graphs": True, "compile": "on"}
    name = torch.cuda.get_device_name() if on_gpu else f"{platform.processor()} × {call.threads}"
    report: dict[str, object] = {"device": name, "torch": torch.__version__, "vision": vision}
    with tempfile.TemporaryDirectory() as folder:
        cache = made_up_cache(Path(folder), vision, call.trajectories, 150)
        for title, changes in variants.items():
            made = trainer(cache, vision, call.device, **changes)
            with avoid_onednn_on_arm(made.device, made.policy_settings):
                rate = steps_per_second(made, 20, call.steps)
            report[title] = round(rate, 1)
            print(f"{title}: {rate:.1f} steps/s", flush=True)
        eager = trainer(cache, vision, call.device, graphs=False, compile="off")
        steps_per_second(eager, 10, 1)
        with avoid_onednn_on_arm(eager.device, eager.policy_settings):
            report["milliseconds"] = breakdown(eager)
        print(json.dumps(report["milliseconds"]))
        if call.profile:
            print(kernels(eager))
    print(json.dumps(report))
    if call.out:
        call.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
