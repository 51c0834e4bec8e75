"""Kernels of finite modules: against explicit gradients, closed forms, and the kernels of their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, sample_network
from cnngp.torch import empirical_kernel
from helpers.torch_modules import made

pytestmark = pytest.mark.usefixtures("one_torch_thread")
RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(5, 1, 6, 6)), RNG.normal(size=(3, 1, 6, 6))


def forward(m: Any, x: Any) -> Any:
    """What no infinite kernel here has: max pooling, batch norm in evaluation mode, a product of activations."""
    x = m.pool(torch.relu(m.norm(m.conv(x)))).flatten(1)
    return m.head(x * torch.softmax(m.gate(x), 1))


def odd() -> Any:
    torch.manual_seed(0)
    layers = {"conv": nn.Conv2d(1, 4, 3, padding=1), "norm": nn.BatchNorm2d(4), "pool": nn.MaxPool2d(2)}
    module = made(forward, **layers, gate=nn.Linear(36, 36), head=nn.Linear(36, 2)).double()
    module(torch.randn(50, 1, 6, 6).double() * 2 + 1)  # statistics that are not those of a new module
    return module.eval()


def by_hand(module: Any, a: np.ndarray, b: np.ndarray, scaled: bool = False) -> np.ndarray:
    learned = [p for p in module.parameters() if p.requires_grad]

    def jacobian(images: np.ndarray) -> np.ndarray:
        """Of each image, each output: the slopes by all parameters."""
        outputs = module(torch.as_tensor(images))
        slopes = [torch.autograd.grad(y, learned, retain_graph=True) for y in outputs.flatten()]
        scales = [p.square().mean().sqrt() if scaled else 1.0 for p in learned]
        flat = [torch.cat([(g * s).flatten() for g, s in zip(gs, scales, strict=True)]) for gs in slopes]
        return torch.stack(flat).detach().numpy().reshape(*outputs.shape, -1)

    return np.einsum("aop,bop->ab", jacobian(a), jacobian(b)) / 2  # outputs


@pytest.mark.parametrize("tile", [None, 1, 2])
def test_the_tangent_kernel_is_the_product_of_gradients(tile: int | None) -> None:
    module = odd()
    K = empirical_kernel(module, X, tile=tile)
    np.testing.assert_allclose(K, by_hand(module, X, X), rtol=1e-10)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(empirical_kernel(module, X, Z, tile=tile), by_hand(module, X, Z), rtol=1e-10)
    scaled = empirical_kernel(module, X, Z, parametrization="ntk", tile=tile)
    np.testing.assert_allclose(scaled, by_hand(module, X, Z, scaled=True), rtol=1e-10)


def test_frozen_parameters_are_constants_and_outputs_may_be_features() -> None:
    module = odd()
    f, g = (module(torch.as_tensor(images)).detach().numpy() for images in (X, Z))
    np.testing.assert_allclose(empirical_kernel(module, X, Z, kind="nngp"), f @ g.T / 2, rtol=1e-12)
    np.testing.assert_allclose(empirical_kernel(module, X, kind="nngp", tile=2), f @ f.T / 2, rtol=1e-12)
    for p in (*module.conv.parameters(), *module.norm.parameters(), *module.gate.parameters()):
        p.requires_grad_(False)
    np.testing.assert_allclose(empirical_kernel(module, X, Z), by_hand(module, X, Z), rtol=1e-10)
    # of a linear head: the features' inner product, and 1 for the bias, the same in each output
    head, module.head = module.head, nn.Identity()
    features = [module(torch.as_tensor(images)).detach().numpy() for images in (X, Z)]
    module.head = head
    np.testing.assert_allclose(empirical_kernel(module, X, Z), features[0] @ features[1].T + 1, rtol=1e-10)


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_wide_random_networks_come_near_the_kernels_of_their_limit(kind: Any) -> None:
    """The error falls as 1/√width; the means over eight networks (or 4,000 outputs) at two widths show it."""
    net = Sequential(Conv(3, bias_var=0.2), ReLU(), Conv(3, weight_var=2.0), ReLU(), Dense(2.0, 0.1))
    exact = Kernel(net, device="cpu", dtype="float64", kind=kind)(X)
    errors = []
    for width in (8, 64):
        found = []
        for seed in range(8):
            module = sample_network(net, width, X.shape[1:], seed, outputs=1 if kind == "ntk" else 500)
            found.append(empirical_kernel(module, X, kind=kind, parametrization="ntk"))
        errors.append(np.linalg.norm(np.mean(found, axis=0) - exact) / np.linalg.norm(exact))
    assert errors[1] < 0.1
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (nn.Module.train, {}, r"norm \(BatchNorm2d\) is in training mode"),
        (None, {"kind": "gp"}, "kind='gp' is not"),
        (None, {"parametrization": "mup"}, "parametrization='mup' is not"),
        (None, {"tile": 0}, "tile=0 is not"),
        (None, {"Z": Z[..., :5]}, r"X holds images of shape \(1, 6, 6\) and Z of shape \(1, 6, 5\)"),
        (lambda m: lambda x: x, {}, "expected a torch"),
        (lambda m: m.requires_grad_(False), {}, "no parameter of the module requires a gradient"),
        (lambda m: nn.Flatten(0), {}, "not one row for each"),
    ],
)
def test_bad_arguments(change: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        empirical_kernel(change(odd()) if change else odd(), X, **options)
