"""An imported module is the network that a person would have written, bit for bit."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cnngp
from cnngp import (
    GELU,
    Abs,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    LayerNorm,
    LeakyReLU,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sign,
    Sin,
    Sum,
    from_torch,
)
from cnngp.network import functions
from cnngp.torch_bridge.parts import torch_function
from helpers.torch_modules import BIAS_VAR, WEIGHT_VAR, TransposedNet, cnn, examples

pytestmark = pytest.mark.filterwarnings("ignore:from_torch measured")  # small layers

EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_imported_equals_hand_written(name: str) -> None:
    module, shape, net = EXAMPLES[name]
    weight_var, bias_var = (1.0, 0.0) if name == "resnet" else (WEIGHT_VAR, BIAS_VAR)
    imported = from_torch(module, shape, weight_var=weight_var, bias_var=bias_var)
    assert imported == net
    assert imported.fingerprint == net.fingerprint


def _measured(w: torch.Tensor, fan_in: int) -> float:
    return fan_in * float(w.detach().double().square().mean())


def test_variances_are_second_moments_of_the_weights_times_fan_in() -> None:
    module = TransposedNet()
    with torch.no_grad():
        module.up.weight *= 3.0
    net = from_torch(module, (1, 6, 6))
    down, _, up, _, _, _, head = net.layers
    assert down.weight_var == pytest.approx(_measured(module.down.weight, 1 * 16), rel=1e-12)
    assert up.weight_var == pytest.approx(_measured(module.up.weight, 4 * 16), rel=1e-12)
    assert head.weight_var == pytest.approx(_measured(module.head.weight, 4 * 144), rel=1e-12)
    assert up.bias_var == pytest.approx(_measured(module.up.bias, 1), rel=1e-12)


def test_variances_by_name_and_for_all() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
    assert from_torch(module, (4,), weight_var=2.0, bias_var=0.5) == Sequential(Dense(2.0, 0.5), ReLU(), Dense(2.0))
    net = from_torch(module, (4,), weight_var={"2": 3.0}, bias_var={"0": 0.25})
    assert net.layers[2] == Dense(3.0)
    assert net.layers[0].bias_var == 0.25
    assert net.layers[0].weight_var == pytest.approx(_measured(module[0].weight, 4))
    with pytest.raises(NetworkError, match=r"weight_var names 'head', but the layers with weights are '0', '2'"):
        from_torch(module, (4,), weight_var={"head": 1.0})
    with pytest.raises(NetworkError, match=r"2: bias_var=1.0 is given for it, but it has no bias"):
        from_torch(module, (4,), bias_var={"2": 1.0})
    with pytest.raises(NetworkError, match=r"variances='random' is not one of 'measured', 'initial', 'drawn'"):
        from_torch(module, (4,), variances="random")
    with pytest.raises(NetworkError, match=r"0: variances='drawn' needs a module made by sample_network"):
        from_torch(module, (4,), variances="drawn")


@pytest.mark.parametrize(
    ("module", "function", "layer"),
    [
        (nn.ReLU(), F.relu, ReLU()),
        (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2), LeakyReLU(0.2)),
        (nn.LeakyReLU(), F.leaky_relu, LeakyReLU(0.01)),
        (nn.PReLU(init=0.3), lambda x: F.leaky_relu(x, negative_slope=0.3), LeakyReLU(float(np.float32(0.3)))),
        (nn.GELU(), F.gelu, GELU()),
        (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh"), Elementwise("gelu_tanh")),
        (nn.Tanh(), torch.tanh, Elementwise("tanh")),
        (nn.Sigmoid(), lambda x: x.sigmoid(), Elementwise("sigmoid")),
        (nn.SiLU(), F.silu, Elementwise("silu")),
        (nn.Softplus(), F.softplus, Elementwise("softplus")),
        (nn.ELU(), F.elu, Elementwise("elu")),
        (nn.SELU(), F.selu, Elementwise("selu")),
        (nn.Mish(), F.mish, Elementwise("mish")),
        (nn.Softsign(), F.softsign, Elementwise("softsign")),
        (nn.Hardtanh(), F.hardtanh, Elementwise("hardtanh")),
        (nn.Hardtanh(0, 6), lambda x: x.clamp(0, 6), Elementwise("relu6")),
        (nn.ReLU6(), F.relu6, Elementwise("relu6")),
        (nn.Hardtanh(-1, 1), lambda x: torch.clip(x, min=-1.0, max=1.0), Elementwise("hardtanh")),
        (nn.Hardtanh(0, math.inf), lambda x: x.clamp(min=0), ReLU()),
        (nn.Threshold(0.0, 0.0), lambda x: F.threshold(x, 0, 0), ReLU()),
        (None, lambda x: torch.clamp(x, 0.0), ReLU()),
        (None, lambda x: torch.clamp_min(x, 0), ReLU()),
        (None, lambda x: x.clip(min=0, max=None), ReLU()),
        (None, lambda x: x.clone().clamp_(min=0), ReLU()),
        (None, lambda x: F.hardtanh(x, 0.0, 6.0), Elementwise("relu6")),
        (nn.Hardswish(), F.hardswish, Elementwise("hardswish")),
        (None, torch.erf, Erf()),
        (None, torch.special.erf, Erf()),
        (None, abs, Abs()),
        (None, torch.sin, Sin()),
        (None, torch.sign, Sign()),
        (None, lambda x: x.cos(), Cos()),
        (None, torch.atan, Elementwise("arctan")),
    ],
)
def test_activations(module: nn.Module | None, function, layer: Network) -> None:
    class Calls(nn.Module):
        def __init__(self, call) -> None:
            super().__init__()
            self.a, self.b, self.call = nn.Linear(2, 3), nn.Linear(3, 1), call

        def forward(self, x):
            return self.b(self.call(self.a(x)))

    for call in (function,) if module is None else (module, function):
        found = from_torch(Calls(call), (2,), weight_var=1.0, bias_var=0.0).layers[1]
        assert type(found) is type(layer)
        if isinstance(layer, LeakyReLU):
            assert found.slope == pytest.approx(layer.slope, rel=1e-6)
        else:
            assert found == layer
    # and what PyTorch computes is what the layer's kernel is of
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = torch_function(layer)(x)
    torch.testing.assert_close(function(x), expected, rtol=1e-6, atol=1e-7)
    if isinstance(layer, Elementwise):
        np.testing.assert_allclose(functions.as_callable(layer.fn)(x.numpy()), expected.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "module", [nn.Softplus(beta=2.0), nn.ELU(alpha=0.5), nn.Hardtanh(-2, 2), nn.Threshold(0.1, 0.0)], ids=repr
)
def test_activations_with_other_constants_are_refused(module: nn.Module) -> None:
    with pytest.raises(NetworkError, match=r"ha(ve|s) a name here"):
        from_torch(nn.Sequential(nn.Linear(2, 3), module, nn.Linear(3, 1)), (2,))


class Steps(nn.Module):
    """Something on the input, a layer, something on its output, a layer."""

    def __init__(self, first=lambda m, x: x, second=lambda m, x: x.relu()) -> None:
        super().__init__()
        self.a, self.b, self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1), first, second
        self.register_buffer("mean", torch.ones(2))

    def forward(self, x):
        return self.b(self.second(self, self.a(self.first(self, x))))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.clamp(max=0), "limits -inf and 0; only 0 and inf"),
        (lambda x: x.clamp_max(3), "limits -inf and 3; only 0 and inf"),
        (lambda x: x.clamp(min=1), "limits 1 and inf; only 0 and inf"),
        (lambda x: x.clamp(min=x), "its limits are tensors"),
    ],
)
def test_other_limits_are_named(function, reason: str) -> None:
    with pytest.raises(NetworkError, match=reason):
        from_torch(Steps(second=lambda m, x: function(x)), (2,))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Steps(lambda m, x: (x - 0.5) / 0.25), r"^sub .*: it shifts the input by a constant \(0.5\), which no"),
        (Steps(lambda m, x: x / 255 - 0.5), r"^sub .*: it shifts the input by a constant \(0.5\), which no"),
        (Steps(lambda m, x: 1 - x), r"^rsub .*: it shifts the input by a constant \(1\), which no"),
        (Steps(lambda m, x: x - m.mean), r"^sub .*: it uses .* mean on the input, which no"),
        (Steps(lambda m, x: x.clamp(0, 6)), r"^clamp .* is applied to the input itself, .*, or"),
    ],
)
def test_what_is_done_to_the_input_is_better_done_to_the_images(module: nn.Module, reason: str) -> None:
    with pytest.raises(
        NetworkError, match=reason + r".* do (that|it) to the images,? and import the module without it$"
    ):
        from_torch(module, (2,))


def test_a_factor_on_the_input_is_imported() -> None:
    found = from_torch(Steps(lambda m, x: x / 2), (2,), weight_var=1.0, bias_var=0.0)
    assert found == Sequential(Dense(0.25), ReLU(), Dense())


def test_a_shift_of_activations_is_not_blamed_on_the_images() -> None:
    module = Steps(second=lambda m, x: F.relu(x - 0.5))
    with pytest.raises(NetworkError, match=r"it shifts by a constant \(0.5\), so what follows is not zero-mean$"):
        from_torch(module, (2,))


def test_one_layer_is_a_module_too() -> None:
    assert from_torch(nn.Linear(4, 1), (4,), weight_var=2.0, bias_var=0.0) == Dense(2.0)


def test_importing_changes_nothing_of_the_module() -> None:
    module = cnn(nn.BatchNorm2d(4), nn.Dropout(0.5))
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    cnngp.torch.explain(module, (1, 6, 6), show=False)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert module.training


class TestAltered:
    """What a module's class does not say is refused, by the name of the part."""

    def refused(self, module: nn.Module, told: str) -> None:
        with pytest.raises(NetworkError, match=told):
            from_torch(module, (4,))
        assert not cnngp.torch.explain(module, (4,), show=False).ok

    def test_hooks(self) -> None:
        for register, kind in (("register_forward_hook", "hook"), ("register_forward_pre_hook", "pre-hook")):
            module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
            handle = getattr(module[1], register)(lambda *given: None)
            self.refused(module, rf"^1 \(ReLU\): it has a forward {kind}, which may change what it computes; remove it")
            handle.remove()
            from_torch(module, (4,))
            getattr(module, register)(lambda *given: None)
            self.refused(module, rf"^the module \(Sequential\): it has a forward {kind}")

    def test_a_forward_that_was_replaced(self) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        module[1].forward = torch.sin
        self.refused(module, r"^1 \(ReLU\): its forward was replaced on this instance")

    def test_weights_of_one_memory(self) -> None:
        def tied(tie) -> nn.Module:
            module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
            module.append(nn.Linear(4, 1))
            tie(module[0], module[2])
            return module

        def by_data(a, b) -> None:
            b.weight.data = a.weight.data

        def by_detach(a, b) -> None:
            b.weight = nn.Parameter(a.weight.detach())

        def by_transpose(a, b) -> None:
            b.weight = nn.Parameter(a.weight.detach().T)

        def by_attribute(a, b) -> None:
            del b.weight
            b.weight = a.weight.detach()

        for tie in (by_data, by_detach, by_transpose, by_attribute):
            self.refused(tied(tie), r"^2 \(Linear\): it shares its weights with 0.weight; the layers of a network must")

    def test_weights_side_by_side_in_one_memory(self) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        both = torch.randn(2, 4, 4)
        module[0].weight.data, module[2].weight.data = both[0], both[1]
        from_torch(module, (4,))

    @pytest.mark.parametrize("module", [nn.Identity(), nn.Flatten(), nn.Sequential()], ids=repr)
    def test_the_input_as_output(self, module: nn.Module) -> None:
        self.refused(module, r"^the input: the images reach the output by a path without weights")


class TestFactors:
    """Constant factors and fixed batch statistics go into the layers beside them."""

    def run(self, forward, *layers: nn.Module, shape: tuple[int, ...] = (4,)):
        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)
                self.parts = nn.ModuleList(layers)

            def forward(self, x):
                return forward(self, x)

        return from_torch(Module().eval(), shape, weight_var=1.0, bias_var=1.0)

    def test_after_a_layer(self) -> None:
        net = self.run(lambda m, x: m.b(F.relu(0.5 * m.a(x))))
        assert net == Sequential(Dense(0.25, 0.25), ReLU(), Dense(1.0, 1.0))

    def test_after_a_relu(self) -> None:
        net = self.run(lambda m, x: m.b(F.relu(m.a(x)) / 4))
        assert net == Sequential(Dense(1.0, 1.0), ReLU(0.25), Dense(1.0, 1.0))

    def test_before_a_layer(self) -> None:
        net = self.run(lambda m, x: m.b(torch.tanh(m.a(x)) * 2))
        assert net.layers[-1] == Dense(4.0, 1.0)

    def test_difference(self) -> None:
        net = self.run(lambda m, x: m.b(x - m.parts[0](F.relu(m.a(x)))), nn.Linear(4, 4))
        block = Sum(Identity(), Sequential(Dense(1.0, 1.0), ReLU(), Dense(1.0, 1.0)))
        assert net == Sequential(block, Dense(1.0, 1.0))

    def test_a_factor_on_a_sum(self) -> None:
        """(f(x) + g(x))/2 is a sum of layers with a quarter of the variance, however the terms nest."""
        extra = (nn.Linear(4, 4), nn.Linear(4, 4))
        net = self.run(lambda m, x: m.b(F.relu((m.a(x) + (m.parts[0](x) + m.parts[1](x))) / 2)), *extra)
        quarter = Dense(0.25, 0.25)
        assert net == Sequential(Sum(quarter, Sum(quarter, quarter)), ReLU(), Dense(1.0, 1.0))

    def test_a_factor_on_a_sum_with_a_skip(self) -> None:
        """What skips is read elsewhere too, so the factor goes into the layer that follows, or nowhere."""
        net = self.run(lambda m, x: m.b((x + m.a(x)) / 2))
        assert net == Sequential(Sum(Identity(), Dense(1.0, 1.0)), Dense(0.25, 1.0))
        with pytest.raises(NetworkError, match=r"the factor 0.5 stands neither right after a layer"):
            self.run(lambda m, x: m.b(torch.tanh((m.parts[0](x := m.a(x)) + x) / 2)), nn.Linear(4, 4))

    def test_scaled_skip_is_refused(self) -> None:
        with pytest.raises(NetworkError, match=r"mul in forward: the factor 0.5 stands neither right after a layer"):
            self.run(lambda m, x: m.b(0.5 * x + m.a(x)))

    def test_fresh_batch_norm(self) -> None:
        factor = 1 / np.sqrt(1 + 1e-5)
        net = self.run(lambda m, x: m.b(F.relu(m.parts[0](m.a(x)))), nn.BatchNorm1d(4))
        assert net.layers[0].weight_var == pytest.approx(factor**2, rel=1e-12)

    def test_batch_norm_before_a_pre_activation(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem, self.conv, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
                self.norm = nn.BatchNorm1d(4, eps=3.0)

            def forward(self, x):
                x = self.stem(x)
                x = x + self.conv(F.relu(self.norm(x)))
                return self.head(F.relu(x))

        net = from_torch(Block().eval(), (4,), weight_var=1.0, bias_var=0.0)
        assert net.layers[1] == Sum(Identity(), Sequential(ReLU(0.5), Dense()))


def test_in_place_activation_reaches_the_skip() -> None:
    """relu_(x) overwrites x, so x + f(relu_(x)) adds a ReLU's output, whatever it looks like."""

    class Module(nn.Module):
        def __init__(self, inplace: bool) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
            self.act = nn.ReLU(inplace=inplace)

        def forward(self, x):
            x = self.a(x)
            h = self.b(self.act(x))
            return self.c(torch.tanh(x + h))

    assert isinstance(from_torch(Module(False), (4,)).layers[1], Sum)
    with pytest.raises(NetworkError, match=r"add in forward .*: adds the output of the nonlinearity act"):
        from_torch(Module(True), (4,))


def test_the_input_may_be_added_to_all_channels() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 * 16, 1)

        def forward(self, x):
            return self.head((x + self.a(x)).flatten(1))

    net = from_torch(Module(), (1, 4, 4), weight_var=1.0, bias_var=0.0)
    assert net == Sequential(Sum(Identity(), Conv(3)), Dense())


NORMS = [
    *(nn.LayerNorm(8), nn.GroupNorm(1, 8), nn.RMSNorm(8, eps=1e-5), nn.LayerNorm(8, elementwise_affine=False)),
    *(nn.GroupNorm(1, 8, affine=False), nn.RMSNorm(8, eps=1e-5, elementwise_affine=False)),
]


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_a_norm_of_features_is_a_layer_norm(norm: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Linear(8, 1))
    found = from_torch(module, (5,))
    assert [type(layer) for layer in found.layers] == [Dense, LayerNorm, ReLU, Dense]  # type: ignore[union-attr]
    assert found.layers[1] == LayerNorm(eps=1e-5)  # type: ignore[union-attr]


def test_norms_that_are_not_of_a_gaussian_or_not_alike_are_refused() -> None:
    behind = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 1))
    with pytest.raises(NetworkError, match="whose mean over channels is not 0"):
        from_torch(behind, (5,))
    scaled = nn.LayerNorm(8)
    nn.init.constant_(scaled.weight, 2.0)
    with pytest.raises(NetworkError, match="weights are not all 1"):
        from_torch(nn.Sequential(nn.Linear(5, 8), scaled, nn.ReLU(), nn.Linear(8, 1)), (5,))
    for flat in (nn.LayerNorm(8 * 4), nn.GroupNorm(1, 8 * 4), nn.LayerNorm(8 * 4, elementwise_affine=False)):
        # all channels of all locations together, laid out flat: not the channels of each
        with pytest.raises(NetworkError, match=r"2 \(.*Norm\): it divides by statistics .* without locations has one"):
            from_torch(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), flat, nn.ReLU(), nn.Linear(32, 1)), (1, 4, 4))
    for norm in (nn.GroupNorm(2, 8), nn.InstanceNorm2d(8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(1, 8)):
        with pytest.raises(NetworkError, match=r"1 \(.*Norm.*\): it divides by statistics of its own input"):
            from_torch(nn.Sequential(nn.Conv2d(1, 8, 3), norm, nn.Flatten(), nn.Linear(32, 1)), (1, 4, 4))
