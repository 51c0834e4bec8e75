"""A small trained residual network: the ResNet row of Table 1, whose published error is from Chen et al. (2018).

Two convolutions of stride 2 and six residual blocks of 64 channels, 0.6 million weights, as in their comparison with
neural ODEs, with batch normalisation; no augmentation.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F


class _Block(nn.Module):  # type: ignore[misc]
    """x + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Any) -> Any:
        z = self.first(F.relu(self.norms[0](x)))
        return x + self.second(F.relu(self.norms[1](z)))


class ResNet(nn.Module):  # type: ignore[misc]
    """Residual network from images (batch, channels, H, W) to class probabilities."""

    def __init__(self, in_channels: int, classes: int, width: int = 64, blocks: int = 6) -> None:
        super().__init__()
        halved = [[nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 4, stride=2, padding=1)] for _ in range(2)]
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            *halved[0],
            *halved[1],
            *(_Block(width) for _ in range(blocks)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )

    def loss(self, x: Any, y: Any, n: int) -> Any:
        return F.cross_entropy(self.body(x), y)

    def probabilities(self, x: Any) -> Any:
        return self.body(x).softmax(-1)
