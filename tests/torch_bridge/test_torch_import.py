"""An imported module is the network that a person would have written, bit for bit, whatever names its tensors have."""

import copy
import math
from collections.abc import Callable
from operator import add, iadd, imul, isub, itruediv, sub
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import cnngp
from cnngp import AvgPool, Conv, Dense, Elementwise, Identity, NetworkError, ReLU, Sequential, Sum, from_torch
from cnngp.network import Network, functions
from cnngp.torch_bridge.parts import torch_function
from helpers.examples import examples
from helpers.torch_modules import cnn, ending, flow, made, transposed_net, written_by_hand

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.filterwarnings("ignore:from_torch measured")]


def _measured(w: torch.Tensor, fan_in: int) -> float:
    return fan_in * float(w.detach().double().square().mean())


def test_variances_are_second_moments_of_the_weights_times_fan_in() -> None:
    module = transposed_net()
    with torch.no_grad():
        module.up.weight *= 3.0
    net = from_torch(module, (1, 6, 6))
    down, _, up, _, _, _, head = net.layers
    for layer, part, fan_in in ((down, module.down, 16), (up, module.up, 4 * 16), (head, module.head, 4 * 144)):
        assert layer.weight_var == pytest.approx(_measured(part.weight, fan_in), rel=1e-12)
        assert layer.bias_var == pytest.approx(_measured(part.bias, 1), rel=1e-12)


def test_variances_by_name_and_for_all() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
    assert from_torch(module, (4,), weight_var=2.0, bias_var=0.5) == Sequential(Dense(2.0, 0.5), ReLU(), Dense(2.0))
    net = from_torch(module, (4,), weight_var={"2": 3.0}, bias_var={"0": 0.25})
    assert net.layers[2] == Dense(3.0)
    assert net.layers[0].bias_var == 0.25
    assert net.layers[0].weight_var == pytest.approx(_measured(module[0].weight, 4))
    for options, told in (
        ({"weight_var": {"head": 1.0}}, r"weight_var names 'head', but the layers with weights are '0', '2'"),
        ({"bias_var": {"2": 1.0}}, r"2: bias_var=1.0 is given for it, but it has no bias"),
        ({"variances": "random"}, r"variances='random' is not one of 'measured', 'initial', 'drawn'"),
        ({"variances": "drawn"}, r"0: variances='drawn' needs a module made by sample_network"),
    ):
        with pytest.raises(NetworkError, match=told):
            from_torch(module, (4,), **options)  # type: ignore[arg-type]


SAME_NAMES = ("Tanh", "Sigmoid", "SiLU", "Softplus", "ELU", "SELU", "Mish", "Softsign", "Hardtanh", "Hardswish")


@pytest.mark.parametrize(
    ("module", "function", "layer"),
    [
        (nn.ReLU(), F.relu, ReLU()),
        (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2), cnngp.LeakyReLU(0.2)),
        (nn.LeakyReLU(), F.leaky_relu, cnngp.LeakyReLU(0.01)),
        (nn.PReLU(init=0.3), lambda x: F.leaky_relu(x, negative_slope=0.3), cnngp.LeakyReLU(float(np.float32(0.3)))),
        (nn.GELU(), F.gelu, cnngp.GELU()),
        (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh"), Elementwise("gelu_tanh")),
        *((getattr(nn, name)(), getattr(F, name.lower()), Elementwise(name.lower())) for name in SAME_NAMES),
        (nn.ReLU6(), F.relu6, Elementwise("relu6")),
        (nn.Hardtanh(0, 6), lambda x: x.clamp(0, 6), Elementwise("relu6")),
        (nn.Hardtanh(-1, 1), lambda x: torch.clip(x, min=-1.0, max=1.0), Elementwise("hardtanh")),
        (nn.Hardtanh(0, math.inf), lambda x: x.clamp(min=0), ReLU()),
        (nn.Threshold(0.0, 0.0), lambda x: F.threshold(x, 0, 0), ReLU()),
        (None, lambda x: torch.clamp(x, 0.0), ReLU()),
        (None, lambda x: torch.clamp_min(x, 0), ReLU()),
        (None, lambda x: x.clip(min=0, max=None), ReLU()),
        (None, lambda x: x.clone().clamp_(min=0), ReLU()),
        (None, torch.special.erf, cnngp.Erf()),
        (None, abs, cnngp.Abs()),
        (None, torch.sin, cnngp.Sin()),
        (None, torch.sign, cnngp.Sign()),
        (None, lambda x: x.cos(), cnngp.Cos()),
        (None, torch.atan, Elementwise("arctan")),
    ],
)
def test_activations(module: nn.Module | None, function: Any, layer: Network) -> None:
    for call in (function,) if module is None else (module, function):
        calls = made(lambda m, x: m.b(m.call_(m.a(x))), a=nn.Linear(2, 3), b=nn.Linear(3, 1), call_=call)
        found = from_torch(calls, (2,), weight_var=1.0, bias_var=0.0).layers[1]
        assert type(found) is type(layer)
        if isinstance(layer, cnngp.LeakyReLU):
            assert found.slope == pytest.approx(layer.slope, rel=1e-6)
        else:
            assert found == layer
    # and what PyTorch computes is what the layer's kernel is of
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = torch_function(layer)(x)
    torch.testing.assert_close(function(x), expected, rtol=1e-6, atol=1e-7)
    if isinstance(layer, Elementwise):
        np.testing.assert_allclose(functions.as_callable(layer.fn)(x.numpy()), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(4), parametrizations.spectral_norm(nn.Conv2d(4, 4, 3, padding=1))])
def test_importing_changes_nothing_of_the_module(layer: nn.Module) -> None:
    module = cnn(layer, nn.Dropout(0.5))
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    cnngp.torch.explain(module, (1, 6, 6), show=False)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert module.training


def test_kernels_of_branches_that_are_not_gaussian_are_added_where_asked() -> None:
    layers = {name: nn.Linear(4, 4) for name in "abc"}
    module = made(lambda m, x: m.c((h := F.relu(m.a(x))) + F.relu(m.b(h))), **layers)
    with pytest.raises(NetworkError, match=r"add in forward .*: the branch .* gives the output of a nonlinearity"):
        from_torch(module, (4,))
    net = from_torch(module, (4,), weight_var=1.0, bias_var=0.0, allow_non_gaussian=True)
    skip = Sum(Identity(), Sequential(Dense(), ReLU()), allow_non_gaussian=True)
    assert net == Sequential(Dense(), ReLU(), skip, Dense())


# ---- ways to write a network -----------------------------------------------------------------------------------------


def shared_activation(m: Any, x: Any) -> Any:
    """R(x) stands in two branches that are not one: a function of x may be written twice."""
    x = m.a(x)
    u = x + m.f(r := R(x))
    return m.b(R(u + m.g(R(u)) + m.h(r)))


def regrouped(m: Any, x: Any) -> Any:
    """x + h + f(h) is a sum of three, whose last two share h: x + (h + f(h))."""
    x = m.a(x)
    h = m.f(torch.abs(x))
    return m.b(R(x + h + m.g(F.leaky_relu(h, 0.2))))


D1, QUARTER, R = Dense(1.0, 1.0), Dense(0.25, 0.25), F.relu
BLOCK1 = Sum(Identity(), Sequential(ReLU(), D1))
LEAKY = Sum(Identity(), Sequential(cnngp.LeakyReLU(0.2), D1))
# Of layers of 4 units: constants and fixed batch statistics go into the layers beside them.
FACTORS: list[tuple[Callable[[Any, Any], Any], Network]] = [
    (lambda m, x: m.b(R(0.5 * m.a(x))), Sequential(QUARTER, ReLU(), D1)),  # after a layer
    (lambda m, x: m.b(R(m.a(x)) / 4), Sequential(D1, ReLU(0.25), D1)),  # after a ReLU
    (lambda m, x: m.b(torch.tanh(m.a(x)) * 2 * 3), Sequential(D1, Elementwise("tanh"), Dense(36.0, 1.0))),  # before one
    (lambda m, x: m.b(R(m.a(x / 2))), Sequential(Dense(0.25, 1.0), ReLU(), D1)),  # on the input
    (lambda m, x: m.a(x), D1),  # one layer is a network too
    (lambda m, x: m.b(x - m.f(R(m.a(x)))), Sequential(Sum(Identity(), Sequential(D1, ReLU(), D1)), D1)),
    # (f(x) + g(x))/2 is a sum of layers with a quarter of the variance, however the terms nest
    (
        lambda m, x: m.b(R((m.a(x) + (m.f(x) + m.g(x))) / 2)),
        Sequential(Sum(QUARTER, Sum(QUARTER, QUARTER)), ReLU(), D1),
    ),
    # what skips is read elsewhere too, so the factor goes into the layer that follows
    (lambda m, x: m.b((x + m.a(x)) / 2), Sequential(Sum(Identity(), D1), Dense(0.25, 1.0))),
    (lambda m, x: m.b(R(m.norm(m.a(x)))), Sequential(QUARTER, ReLU(), D1)),
    (
        lambda m, x: m.b(R((h := m.a(x)) + m.f(R(m.norm(h))))),
        Sequential(D1, Sum(Identity(), Sequential(ReLU(0.5), D1)), ReLU(), D1),
    ),
    (lambda m, x: m.b(R(m.a((x, imul(x, 3.0))[0]))), Sequential(Dense(9.0, 1.0), ReLU(), D1)),  # every reader sees it
    (shared_activation, Sequential(D1, Sum(Sequential(BLOCK1, BLOCK1), Sequential(ReLU(), D1)), ReLU(), D1)),
    (regrouped, Sequential(D1, Sum(Identity(), Sequential(cnngp.Abs(), D1, LEAKY)), ReLU(), D1)),
]


def of_four(forward: Callable[[Any, Any], Any]) -> nn.Module:
    return made(forward, **{name: nn.Linear(4, 4) for name in "abfgh"}, norm=nn.BatchNorm1d(4, eps=3.0)).eval()


OF_FEATURES = [
    *(nn.LayerNorm(8), nn.GroupNorm(1, 8), nn.RMSNorm(8, eps=1e-5), nn.LayerNorm(8, elementwise_affine=False)),
    *(nn.GroupNorm(1, 8, affine=False), nn.RMSNorm(8, eps=1e-5, elementwise_affine=False)),
]
LN, LN_ALL = cnngp.LayerNorm(eps=1e-5), cnngp.LayerNorm("all", 1e-5)
OF_ALL = [nn.LayerNorm((8, 3, 3)), nn.GroupNorm(1, 8)]  # channels and places
C, C2, D = Conv(3, weight_var=2.0), Conv(2, padding="valid", weight_var=2.0), Dense(weight_var=2.0)


def pooled(step: Callable[[Any], Any], axes: int, size: int = 6) -> nn.Module:
    """A convolution, whatever is to be tried, and a dense layer on what it leaves."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes](1, 2, 3, padding=1)
    left = torch.flatten(step(torch.zeros(1, 2, *(size,) * axes)), 1).shape[1]
    return made(lambda m, x: m.head(m.step(R(m.conv(x))).flatten(1)), step=step, conv=conv, head=nn.Linear(left, 1))


G = cnngp.GlobalAvgPool()
POOLS: list[tuple[Any, int, Network]] = [
    (nn.AvgPool1d(3), 1, AvgPool(3)),
    (nn.AvgPool2d(2, 1), 2, AvgPool(2, 1)),
    (nn.AvgPool2d((3, 2), padding=(1, 0)), 2, AvgPool((3, 2), padding=(1, 0))),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), 2, AvgPool(3, 2, 1, False)),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False, divisor_override=9), 2, AvgPool(3, 2, 1)),
    (nn.AvgPool2d(2, ceil_mode=True), 2, AvgPool(2)),
    (nn.AvgPool2d(2, count_include_pad=False), 2, AvgPool(2)),
    (nn.AvgPool3d(2, 1), 3, AvgPool(2, 1)),
    (nn.AdaptiveAvgPool1d(1), 1, G),
    (nn.AdaptiveAvgPool2d((None, 2)), 2, AvgPool((1, 3))),
    (nn.AdaptiveAvgPool2d(3), 2, AvgPool(2)),
    (nn.AdaptiveAvgPool3d(1), 3, G),
    (lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False), 2, AvgPool(3, 2, 1, False)),
    (lambda x: F.avg_pool3d(x, 3), 3, AvgPool(3)),
    (lambda x: F.adaptive_avg_pool1d(x, 2), 1, AvgPool(3)),
    (lambda x: x.mean((2, 3)), 2, G),
    (lambda x: x.mean([-1, -2], keepdim=True), 2, G),
    (lambda x: torch.mean(x, 2), 1, G),
    (lambda x: x.mean(3, keepdim=True), 2, AvgPool((1, 6))),
    (lambda x: F.adaptive_avg_pool2d(x, 1).squeeze((2, 3)), 2, G),
]
POOL_AND_FILTER = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.ReLU())
SKIP = made(lambda m, x: m.b((x + m.a(x)).reshape(len(x), -1)), a=nn.Conv2d(1, 8, 3, padding=1), b=nn.Linear(288, 1))
torch.manual_seed(0)
# Modules, the shape of their images, and their layers, of which each has a weight variance of 2 and no biases.
WRITTEN: list[tuple[nn.Module, tuple[int, ...], tuple[Network, ...]]] = [
    *((pooled(step, axes), (1, *(6,) * axes), (C, ReLU(), layer, D)) for step, axes, layer in POOLS),
    (pooled(nn.AdaptiveAvgPool2d(6), 2), (1, 6, 6), (C, ReLU(), D)),
    (pooled(nn.AdaptiveAvgPool2d(3), 2, 7), (1, 7, 7), (C, ReLU(), AvgPool(3, 2), D)),
    (pooled(lambda x: x.mean((2, 3)) * 3.0, 2), (1, 6, 6), (C, ReLU(3.0), G, D)),
    (cnn(*POOL_AND_FILTER, features=4), (1, 6, 6), (C, ReLU(), AvgPool(6), Conv(1, weight_var=2.0), ReLU(), D)),
    (SKIP, (1, 6, 6), (Sum(Identity(), C), D)),  # the input is added to all channels
    *(
        (ending(nn.Linear(5, 8), norm, nn.ReLU(), left=8), (5,), (D, cnngp.LayerNorm(eps=1e-5), ReLU(), D))
        for norm in OF_FEATURES
    ),
    *((ending(nn.Conv2d(2, 8, 2), norm, nn.ReLU(), left=72), (2, 4, 4), (C2, LN_ALL, ReLU(), D)) for norm in OF_ALL),
]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def kept_and_added_to(m: Any, h: Any) -> Any:
    """A sum in an attribute of the module."""
    m.kept = h
    h = m.f(F.relu(h))
    m.kept += h
    return m.kept


def unused(m: Any, h: Any) -> Any:
    """What the output does not depend on does not matter."""
    assert not torch.isnan(h).all().shape
    m.seen = h.mean(), F.max_pool2d(m.f(h), 2)
    k = h.clone()
    k[:, 0] = 0.0
    return h.type_as(m.f.weight)


SHAPE = (1, 4, 4)
BLOCK = Sequential(Conv(3), Sum(Identity(), Sequential(ReLU(), Conv(3))), ReLU(), Dense())
TWICE = Sequential(Conv(3, weight_var=4.0), ReLU(), Dense())
PLAIN = Sequential(Conv(3), ReLU(), Dense())
CHAIN = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
ARM, FAINT = Sequential(ReLU(), Conv(3)), Sequential(ReLU(), Conv(3, weight_var=0.25))
# `m.a` made h, `m.f` and `m.g` are convolutions; a ReLU follows.
WAYS: list[tuple[Callable[[Any, Any], Any], Network]] = [
    (kept_and_added_to, BLOCK),
    (unused, PLAIN),
    (lambda m, h: m.f(F.relu_(h)), CHAIN),
    (lambda m, h: h.to(memory_format=torch.channels_last), PLAIN),
    (lambda m, h: h.double().float(), PLAIN),
    (lambda m, h: h * (h.shape[1] / 4), PLAIN),
    (lambda m, h: Doubled.apply(h), TWICE),
    (lambda m, h: torch.add(h, m.f(R(h)), alpha=0.5), Sequential(Conv(3), Sum(Identity(), FAINT), ReLU(), Dense())),
    (lambda m, h: torch.ops.aten.add(h, m.f(R(h))), BLOCK),
    (lambda m, h: sum([h, m.f(R(h)), m.g(R(h))]), Sequential(Conv(3), Sum(Identity(), ARM, ARM), ReLU(), Dense())),
    (lambda m, h: m.f.forward(R(h)), CHAIN),
    (lambda m, h: m.f(input=R(h)), CHAIN),
    (lambda m, h: torch.utils.checkpoint.checkpoint(m.f, R(h), use_reentrant=False), CHAIN),
    (lambda m, h: (h[:].add_(m.f(R(h))), h)[1], BLOCK),
    (lambda m, h: (h.detach().mul_(2), h)[1], TWICE),
]
CASES = [
    *written_by_hand(),
    *((of_four(forward), (4,), net, 1.0, 1.0) for forward, net in FACTORS),
    *((flow(middle), SHAPE, net, 1.0, 0.0) for middle, net in WAYS),
    *((module, shape, Sequential(*layers), 2.0, 0.0) for module, shape, layers in WRITTEN),
]


@pytest.mark.parametrize(("module", "shape", "net", "weight_var", "bias_var"), CASES, ids=map(str, range(len(CASES))))
def test_imported_equals_hand_written(module: nn.Module, shape: Any, net: Network, weight_var: float, bias_var: float):
    imported = from_torch(module, shape, weight_var=weight_var, bias_var=bias_var)
    assert imported == net
    assert imported.fingerprint == net.fingerprint


# ---- names of one memory, and writes in place ------------------------------------------------------------------------


def imported(middle: Callable[[Any, Any], Any]) -> Any:
    return from_torch(flow(middle), SHAPE, weight_var=1.0, bias_var=0.0)


def taken(middle: Callable[[Any, Any], Any]) -> Any:
    """The network, or None where it is refused."""
    try:
        return imported(middle)
    except NetworkError:
        return None


# Other names of h, and whether what is written into the one is seen in the other.
NAMES: list[tuple[Callable[[Any], Any], bool]] = [
    *((lambda h: h, True), (lambda h: h.detach(), True), (lambda h: h.data, True), (lambda h: h[:], True)),
    *((lambda h: h.view(h.shape), True), (lambda h: h.contiguous(), True), (lambda h: h.to(h.dtype), True)),
    (lambda h: h.clone(), False),
]
# Statements, the same with new tensors only, and whether there was a write into h.
STATEMENTS: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], bool]] = [
    (lambda h, t: h - t, sub, False),
    (lambda h, t: torch.add(h, t, out=t), add, False),
    (lambda h, t: iadd(h, t), add, True),
    (lambda h, t: iadd(h.data, t), add, True),
    (lambda h, t: torch.add(h, t, out=h), add, True),
    (lambda h, t: isub(h, t), sub, True),
    (lambda h, t: torch.sub(h, t, alpha=0.5, out=h), lambda h, t: torch.sub(h, t, alpha=0.5), True),
    (lambda h, t: imul(h, 2.0), lambda h, t: 2 * h, True),
    (lambda h, t: itruediv(h, 0.5), lambda h, t: 2 * h, True),
]
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(STATEMENTS), st.booleans()), min_size=1, max_size=2
)


@given(PROGRAMS, st.booleans())
@examples(180)
def test_every_name_of_a_memory_stands_for_what_was_written(program: list[Any], ends_in_k: bool) -> None:
    """`k` is another name of h, something is written into one of them, and one of them goes on.

    Followed by hand with new tensors only, the same program computes the same and is the same network.
    """

    def written(m: Any, h: Any) -> Any:
        for block, ((name, _), (statement, _, _), into_k) in zip((m.f, m.g), program, strict=False):
            k, t = name(h), block(R(h))
            if into_k:
                k = statement(k, t)
            else:
                h = statement(h, t)
        return k if ends_in_k else h

    def followed(m: Any, h: Any) -> Any:
        for block, ((_, shares), (_, plain, writes), into_k) in zip((m.f, m.g), program, strict=False):
            after = plain(h, block(R(h)))
            both = shares and writes
            h, k = (after if both or not into_k else h), (after if both or into_k else h)
        return k if ends_in_k else h

    module, x = flow(written), torch.randn(2, *SHAPE)
    with torch.no_grad():
        found = module(x)
        module.middle = followed
        torch.testing.assert_close(found, module(x))
    if len(program) == 1:
        assert imported(written) == imported(followed)
    else:
        assert taken(written) == taken(followed)
