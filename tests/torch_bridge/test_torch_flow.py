"""Which tensor a name stands for: names of one memory, and writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnngp import Conv, Dense, Identity, ReLU, Sequential, Sum, from_torch
from cnngp.network import Network
from cnngp.torch import check_limit
from helpers.torch_modules import in_place, made

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:from_torch measured"),  # small layers
]
SHAPE = (1, 4, 4)
C, D = Conv(3), Dense()
BLOCK = Sequential(C, Sum(Identity(), Sequential(ReLU(), C)), ReLU(), D)
TWICE = Sequential(Conv(3, weight_var=4.0), ReLU(), D)


def flow(middle: Callable[[Any, Any], Any]) -> nn.Module:
    """A convolution, what is tried with a second one, and a dense layer."""
    layers = {"a": nn.Conv2d(1, 4, 3, padding=1), "f": nn.Conv2d(4, 4, 3, padding=1), "head": nn.Linear(4 * 16, 1)}
    return made(lambda m, x: m.head(F.relu(m.middle(m, m.a(x))).flatten(1)), **layers, middle=middle)


def imported(middle: Callable[[Any, Any], Any]) -> Any:
    return from_torch(flow(middle), SHAPE, weight_var=1.0, bias_var=0.0)


def _added_to(alias: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """What another name of h stands for after h has been added to."""

    def middle(m: Any, h: Any) -> Any:
        k = alias(h)
        h += m.f(F.relu(h))
        return k

    return middle


def _added_by_data(m: Any, h: Any) -> Any:
    h.data += m.f(F.relu(h))
    return h


def _subtracted(m: Any, h: Any) -> Any:
    k = h.view(h.shape)
    k -= m.f(F.relu(h))
    return h


def _out(m: Any, h: Any) -> Any:
    torch.add(h, m.f(F.relu(h)), out=h)
    return h


def _scaled(m: Any, h: Any) -> Any:
    k = h
    h *= 2.0
    return k


def _divided(m: Any, h: Any) -> Any:
    k = h.detach()
    k /= 0.5
    return h


def _sum(m: Any, h: Any) -> Any:
    return h + m.f(F.relu(h))


@pytest.mark.parametrize(
    ("middle", "plain", "net"),
    [
        *((_added_to(alias), _sum, BLOCK) for alias in (lambda h: h, lambda h: h.detach(), lambda h: h.flatten(1))),
        (_added_by_data, _sum, BLOCK),
        (_out, _sum, BLOCK),
        (_subtracted, lambda m, h: h - m.f(F.relu(h)), BLOCK),
        *((m, lambda m, h: 2 * h, TWICE) for m in (_scaled, _divided)),
        (_added_to(lambda h: h.clone()), lambda m, h: h, Sequential(C, ReLU(), D)),
    ],
)
def test_every_name_of_a_memory_stands_for_what_was_written(
    middle: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Any], net: Network
) -> None:
    assert imported(middle) == net
    # and that is what PyTorch computes: the same with new tensors only
    module, x = flow(middle), torch.randn(2, *SHAPE)
    with torch.no_grad():
        found = module(x)
        module.middle = plain
        torch.testing.assert_close(found, module(x))


def test_writing_into_the_input_is_seen_by_every_reader() -> None:
    def forward(m: Any, x: Any) -> Any:
        y = x
        x *= 3.0
        return m.b(torch.relu(m.a(y)))

    module = made(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 1))
    assert from_torch(module, (4,), weight_var=1.0, bias_var=0.0) == Sequential(Dense(9.0), ReLU(), Dense())


def test_what_the_output_does_not_depend_on_does_not_matter() -> None:
    def middle(m: Any, h: Any) -> Any:
        assert not torch.isnan(h).all().shape
        m.seen = h.mean(), F.max_pool2d(m.f(h), 2)
        k = h.clone()
        k[:, 0] = 0.0
        return h.type_as(m.f.weight)

    assert imported(middle) == Sequential(C, ReLU(), D)


def test_an_alias_is_imported_with_the_kernel_of_its_outputs() -> None:
    """The module's own forward, widened, against the kernel of what was read from it."""
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(2, *SHAPE))
    report = check_limit(flow(_added_to(lambda h: h.flatten(1))), X, channels=(8, 32), samples=500, outputs=32)
    assert report.ok, str(report)


def test_in_place_example_really_computes_what_was_imported() -> None:
    """The importer's reading of the example against what PyTorch does, with weights that make it easy to see."""
    module = in_place()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.a.bias.fill_(-1.0)
        module.b.bias.fill_(3.0)
        module.head.weight.fill_(1.0)
        # y = b + x = 2, z = c + y = 2: x was not overwritten by the ReLU of the first branch.
        assert float(module(torch.zeros(1, 1, 6, 6))) == 2.0 * 4 * 36
