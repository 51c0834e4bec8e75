"""Finite networks: widths and weights, two ways of computing them, the kernel as their limit, and their own kernels."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import cnngp
from cnngp import AvgPool, Conv, ConvTranspose, Dense, Elementwise, Identity, NetworkError, ReLU, Sequential, Sum, zoo
from cnngp.network import Network, reference
from cnngp.torch import check_limit, empirical_kernel
from cnngp.torch_bridge import sample_outputs, sampling
from cnngp.torch_bridge.finite import build_finite
from cnngp.torch_bridge.parts import NAMED, Broadcast, torch_function
from helpers.examples import examples
from helpers.networks import networks_with_shapes, relu_like, smooth
from helpers.nonlinearities import ONE_OF_EACH
from helpers.pooled import pooled_networks
from helpers.torch_modules import made

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.filterwarnings("ignore:from_torch measured")]
R, D = ReLU(), Dense(weight_var=2.0)
LENET = Sequential(Conv(5, weight_var=2.0), R, AvgPool(2), Conv(5, weight_var=2.0), R, AvgPool(2), D, R, D)
POOLED_SKIP = Sequential(
    *(Conv(3), Sum(Identity(), Sequential(R, Conv(3), R, Conv(3))), R, AvgPool(2), Conv(3)),
    *(Sum(Identity(), Sequential(R, Conv(3))), cnngp.GlobalAvgPool(), D),
)
EVEN = Sequential(
    *(Conv(4, bias_var=0.1), cnngp.Sin(), ConvTranspose(4), cnngp.Cos(), ConvTranspose((2, 3), stride=(1, 2))),
    *(cnngp.Step(), Dense()),
)
ZOO = {
    "resnet": (zoo.resnet(8), (1, 12, 12)),
    "convnet": (zoo.convnet(), (1, 8, 8)),
    "residual_cnn": (zoo.residual_cnn(), (3, 8, 8)),
    "dense_nngp": (zoo.dense_nngp(), (9,)),
    "even transposed": (EVEN, (1, 5, 4)),
    "lenet": (LENET, (2, 8, 8)),
    "pooled skip": (POOLED_SKIP, (2, 8, 8)),
}


@pytest.mark.parametrize("name", ZOO)
def test_round_trip_of_a_network(name: str) -> None:
    net, shape = ZOO[name]
    module = cnngp.sample_network(net, channels=3, input_shape=shape)
    back = cnngp.from_torch(module, shape, variances="drawn", allow_non_gaussian=name == "residual_cnn")
    assert back.fingerprint == net.fingerprint


CHAINS = networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=200)


@given(st.one_of(CHAINS, pooled_networks(max_elements=1500)), st.integers(0, 2**32 - 1))
@examples(40)
def test_any_network_round_trips_and_both_ways_of_sampling_agree(drawn: tuple, seed: int) -> None:
    net, shape = drawn
    X = np.random.default_rng(seed).normal(size=(2, *shape))
    try:
        module = cnngp.sample_network(net, 4, shape, (seed, 1), outputs=2, dtype=torch.float64)
    except NetworkError as error:  # a transposed convolution or a pool that torch does not have
        assert "torch's output_padding must be smaller" in str(error) or "PyTorch has no AvgPool3d" in str(error)  # noqa: PT017
        reject()
    back = cnngp.from_torch(module, shape, variances="drawn", allow_non_gaussian=True)
    K = reference.kernel(net, X)
    np.testing.assert_allclose(reference.kernel(back, X), K, rtol=1e-12, atol=1e-14 * np.abs(K).max())
    together = sample_outputs(net, X, 4, 3, seed, outputs=2, dtype=torch.float64)
    apart = sample_outputs(net, X, 4, 3, seed, outputs=2, dtype=torch.float64, batch=1)
    alone = module(torch.as_tensor(X)).detach().numpy()
    scale = np.abs(together).max() + 1e-300
    np.testing.assert_allclose(apart / scale, together / scale, rtol=0, atol=1e-11)
    np.testing.assert_allclose(alone / scale, together[1] / scale, rtol=0, atol=1e-11)


def test_widths_double_where_the_map_becomes_smaller_or_are_given_by_layer() -> None:
    still = Sequential(Conv(3), R, AvgPool(3, 1), Conv(3), R, cnngp.GlobalAvgPool(), D, R, D)
    for network, channels, shape, widths in (
        (zoo.resnet(8), 5, (1, 12, 12), [5, 5, 5, 5, 10, 10, 10, 20, 20, 20, 20, 2]),
        (LENET, 5, (1, 8, 8), [5, 10, 20, 2]),
        (still, 5, (1, 8, 8), [5, 5, 5, 2]),
        (DEEP, [3, 5, 7], (1, 4, 4), [3, 5, 7, 2]),
        (DEEP, {"layers[2]": 9, "*": 4}, (1, 4, 4), [4, 9, 4, 2]),
    ):
        module = cnngp.sample_network(network, channels, shape, outputs=2)  # type: ignore[arg-type]
        assert [m.weight.shape[0] for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)] == widths


SEED = r"is not a non-negative integer or a tuple of them"
DEEP = Sequential(Conv(3), R, Conv(3), R, D, R, D)
BRANCHES = Sequential(Conv(3), Sum(Conv(1), Conv(3)), R, D)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(({"channels": wrong}, "is not a positive integer") for wrong in (0, 2.5, True)),
        *(({"seed": s}, rf"seed={re.escape(repr(s))} {SEED}") for s in (-1, None, 1.5, "a", True, (), (1, None))),
        ({"device": "foo"}, r"device='foo' cannot be used by PyTorch .*; use 'cpu'"),
        ({"net": DEEP, "channels": [3, 5]}, r"layers\[4\]: channels has no number left for it"),
        ({"net": DEEP, "channels": [3, 5, 7, 1]}, r"channels: \[1\] belong to no layer"),
        ({"net": DEEP, "channels": {"layers[9]": 9}}, r"channels: \['layers\[9\]'\] belong to no layer"),
        ({"net": BRANCHES, "channels": [4, 5, 6]}, r"branches\[1\]: channels=6 is asked for, but the Sum .* has 5 ch"),
        ({"net": Identity()}, "the images reach the output by a path without weights"),
        ({"net": Conv(3)}, "4 × 4 output locations; end it in Dense"),
        ({"net": Sequential(Sum(Identity(), Conv(3)), Dense()), "channels": 2}, "skip carries the input's 3 channels"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"net": zoo.small_cnn(), "channels": 4, "seed": 0, "device": None} | changes
    net, channels, others = given["net"], given["channels"], {key: given[key] for key in ("seed", "device")}
    with pytest.raises(NetworkError, match=told):
        cnngp.sample_network(net, channels, (3, 4, 4), **others)
    with pytest.raises(NetworkError, match=told):
        sample_outputs(net, np.zeros((1, 3, 4, 4)), channels, 2, **others)


@pytest.mark.parametrize(("channels", "width"), [(1, 7), (3, 7), (3, 6), (4, 4)])
def test_broadcast_keeps_inner_products(channels: int, width: int) -> None:
    x, z = torch.randn(2, 1, channels, 5, dtype=torch.float64).unbind()
    wide = Broadcast(channels, width)
    inner = (wide(x) * wide(z)).sum(1) / width
    torch.testing.assert_close(inner, (x * z).sum(1) / channels, rtol=1e-14, atol=1e-14)


def test_named_functions_have_gradients() -> None:
    for name in NAMED:
        x = torch.linspace(-2, 2, 9, requires_grad=True)
        torch_function(Elementwise(name))(x).sum().backward()
        assert x.grad is not None
        assert x.grad.abs().sum() > 0


def test_a_seed_fixes_the_network() -> None:
    net, X = zoo.small_cnn(), torch.randn(2, 1, 5, 5)
    first, again, other = (cnngp.sample_network(net, 4, (1, 5, 5), seed=s)(X) for s in (1, np.int64(1), 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    wide = cnngp.sample_network(net, 4, (1, 5, 5), seed=1, dtype=torch.float64)(X.double())
    torch.testing.assert_close(wide.float(), first, rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    cnngp.sample_network(net, 4, (1, 5, 5), seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_memory_is_bounded() -> None:
    """What a batch holds at once, by the module's own count, stays within the budget for narrow and wide networks."""
    X = torch.empty(1, 1, 28, 28).expand(10_000, 1, 28, 28)
    for channels in (3, 300):
        finite = build_finite(zoo.resnet(8), channels, (1, 28, 28), 1, torch.float32, "cpu")
        networks, images = sampling._sizes(finite, X, None)
        activations = finite.floats_per_image((1, 28, 28)) * images * 4
        assert networks == 1 or networks * (3 * finite.numbers * 4 + activations) <= sampling._BUDGET["cpu"]
        assert activations <= sampling._BUDGET["cpu"]


def test_outputs_do_not_depend_on_batches_of_networks_and_images(monkeypatch: pytest.MonkeyPatch) -> None:
    net, X, done = zoo.small_cnn(), np.random.default_rng(0).normal(size=(9, 1, 5, 5)), list[int]()
    whole = sample_outputs(net, X, 4, 7, batch=7, progress=done.append)
    assert done == [7]
    assert whole.shape == (7, 9)
    with pytest.raises(NetworkError, match="batch=0"):
        sample_outputs(net, X, 4, 3, batch=0)
    monkeypatch.setitem(sampling._BUDGET, "cpu", 10_000)
    for batch in (None, 3):
        found = sample_outputs(net, X, 4, 5, batch=batch)
        np.testing.assert_allclose(found, whole[:5], rtol=0, atol=1e-5 * np.abs(whole).max())


ACTIVATIONS = [*ONE_OF_EACH, *map(Elementwise, ("silu", "softplus", "sigmoid", np.arctan))]
FIRST = [
    Conv(3, weight_var=1.5, bias_var=0.2),
    Conv(4, stride=2, fan_in="channels", bias_var=0.1),
    Conv((3, 2), dilation=2, padding=((1, 2), 0), padding_mode="reflect"),
    Conv(3, padding=2, padding_mode="circular"),
    Conv(5, padding="same", padding_mode="replicate"),
    ConvTranspose(3, stride=2, bias_var=0.3),
    ConvTranspose(4),
    ConvTranspose((3, 2), stride=(3, 2), padding=(1, 0), dilation=2, output_padding=(1, 0), fan_in="channels"),
]
POOLS = [AvgPool(2), AvgPool(3, 1), AvgPool(3, 2, 1), AvgPool(3, 2, 1, False), cnngp.GlobalAvgPool()]
ONE_HIDDEN_LAYER = [
    *((Sequential(Conv(3, weight_var=1.3), a, Dense(1.2, 0.1)), (2, 4, 4)) for a in ACTIVATIONS),
    *((Sequential(layer, R, Dense()), (2, 6, 7)) for layer in FIRST),
    *((Sequential(Conv(3, weight_var=1.3, bias_var=0.2), R, pool, Dense(1.2, 0.1)), (2, 5, 5)) for pool in POOLS),
    *((Sequential(Conv(3, stride=2), cnngp.Erf(), Dense()), (2, *(4,) * axes)) for axes in (1, 3)),
    (Sequential(Sum(Identity(), Conv(3)), Conv(3), R, Dense()), (3, 4, 4)),
]


@pytest.mark.parametrize(("net", "shape"), ONE_HIDDEN_LAYER, ids=repr)
def test_one_hidden_layer_has_the_kernel_as_covariance(net: Network, shape: tuple[int, ...]) -> None:
    """At any width the expected covariance is the kernel, and means have t distributions: at a level of 1e-4."""
    n, samples, outputs = 3, 300, 32
    X = np.random.default_rng(1).normal(size=(n, *shape))
    F = sample_outputs(net, X, 30, samples, outputs=outputs).astype(np.float64)
    C = np.einsum("sno,smo->snm", F, F) / outputs
    K, error = reference.kernel(net, X), C.std(axis=0, ddof=1) / math.sqrt(samples)
    assert np.abs((C.mean(axis=0) - K) / error).max() < stats.t.ppf(1 - 1e-4 / (n * (n + 1)), samples - 1)
    # and the errors are small enough for that to mean something
    assert error.max() < 0.04 * np.abs(K).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "convnet", "dense_nngp", "lenet", "pooled skip"])
def test_deep_networks_approach_their_kernels(name: str) -> None:
    net, shape = ZOO[name]
    X = np.random.default_rng(5).normal(size=(3, *shape))
    report = check_limit(net, X, channels=(16, 64), samples=1000)
    assert report.ok, str(report)


@pytest.mark.gpu
def test_many_networks_on_a_card() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no card")
    X = np.random.default_rng(6).uniform(size=(3, 1, 28, 28))
    net = zoo.resnet(8)
    F = sample_outputs(net, X, 30, 100, outputs=64, device="cuda")
    again = sample_outputs(net, X, 30, 20, outputs=64, device="cuda", batch=3)
    np.testing.assert_allclose(again, F[:20], rtol=0, atol=1e-2 * np.abs(F).max())  # TF32 where torch allows it
    C = np.einsum("sno,smo->snm", F.astype(np.float64), F.astype(np.float64)) / 64
    t = (C.mean(axis=0) - reference.kernel(net, X)) / (C.std(axis=0, ddof=1) / 10)
    assert np.abs(t).max() < 6


# ---- kernels of finite modules: against explicit gradients, closed forms, and the kernels of their limits ------------

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


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_wide_random_networks_come_near_the_kernels_of_their_limit(kind: Any) -> None:
    """The error falls as 1/√width; the means over eight networks (or 4,000 outputs) at two widths show it."""
    net = Sequential(Conv(3, bias_var=0.2), ReLU(), Conv(3, weight_var=2.0), ReLU(), Dense(2.0, 0.1))
    exact = cnngp.Kernel(net, device="cpu", dtype="float64", kind=kind)(X)
    errors = []
    for width in (8, 64):
        found = []
        for seed in range(8):
            module = cnngp.sample_network(net, width, X.shape[1:], seed, outputs=1 if kind == "ntk" else 500)
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
