"""Where the time of a rollout's step goes: physics, pictures, the policy.

    python benchmarks/policy/rollouts.py [--device cuda] [--environments 1 4 8]
    python benchmarks/policy/rollouts.py --render-for 60 --environments 8   # beside a training

An untrained policy of the preset `fixed` (ResNet-18 from scratch, two cameras of 128²) acts in
a task of LIBERO-10. Physics and pictures are of one environment alone; the policy acts for several
at once. `--render-for` does nothing but step and render in so many processes, for measuring what
that costs a training on the same GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

import numpy as np
import torch
from machine import describe

from strap.evaluation.libero_simulator import LIBERO_ACTION, LIBERO_STATES
from strap.libero.environment import LiberoEnv
from strap.libero.tasks import find_task
from strap.policies import Checkpoint, Interface, Observation, Policy, build_policy, policy_preset
from strap.policies.checkpoints import Instructions

CAMERAS = ("agentview", "eye_in_hand")
INSTRUCTION = "do it"
ROUNDS = 100


def milliseconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median time of some work."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken)) * 1e3


def untrained_policy(device: str) -> Policy:
    names = tuple(f"{camera}_rgb" for camera in CAMERAS)
    interface = Interface(names, 128, LIBERO_STATES, LIBERO_ACTION, 384, (0, 0), 20.0)
    settings = policy_preset("fixed", vision="resnet")
    instructions = Instructions((INSTRUCTION,), torch.zeros(1, 384), "words")
    network = build_policy(interface, settings)
    return Policy(Checkpoint(network, interface, settings, instructions, None), device)


def observe(env: LiberoEnv) -> Observation:
    seen = env.observe(CAMERAS)
    images = {f"{camera}_rgb": seen.upright(camera) for camera in CAMERAS}
    state = {key: np.asarray(getattr(seen, key)) for key in LIBERO_STATES}
    return Observation(images, state, INSTRUCTION)


def render_for(seconds: float) -> int:
    """Step and render; return how many steps were made."""
    with LiberoEnv(find_task("libero_10", 0)) as env:
        env.fixed(0)
        env.observe(CAMERAS)
        end, steps = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            env.step(np.zeros(LIBERO_ACTION))
            env.observe(CAMERAS)
            steps += 1
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--environments", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--render-for", type=float, metavar="SECONDS")
    options = parser.parse_args()
    print(describe("torch", "mujoco"))
    if options.render_for:
        for count in options.environments:
            with multiprocessing.get_context("spawn").Pool(count) as pool:
                steps = sum(pool.map(render_for, [options.render_for] * count, chunksize=1))
            print(f"{count} environments: {steps / options.render_for:.0f} steps/s together")
        return
    with LiberoEnv(find_task("libero_10", 0)) as env:
        env.fixed(0)
        seen = observe(env)
        print(
            f"physics           {milliseconds(lambda: env.step(np.zeros(LIBERO_ACTION))):6.1f} ms"
        )
        for camera in CAMERAS:
            print(f"{camera:17} {milliseconds(lambda camera=camera: env.render(camera)):6.1f} ms")
    policy = untrained_policy(options.device)
    for count in options.environments:
        observations = dict.fromkeys(range(count), seen)
        for _ in range(10):
            policy.act_many(observations)
        taken = milliseconds(lambda shown=observations: policy.act_many(shown))
        print(f"acting for {count:2}     {taken:6.1f} ms on {options.device}")


if __name__ == "__main__":
    main()
