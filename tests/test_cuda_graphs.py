"""Recorded training steps and the stem by blocks, where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from strap.cuda_graphs import AHEAD, WARMUP, RecordedStep
from strap.policies.vision import ResNet18

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = WARMUP + AHEAD + 6


def train(*, is_recorded: bool) -> list[Tensor]:
    """Return the parameters after some steps on inputs that differ from step to step."""
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True, capturable=True)

    def compute(inputs: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(inputs) ** 2).mean().backward()
        optimizer.step()

    recorded = RecordedStep(compute, optimizer, device)
    for _ in range(STEPS):
        inputs = torch.randn(4, 8)
        if is_recorded:
            recorded(inputs)
        else:
            compute(inputs.to(device))
    assert (recorded._graph is not None) == is_recorded
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_recorded_steps_train_as_eager_ones() -> None:
    for one, other in zip(train(is_recorded=True), train(is_recorded=False), strict=True):
        torch.testing.assert_close(one, other)


def test_a_resnet_on_a_gpu_gives_what_it_gives_on_a_processor() -> None:
    torch.manual_seed(0)
    network, images = ResNet18().eval(), torch.rand(2, 3, 65, 96)
    with torch.inference_mode(), torch.backends.cudnn.flags(allow_tf32=False):
        expected, found = network(images), network.cuda()(images.cuda()).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
