"""Small datasets of each format, written without the package: pyarrow, PyAV, struct, json.

Every frame carries its number as black and white squares, so that a test can tell which frame it
got even after a lossy codec.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from strap.datasets.lerobot.encoding import ordinary_threads

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder prints its settings otherwise
BITS = 12
SIZE = (48, 64)


def picture(number: int, size: tuple[int, int] = SIZE, tint: int = 0) -> np.ndarray:
    """A smooth picture, uint8 [h w 3], with `number` written in squares along its top."""
    height, width = size
    rows, columns = np.mgrid[0:height, 0:width]
    grey = 60 + 100 * rows / height + 60 * columns / width
    image = np.stack([grey, grey * 0.9 + tint, 255 - grey], axis=-1)
    side = width // BITS
    for bit in range(BITS):
        value = 235 if number >> bit & 1 else 20
        image[: side * 2, bit * side : (bit + 1) * side] = value
    return np.clip(image, 0, 255).astype(np.uint8)


def number_of(image: np.ndarray) -> int:
    """The number that `picture` wrote."""
    side = image.shape[1] // BITS
    squares = [image[: side * 2, b * side : (b + 1) * side].mean() for b in range(BITS)]
    return sum(1 << bit for bit, value in enumerate(squares) if value > 127)


@dataclass
class Episode:
    """What is written of one episode, and what reading it must give back."""

    index: int
    length: int
    first: int
    task: str = "pick up the cup"
    size: tuple[int, int] = SIZE
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.index)
        self.state = rng.normal(size=(self.length, 5)).astype(np.float32)
        self.action = rng.normal(size=(self.length, 3)).astype(np.float32)
        self.reward = rng.normal(size=self.length)
        self.done = np.arange(self.length) == self.length - 1

    def frames(self, tint: int = 0) -> list[np.ndarray]:
        return [picture(self.first + i, self.size, tint) for i in range(self.length)]


def episodes(lengths: Sequence[int], size: tuple[int, int] = SIZE) -> list[Episode]:
    """Episodes of these lengths with two tasks in turn."""
    firsts = np.concatenate(([0], np.cumsum(lengths)))
    tasks = ["pick up the cup", "open the drawer"]
    return [Episode(i, n, int(firsts[i]), tasks[i % 2], size) for i, n in enumerate(lengths)]


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    fps: Fraction,
    codec: str = "libx264",
    **options: str,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options={"crf": "12", **options})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if codec == "mpeg4":
            stream.bit_rate = 4_000_000
        with ordinary_threads():
            container.start_encoding()
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


CAMERAS = {"observation.images.front": 0, "observation.images.wrist": 20}


def _features(size: tuple[int, int], dtype: str) -> dict[str, dict]:
    camera = {"dtype": dtype, "shape": [*size, 3], "names": ["height", "width", "channels"]}
    whole = {"dtype": "int64", "shape": [1], "names": None}
    return {
        **dict.fromkeys(CAMERAS, camera),
        "observation.state": {
            "dtype": "float32",
            "shape": [5],
            "names": ["x", "y", "z", "yaw", "gripper"],
        },
        "action": {"dtype": "float32", "shape": [3], "names": None},
        "next.reward": {"dtype": "float64", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "timestamp": {**whole, "dtype": "float32"},
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), whole),
    }


def _table(episode: Episode, fps: Fraction, tasks: dict[str, int], pictures: bool) -> pa.Table:
    count = np.arange(episode.length)
    columns = {
        "observation.state": pa.array(list(episode.state), pa.list_(pa.float32())),
        "action": pa.array(list(episode.action), pa.list_(pa.float32(), 3)),
        "next.reward": pa.array(episode.reward),
        "next.done": pa.array(episode.done),
        "timestamp": pa.array((count / float(fps)).astype(np.float32)),
        "frame_index": pa.array(count),
        "episode_index": pa.array(np.full(episode.length, episode.index)),
        "index": pa.array(episode.first + count),
        "task_index": pa.array(np.full(episode.length, tasks[episode.task])),
    }
    if pictures:
        for name, tint in CAMERAS.items():
            values = [{"bytes": png(f), "path": None} for f in episode.frames(tint)]
            columns[name] = pa.array(values)
    return pa.table(columns)


def png(image: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, kind, quality=95)
    return out.getvalue()


def _info(version: str, fps: Fraction, content: list[Episode], features: dict) -> dict:
    rate = float(fps)
    return {
        "codebase_version": version,
        "robot_type": "test",
        "fps": int(rate) if rate.is_integer() else rate,
        "total_episodes": len(content),
        "total_frames": sum(e.length for e in content),
        "chunks_size": 1000,
        "features": features,
    }


def write_lerobot_v21(
    root: Path, content: list[Episode], fps: Fraction = Fraction(10), codec: str = "libx264"
) -> Path:
    """One parquet and one mp4 per camera for each episode; meta as lines of JSON."""
    tasks = {t: i for i, t in enumerate(dict.fromkeys(e.task for e in content))}
    info = _info("v2.1", fps, content, _features(content[0].size, "video"))
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = (
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    )
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    lines = [{"episode_index": e.index, "tasks": [e.task], "length": e.length} for e in content]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    lines = [{"task_index": i, "task": task} for task, i in tasks.items()]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for e in content:
        file = root / f"data/chunk-000/episode_{e.index:06d}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(e, fps, tasks, pictures=False), file)
        for name, tint in CAMERAS.items():
            path = root / f"videos/chunk-000/{name}/episode_{e.index:06d}.mp4"
            write_video(path, e.frames(tint), fps, codec)
    return root


def write_lerobot_v3(
    root: Path,
    content: list[Episode],
    fps: Fraction = Fraction(10),
    codec: str = "libx264",
    *,
    pictures: bool = False,
    row_group: int = 7,
    **options: str,
) -> Path:
    """All episodes in one parquet (row groups across episodes) and one mp4 per camera."""
    tasks = {t: i for i, t in enumerate(dict.fromkeys(e.task for e in content))}
    info = _info("v3.0", fps, content, _features(content[0].size, "image" if pictures else "video"))
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    table = pa.concat_tables([_table(e, fps, tasks, pictures) for e in content])
    pq.write_table(table, root / "data/chunk-000/file-000.parquet", row_group_size=row_group)
    rows = []
    for e in content:
        row = {"episode_index": e.index, "tasks": [e.task], "length": e.length}
        row |= {"data/chunk_index": 0, "data/file_index": 0}
        row |= {"dataset_from_index": e.first, "dataset_to_index": e.first + e.length}
        for name in () if pictures else CAMERAS:
            row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": 0}
            row[f"videos/{name}/from_timestamp"] = float(e.first / fps)
            row[f"videos/{name}/to_timestamp"] = float((e.first + e.length) / fps)
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    named = pa.table({"task_index": list(tasks.values()), "__index_level_0__": list(tasks)})
    pq.write_table(named, root / "meta/tasks.parquet")
    for name, tint in () if pictures else CAMERAS.items():
        frames = [frame for e in content for frame in e.frames(tint)]
        write_video(root / f"videos/{name}/chunk-000/file-000.mp4", frames, fps, codec, **options)
    return root


# --- TFRecords, by hand ------------------------------------------------------------------------


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: object) -> bytes:
    """A tf.train.Feature: a list of bytes, an array of floats or of integers (packed)."""
    if isinstance(values, list):
        return _field(1, b"".join(_field(1, v) for v in values))
    array = np.asarray(values).ravel()
    if array.dtype.kind == "f":
        return _field(2, _field(1, array.astype("<f4").tobytes()))
    return _field(3, _field(1, b"".join(varint(int(v)) for v in array)))


def example(features: dict[str, object]) -> bytes:
    entries = (_field(1, k.encode()) + _field(2, feature(v)) for k, v in features.items())
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return (
        length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    )


def _tensor(dtype: str, *shape: int) -> dict:
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"}}


def _image(*shape: int) -> dict:
    dimensions = {"dimensions": [str(n) for n in shape]}
    return {"image": {"shape": dimensions, "dtype": "uint8", "encodingFormat": "jpeg"}}


def _dict(**features: dict) -> dict:
    return {"featuresDict": {"features": features}}


def write_rlds(
    folder: Path,
    lengths: Sequence[Sequence[int]] = ((4, 6), (5,)),
    *,
    name: str = "droid",
    split: str = "train",
    size: tuple[int, int] = SIZE,
    unknown_size: bool = False,
) -> list[list[dict[str, object]]]:
    """DROID's fields; `lengths[i]` are the episodes of shard i. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = (-1, -1, 3) if unknown_size else (*size, 3)
    step = _dict(
        observation=_dict(
            exterior_image_1_left=_image(*pixels),
            wrist_image_left=_image(*size, 3),
            cartesian_position=_tensor("float64", 6),
            gripper_position=_tensor("float64", 1),
        ),
        action=_tensor("float64", 7),
        language_instruction={"text": {}},
        language_instruction_2={"text": {}},
        language_instruction_3={"text": {}},
        is_last=_tensor("bool"),
        count=_tensor("int64"),
        reward=_tensor("float32"),
    )
    top = _dict(
        steps={"sequence": {"feature": step}},
        episode_metadata=_dict(file_path={"text": {}}),
    )
    (folder / "features.json").write_text(json.dumps(top))
    info = {
        "name": name,
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(shard)) for shard in lengths],
            }
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    written: list[list[dict[str, object]]] = []
    for i, shard in enumerate(lengths):
        content = [_droid_episode(i * 100 + j, n, size) for j, n in enumerate(shard)]
        file = folder / f"{name}-{split}.tfrecord-{i:05d}-of-{len(lengths):05d}"
        file.write_bytes(b"".join(record(example(e)) for e in content))
        written.append(content)
    return written


def _droid_episode(seed: int, length: int, size: tuple[int, int]) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    first = seed % 1000
    views = {"exterior_image_1_left": 0, "wrist_image_left": 20}
    pictures: dict[str, object] = {
        f"steps/observation/{name}": [
            png(picture(first + i, size, tint), "JPEG") for i in range(length)
        ]
        for name, tint in views.items()
    }
    return pictures | {
        "steps/observation/cartesian_position": rng.normal(size=(length, 6)).astype(np.float32),
        "steps/observation/gripper_position": rng.normal(size=(length, 1)).astype(np.float32),
        "steps/action": rng.normal(size=(length, 7)).astype(np.float32),
        "steps/language_instruction": [b""] * length,
        "steps/language_instruction_2": [f"put the marker in cup {seed}".encode()] * length,
        "steps/language_instruction_3": [b"marker in the cup"] * length,
        "steps/is_last": (np.arange(length) == length - 1).astype(np.int64),
        "steps/count": rng.integers(-(2**40), 2**40, length),
        "steps/reward": np.zeros(length, np.float32),
        "episode_metadata/file_path": [f"/recorded/{seed}.h5".encode()],
    }


# --- Zarr version 2, by hand -------------------------------------------------------------------


def write_zarr(root: Path, arrays: dict[str, np.ndarray], ends: Sequence[int], rows: int = 8):
    """A replay buffer with zlib-compressed chunks of `rows` frames."""
    for group in ("", "data", "meta"):
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / ".zgroup").write_text('{"zarr_format": 2}')
    stored = {f"data/{name}": array for name, array in arrays.items()}
    for name, array in {**stored, "meta/episode_ends": np.asarray(ends, np.int64)}.items():
        folder = root / name
        folder.mkdir(parents=True)
        described = {
            "zarr_format": 2,
            "shape": list(array.shape),
            "chunks": [rows, *array.shape[1:]],
            "dtype": array.dtype.str,
            "compressor": {"id": "zlib", "level": 1},
            "fill_value": 0,
            "order": "C",
            "filters": None,
        }
        (folder / ".zarray").write_text(json.dumps(described))
        for i, start in enumerate(range(0, len(array), rows)):
            chunk = np.zeros((rows, *array.shape[1:]), array.dtype)
            part = array[start : start + rows]
            chunk[: len(part)] = part
            file = ".".join(map(str, (i, *[0] * (array.ndim - 1))))
            (folder / file).write_bytes(zlib.compress(chunk.tobytes()))
    return root
