"""Which tensor a name stands for: names of one memory, writes in place, and calls that move or round numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnngp import Conv, Dense, Identity, Network, NetworkError, ReLU, Sequential, Sum, from_torch
from cnngp.torch import check_limit

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:from_torch measured"),  # small layers
]
SHAPE = (1, 4, 4)
C, D = Conv(3), Dense()


class Flow(nn.Module):
    """A convolution, what is tried with a second one, and a dense layer."""

    def __init__(self, middle: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.a, self.f = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4 * 16, 1)
        self.middle = middle

    def forward(self, x):
        return self.head(F.relu(self.middle(self, self.a(x))).flatten(1))


def imported(middle: Callable[[Any, Any], Any]) -> Any:
    return from_torch(Flow(middle), SHAPE, weight_var=1.0, bias_var=0.0)


def _added(m: Any, h: Any) -> Any:
    k = h
    h += m.f(F.relu(h))
    return k


def _added_below(m: Any, h: Any) -> Any:
    k = h.detach()
    h += m.f(F.relu(h))
    return k


def _added_flat(m: Any, h: Any) -> Any:
    k = h.flatten(1)
    h += m.f(F.relu(h))
    return k


def _added_by_data(m: Any, h: Any) -> Any:
    h.data += m.f(F.relu(h))
    return h


def _subtracted(m: Any, h: Any) -> Any:
    k = h.view(h.shape)
    k -= m.f(F.relu(h))
    return h


def _scaled(m: Any, h: Any) -> Any:
    k = h
    h *= 2.0
    return k


def _divided(m: Any, h: Any) -> Any:
    k = h.detach()
    k /= 0.5
    return h


def _out(m: Any, h: Any) -> Any:
    torch.add(h, m.f(F.relu(h)), out=h)
    return h


def _copied_first(m: Any, h: Any) -> Any:
    k = h.clone()
    h += m.f(F.relu(h))
    return k


BLOCK = Sequential(C, Sum(Identity(), Sequential(ReLU(), C)), ReLU(), D)
TWICE = Sequential(Conv(3, weight_var=4.0), ReLU(), D)


@pytest.mark.parametrize(
    ("middle", "net"),
    [
        *((m, BLOCK) for m in (_added, _added_below, _added_flat, _added_by_data, _subtracted, _out)),
        *((m, TWICE) for m in (_scaled, _divided)),
        (_copied_first, Sequential(C, ReLU(), D)),
    ],
)
def test_every_name_of_a_memory_stands_for_what_was_written(middle: Callable[[Any, Any], Any], net: Network) -> None:
    assert imported(middle) == net
    # and that is what PyTorch computes: the same with new tensors only
    module, x = Flow(middle), torch.randn(2, *SHAPE)
    plain = {
        _scaled: lambda m, h: 2 * h,
        _divided: lambda m, h: 2 * h,
        _copied_first: lambda m, h: h,
        _subtracted: lambda m, h: h - m.f(F.relu(h)),
    }.get(middle, lambda m, h: h + m.f(F.relu(h)))
    with torch.no_grad():
        found = module(x)
        module.middle = plain
        torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize(
    ("middle", "why"),
    [
        (lambda m, h: h[:, :, :, [0] * 4], "getitem .*: it takes, moves or writes single"),
        (lambda m, h: h[:, :, [1, 0, 3, 2]], "getitem .*: it takes, moves"),
        (lambda m, h: h[[0] * len(h)], "getitem .*: it takes, moves"),
        (lambda m, h: h[:, torch.arange(4)], "getitem .*: it uses a tensor that is not made from the input"),
        (lambda m, h: h.flip(0), "flip .*: it takes, moves"),
        (lambda m, h: h.roll(1, 2), "roll .*: it takes, moves"),
        (lambda m, h: next(iter(h))[None].repeat(2, 1, 1, 1), "unbind"),
        (lambda m, h: _write(h), "setitem .*: it takes, moves or writes"),
        (lambda m, h: h.to(torch.int32), r"to .*: it makes torch.int32 of real numbers"),
        (lambda m, h: h.to(torch.bool), r"to .*: it makes torch.bool"),
        (lambda m, h: h.view(torch.int32), r"view .*: it reads the bits of torch.float32 as torch.int32"),
        (lambda m, h: h.half().view(torch.bfloat16), "half"),
        (lambda m, h: torch.div(h, 2, rounding_mode="floor"), r"div .*: what its argument rounding_mode='floor' does"),
        (lambda m, h: F.softplus(h, threshold=1.0), r"softplus .*: threshold=1.0: a straight line"),
        (lambda m, h: torch.where(h > 0, h, 0.1 * h), "gt in forward"),
        (lambda m, h: h.masked_fill(h > 0, 0.0), "gt in forward"),
        (lambda m, h: h + torch.randn_like(h), r"randn_like .*: it is random anew"),
        (lambda m, h: h + torch.randn(h.shape), r"add .*: it adds a tensor that is not made from the input"),
        (lambda m, h: h * torch.rand(()), r"mul .*: it uses a tensor that is not made from the input"),
        (lambda m, h: h.transpose(2, 3), "transpose .*: it trades"),
        (lambda m, h: h.index_copy_(0, torch.tensor([0]), h[:1]), "it takes, moves or writes"),
        (lambda m, h: torch.ops.aten.relu.default(h).relu(), "applied to the output of a nonlinearity"),
    ],
)
def test_what_moves_or_rounds_numbers_is_refused(middle: Callable[[Any, Any], Any], why: str) -> None:
    with pytest.raises(NetworkError, match=why):
        imported(middle)


def _write(h: Any) -> Any:
    h[:, :2] = 0.0
    return h


def test_writing_into_the_input_is_seen_by_every_reader() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            y = x
            x *= 3.0
            return self.b(torch.relu(self.a(y)))

    assert from_torch(Module(), (4,), weight_var=1.0, bias_var=0.0) == Sequential(Dense(9.0), ReLU(), Dense())


def test_what_the_output_does_not_depend_on_does_not_matter() -> None:
    def middle(m: Any, h: Any) -> Any:
        assert not torch.isnan(h).all().shape
        m.seen = h.mean(), F.max_pool2d(m.f(h), 2)
        k = h.clone()
        k[:, 0] = 0.0
        return h.type_as(m.f.weight)

    assert imported(middle) == Sequential(C, ReLU(), D)
    with pytest.raises(NetworkError, match=r"setitem .*: it takes, moves or writes"):
        imported(lambda m, h: _write(h.clone()))


@pytest.mark.parametrize(
    ("middle", "why"),
    [
        (lambda m, h: m.f(h + 0 * m.f.weight.data.abs_().sum()), r"abs in forward: .* into its own weights, f.weight"),
        (lambda m, h: m.f.weight.mul_(2.0) is None or m.f(h), r"mul in forward: .* into its own weights, f.weight"),
        (lambda m, h: setattr(m.f, "weight", nn.Parameter(m.f.weight.abs())) or m.f(h), "replaces its own .* f.weight"),
    ],
)
def test_weights_that_forward_changes_are_refused(middle: Callable[[Any, Any], Any], why: str) -> None:
    with pytest.raises(NetworkError, match=why):
        imported(middle)


@pytest.mark.parametrize(
    ("middle", "why"),
    [
        (lambda m, h: h / len(h), r"^div in forward: it depends on the number of images, or changes from one call"),
        (lambda m, h: m.f(F.relu(h)) if next(COIN) else h, r": it depends on the number of images, or changes from"),
        (
            lambda m, h: torch.func.functional_call(m.f, {"weight": m.f.weight * 2}, (F.relu(h),)),
            r"^f \(Conv2d\): other weights than its own are given to the call",
        ),
    ],
)
def test_what_a_call_does_not_say_is_refused(middle: Callable[[Any, Any], Any], why: str) -> None:
    with pytest.raises(NetworkError, match=why):
        imported(middle)


COIN = itertools.cycle((True, False))


def test_a_reshape_that_mixes_images_shows_whatever_the_number_of_channels() -> None:
    class Mixed(Flow):
        def __init__(self) -> None:
            super().__init__(lambda m, h: h)
            self.a, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(2 * 16, 1)

        def forward(self, x):
            h = self.a(x)
            return self.head(h.reshape(2, -1, 4, 4).relu().reshape(len(x), -1))

    with pytest.raises(NetworkError, match=r"reshape in forward .*: it turns \(2, 4, 4\) into"):
        from_torch(Mixed(), SHAPE)


def test_forward_in_inference_mode_is_refused() -> None:
    class Module(nn.Linear):
        @torch.inference_mode()
        def forward(self, x):
            return super().forward(x.relu())

    with pytest.raises(NetworkError, match=r"forward runs in torch.inference_mode"):
        from_torch(nn.Sequential(nn.Linear(4, 4), Module(4, 1)), (4,))


def test_a_subclass_with_its_own_forward_is_followed_also_with_a_parametrization() -> None:
    class Absolute(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.abs())

    for layer in (Absolute(4, 1), nn.utils.parametrizations.weight_norm(Absolute(4, 1))):
        with pytest.raises(NetworkError, match=r"linear in 0 \(linear\): the weights are handed to a function"):
            from_torch(nn.Sequential(layer), (4,))


def test_a_method_replaced_on_an_instance_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(4, 1))
    module[0]._conv_forward = lambda x, weight, bias: F.conv2d(x, weight.abs(), bias)  # type: ignore[method-assign]
    with pytest.raises(NetworkError, match=r"^0 \(Conv2d\): its _conv_forward was replaced on this instance"):
        from_torch(module, SHAPE)


def test_an_alias_is_imported_with_the_kernel_of_its_outputs() -> None:
    """The module's own forward, widened, against the kernel of what was read from it."""
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(2, *SHAPE))
    report = check_limit(Flow(_added_flat), X, channels=(8, 32), samples=500, outputs=32)
    assert report.ok, str(report)
