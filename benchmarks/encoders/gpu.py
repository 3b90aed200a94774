"""Frames per second of DINOv2-base on one device: the plain loop against ours, in one run.

Weights are random (speed does not depend on them); images are uint8 in host memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import Dinov2Config, Dinov2Model

from strap.encoders.network import NetworkEncoder, choose_dtype, prepare
from strap.encoders.preprocessing import Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESSING = Preprocessing(mean=MEAN, std=STD, shortest_edge=256, crop=(224, 224))


def plain_loop(model, images: np.ndarray, device: torch.device) -> np.ndarray:
    """transformers as documented: float32, batches of 32, pixels prepared on the device."""
    out = []
    with torch.inference_mode():
        for start in range(0, len(images), 32):
            pixels = PREPROCESSING(torch.from_numpy(images[start : start + 32]).to(device))
            out.append(model(pixel_values=pixels).last_hidden_state.mean(1).cpu())
    return torch.cat(out).numpy()


def ours(model, device: torch.device, batch: int, compiled: bool = False) -> NetworkEncoder:
    features = lambda net, x: net(pixel_values=x).last_hidden_state.mean(1)  # noqa: E731
    dtype = choose_dtype("auto", device)
    network = prepare(copy.deepcopy(model), device, dtype)
    return NetworkEncoder(
        *("dinov2-base", network, PREPROCESSING, features, 768, device, "random"),
        batch=batch,
        dtype=dtype,
        compiled=compiled,
    )


def in_flight(encoder: NetworkEncoder, images: np.ndarray) -> None:
    """As embedding does: the next batch is prepared while the GPU works on the last."""
    waiting = []
    for start in range(0, len(images), encoder.batch):
        waiting.append(encoder.start(images[start : start + encoder.batch]))
        if len(waiting) > 1:
            waiting.pop(0)()
    for wait in waiting:
        wait()


def rate(work, images: np.ndarray, rounds: int) -> float:
    work(images[:256])
    best = 0.0
    for _ in range(rounds):
        begin = time.perf_counter()
        work(images)
        best = max(best, len(images) / (time.perf_counter() - begin))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor()
    torch.manual_seed(0)
    model = Dinov2Model(Dinov2Config()).eval().to(device)
    shape = (options.images, 128, 128, 3)
    images = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    rows = {
        "plain loop, float32, batch 32": rate(lambda x: plain_loop(model, x, device), images, 1)
    }
    expected = plain_loop(model, images[:64], device)
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    for batch in options.batches:
        encoder = ours(model, device, batch)
        rows[f"ours, {dtype}, batch {batch}"] = rate(encoder.encode, images, options.rounds)
        rows[f"  the same, two batches in flight, batch {batch}"] = rate(
            lambda x, e=encoder: in_flight(e, x), images, options.rounds
        )
    if options.compile:
        encoder = ours(model, device, options.batches[-1], compiled=True)
        rows[f"  the same, compiled, batch {options.batches[-1]}"] = rate(
            lambda x: in_flight(encoder, x), images, options.rounds
        )
    found = encoder.encode(images[:64])
    cosine = (
        (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    )
    base = next(iter(rows.values()))
    print(f"{name}; torch {torch.__version__}, transformers {transformers.__version__}")
    for key, value in rows.items():
        print(f"{key:50} {value:9.0f} images/s {value / base:7.2f} × plain")
    print(f"lowest cosine against float32: {cosine.min():.6f}")
    if options.out:
        options.out.write_text(json.dumps({"device": name, "rates": rows}))


if __name__ == "__main__":
    main()
