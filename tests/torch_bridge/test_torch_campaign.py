"""Modules with random code in their forward: each is refused, or its wide random networks have the imported kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnngp import NetworkError, from_torch
from cnngp.torch import check_limit

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:from_torch measured"),  # small layers
]

# fmt: off
ALIASES: list[Callable[[Any], Any]] = [
    lambda h: h, lambda h: h.detach(), lambda h: h.view(h.shape), lambda h: h.flatten(1).view(h.shape),
    lambda h: h.clone(), lambda h: h.data, lambda h: h.contiguous(), lambda h: h[:], lambda h: h.to(h.dtype),
]
ADDS: list[Callable[[Any, Any], Any]] = [
    lambda h, t: h + t, lambda h, t: h.add_(t), lambda h, t: h - t, lambda h, t: h.sub_(t), lambda h, t: t + h,
    lambda h, t: torch.add(h, t, out=h), lambda h, t: torch.sub(h, t, alpha=0.5), lambda h, t: h.data.add_(t),
    lambda h, t: h.flatten(1).add_(t.flatten(1)).view(h.shape),
]
SCALES: list[Callable[[Any], Any]] = [
    lambda h: h * 2, lambda h: h.mul_(2), lambda h: h.div_(2), lambda h: -h, lambda h: torch.mul(h, 0.5, out=h),
]
ODD: list[Callable[[Any], Any]] = [
    lambda h: h[:, :, :, [0] * 4], lambda h: h[[0] * len(h)], lambda h: h.flip(2), lambda h: h.to(torch.int32).float(),
    lambda h: h.view(torch.int32).view(torch.float32), lambda h: h.roll(1, 3), lambda h: h.transpose(2, 3),
    lambda h: h * (h > 0), lambda h: h.expand(2, *h.shape)[0], lambda h: h.unfold(2, 1, 1).squeeze(-1),
]
# fmt: on
ACTIVATIONS: list[Callable[[Any], Any]] = [torch.relu, torch.tanh, torch.erf, lambda h: F.leaky_relu(h, 0.3)]


class Program(nn.Module):
    """Statements on the names h and k, drawn at random; each block has its own convolution."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(4 * 16, 1)

        def one(options: list[Any]) -> Any:
            return options[rng.integers(len(options))]

        self.statements: list[tuple[str, Any]] = []
        for i in range(3):
            for kind, options, chance in (("alias", ALIASES, 0.7), ("scale", SCALES, 0.3), ("odd", ODD, 0.05)):
                if rng.random() < chance:
                    self.statements.append((kind, one(options)))
            self.statements.append(("block", (i, one(ACTIVATIONS), one(ADDS))))
        self.statements.append(("end", bool(rng.random() < 0.5)))

    def forward(self, x):
        h = k = self.stem(x)
        for kind, what in self.statements:
            match kind:
                case "alias":
                    k = what(h)
                case "block":
                    i, activation, add = what
                    add_to = add(h, self.blocks[i](activation(h)))
                    h = add_to if i < 2 else h
                case "end":
                    h = k if what else h
                case _:
                    h = what(h)
        return self.head(torch.relu(h).flatten(1))


def _modules(seeds: range) -> list[tuple[int, nn.Module]]:
    """Those that are taken; the others are refused by name."""
    taken = []
    for seed in seeds:
        torch.manual_seed(seed)
        module = Program(np.random.default_rng(seed))
        try:
            from_torch(module, (1, 4, 4))
        except NetworkError:
            continue
        taken.append((seed, module))
    return taken


@pytest.mark.slow
def test_random_code_is_refused_or_right() -> None:
    X = np.random.default_rng(0).normal(size=(2, 1, 4, 4))
    taken = _modules(range(150))
    assert len(taken) > 40
    for seed, module in taken:
        # A right one is called wrong once in a thousand checks, so it is asked a second time.
        report = check_limit(module, X, (8, 32), samples=300, outputs=16)
        if report.verdict == "differs":
            report = check_limit(module, X, (8, 32), samples=300, seed=1, outputs=16)
        assert report.verdict != "differs", f"seed {seed}\n{report}\n{from_torch(module, (1, 4, 4))}"
