"""DINOv2-base on two CPU cores: ours against the plain transformers loop, in one run.

    PYTHONPATH=src taskset -c 0,1 python benchmarks/encoders/cpu.py [--images 64] [--rounds 3]

The plain loop is transformers as documented: float32, batches of 32, the same prepared pixels. Ours
holds the weights in bfloat16, packed, where the CPU multiplies it in hardware (AMX), else in
float32. Weights are random (speed does not depend on them). Both are measured in turn, so that a
busy machine slows both; the ratio is the median over the rounds. The aim is 3 with AMX.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

import numpy as np
import torch
from gpu import PREPROCESSING, ours, plain_loop
from machine import describe
from transformers import Dinov2Config, Dinov2Model

from strap.encoders.network import batch_for, choose_dtype, cpu_has_fast_bf16


def instructions() -> str:
    """What this CPU has for matrices of bfloat16."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    known = ("amx_bf16", "avx512_bf16", "avx512f", "bf16", "asimd")
    return ", ".join(name for name in known if name in flags) or "unknown"


def seconds(work, images: np.ndarray) -> float:
    begin = time.perf_counter()
    work(images)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=batch_for(torch.device("cpu")))
    parser.add_argument("--compile", action="store_true", help="ours through torch.compile")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    device = torch.device("cpu")
    print(describe("torch", "transformers", "numpy"))
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    print(f"cores     {cores} of them used; {instructions()}; ours computes in {dtype}")
    if not cpu_has_fast_bf16():
        print("note      this CPU has no instructions for bfloat16 matrices: no gain is expected")
    torch.manual_seed(0)
    model = Dinov2Model(Dinov2Config()).eval()
    encoder = ours(copy.deepcopy(model), device, options.batch, compiled=options.compile)
    shape = (options.images, 128, 128, 3)
    images = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    expected, found = plain_loop(model, images[:8], device), encoder.encode(images[:8])
    cosine = (expected * found).sum(1) / np.linalg.norm(expected, axis=1)
    cosine /= np.linalg.norm(found, axis=1)
    plain, own = [], []
    for _ in range(options.rounds):
        plain.append(seconds(lambda x: plain_loop(model, x, device), images))
        own.append(seconds(encoder.encode, images))
    ratio = statistics.median(a / b for a, b in zip(plain, own, strict=True))
    rates = {"plain loop, float32, batch 32": plain, f"ours, {dtype}, batch {options.batch}": own}
    for name, times in rates.items():
        print(f"{name:40} {options.images / min(times):7.2f} images/s")
    print(f"ratio {ratio:.2f}, median of {options.rounds} rounds")
    print(f"lowest cosine to float32 {cosine.min():.6f}")
    began = time.perf_counter()
    PREPROCESSING(torch.from_numpy(images), choose_dtype("auto", device))
    share = (time.perf_counter() - began) / min(own)
    print(f"of ours, resize and normalisation take {share:.0%}")


if __name__ == "__main__":
    main()
