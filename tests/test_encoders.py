"""Real loading paths with small random checkpoints, against plain loops of the libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strap.encoders import load_encoder
from strap.errors import StrapError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 8}


def smooth_images() -> np.ndarray:
    """Pictures rather than noise: resizing noise differs by rounding alone."""
    y, x = np.mgrid[0:48, 0:64]
    waves = [np.sin(x / 9 + i) * 60 + np.cos(y / 7 - i) * 60 + 128 for i in range(3)]
    return np.stack([np.stack(waves, -1), np.stack(waves[::-1], -1)]).astype(np.uint8)


def dinov2() -> tuple[object, object]:
    config = transformers.Dinov2Config(**SMALL, image_size=32)
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32},
        image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], resample=3,
    )  # fmt: skip
    return transformers.Dinov2Model(config), processor


def clip() -> tuple[object, object]:
    config = transformers.CLIPVisionConfig(**SMALL, image_size=32, intermediate_size=64)
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    return transformers.CLIPVisionModel(config), processor


def siglip() -> tuple[object, object]:
    config = transformers.SiglipVisionConfig(**SMALL, image_size=32, intermediate_size=64)
    processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    return transformers.SiglipVisionModel(config), processor


def dinov3() -> tuple[object, object]:
    config = transformers.DINOv3ViTConfig(
        **SMALL, image_size=32, intermediate_size=64, num_register_tokens=2
    )
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, resample=2)
    return transformers.DINOv3ViTModel(config), processor


FAMILIES = {"dinov2": dinov2, "clip": clip, "siglip": siglip, "dinov3": dinov3}


def saved(family: str, folder: Path) -> str:
    torch.manual_seed(0)
    model, processor = FAMILIES[family]()
    model.save_pretrained(folder)  # type: ignore[attr-defined]
    processor.save_pretrained(folder)  # type: ignore[attr-defined]
    return str(folder)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["mean", "cls", "patches"])
def test_equals_a_plain_loop(family: str, pooling: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path / family)
    if family == "siglip" and pooling != "mean":
        with pytest.raises(StrapError, match="has no CLS token"):
            load_encoder(folder, pooling=pooling)  # type: ignore[arg-type]
        return
    encoder = load_encoder(folder, device="cpu", pooling=pooling, layer=-2)  # type: ignore[arg-type]
    images = smooth_images()
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
    expected, pixels = [], []
    for image in images:
        inputs = processor(images=image, return_tensors="pt")
        pixels.append(inputs["pixel_values"])
        with torch.no_grad():
            tokens = model(**inputs, output_hidden_states=True).hidden_states[-2][0]
        skip = 1 + (2 if family == "dinov3" else 0)
        pooled = {"mean": tokens.mean(0), "cls": tokens[0], "patches": tokens[skip:].mean(0)}
        expected.append(pooled[pooling].numpy())
    assert encoder.dim == 32
    vectors = encoder.encode(images)
    similarity = (vectors * expected).sum(1)
    similarity /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert np.all(similarity > 0.999)  # the resize may differ by a grey level
    with torch.no_grad():
        same_pixels = encoder.features(encoder.model, torch.cat(pixels))  # type: ignore[attr-defined]
    assert np.abs(same_pixels.numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_preprocessing_equals_the_processors(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path / family)
    encoder = load_encoder(folder, device="cpu")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
    images = smooth_images()
    ours = encoder.preprocessing(torch.from_numpy(images))  # type: ignore[attr-defined]
    theirs = processor(images=list(images), return_tensors="pt")["pixel_values"]
    std = torch.tensor(encoder.preprocessing.std).view(1, 3, 1, 1)  # type: ignore[attr-defined]
    levels = ((ours - theirs) * std * 255).abs()
    assert ours.shape == theirs.shape
    assert levels.max() <= 1.01  # within one grey level


def test_configurations_tell_models_apart(tmp_path: Path) -> None:
    one = load_encoder(saved("dinov2", tmp_path / "a"), device="cpu")
    torch.manual_seed(1)
    model, processor = dinov2()
    model.save_pretrained(tmp_path / "b")  # type: ignore[attr-defined]
    processor.save_pretrained(tmp_path / "b")  # type: ignore[attr-defined]
    other = load_encoder(str(tmp_path / "b"), device="cpu")
    assert one.config["weights"] != other.config["weights"]
    again = load_encoder(str(tmp_path / "a"), device="cpu")
    assert again.config == one.config
    released = load_encoder(str(tmp_path / "a"), device="cpu", preset="released")
    assert released.config != one.config


def test_absent_weights_say_what_to_fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StrapError, match="hf download facebook/dinov2-base"):
        load_encoder("dinov2-base", device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StrapError, match=r"cannot load a vision model from '.*empty'"):
        load_encoder(str(tmp_path / "empty"), device="cpu")
    with pytest.raises(
        StrapError, match="unknown encoder 'dinov2-bas': did you mean 'dinov2-base'"
    ):
        load_encoder("dinov2-bas")


def test_devices() -> None:
    with pytest.raises(StrapError, match="unknown device 'gpuu'"):
        load_encoder("efficientnet-lite0", device="gpuu")
    if not torch.cuda.is_available():
        with pytest.raises(StrapError, match="torch sees no GPU: use cpu"):
            load_encoder("efficientnet-lite0", device="cuda")


def test_efficientnet_sees() -> None:
    """Real ImageNet weights: a disc moved a little is nearer than a chessboard."""
    encoder = load_encoder("efficientnet-lite0", device="cpu")
    y, x = np.mgrid[0:64, 0:64]

    def disc(centre: int) -> np.ndarray:
        inside = (x - centre) ** 2 + (y - 32) ** 2 < 200
        return np.where(inside[..., None], [200, 40, 40], [90, 90, 90]).astype(np.uint8)

    board = ((x // 8 + y // 8) % 2 * 255).astype(np.uint8)[..., None].repeat(3, -1)
    a, b, c = encoder.encode(np.stack([disc(30), disc(34), board]))
    assert encoder.dim == 1280
    assert np.linalg.norm(a - b) < 0.5 * np.linalg.norm(a - c)
    assert encoder.config == load_encoder("efficientnet-lite0", device="cpu").config
