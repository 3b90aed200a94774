"""Real loading paths with small random checkpoints, against plain loops of the libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import strap
from strap.cli import main
from strap.encoders import FunctionEncoder, load_encoder
from strap.errors import StrapError
from strap.scores import read_labels
from strap.synthetic import Planted, make_planted

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SAMPLE = Path(__file__).parent.parent / "samples" / "libero-mini" / "prior"
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


def resnet() -> tuple[object, object]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"
    )
    model = transformers.ResNetModel(config)
    for module in model.modules():  # as after training: statistics that are not 0 and 1
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return model, transformers.ConvNextImageProcessor(
        size={"shortest_edge": 56}, crop_pct=0.875, resample=3
    )


FAMILIES = {"dinov2": dinov2, "clip": clip, "siglip": siglip, "dinov3": dinov3, "resnet": resnet}
WITHOUT_CLS = ("siglip", "resnet")


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
    if family in WITHOUT_CLS and pooling != "mean":
        with pytest.raises(StrapError, match="has no CLS token"):
            load_encoder(folder, pooling=pooling)  # type: ignore[arg-type]
        return
    layer = -1 if family == "resnet" else -2  # ResNet's layers differ in width
    encoder = load_encoder(
        folder,
        device="cpu",
        pooling=pooling,
        layer=layer,
        precision="float32",  # type: ignore[arg-type]
    )
    images = smooth_images()
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, use_fast=False)
    expected, pixels = [], []
    for image in images:
        inputs = processor(images=image, return_tensors="pt")
        pixels.append(inputs["pixel_values"])
        with torch.no_grad():
            tokens = model(**inputs, output_hidden_states=True).hidden_states[layer][0]
        if family == "resnet":
            tokens = tokens.flatten(1).T
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
    gathered = encoder.gather([images[:1], images[1:]])  # type: ignore[attr-defined]
    assert np.array_equal(encoder.start(gathered)(), vectors)  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", FAMILIES)
def test_preprocessing_equals_the_processors(family: str, tmp_path: Path) -> None:
    folder = saved(family, tmp_path / family)
    encoder = load_encoder(folder, device="cpu", precision="float32")
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


def test_absent_weights_say_what_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match="hf download facebook/dinov2-base"):
        load_encoder("dinov2-base", device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StrapError, match=r"cannot load a vision model from '.*empty'"):
        load_encoder(str(tmp_path / "empty"), device="cpu")
    with pytest.raises(
        StrapError, match="unknown encoder 'dinov2-bas': did you mean 'dinov2-base'"
    ):
        load_encoder("dinov2-bas")


def test_absent_weights_are_one_line(tmp_path: Path) -> None:
    """As a user without network meets it."""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf")}
    code = "import sys; from strap.cli import main; sys.exit(main(sys.argv[1:]))"
    planted = make_planted(tmp_path / "data")
    words = [
        "embed",
        str(planted.target),
        "--encoder",
        "dinov2-small",
        "--out",
        str(tmp_path / "s"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.strip()]
    assert line.startswith(
        "strap: error: the weights of encoder 'dinov2-small' are not on this machine"
    )
    assert "`hf download facebook/dinov2-small`" in line
    assert "--encoder FOLDER" in line
    assert not (tmp_path / "s").exists()


def test_layers_that_are_not_there(tmp_path: Path) -> None:
    folder = saved("dinov2", tmp_path / "a")
    with pytest.raises(StrapError, match="has no such layer: it has 3; count from the end"):
        load_encoder(folder, device="cpu", layer=-9)
    with pytest.raises(StrapError, match="'pixels' has one way to pool"):
        load_encoder("pixels", pooling="cls")
    with pytest.raises(StrapError, match="unknown precision 'half'"):
        load_encoder(folder, precision="half")  # type: ignore[arg-type]


def test_the_released_preset_squashes_first(tmp_path: Path) -> None:
    """As the authors do: 224×224 by bilinear interpolation, then the model's own processor."""
    folder = saved("dinov2", tmp_path / "a")
    encoder = load_encoder(folder, device="cpu", preset="released", precision="float32")
    images = torch.from_numpy(smooth_images())
    squashed = torch.nn.functional.interpolate(
        images.permute(0, 3, 1, 2).float(), (224, 224), mode="bilinear", align_corners=False
    )
    squashed = squashed.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    plain = load_encoder(folder, device="cpu", precision="float32")
    assert np.allclose(encoder.encode(images.numpy()), plain.encode(squashed), atol=1e-4)
    assert encoder.config["pooling"] == "mean"


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    for family in FAMILIES:
        folder = saved(family, tmp_path / family)
        exact, quick = (
            load_encoder(folder, device="cpu", precision=p).encode(smooth_images())  # type: ignore[arg-type]
            for p in ("float32", "bfloat16")
        )
        cosine = (exact * quick).sum(1) / np.linalg.norm(exact, axis=1)
        assert np.all(cosine / np.linalg.norm(quick, axis=1) > 0.999), family


def test_packed_weights_multiply_alike() -> None:
    import torch
    from torch import nn

    from strap.encoders.packing import PackedLinear, pack_linear

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 8, bias=False))
    model = nn.ModuleDict({"inner": inner, "norm": nn.LayerNorm(8)}).requires_grad_(False)
    x = torch.randn(3, 5, 24)
    expected = inner(x)
    pack_linear(model)
    assert sum(isinstance(module, PackedLinear) for module in model.modules()) == 2
    torch.testing.assert_close(inner(x), expected)
    assert inner(x[:0]).shape == (0, 5, 8)


def test_a_torch_without_the_private_operators_packs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from strap.encoders import packing

    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert packing.packs_bfloat16()
    monkeypatch.setattr(packing, "OPERATORS", (*packing.OPERATORS, "_gone_in_a_later_torch"))
    assert not packing.packs_bfloat16()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_on_packed_weights(family: str, tmp_path: Path) -> None:
    from strap.encoders.packing import pack_linear

    encoder = load_encoder(saved(family, tmp_path / family), device="cpu", precision="float32")
    plain = encoder.encode(smooth_images())
    pack_linear(encoder.model)  # type: ignore[attr-defined]
    assert np.allclose(encoder.encode(smooth_images()), plain, atol=1e-5)


def test_values_do_not_depend_on_the_batch() -> None:
    encoder = load_encoder("efficientnet-lite0@32", device="cpu", precision="float32")
    images = np.random.default_rng(0).integers(0, 255, (7, 40, 40, 3), dtype=np.uint8)
    whole = encoder.encode(images)
    for batch in (1, 3):
        parts = replace(encoder, batch=batch).encode(images)  # type: ignore[type-var]
        assert np.allclose(whole, parts, atol=1e-4)
    assert np.array_equal(encoder.start(images)(), whole)  # type: ignore[attr-defined]


def test_a_function_is_an_encoder(
    tmp_path: Path, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The five lines of docs/recipes/encoder.md."""
    page = (Path(__file__).parent.parent / "docs" / "recipes" / "encoder.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 5
    module = code.replace("samples/libero-mini/target/mug-mug", str(planted.target))
    module = module.replace("colour-store", str(tmp_path / "s"))
    (tmp_path / "mine.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    spaces: dict[str, object] = {}
    exec(compile(module, "mine.py", "exec"), spaces)
    store = strap.open_store(tmp_path / "s")
    assert (store.dim, store.complete, store.config.encoder) == (3, True, {"name": "mean colour"})
    words = ["embed", str(planted.target), "--encoder", "mine:colour", "--out", str(tmp_path / "t")]
    assert main(words) == 0
    assert np.array_equal(strap.open_store(tmp_path / "t")["demo_0"], store["demo_0"])
    for name, message in (
        ("mine:nothing", r"cannot import encoder 'mine:nothing' .*no attribute 'nothing'"),
        ("absent_module:x", "cannot import encoder 'absent_module:x'"),
        ("strap:__version__", "is a str: give a function"),
    ):
        with pytest.raises(StrapError, match=message):
            load_encoder(name)
    with pytest.raises(
        StrapError, match=r"gave shape \(4,\) for 4 images: it must give one vector"
    ):
        FunctionEncoder(lambda x: x.mean((1, 2, 3)), "flat").encode(
            np.zeros((4, 8, 8, 3), np.uint8)
        )


def test_real_weights_know_objects() -> None:
    """In the hand camera at the moment of grasping, the same object is nearer than another.

    One frame of each of 45 demonstrations; neighbours are always of other demonstrations.
    """
    pytest.importorskip("av")
    dataset = strap.open_dataset(SAMPLE)
    images, objects = [], []
    for key, labels in read_labels(dataset).items():
        grasping = [i for i, (skill, _) in enumerate(labels) if skill == "grasp"]
        if grasping:
            middle = grasping[len(grasping) // 2]
            images.append(dataset[key].frames("eye_in_hand_rgb", middle, middle + 1)[0])
            objects.append(labels[middle][1])
    vectors = load_encoder("efficientnet-lite0@128", device="cpu").encode(np.stack(images))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distance = 1 - vectors @ vectors.T
    kinds = np.array(objects)
    same, other = kinds[:, None] == kinds, ~np.eye(len(kinds), dtype=bool)
    assert len(kinds) == 45
    assert distance[same & other].mean() < 0.6 * distance[~same].mean()  # measured: 0.44
    nearest = np.where(other, distance, np.inf).argmin(1)
    assert (kinds[nearest] == kinds).mean() > 0.8  # measured: 0.91; by chance 0.09


@pytest.mark.parametrize("name", ["efficientnet-lite0@abc", "efficientnet-lite0@", "pixels@64"])
def test_sizes_that_are_none(name: str) -> None:
    with pytest.raises(StrapError, match=f"encoder '{name}' has no size '.*lite0@128"):
        load_encoder(name, device="cpu")
    with pytest.raises(StrapError, match="takes multiples of 32 as its size"):
        load_encoder("efficientnet-lite0@100", device="cpu")


def test_devices() -> None:
    with pytest.raises(StrapError, match="unknown device 'gpuu'"):
        load_encoder("efficientnet-lite0", device="gpuu")
    if not torch.cuda.is_available():
        with pytest.raises(StrapError, match="torch sees no GPU: use cpu"):
            load_encoder("efficientnet-lite0", device="cuda")


@pytest.mark.parametrize("size", [64, 96])
def test_norms_folded_into_convolutions_change_nothing(size: int) -> None:
    import torch

    from strap.encoders.efficientnet import EfficientNetLite0, checkpoint, fold_norms

    model = EfficientNetLite0()
    weights = torch.load(checkpoint(), weights_only=True)
    model.load_state_dict({k: v for k, v in weights.items() if not k.startswith("_fc.")})
    images = torch.rand((2, 3, size, size), generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        plain = model.eval()(images)
        fold_norms(model)
        folded = model(images)
    assert not any(isinstance(own, torch.nn.BatchNorm2d) for own in model.modules())
    torch.testing.assert_close(folded, plain, atol=1e-4, rtol=1e-4)


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


@pytest.mark.parametrize("name", ["efficientnet-lite0@32", "pixels", "function"])
def test_images_of_another_layout_are_refused(name: str) -> None:
    def mean(images: np.ndarray) -> np.ndarray:
        return images.mean(axis=(1, 2))

    encoder = (
        FunctionEncoder(mean, name) if name == "function" else load_encoder(name, device="cpu")
    )
    images = np.zeros((2, 40, 40, 3), np.uint8)
    assert encoder.encode(images).shape == (2, encoder.dim)
    for wrong in (images / 255, images[0], images.transpose(0, 3, 1, 2), images[..., :1]):
        with pytest.raises(StrapError, match=r"images have shape .*need uint8 \[n h w 3\]"):
            encoder.encode(wrong)
