"""PyTorch modules as people write them, each with the network that it is, written by hand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import cnngp
from cnngp import Conv, ConvTranspose, Dense, Elementwise, Identity, ReLU, Sequential, Sum
from cnngp.network import Network

WEIGHT_VAR, BIAS_VAR = 1.7, 0.3
R = F.relu


class Made(nn.Module):
    """Layers by name, and a forward that is given: `made(lambda m, x: m.b(m.a(x)), a=…, b=…)`."""

    def __init__(self, call: Callable[[Any, Any], Any], layers: dict[str, Any]) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.call(self, x)


def made(call: Callable[[Any, Any], Any], **layers: Any) -> nn.Module:
    return Made(call, layers)


def ending(*layers: nn.Module, left: int) -> nn.Module:
    """Layers, and a dense one on the `left` numbers that they leave."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(left, 1))


def cnn(*middle: nn.Module, features: int = 4 * 36) -> nn.Module:
    """A small network with something in its middle."""
    return ending(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *middle, left=features)


def flow(middle: Callable[[Any, Any], Any]) -> nn.Module:
    """A convolution of images of 4 × 4, what is tried with two more, and a dense layer."""
    layers = {"a": _conv(1), "f": _conv(), "g": _conv(), "head": nn.Linear(4 * 16, 1)}
    return made(lambda m, x: m.head(F.relu(m.middle(m, m.a(x))).flatten(1)), **layers, middle=middle)


def _conv(c_in: int = 4, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(c_in, 4, k, **({"padding": k // 2} | options))


class PreActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x):
        h = F.relu(x)
        skip = x if self.shortcut is None else self.shortcut(h)
        return skip + self.conv2(F.relu(self.conv1(h)))


def residual_net() -> nn.Module:
    blocks = (PreActivationBlock(4, 4, 1), PreActivationBlock(4, 8, 2))
    return ending(_conv(1), *blocks, nn.ReLU(), left=8 * 9)


def transposed_net() -> nn.Module:
    return made(
        lambda m, x: m.head(torch.flatten(R(m.up3(R(m.up(R(m.down(x)))))), 1)),
        down=nn.Conv2d(1, 4, 4, stride=2, padding=1),
        up=nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1),
        up3=nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1),
        head=nn.Linear(4 * 144, 1),
    )


def written_by_hand() -> list[tuple[nn.Module, tuple[int, ...], Network, float, float]]:
    """Modules, their input shapes, their networks, and the variances of weights and of biases."""

    def conv(*args: Any, **kwargs: Any) -> Conv:
        return Conv(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)

    def transposed(*args: Any, **kwargs: Any) -> ConvTranspose:
        return ConvTranspose(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)

    dense, relu, relu_ = Dense(WEIGHT_VAR, BIAS_VAR), ReLU(), nn.ReLU()
    first = nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular")
    plain = nn.Sequential(
        *(first, relu_, nn.Conv2d(8, 8, 5, stride=2, padding=2), relu_, nn.Conv2d(8, 8, 2)),
        *(nn.LeakyReLU(0.1), nn.Dropout(0.5).eval(), nn.Identity(), nn.Flatten()),
        *(nn.Linear(8 * 3 * 3, 16), nn.SiLU(), nn.Linear(16, 1)),
    )
    plain_net = (
        conv(3, padding_mode="circular"),
        relu,
        conv(5, stride=2),
        relu,
        conv(2, padding="valid"),
        cnngp.LeakyReLU(0.1),
    )
    one = (nn.Conv1d(2, 4, 5, dilation=2, padding="same"), relu_, nn.Conv1d(4, 4, 3, stride=3), relu_)
    three = nn.Conv3d(1, 4, (3, 1, 3), padding=(1, 0, 1), padding_mode="replicate")
    even = (nn.Conv2d(1, 4, 4, padding="same"), relu_, nn.ZeroPad2d((2, 1, 2, 1)), nn.Conv2d(4, 4, 4), relu_)
    padded = (nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(1, 4, 3), relu_, nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3), relu_)
    cropped = (nn.ConvTranspose2d(1, 4, 3, stride=2), nn.ZeroPad2d((-1, -2, 0, -3)), relu_)
    body = (conv(3), relu, conv(3))
    blocks_net = (
        Sum(Identity(), Sequential(relu, *body)),
        relu,
        Sum(conv(1, stride=2), Sequential(conv(3, stride=2), *body[1:])),
    )
    up = (transposed(4, stride=2), relu, transposed(3, stride=2), relu)
    rows: list[tuple[nn.Module, tuple[int, ...], tuple[Network, ...]]] = [
        (plain, (3, 8, 8), (*plain_net, dense, Elementwise("silu"), dense)),
        (ending(*one, left=24), (2, 18), (conv(5, dilation=2), relu, conv(3, stride=3, padding="valid"), relu, dense)),
        (
            ending(three, relu_, nn.Conv3d(4, 4, 2, stride=2), relu_, left=16),
            (1, 4, 2, 4),
            (conv((3, 1, 3), padding_mode="replicate"), relu, conv(2, stride=2, padding="valid"), relu, dense),
        ),
        (transposed_net(), (1, 6, 6), (conv(4, stride=2, padding=1), relu, *up, dense)),
        (ending(*even, left=100), (1, 5, 5), (conv(4), relu, conv(4, padding=((2, 1), (2, 1))), relu, dense)),
        (
            ending(*padded, left=96),
            (1, 6, 5),
            (conv(3, padding=((2, 0), (0, 1))), relu, conv(3, padding_mode="reflect"), relu, dense),
        ),
        (ending(*cropped, left=400), (1, 6, 6), (transposed(3, stride=2, padding=((0, 3), (1, 2))), relu, dense)),
        (residual_net(), (1, 6, 6), (conv(3), *blocks_net, relu, dense)),
    ]
    return [(module, shape, Sequential(*layers), WEIGHT_VAR, BIAS_VAR) for module, shape, layers in rows]
