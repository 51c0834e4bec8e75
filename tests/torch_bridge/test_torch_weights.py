"""Which weights count as independent draws about zero, and the variance that they are drawn with."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import cnngp
from cnngp import Conv, Dense, NetworkError, ReLU, Sequential, from_torch
from helpers.torch_modules import made


def small(change: Callable[[Any], object] = lambda m: None) -> nn.Module:
    torch.manual_seed(0)
    conv = (nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    module = nn.Sequential(*conv, nn.Flatten(), nn.Linear(32 * 4, 40))
    change(module)
    return module


SHAPE = (1, 4, 4)
ABSOLUTE = made(lambda m, w: w.abs())
NOT_DRAWN: list[tuple[Callable[[Any], object], str]] = [
    (lambda m: nn.init.uniform_(m[2].weight, 0.0, 0.02), r"^2 \(Conv2d\): its weights have a mean of 0.0\d+ beside"),
    (lambda m: nn.init.constant_(m[2].weight, 0.1), r"^2 \(Conv2d\): its weights are all 0.1,"),
    (lambda m: nn.init.dirac_(m[2].weight), r"^2 \(Conv2d\): its weights are more than half exactly 0,"),
    (lambda m: nn.init.eye_(m[5].weight), r"^5 \(Linear\): its weights are more than half exactly 0,"),
    (lambda m: parametrize.register_parametrization(m[5], "weight", ABSOLUTE), r"^5 \(.*\): its weights have a mean"),
    (lambda m: nn.init.constant_(m[2].bias, 1.0), r"^2 \(Conv2d\): its biases are all 1,"),
    (lambda m: nn.init.uniform_(m[5].bias, 0.0, 0.1), r"^5 \(Linear\): its biases have a mean of"),
    (lambda m: nn.init.constant_(m[5].weight, torch.nan), r"^5 \(Linear\): its weights are not finite"),
]


@pytest.mark.parametrize(("change", "why"), NOT_DRAWN)
def test_weights_that_are_no_draws_about_zero_are_refused(change: Callable[[Any], object], why: str) -> None:
    module = small(change)
    with pytest.raises(NetworkError, match=why):
        from_torch(module, SHAPE)
    assert not cnngp.torch.explain(module, SHAPE, show=False).ok
    # what the user says of the variances holds
    net = from_torch(module, SHAPE, weight_var=2.0, bias_var=0.1)
    given = {"weight_var": 2.0, "bias_var": 0.1}
    assert net == Sequential(Conv(3, **given), ReLU(), Conv(3, padding="valid", **given), ReLU(), Dense(**given))


DRAWS: list[Callable[[Any], object]] = [
    *(nn.init.kaiming_normal_, nn.init.xavier_uniform_, nn.init.orthogonal_, nn.init.zeros_),
    lambda w: nn.init.trunc_normal_(w, std=0.02),
    lambda w: w.bernoulli_(0.5).sub_(0.5),
    lambda w: w.normal_().mul_(torch.rand_like(w) > 0.4),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_about_zero_are_taken(draw: Callable[[Any], object]) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        module = small()
        with torch.no_grad():
            draw(module[2].weight)
            nn.init.zeros_(module[2].bias)
        found = from_torch(module, SHAPE).layers[2]
        second_moment = float(module[2].weight.detach().double().square().mean())
        assert found.weight_var == pytest.approx(32 * 9 * second_moment, rel=1e-12)
        assert found.bias_var == 0.0


def test_layers_with_one_constant_or_mean_are_no_copies() -> None:
    module = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40))
    for layer in (module[0], module[2]):
        nn.init.constant_(layer.bias, 100.3)
        nn.init.uniform_(layer.weight, 0.0, 0.1)
    net = from_torch(module, (40,), weight_var=2.0, bias_var=0.01)
    assert net == Sequential(Dense(2.0, 0.01), ReLU(), Dense(2.0, 0.01))


def test_copies_are_refused_until_they_are_initialised_again() -> None:
    layers = {"a": nn.Linear(4, 40), "f": nn.Linear(40, 40), "g": nn.Linear(40, 40), "head": nn.Linear(40, 40)}
    module = made(lambda m, x: m.head(torch.relu(m.f(h := torch.relu(m.a(x))) + m.g(h))), **layers)
    f, g = layers["f"], layers["g"]
    g.bias.data.copy_(f.bias)
    for change in (torch.clone, torch.neg, lambda w: 2.5 * w, lambda w: w + 0.05 * torch.randn(40, 40)):
        g.weight.data.copy_(change(f.weight))
        with pytest.raises(NetworkError, match=r"^g \(Linear\): its weight is correlated with f.weight, as a copy"):
            from_torch(module, (4,), weight_var=1.0, bias_var=0.0)
    nn.init.normal_(g.weight)
    with pytest.raises(NetworkError, match=r"^g \(Linear\): its bias is correlated with f.bias"):
        from_torch(module, (4,))
    g.reset_parameters()
    from_torch(module, (4,))
    for layer in (f, g):
        nn.init.zeros_(layer.bias)
    from_torch(module, (4,))  # zeros are no copies


def lenet() -> nn.Module:
    convs = (nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU())
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(16 * 64, 10))


def test_two_fresh_modules_are_one_network_by_the_initial_law() -> None:
    shape = (1, 28, 28)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_torch(lenet(), shape, bias_var=0.1)
        first, second = (from_torch(lenet(), shape, variances="initial") for _ in range(2))
    assert first == second
    conv1, _, _, conv2, _, head = first.layers
    for layer, fan_in in ((conv1, 25), (conv2, 150), (head, 1024)):
        assert layer.weight_var == pytest.approx(1 / 3)
        assert layer.bias_var == pytest.approx(1 / (3 * fan_in))
    with torch.device("meta"):
        empty = lenet()
    assert from_torch(empty, shape, variances="initial") == first
    # The law is what the numbers themselves show where there are many.
    few = r"bias_var of '0' \(6\), '3' \(16\), '6' \(10\) from fewer than 30 .* variances='initial'"
    with pytest.warns(UserWarning, match=few):
        measured = from_torch(lenet(), shape)
    assert measured.layers[5].weight_var == pytest.approx(1 / 3, rel=0.05)
    # It is taken only where the weights are from it.
    module = lenet()
    nn.init.kaiming_normal_(module[3].weight)
    for layer in (module[3], module[6]):
        nn.init.zeros_(layer.bias)
    net = from_torch(module, (1, 28, 28), variances="initial")
    conv = net.layers[3]
    assert conv.weight_var == pytest.approx(150 * float(module[3].weight.detach().double().square().mean()))
    assert (conv.bias_var, net.layers[5].bias_var) == (0.0, 0.0)
    assert net.layers[0].weight_var == pytest.approx(1 / 3)


@pytest.mark.slow
def test_fresh_modules_are_not_refused_by_chance() -> None:
    """2,000 layers of every width: at a level of 7e-6 in each, one refusal has a chance of about a hundredth."""
    for seed in range(500):
        torch.manual_seed(seed)
        width = 1 + seed % 60
        layers = (nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width), nn.Linear(width, 40))
        module = nn.Sequential(*layers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert len(from_torch(module, (width,)).layers) == len(module)
