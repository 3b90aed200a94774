"""The policy's parts against tiny hand-worked cases and published implementations."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from strap.encoders.language import _load_sentence_encoder, _minilm_folder, embed_instructions
from strap.errors import StrapError
from strap.policies import Batch, Interface, PolicySettings, build_policy, policy_preset
from strap.policies.diffusion import cosine_schedule
from strap.policies.images import (
    centre_crop_start,
    crop_by_gathering,
    crop_by_slices,
    crop_clips,
    resize_square,
)
from strap.policies.mixture import Mixture, MixtureHead
from strap.policies.transformer import Block
from strap.policies.vision import (
    Film,
    MapCamera,
    ResNet18,
    SpatialSoftmax,
    convolve_blocks,
    load_imagenet,
    modulate,
)

INTERFACE = Interface(("front",), 32, {"ee_pos": 3}, 4, 6)


def windows(count: int = 2, history: int = 5, chunk: int = 5, seed: int = 0) -> Batch:
    random = torch.Generator().manual_seed(seed)
    crop = INTERFACE.crop
    images = torch.randint(0, 256, (count, history, crop, crop, 3), generator=random)
    return Batch(
        {"front": images.to(torch.uint8)},
        torch.randn(count, history, 3, generator=random),
        torch.randn(count, 6, generator=random),
        torch.randn(count, chunk, 4, generator=random).tanh(),
        torch.ones(count, chunk, dtype=torch.bool),
    )


def test_the_mixture_is_the_library_s() -> None:
    torch.manual_seed(0)
    mixture = MixtureHead(16, 7, 5, 0.005)(torch.randn(3, 5, 16))
    actions = torch.randn(3, 5, 7)
    components = torch.distributions.Independent(
        torch.distributions.Normal(mixture.means, mixture.stds), 1
    )
    weights = torch.distributions.Categorical(logits=mixture.logits)
    truth = torch.distributions.MixtureSameFamily(weights, components).log_prob(actions)
    torch.testing.assert_close(mixture.log_prob(actions), truth)
    assert mixture.means.abs().max() < 1
    assert mixture.stds.min() > 0.005


def test_sampling_picks_modes_by_weight_and_stays_near_their_means() -> None:
    logits = torch.tensor([0.0, 1.0986]).expand(1000, 1, 2)  # weights 1/4 and 3/4
    means = torch.tensor([[-0.5], [0.5]]).expand(1000, 1, 2, 1)
    mixture = Mixture(logits, means, torch.full_like(means, 0.3))
    drawn = mixture.sample(1e-4, [torch.Generator().manual_seed(i) for i in range(1000)])
    assert ((drawn.abs() - 0.5).abs() < 1e-3).all()
    assert 0.68 < (drawn > 0).float().mean() < 0.82
    assert (mixture.most_likely() == 0.5).all()
    alone = mixture._replace(logits=logits[3:4], means=means[3:4], stds=means[3:4])
    assert alone.sample(1e-4, [torch.Generator().manual_seed(3)])[0] == drawn[3]


def test_film_by_hand() -> None:
    x = torch.tensor([[[[1.0, -2.0]], [[3.0, 4.0]]]])  # [1 2 1 2]
    out = modulate(x, torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 1.0]]))
    # channel 0: 2x + 0.5 -> 2.5, -3.5; channel 1: -x + 1 -> -2, -3; then ReLU
    assert out.tolist() == [[[[2.5, 0.0]], [[0.0, 0.0]]]]
    film = Film(6, is_zero=True)
    pairs = film(torch.randn(2, 6), repeat=3)
    assert [gamma.shape for gamma, _ in pairs] == [
        (6, width) for width in (64, 64, 128, 128, 256, 256, 512, 512)
    ]
    assert all((gamma == 0).all() and (beta == 0).all() for gamma, beta in pairs)


def test_film_is_applied_after_each_of_the_eight_blocks() -> None:
    torch.manual_seed(0)
    resnet, x = ResNet18().eval(), torch.randn(1, 3, 32, 32)
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    nothing = [(torch.zeros(1, w), torch.zeros(1, w)) for w in widths]
    torch.testing.assert_close(resnet(x, nothing), resnet(x))
    for block in range(8):
        film = list(nothing)
        film[block] = (torch.full((1, widths[block]), 0.5), torch.zeros(1, widths[block]))
        assert not torch.allclose(resnet(x, film), resnet(x)), block


@pytest.mark.parametrize("size", [(116, 116), (9, 14), (1, 2)])
def test_a_stem_over_blocks_is_the_convolution(size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size)
    weight = torch.randn(8, 3, 7, 7, requires_grad=True)
    expected = nn.functional.conv2d(images, weight, stride=2, padding=3)
    found = convolve_blocks(images, weight)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    one = torch.autograd.grad(found.sin().sum(), weight)
    other = torch.autograd.grad(expected.sin().sum(), weight)
    torch.testing.assert_close(one, other, atol=1e-2, rtol=1e-3)


def test_frozen_maps_are_shifted_while_training_all_frames_alike() -> None:
    torch.manual_seed(0)
    interface = Interface(("front",), 32, {}, 4, 6, map_size=(4, 8))
    camera = MapCamera(interface, PolicySettings(vision="frozen", keypoints=3, features=9))
    with torch.no_grad():
        camera.linear.weight.copy_(torch.eye(9))
        camera.linear.bias.zero_()
    maps = torch.randn(2, 5, 4, 8)
    still = camera.eval()(maps, torch.zeros(2, 6))
    moved = camera.train()(maps, torch.zeros(2, 6)) - still
    x, y, strength = moved.split(3, dim=-1)
    assert strength.abs().max() == 0
    for part in (x, y):
        torch.testing.assert_close(part, part[:, :1, :1].expand_as(part))  # one shift a clip
        assert 0 < part.abs().max() <= 12 / 128
    assert not torch.allclose(x[0], x[1])


def test_spatial_softmax_by_hand() -> None:
    module = SpatialSoftmax(1, 1)
    nn.init.ones_(module.heat.weight)
    nn.init.zeros_(module.heat.bias)
    heat = torch.zeros(1, 1, 3, 3)
    assert module(heat).abs().max() < 1e-6  # everywhere alike: the middle
    heat[0, 0, 0, 2] = 100.0  # top right
    torch.testing.assert_close(module(heat), torch.tensor([[1.0, -1.0]]))
    heat = torch.zeros(1, 1, 1, 2)
    heat[..., 0] = np.log(3)  # weights 3/4 at x = −1, 1/4 at x = 1
    torch.testing.assert_close(module(heat)[0, 0], torch.tensor(-0.5))


@pytest.mark.parametrize("crop_frames", [crop_clips, crop_by_slices, crop_by_gathering])
def test_crops_by_hand(crop_frames: Callable[..., torch.Tensor]) -> None:
    frames = torch.arange(2 * 4 * 4 * 3).view(2, 4, 4, 3)
    rows, corner = torch.tensor([[0, 1], [1, 1]]), torch.tensor([[[0, 1]], [[2, 2]]])
    cut = crop_frames(frames, rows, corner, 2)
    assert cut.shape == (2, 2, 2, 2, 3)
    assert torch.equal(cut[0, 1], frames[1, 0:2, 1:3])  # both frames of a clip, the same corner
    assert torch.equal(cut[1, 0], frames[1, 2:4, 2:4])
    each = torch.tensor([[[0, 1], [1, 0]], [[2, 2], [0, 0]]])
    cut = crop_frames(frames, rows, each, 2)
    assert torch.equal(cut[0, 0], frames[0, 0:2, 1:3])
    assert torch.equal(cut[0, 1], frames[1, 1:3, 0:2])
    assert torch.equal(cut[1, 1], frames[1, 0:2, 0:2])


def test_the_crop_of_the_middle() -> None:
    assert centre_crop_start(128, 116) == 6
    assert INTERFACE.crop == 29


def test_images_of_the_right_size_are_left_alone() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    assert resize_square(image, 8) is image
    flat = np.full((1, 12, 20, 3), 77, np.uint8)
    assert (resize_square(flat, 8) == 77).all()


def test_images_from_a_network_are_resized_without_a_warning() -> None:
    received = np.frombuffer(bytes([77]) * (16 * 16 * 3), np.uint8).reshape(1, 16, 16, 3)
    assert not received.flags.writeable
    torch.set_warn_always(True)  # and not only once per process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (resize_square(received, 8) == 77).all()
    finally:
        torch.set_warn_always(False)


@pytest.mark.parametrize(("attention", "sees"), [("causal", False), ("full", True)])
def test_the_mask_by_hand(attention: str, sees: bool) -> None:
    torch.manual_seed(0)
    block = Block(PolicySettings(width=8, heads=2, attention=attention)).eval()
    x = torch.randn(1, 3, 8)
    other = x.clone()
    other[0, 2] = torch.randn(8)  # the last token
    changed = (block(x) - block(other)).abs().amax(-1)[0] > 1e-6
    assert changed.tolist() == [sees, sees, True]


def test_released_acts_on_the_oldest_frame_alone_and_fixed_on_all() -> None:
    seen = {}
    for name in ("released", "fixed"):
        torch.manual_seed(0)
        policy = build_policy(INTERFACE, policy_preset(name)).eval()
        features = torch.randn(1, 5, policy.observation.size)
        base = policy.mixture(features).means[0, 0]
        seen[name] = []
        for frame in range(5):
            other = features.clone()
            other[0, frame] += 1.0
            seen[name].append(not torch.equal(policy.mixture(other).means[0, 0], base))
    assert seen["released"] == [True, False, False, False, False]
    assert seen["fixed"] == [True] * 5


def test_presets_differ_where_they_are_said_to() -> None:
    fixed, paper, released = (policy_preset(n) for n in ("fixed", "paper", "released"))
    assert (fixed.attention, paper.attention, released.attention) == ("full", "full", "causal")
    assert (fixed.normalize, paper.normalize) == ("proprioception", "none")
    assert (fixed.acting, paper.acting) == ("mode", "sample")
    assert (fixed.min_std, paper.min_std, released.min_std) == (0.05, 0.005, 0.005)
    assert (paper.layers, paper.width, paper.heads, paper.modes) == (8, 256, 4, 5)
    diffusion = policy_preset("paper", kind="diffusion")
    assert (diffusion.history, diffusion.chunk, diffusion.execute) == (2, 16, 8)
    assert diffusion.channels == (256, 512, 1024)
    with pytest.raises(StrapError, match="did you mean 'released'"):
        policy_preset("release")
    with pytest.raises(StrapError, match="chunk 6 exceeds history 5"):
        PolicySettings(chunk=6)


def test_padding_is_masked_and_the_loss_divided_by_what_is_valid() -> None:
    torch.manual_seed(0)
    policy = build_policy(INTERFACE, PolicySettings(layers=1, width=32)).eval()
    batch = windows()
    valid = torch.tensor([[True] * 5, [True, True, False, False, False]])
    masked = policy.loss(batch._replace(valid=valid))
    garbage = batch.actions.clone()
    garbage[1, 2:] = 1e6
    assert policy.loss(batch._replace(valid=valid, actions=garbage)) == masked
    features = policy.observation(batch.images, batch.proprioception, batch.language)
    log_prob = policy.mixture(features).log_prob(batch.actions)
    torch.testing.assert_close(masked, -log_prob[valid].mean())


def test_imagenet_weights_load_by_anybody_s_names(tmp_path: Path) -> None:
    """A transformers ResNet-18 with random weights gives the same features in ours."""
    from safetensors.torch import save_file
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", embedding_size=64
    )
    theirs = ResNetModel(config).eval()
    x = torch.randn(1, 3, 64, 64)
    file = tmp_path / "model.safetensors"
    save_file({f"resnet.{k}": v.contiguous() for k, v in theirs.state_dict().items()}, file)
    ours = ResNet18().eval()
    load_imagenet(ours, file)
    torch.testing.assert_close(ours(x), theirs(x).last_hidden_state, rtol=1e-4, atol=1e-4)
    own = tmp_path / "torchvision.pth"
    torch.save({**ours.state_dict(), "fc.weight": torch.zeros(1)}, own)
    again = ResNet18().eval()
    load_imagenet(again, own)
    assert torch.equal(again(x), ours(x))
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(StrapError, match=r"holds no ResNet-18 weights: .conv1\.weight. is missing"):
        load_imagenet(ours, file)


def test_the_diffusion_policy_denoises() -> None:
    kept = cosine_schedule(100)
    assert kept[0] > 0.999
    assert kept[-1] < 1e-4
    assert (kept.diff() < 0).all()
    settings = PolicySettings(
        kind="diffusion", history=2, chunk=4, execute=2, first_action=-1, language=False,
        channels=(16, 32), diffusion_steps=10, norm="group",
    )  # fmt: skip
    torch.manual_seed(0)
    policy = build_policy(INTERFACE, settings).eval()
    batch = windows(history=2, chunk=4)
    assert torch.isfinite(policy.loss(batch))
    features = policy.observation(batch.images, batch.proprioception, batch.language)
    make = [torch.Generator().manual_seed(1) for _ in range(2)]
    actions = policy.predict(features, make)
    assert actions.shape == (2, 4, 4)
    assert actions.abs().max() <= 1
    alone = policy.predict(features[1:], [torch.Generator().manual_seed(1)])
    torch.testing.assert_close(alone[0], actions[1], rtol=1e-3, atol=1e-4)
    with pytest.raises(StrapError, match="chunk 5 must be a multiple of 4"):
        build_policy(INTERFACE, PolicySettings(kind="diffusion"))


def test_instructions_become_vectors() -> None:
    texts = ["put the mug on the plate", "place the mug on the plate", "close the drawer"]
    for encoder in ("words", "minilm"):
        vectors = embed_instructions(texts, encoder)
        norms = np.linalg.norm(vectors, axis=1)
        np.testing.assert_allclose(norms, vectors.shape[1] ** 0.5, rtol=1e-4)
        near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
        assert near > far + 0.2 * vectors.shape[1]
    with pytest.raises(StrapError, match="unknown language encoder 'minilmm'"):
        embed_instructions(texts, "minilmm")


def test_instructions_are_embedded_by_one_thread() -> None:
    _, model = _load_sentence_encoder(_minilm_folder())
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    hook = model.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    try:
        embed_instructions(["close the drawer", "open it"])
        assert (seen, torch.get_num_threads()) == ([1, 1], 2)
    finally:
        hook.remove()
        torch.set_num_threads(before)


def test_clip_text_checkpoints_load_and_tell_instructions_apart(tmp_path: Path) -> None:
    """A small random one, saved by us, through the path a real one takes."""
    import transformers

    letters = [chr(code) for code in range(97, 123)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt")
    )
    tokenizer.save_pretrained(tmp_path)
    config = transformers.CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=12,
        bos_token_id=len(words) - 2,
        eos_token_id=len(words) - 1,
        pad_token_id=len(words) - 1,
    )
    torch.manual_seed(0)
    transformers.CLIPTextModelWithProjection(config).eval().save_pretrained(tmp_path)
    vectors = embed_instructions(["lift the mug", "close it", "lift the mug"], str(tmp_path))
    assert vectors.shape == (3, 12)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    alone = embed_instructions(["close it"], str(tmp_path))
    np.testing.assert_allclose(alone[0], vectors[1], atol=1e-5)  # padding changes nothing


def test_the_order_of_proprioception_is_part_of_an_interface() -> None:
    """The state is one vector, and the first layer's weights know its places alone."""
    one = Interface((), 64, {"ee_pos": 3, "ee_ori": 3}, 7, 64)
    two = Interface((), 64, {"ee_ori": 3, "ee_pos": 3}, 7, 64)
    assert one.difference(one) is None
    assert one.difference(two) == (
        "proprioception ee_pos (3), ee_ori (3), not ee_ori (3), ee_pos (3) "
        "(--proprioception ee_ori ee_pos orders it)"
    )
