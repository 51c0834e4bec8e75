"""PyTorch modules as people write them, each with the network that it is, written by hand."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    Erf,
    Identity,
    LeakyReLU,
    Network,
    ReLU,
    Sequential,
    Sin,
    Sum,
    zoo,
)

WEIGHT_VAR, BIAS_VAR = 1.7, 0.3


def conv(*args: object, **kwargs: object) -> Conv:
    return Conv(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)  # type: ignore[arg-type]


def transposed(*args: object, **kwargs: object) -> ConvTranspose:
    return ConvTranspose(*args, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, **kwargs)  # type: ignore[arg-type]


dense = Dense(WEIGHT_VAR, BIAS_VAR)


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


class InPlace(nn.Module):
    """Adds and activations that write into their input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(i, 4, 3, padding="same") for i in (1, 4, 4))
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(4 * 36, 1)

    def forward(self, x):
        x = self.a(x)
        y = self.b(F.relu(x))  # not in place: x is still needed
        y += x
        z = self.c(self.act(y.clone()))
        z.add_(y)
        return self.head(torch.flatten(F.relu_(z), 1))


class ThreeBranches(nn.Module):
    """Nested and many-armed sums, by the built-in sum, torch.add, and an operator."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.arms = nn.ModuleList(nn.Sequential(nn.Tanh(), nn.Conv2d(4, 4, k, padding=k // 2)) for k in (1, 3, 5))
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.outer = nn.Sequential(nn.GELU(), nn.Conv2d(4, 4, 3, padding=2, dilation=2, padding_mode="circular"))
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x):
        x = self.stem(x)
        x = sum(arm(x) for arm in self.arms)
        x = torch.add(x, self.outer(x + self.inner(torch.erf(x))))
        return self.head(torch.sin(x).flatten(start_dim=1))


class Regrouped(nn.Module):
    """x + h + f(h) is a sum of three, whose last two share h: x + (h + f(h))."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(i, 4, 3, padding=1) for i in (1, 4, 4))
        self.head = nn.Linear(4 * 36, 1)

    def forward(self, x):
        x = self.stem(x)
        h = self.a(torch.abs(x))
        y = x + h + self.b(F.leaky_relu(h, 0.2))
        return self.head(y.relu().reshape(len(y), -1))


class SharedActivation(nn.Module):
    """a = relu(x) stands in two branches that are not one: a function of x may be written twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.f, self.g, self.h, self.head = (nn.Linear(4, 4) for _ in range(5))

    def forward(self, x):
        x = self.stem(x)
        a = torch.relu(x)
        u = x + self.f(a)
        return self.head(torch.relu(u + self.g(torch.relu(u)) + self.h(a)))


class TransposedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 4, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1)
        self.up3 = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(4 * 144, 1)

    def forward(self, x):
        return self.head(torch.flatten(F.relu(self.up3(F.relu(self.up(F.relu(self.down(x)))))), 1))


def examples() -> dict[str, tuple[nn.Module, tuple[int, ...], Network]]:
    """name: (module, input shape, the network with WEIGHT_VAR and BIAS_VAR, or 1 and 0 for the ResNet)."""
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
    return {
        "plain": (
            plain,
            (3, 8, 8),
            Sequential(
                *(conv(3), ReLU(), conv(5, stride=2), ReLU(), conv(2, padding="valid"), LeakyReLU(0.1)),
                *(dense, Elementwise("silu"), dense),
            ),
        ),
        "resnet": (resnet, (1, 12, 12), zoo.resnet(14)),
        "one axis": (
            one,
            (2, 18),
            Sequential(conv(5, dilation=2), ReLU(), conv(3, stride=3, padding="valid"), ReLU(), dense),
        ),
        "three axes": (
            three,
            (1, 4, 2, 4),
            Sequential(
                *(conv((3, 1, 3), padding_mode="replicate"), ReLU(), conv(2, stride=2, padding="valid"), ReLU(), dense),
            ),
        ),
        "transposed": (
            TransposedNet(),
            (1, 6, 6),
            Sequential(
                *(conv(4, stride=2, padding=1), ReLU(), transposed(4, stride=2), ReLU()),
                *(transposed(3, stride=2), ReLU(), dense),
            ),
        ),
        "mlp": (mlp, (7,), Sequential(dense, ReLU(), dense, Elementwise("gelu_tanh"), dense)),
        "even filters": (
            even,
            (1, 5, 5),
            Sequential(conv(4), ReLU(), conv(4, padding=((2, 1), (2, 1))), ReLU(), dense),
        ),
        "padded": (
            padded,
            (1, 6, 5),
            Sequential(
                *(conv(3, padding=((2, 0), (0, 1))), ReLU(), conv(3, padding_mode="reflect"), ReLU(), dense),
            ),
        ),
        "in place": (
            InPlace(),
            (1, 6, 6),
            Sequential(
                *(conv(3), Sum(Sequential(ReLU(), conv(3)), Identity())),
                *(Sum(Sequential(ReLU(), conv(3)), Identity()), ReLU(), dense),
            ),
        ),
        "three branches": (
            ThreeBranches(),
            (2, 6, 6),
            Sequential(
                conv(3),
                Sum(*(Sequential(Elementwise("tanh"), conv(k)) for k in (1, 3, 5))),
                Sum(
                    Identity(),
                    Sequential(
                        *(Sum(Identity(), Sequential(Erf(), conv(3))), GELU()),
                        conv(3, dilation=2, padding_mode="circular"),
                    ),
                ),
                *(Sin(), dense),
            ),
        ),
        "shared activation": (
            SharedActivation(),
            (4,),
            Sequential(
                dense,
                Sum(
                    Sequential(*(Sum(Identity(), Sequential(ReLU(), dense)) for _ in range(2))),
                    Sequential(ReLU(), dense),
                ),
                *(ReLU(), dense),
            ),
        ),
        "regrouped": (
            Regrouped(),
            (1, 6, 6),
            Sequential(
                conv(3),
                Sum(Identity(), Sequential(Abs(), conv(3), Sum(Identity(), Sequential(LeakyReLU(0.2), conv(3))))),
                *(ReLU(), dense),
            ),
        ),
    }


def cnn(*middle: nn.Module, features: int = 4 * 36) -> nn.Module:
    """A small network with something in its middle."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), *middle, nn.Flatten(), nn.Linear(features, 1))
