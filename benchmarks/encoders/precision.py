"""bfloat16 against float32 on the LIBERO sample: cosines per frame, and the top-100 matches.

    PYTHONPATH=src python benchmarks/encoders/precision.py [--encoder efficientnet-lite0@128]

Embeds `samples/libero-mini` twice with the same weights, once in each precision, retrieves with
both stores, and prints what differs. With `--random dinov2-base` the architecture has random
weights of fixed seed (where the hub cannot be reached). Without PyAV the videos are read with
OpenCV.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

import numpy as np
from machine import describe

import strap
from strap.atomic import write_json
from strap.encoders import Encoder, load_encoder
from strap.store import (
    EmbeddingStore,
    PendingTrajectory,
    Session,
    StoreConfig,
    StoreSource,
    create_store,
)
from strap.types import Matches

SAMPLE = Path(__file__).parents[2] / "samples" / "libero-mini"
CAMERA = "agentview_rgb"


def frames(dataset: strap.Dataset, key: str) -> np.ndarray:
    """An episode's images, by PyAV or, where it is missing, by OpenCV."""
    if importlib.util.find_spec("av") is not None:
        return dataset[key].frames(CAMERA)
    import cv2

    layout = dataset.reader.layout  # type: ignore[attr-defined]
    row, name = dataset.reader._row(key), f"observation.images.{CAMERA}"  # type: ignore[attr-defined]
    video = cv2.VideoCapture(str(layout.video_file(row, name)))
    first = round(float(layout.video_start(row, name)) * float(layout.fps))
    video.set(cv2.CAP_PROP_POS_FRAMES, first)
    images = [cv2.cvtColor(video.read()[1], cv2.COLOR_BGR2RGB) for _ in range(dataset[key].length)]
    return np.stack(images)


def encoder_of(options: argparse.Namespace, precision: str, folder: Path) -> Encoder:
    if not options.random:
        return load_encoder(options.encoder, precision=precision)  # type: ignore[arg-type]
    import torch
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        Dinov2Model(Dinov2Config()).save_pretrained(folder)
        BitImageProcessor(
            size={"shortest_edge": 256}, crop_size={"height": 224, "width": 224},
            image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], resample=3,
        ).save_pretrained(folder)  # fmt: skip
    return load_encoder(str(folder), precision=precision)  # type: ignore[arg-type]


def make_store(
    dataset: strap.Dataset, vectors: dict[str, np.ndarray], path: Path
) -> EmbeddingStore:
    dim = next(iter(vectors.values())).shape[1]
    config = StoreConfig({"name": "benchmark"}, "float16", dim, (CAMERA,))
    create_store(path, config, StoreSource(dataset.name))
    session = Session(path, config)
    for key, rows in vectors.items():
        session.add(PendingTrajectory(key, len(rows), dataset[key].instruction, ""), [rows], key)
    session.flush()
    write_json(path / "manifest.json", {"dataset": dataset.name})
    return strap.open_store(path)


def compare(one: Matches, other: Matches) -> str:
    keys = [[(asdict(m.query).values(), str(m.segment)) for m in ms] for ms in (one, other)]
    same = {str((tuple(q), s)) for q, s in keys[0]} & {str((tuple(q), s)) for q, s in keys[1]}
    places = [{(str(m.query), m.segment.trajectory_id) for m in ms} for ms in (one, other)]
    order = [[(str(m.query), str(m.segment)) for m in ms] for ms in (one, other)]
    costs = [abs(a.cost - b.cost) / max(a.cost, 1e-9) for a, b in zip(one, other, strict=False)]
    return (
        f"{len(same)} of {len(one)} matches are the same to the frame, "
        f"{len(places[0] & places[1])} in the same trajectory; "
        f"order {'the same' if order[0] == order[1] else 'differs'}; "
        f"costs differ by at most {max(costs):.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="efficientnet-lite0@128")
    parser.add_argument("--random", choices=["dinov2-base"])
    parser.add_argument("--tasks", nargs="+", default=["soup-sauce", "soup-cheese", "mug-mug"])
    parser.add_argument(
        "--precisions", nargs=2, default=["float32", "bfloat16"], help="the two to compare"
    )
    parser.add_argument("--episodes", type=int, help="of the prior (default: all 48)")
    options = parser.parse_args()
    print(describe("torch", "numpy"))
    prior = strap.open_dataset(SAMPLE / "prior")
    targets = {name: strap.open_dataset(SAMPLE / "target" / name) for name in options.tasks}
    with tempfile.TemporaryDirectory() as folder:
        root, stores = Path(folder), {}
        for precision in options.precisions:
            encoder = encoder_of(options, precision, root / "weights")
            begin = time.perf_counter()
            for name, dataset in {"prior": prior, **targets}.items():
                ids = dataset.ids[: options.episodes] if name == "prior" else dataset.ids
                vectors = {key: encoder.encode(frames(dataset, key)) for key in ids}
                stores[name, precision] = make_store(
                    dataset, vectors, root / f"{name}-{len(stores)}"
                )
            print(f"{precision}: {time.perf_counter() - begin:.0f} s on {encoder.device}")  # type: ignore[attr-defined]
        lowest = 1.0
        for name in ("prior", *targets):
            for key in stores[name, options.precisions[0]]:
                a, b = (stores[name, p][key].astype(np.float64) for p in options.precisions)
                cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
                lowest = min(lowest, float(cosine.min()))
        print(f"lowest cosine of a frame: {lowest:.6f}")
        for name, dataset in targets.items():
            queries = strap.segment(dataset)
            found = [
                strap.retrieve(queries, stores[name, p], stores["prior", p], top_k=100)
                for p in options.precisions
            ]
            print(f"{name}, top 100: {compare(*found)}")


if __name__ == "__main__":
    main()
