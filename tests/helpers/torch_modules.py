"""PyTorch modules as people write them, each with the network that it is, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cnngp import Conv, ConvTranspose, Dense, Identity, Sequential, Sum, zoo
from cnngp.network import Network
from cnngp.network.layers import GELU, Abs, Elementwise, Erf, LeakyReLU, ReLU, Sin

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


def cnn(*middle: nn.Module, features: int = 4 * 36) -> nn.Module:
    """A small network with something in its middle."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *middle, nn.Flatten(), nn.Linear(features, 1))


def _conv(c_in: int = 4, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(c_in, 4, k, **({"padding": k // 2} | options))


class PreActivationBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x):
        h = F.relu(x)
        skip = x if self.shortcut is None else self.shortcut(h)
        return skip + self.conv2(F.relu(self.conv1(h)))


class PreActivationResNet(nn.Module):
    """zoo.resnet, as a person would write it in PyTorch."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        layers, width = [], 4
        for outputs, stride in ((5, 1), (8, 2), (16, 2)):
            for i in range(blocks):
                layers.append(PreActivationBlock(width, outputs, stride if i == 0 else 1))
                width = outputs
        self.blocks = nn.ModuleList(layers)
        self.hidden = nn.LazyLinear(16, bias=False)
        self.head = nn.Linear(16, 10, bias=False)

    def forward(self, x, return_features: bool = False):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        features = self.hidden(x.view(x.size(0), -1))
        return features if return_features else self.head(torch.relu(features))


def in_place() -> nn.Module:
    """Adds and activations that write into their input."""

    def forward(m: Any, x: Any) -> Any:
        x = m.a(x)
        y = m.b(F.relu(x))  # not in place: x is still needed
        y += x
        z = m.c(m.act(y.clone()))
        z.add_(y)
        return m.head(torch.flatten(F.relu_(z), 1))

    return made(forward, a=_conv(1), b=_conv(), c=_conv(), act=nn.ReLU(inplace=True), head=nn.Linear(4 * 36, 1))


def three_branches() -> nn.Module:
    """Nested and many-armed sums, by the built-in sum, torch.add, and an operator."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        x = sum(arm(x) for arm in m.arms)
        x = torch.add(x, m.outer(x + m.inner(torch.erf(x))))
        return m.head(torch.sin(x).flatten(start_dim=1))

    return made(
        forward,
        stem=_conv(2),
        arms=nn.ModuleList(nn.Sequential(nn.Tanh(), _conv(k=k)) for k in (1, 3, 5)),
        inner=_conv(),
        outer=nn.Sequential(nn.GELU(), _conv(padding=2, dilation=2, padding_mode="circular")),
        head=nn.Linear(4 * 36, 3),
    )


def regrouped() -> nn.Module:
    """x + h + f(h) is a sum of three, whose last two share h: x + (h + f(h))."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        h = m.a(torch.abs(x))
        y = x + h + m.b(F.leaky_relu(h, 0.2))
        return m.head(y.relu().reshape(len(y), -1))

    return made(forward, stem=_conv(1), a=_conv(), b=_conv(), head=nn.Linear(4 * 36, 1))


def shared_activation() -> nn.Module:
    """a = relu(x) stands in two branches that are not one: a function of x may be written twice."""

    def forward(m: Any, x: Any) -> Any:
        x = m.stem(x)
        a = torch.relu(x)
        u = x + m.f(a)
        return m.head(torch.relu(u + m.g(torch.relu(u)) + m.h(a)))

    return made(forward, **{name: nn.Linear(4, 4) for name in ("stem", "f", "g", "h", "head")})


def transposed_net() -> nn.Module:
    return made(
        lambda m, x: m.head(torch.flatten(R(m.up3(R(m.up(R(m.down(x)))))), 1)),
        down=nn.Conv2d(1, 4, 4, stride=2, padding=1),
        up=nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1),
        up3=nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1),
        head=nn.Linear(4 * 144, 1),
    )


def examples() -> dict[str, tuple[nn.Module, tuple[int, ...], Network]]:
    """name: (module, input shape, the network with WEIGHT_VAR and BIAS_VAR, or 1 and 0 for the ResNet)."""

    def conv(*args: Any, **kwargs: Any) -> Conv:
        return Conv(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)

    def transposed(*args: Any, **kwargs: Any) -> ConvTranspose:
        return ConvTranspose(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)

    dense, relu, tanh = Dense(WEIGHT_VAR, BIAS_VAR), ReLU(), Elementwise("tanh")
    residual = Sum(Sequential(relu, conv(3)), Identity())
    sines = Sequential(
        *(Sum(Identity(), Sequential(Erf(), conv(3))), GELU(), conv(3, dilation=2, padding_mode="circular"))
    )
    torch.manual_seed(0)
    resnet = PreActivationResNet(2)
    resnet(torch.zeros(1, 1, 12, 12))
    plain = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(8, 8, 2), nn.LeakyReLU(0.1), nn.Dropout(0.5).eval(), nn.Identity(), nn.Flatten()),
        *(nn.Linear(8 * 3 * 3, 16), nn.SiLU(), nn.Linear(16, 1)),
    )
    one = nn.Sequential(
        *(nn.Conv1d(2, 4, 5, dilation=2, padding="same"), nn.ReLU(), nn.Conv1d(4, 4, 3, stride=3)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6, 2)),
    )
    three = nn.Sequential(
        *(nn.Conv3d(1, 4, (3, 1, 3), padding=(1, 0, 1), padding_mode="replicate"), nn.ReLU()),
        *(nn.Conv3d(4, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 1)),
    )
    mlp = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU("tanh"), nn.Linear(16, 3))
    even = nn.Sequential(
        *(nn.Conv2d(1, 4, 4, padding="same"), nn.ReLU(), nn.ZeroPad2d((2, 1, 2, 1)), nn.Conv2d(4, 4, 4), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4 * 25, 1)),
    )
    padded = nn.Sequential(
        *(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(4 * 24, 1)),
    )
    cropped = nn.Sequential(
        *(nn.ConvTranspose2d(1, 4, 3, stride=2), nn.ZeroPad2d((-1, -2, 0, -3)), nn.ReLU(), nn.Flatten()),
        nn.Linear(4 * 100, 1),
    )
    nets: dict[str, tuple[nn.Module, tuple[int, ...], tuple[Network, ...]]] = {
        "plain": (
            plain,
            (3, 8, 8),
            (
                *(conv(3), relu, conv(5, stride=2), relu, conv(2, padding="valid"), LeakyReLU(0.1)),
                *(dense, Elementwise("silu"), dense),
            ),
        ),
        "one axis": (one, (2, 18), (conv(5, dilation=2), relu, conv(3, stride=3, padding="valid"), relu, dense)),
        "three axes": (
            three,
            (1, 4, 2, 4),
            (conv((3, 1, 3), padding_mode="replicate"), relu, conv(2, stride=2, padding="valid"), relu, dense),
        ),
        "transposed": (
            transposed_net(),
            (1, 6, 6),
            (conv(4, stride=2, padding=1), relu, transposed(4, stride=2), relu, transposed(3, stride=2), relu, dense),
        ),
        "mlp": (mlp, (7,), (dense, relu, dense, Elementwise("gelu_tanh"), dense)),
        "even filters": (even, (1, 5, 5), (conv(4), relu, conv(4, padding=((2, 1), (2, 1))), relu, dense)),
        "padded": (
            padded,
            (1, 6, 5),
            (conv(3, padding=((2, 0), (0, 1))), relu, conv(3, padding_mode="reflect"), relu, dense),
        ),
        "cropped": (cropped, (1, 6, 6), (transposed(3, stride=2, padding=((0, 3), (1, 2))), relu, dense)),
        "in place": (in_place(), (1, 6, 6), (conv(3), residual, residual, relu, dense)),
        "three branches": (
            three_branches(),
            (2, 6, 6),
            (conv(3), Sum(*(Sequential(tanh, conv(k)) for k in (1, 3, 5))), Sum(Identity(), sines), Sin(), dense),
        ),
        "shared activation": (
            shared_activation(),
            (4,),
            (
                dense,
                Sum(Sequential(*(Sum(Identity(), Sequential(relu, dense)) for _ in range(2))), Sequential(relu, dense)),
                *(relu, dense),
            ),
        ),
        "regrouped": (
            regrouped(),
            (1, 6, 6),
            (
                conv(3),
                Sum(Identity(), Sequential(Abs(), conv(3), Sum(Identity(), Sequential(LeakyReLU(0.2), conv(3))))),
                *(relu, dense),
            ),
        ),
    }
    found = {name: (module, shape, Sequential(*layers)) for name, (module, shape, layers) in nets.items()}
    return found | {"resnet": (resnet, (1, 12, 12), zoo.resnet(14))}
