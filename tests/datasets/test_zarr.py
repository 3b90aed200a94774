"""Zarr replay buffers, written chunk by chunk by the test."""

from __future__ import annotations

import builtins
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.datasets.writers import number_of, picture, write_zarr

from strap.datasets.base import Dataset
from strap.datasets.zarr import is_zarr, open_zarr
from strap.errors import StrapError

pytest.importorskip("zarr")
ENDS = (9, 10, 30)


def arrays(kind: str = "uint8") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    frames = np.stack([picture(i) for i in range(30)])
    return {
        "camera0_rgb": frames if kind == "uint8" else (frames / 255).astype(kind),
        "robot0_eef_pos": rng.normal(size=(30, 3)).astype(np.float32),
        "action": rng.normal(size=(30, 7)).astype(np.float32),
        "depth": np.ones((30, 4, 4), np.float32),
    }


def opened(path: Path, **options: Any) -> Dataset:
    name, reader = open_zarr(path, **options)
    return Dataset(path, name, reader)


def zipped(root: Path) -> Path:
    out = root.with_name(root.name + ".zip")
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            archive.write(file, file.relative_to(root).as_posix())
    return out


@pytest.mark.parametrize("packed", [False, True])
def test_a_replay_buffer(tmp_path: Path, packed: bool) -> None:
    content = arrays()
    path = write_zarr(tmp_path / "buffer.zarr", content, ENDS)
    path = zipped(path) if packed else path
    assert is_zarr(path)
    dataset = opened(path, fps=10.0, instruction="push the block")
    assert list(dataset.ids) == ["episode_000000", "episode_000001", "episode_000002"]
    assert list(dataset.reader.lengths) == [9, 1, 20]
    last = dataset["episode_000002"]
    assert (last.length, last.fps, last.instruction) == (20, 10.0, "push the block")
    np.testing.assert_array_equal(last.actions[:], content["action"][10:])
    np.testing.assert_array_equal(last.actions[5:9], content["action"][15:19])
    position = last.proprioception["robot0_eef_pos"]
    np.testing.assert_array_equal(position[:], content["robot0_eef_pos"][10:])
    assert [number_of(f) for f in last.frames("camera0_rgb", 3, 6)] == [13, 14, 15]
    assert last.extras["depth"].shape == (20, 4, 4)
    assert dataset.fingerprint()
    with pytest.raises(StrapError, match="unknown trajectory 'episode_000003'"):
        dataset["episode_000003"]


def test_pictures_kept_as_floats(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays("float32"), ENDS)
    frames = opened(path)["episode_000000"].frames("camera0_rgb")
    assert frames.dtype == np.uint8
    np.testing.assert_array_equal(frames, arrays()["camera0_rgb"][:9])


def test_not_a_buffer(tmp_path: Path) -> None:
    assert not is_zarr(tmp_path)
    (tmp_path / "x.zip").write_bytes(b"no archive")
    assert not is_zarr(tmp_path / "x.zip")
    path = write_zarr(tmp_path / "a.zarr", {"state": np.zeros((30, 2))}, ENDS)
    with pytest.raises(StrapError, match=r"unknown action array 'action'.*state"):
        opened(path)
    assert opened(path, action="state")["episode_000001"].actions.shape == (1, 2)


def test_truncated_and_missing_chunks(tmp_path: Path) -> None:
    sound = write_zarr(tmp_path / "sound.zarr", arrays(), ENDS)
    file = "data/action/1.0"
    whole = (sound / file).read_bytes()
    for place in random.Random(0).sample(range(len(whole) - 1), 10):
        path = Path(shutil.copytree(sound, tmp_path / f"{place}.zarr"))
        (path / file).write_bytes(whole[:place])
        with pytest.raises(StrapError, match=rf"{place}.zarr', episode_000000, 'data/action'"):
            opened(path)["episode_000000"].actions[:]
    path = Path(shutil.copytree(sound, tmp_path / "gone.zarr"))
    (path / file).unlink()
    with pytest.raises(StrapError, match=r"chunk 'data/action/1.0' is missing"):
        opened(path)["episode_000000"].actions[:]
    assert not opened(path, empty_chunks=True)["episode_000000"].actions[8:].any()
    packed = zipped(sound)
    whole = packed.read_bytes()
    for place in random.Random(1).sample(range(len(whole) - 1), 10):
        cut = tmp_path / f"cut{place}.zarr.zip"
        cut.write_bytes(whole[:place])
        assert is_zarr(cut)
        with pytest.raises(StrapError, match=f"cut{place}.zarr.zip"):
            opened(cut)


def test_wrong_ends_and_unknown_codec(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match=r"'data/action' has \(30,\) frames but .* up to 40"):
        opened(write_zarr(tmp_path / "a.zarr", arrays(), (9, 40)))
    with pytest.raises(StrapError, match="does not rise"):
        opened(write_zarr(tmp_path / "b.zarr", arrays(), (9, 9)))
    path = write_zarr(tmp_path / "c.zarr", arrays(), ENDS)
    described = path / "data/camera0_rgb/.zarray"
    described.write_text(described.read_text().replace("zlib", "imagecodecs_jpegxl"))
    with pytest.raises(StrapError, match=r"c.zarr.*imagecodecs"):
        opened(path)["episode_000000"].frames("camera0_rgb")


def test_without_zarr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zarr(tmp_path / "buffer.zarr", arrays(), ENDS)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "zarr":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StrapError, match=r"pip install 'strap-robot\[zarr\]'"):
        opened(path)
