"""Average pools in PyTorch and what they become here, or why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    GlobalAvgPool,
    Identity,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sum,
    from_torch,
)
from cnngp.torch import check_limit
from cnngp.torch_bridge import explain

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:from_torch measured"),  # small layers
]

C, D, R = Conv(3, weight_var=2.0), Dense(weight_var=2.0), ReLU()


class LeNet(nn.Module):
    """LeCun et al. 1998 with average pools, for 28 × 28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.pool = nn.AvgPool2d(2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.tanh(self.conv1(x)))
        x = torch.flatten(self.pool(torch.tanh(self.conv2(x))), 1)
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


class Block(nn.Module):
    """torchvision's BasicBlock with its statistics fixed; `after` adds after the nonlinearity, as the original does."""

    def __init__(self, inputs: int, outputs: int, stride: int, after: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = (nn.BatchNorm2d(outputs, eps=0.0) for _ in range(2))
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        self.after = after

    def forward(self, x):
        h = x if self.after else F.relu(x)
        identity = x if self.downsample is None else self.downsample(h)
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(h)))))
        out += identity
        return F.relu(out) if self.after else out


class ResNet(nn.Module):
    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.layer1 = nn.Sequential(Block(4, 4, 1, after), Block(4, 4, 1, after))
        self.layer2 = nn.Sequential(Block(4, 8, 2, after), Block(8, 8, 1, after))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 10)
        self.after = after

    def forward(self, x):
        x = self.conv1(x)
        x = self.layer2(self.layer1(F.relu(x) if self.after else x))
        return self.fc(torch.flatten(self.avgpool(x if self.after else F.relu(x)), 1))


def test_lenet() -> None:
    from cnngp import Elementwise

    tanh = Elementwise("tanh")
    conv, valid = Conv(5, weight_var=2.0), Conv(5, padding="valid", weight_var=2.0)
    assert from_torch(LeNet(), (1, 28, 28), weight_var=2.0, bias_var=0.0) == Sequential(
        conv, tanh, AvgPool(2), valid, tanh, AvgPool(2), D, tanh, D, tanh, D
    )


def test_a_residual_network_with_its_global_pool() -> None:
    block = Sum(Sequential(R, C, R, C), Identity())
    narrow = Sum(Sequential(Conv(3, 2, weight_var=2.0), R, C), Conv(1, 2, weight_var=2.0))
    net = from_torch(ResNet().eval(), (3, 8, 8), weight_var=2.0, bias_var=0.0)
    assert net == Sequential(C, block, block, R, narrow, block, R, GlobalAvgPool(), D)
    with pytest.raises(
        NetworkError, match=r"layer1\.0 \(add\): adds the output of the nonlinearity relu .* pre-activation"
    ):
        from_torch(ResNet(after=True).eval(), (3, 8, 8))


class Pooled(nn.Module):
    """A convolution, whatever is to be tried, and a dense layer on what it leaves."""

    def __init__(self, step: Callable[[Any], Any], axes: int, size: int) -> None:
        super().__init__()
        self.step = step
        self.conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](1, 2, 3, padding=1)
        left = torch.flatten(step(torch.zeros(1, 2, *(size,) * axes)), 1).shape[1]
        self.head = nn.Linear(left, 1)

    def forward(self, x):
        return self.head(torch.flatten(self.step(F.relu(self.conv(x))), 1))


G = GlobalAvgPool()
SAME = [
    (nn.AvgPool1d(3), 1, AvgPool(3)),
    (nn.AvgPool2d(2, 1), 2, AvgPool(2, 1)),
    (nn.AvgPool2d((3, 2), padding=(1, 0)), 2, AvgPool((3, 2), padding=(1, 0))),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), 2, AvgPool(3, 2, 1, False)),
    (nn.AvgPool2d(2, ceil_mode=True), 2, AvgPool(2)),
    (nn.AvgPool2d(2, divisor_override=4), 2, AvgPool(2)),
    (nn.AvgPool2d(2, count_include_pad=False), 2, AvgPool(2)),
    (nn.AvgPool3d(2, 1), 3, AvgPool(2, 1)),
    (nn.AdaptiveAvgPool1d(1), 1, G),
    (nn.AdaptiveAvgPool2d((None, 2)), 2, AvgPool((1, 3))),
    (nn.AdaptiveAvgPool2d(3), 2, AvgPool(2)),
    (nn.AdaptiveAvgPool3d(1), 3, G),
    (nn.AdaptiveAvgPool2d(6), 2, None),
    (lambda x: F.avg_pool1d(x, 2), 1, AvgPool(2)),
    (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False), 2, AvgPool(3, 2, 1, False)),
    (lambda x: F.avg_pool3d(x, 3), 3, AvgPool(3)),
    (lambda x: F.adaptive_avg_pool2d(x, 1), 2, G),
    (lambda x: F.adaptive_avg_pool1d(x, 2), 1, AvgPool(3)),
    (lambda x: x.mean((2, 3)), 2, G),
    (lambda x: x.mean([-1, -2], keepdim=True), 2, G),
    (lambda x: torch.mean(x, dim=(2, 3), keepdim=True), 2, G),
    (lambda x: torch.mean(x, 2), 1, G),
    (lambda x: x.mean(3, keepdim=True), 2, AvgPool((1, 6))),
    (lambda x: F.adaptive_avg_pool2d(x, 1).squeeze((2, 3)), 2, G),
]


@pytest.mark.parametrize(("step", "axes", "layer"), SAME, ids=[str(i) for i in range(len(SAME))])
def test_ways_to_write_a_pool(step: Callable[[Any], Any], axes: int, layer: Network | None) -> None:
    net = from_torch(Pooled(step, axes, 6), (1, *(6,) * axes), weight_var=2.0, bias_var=0.0)
    assert net == Sequential(*(part for part in (C, R, layer, D) if part is not None))


def test_windows_that_overlap_are_found() -> None:
    net = from_torch(Pooled(nn.AdaptiveAvgPool2d(3), 2, 7), (1, 7, 7), weight_var=2.0, bias_var=0.0)
    assert net == Sequential(C, R, AvgPool(3, 2), D)


NOT_SAME = [
    (nn.AvgPool2d(2, ceil_mode=True), 2, 7, r"ceil_mode=True makes windows at the end that are cut off"),
    (nn.AvgPool2d(2, divisor_override=3), 2, 6, r"divisor_override=3 is not the number of locations .*, 4; leave"),
    (nn.AdaptiveAvgPool2d(4), 2, 6, r"windows differ in size where 6 × 6 locations become 4 × 4"),
    (lambda x: x.mean(3), 2, 6, r"some of the axes only and drops them"),
    (lambda x: x.mean(1), 2, 6, r"averages over images or channels"),
    (lambda x: x.sum((2, 3)), 2, 6, r"use their mean, times a constant"),
    (nn.MaxPool2d(2), 2, 6, r"maximum of several locations is not Gaussian .* becomes AvgPool"),
    (lambda x: F.max_pool2d(x, 2), 2, 6, r"maximum of several locations is not Gaussian .* becomes AvgPool"),
    (nn.AdaptiveMaxPool2d(1), 2, 6, r"maximum of several locations is not Gaussian .* becomes AvgPool"),
    (nn.LPPool2d(2, 2), 2, 6, r"a power mean of several locations"),
]


@pytest.mark.parametrize(("step", "axes", "size", "says"), NOT_SAME, ids=[str(i) for i in range(len(NOT_SAME))])
def test_what_is_no_pool_here_says_so(step: Callable[[Any], Any], axes: int, size: int, says: str) -> None:
    with pytest.raises(NetworkError, match=says) as error:
        from_torch(Pooled(step, axes, size), (1, *(size,) * axes))
    assert "\n" not in str(error.value)


def test_a_pool_of_one_axis_does_not_take_images_for_channels() -> None:
    """torch reads (batch, channels, length) in AvgPool2d as one image without channels, and would mix the batch."""
    with pytest.raises(NetworkError, match="its input has 1 spatial axes, not 2"):
        from_torch(nn.Sequential(nn.Conv1d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 1)), (1, 6))


def test_filters_after_a_global_pool_keep_its_axes() -> None:
    module = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4, 1)),
    )
    net = from_torch(module, (1, 6, 6), weight_var=2.0, bias_var=0.0)
    assert net == Sequential(C, R, AvgPool(6), Conv(1, weight_var=2.0), R, D)


def test_a_factor_goes_through_a_pool() -> None:
    net = from_torch(Pooled(lambda x: x.mean((2, 3)) * 3.0, 2, 6), (1, 6, 6), weight_var=2.0, bias_var=0.0)
    assert net == Sequential(C, ReLU(3.0), GlobalAvgPool(), D)


def test_the_kernel_of_an_import_is_that_of_its_outputs() -> None:
    """The module's own forward, redrawn and widened, against the kernel: our reading of torch's arguments is right."""
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(3, 1, 5, 5))
    for step in (nn.AvgPool2d(3, 2, 1, count_include_pad=False), lambda x: x.mean((2, 3))):
        report = check_limit(Pooled(step, 2, 5), X, channels=(8, 32), samples=700, outputs=16)
        assert report.ok, str(report)


def test_explain_names_the_pools() -> None:
    told = [row.told for row in explain(LeNet(), (1, 28, 28), show=False)]
    assert told.count("AvgPool(2)") == 2
    told = [row.told for row in explain(ResNet().eval(), (3, 8, 8), allow_non_gaussian=True, show=False)]
    assert "GlobalAvgPool()" in told
