"""Made-up datasets with DROID's fields and picture size, in RLDS as TFDS writes it."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from strap.datasets.rlds.records import masked_crc

SIZE = (180, 320)
CAMERAS = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
NUMBERS = {"cartesian_position": 6, "joint_position": 7, "gripper_position": 1}
EPISODES_PER_SHARD = 20

Pictures = list[bytes]
"""JPEGs, one after the other as a camera sees them"""


def draw_pictures(count: int) -> Pictures:
    """Return pictures of smooth noise."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (count, *(n // 10 for n in SIZE), 3)).astype(np.uint8)
    return [encode_picture(image) for image in coarse]


def encode_picture(image: np.ndarray) -> bytes:
    """Return an image [h w 3] as a JPEG of DROID's size."""
    resized = Image.fromarray(image).resize(SIZE[::-1], Image.Resampling.BICUBIC)
    out = io.BytesIO()
    resized.save(out, "JPEG", quality=90)
    return out.getvalue()


def write_droid(
    folder: Path, episodes: int, steps: int, films: Sequence[Pictures], *, seed: int = 0
) -> None:
    """Write episodes of so many steps, each a piece of a film that is drawn at random."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").write_text(json.dumps(_describe_features()))
    full, rest = divmod(episodes, EPISODES_PER_SHARD)
    shards = [EPISODES_PER_SHARD] * full + [rest] * (rest > 0)
    split = {"name": "train", "shardLengths": [str(n) for n in shards]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "droid", "splits": [split]}))
    for i, count in enumerate(shards):
        with (folder / f"droid-train.tfrecord-{i:05d}-of-{len(shards):05d}").open("wb") as file:
            for _ in range(count):
                film = films[rng.integers(len(films))]
                file.write(_record(_episode(rng, film, steps)))


def _describe_features() -> dict[str, object]:
    picture = {"image": {"shape": {"dimensions": [*map(str, SIZE), "3"]}, "dtype": "uint8"}}
    observation: dict[str, object] = dict.fromkeys(CAMERAS, picture)
    observation |= {name: _tensor("float64", width) for name, width in NUMBERS.items()}
    step = {
        "observation": {"featuresDict": {"features": observation}},
        "action": _tensor("float64", 7),
        "is_last": _tensor("bool"),
        "language_instruction": {"text": {}},
    }
    sequence = {"sequence": {"feature": {"featuresDict": {"features": step}}}}
    return {"featuresDict": {"features": {"steps": sequence}}}


def _tensor(dtype: str, *shape: int) -> dict[str, object]:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"}}


def _episode(
    rng: np.random.Generator, film: Pictures, steps: int
) -> dict[str, list[bytes] | np.ndarray]:
    start = rng.integers(len(film))
    seen = [film[(start + i) % len(film)] for i in range(steps)]
    found: dict[str, list[bytes] | np.ndarray] = {
        f"steps/observation/{name}": seen for name in CAMERAS
    }
    for name, width in NUMBERS.items():  # an arm that moves on and never rests
        found[f"steps/observation/{name}"] = rng.normal(0.02, 0.01, (steps, width)).cumsum(0)
    return found | {
        "steps/action": rng.normal(size=(steps, 7)),
        "steps/is_last": (np.arange(steps) == steps - 1).astype(int),
        "steps/language_instruction": [b"put the marker in the cup"] * steps,
    }


def _record(features: dict[str, list[bytes] | np.ndarray]) -> bytes:
    entries = (_field(1, k.encode()) + _field(2, _feature(v)) for k, v in features.items())
    data = _field(1, b"".join(_field(1, entry) for entry in entries))
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]


def _feature(values: list[bytes] | np.ndarray) -> bytes:
    if isinstance(values, list):
        return _field(1, b"".join(_field(1, value) for value in values))
    if values.dtype.kind == "f":
        return _field(2, _field(1, values.astype("<f4").tobytes()))
    return _field(3, _field(1, b"".join(_varint(int(v)) for v in values.ravel())))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
