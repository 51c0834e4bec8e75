"""A network as a GPyTorch kernel: its matrices, their slopes, and what a model learns. Exact models: the example."""

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():  # its dependency still compiles with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    gpytorch = pytest.importorskip("gpytorch")

from cnngp import Conv, Dense, Kernel, NetworkError, ReLU, Sequential, gpytorch_kernel
from cnngp.common.arrays import DataError
from cnngp.network import reference

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(3, stride=2), ReLU(), Dense(bias_var=0.2))
SHAPE = (1, 5, 5)
pytestmark = pytest.mark.usefixtures("one_torch_thread")


def images(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Z = images(7), images(4, seed=1)
K, KXZ = reference.kernel(NET, X.numpy()), reference.kernel(NET, X.numpy(), Z.numpy())


@pytest.mark.parametrize("flat", [True, False], ids=["rows", "images"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_matrices_and_diagonals(flat: bool, dtype: torch.dtype, tolerance: float) -> None:
    kernel = gpytorch_kernel(NET, SHAPE)
    x, z = (t.to(dtype).flatten(1) if flat else t.to(dtype) for t in (X, Z))
    for found, expected in (
        (kernel(x).to_dense(), K),
        (kernel(x, z).to_dense(), KXZ),
        (kernel(x, diag=True), K.diagonal()),
        (kernel(x).diagonal(), K.diagonal()),
        (kernel(x[:4], z, diag=True), KXZ[:4].diagonal()),
        (kernel(x)[2:5, :3].to_dense(), K[2:5, :3]),
        (kernel(torch.stack([x, x]).flatten(2), z.flatten(1)).to_dense(), np.stack([KXZ, KXZ])),
    ):
        assert found.dtype == dtype
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=0, atol=tolerance * np.abs(K).max())


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("given", [NET, Kernel(NET, device="cpu", dtype="float64")], ids=["network", "kernel"])
def test_the_same_bits_as_the_kernel_itself(given: Any, learn: bool) -> None:
    found = gpytorch_kernel(given, SHAPE, learn=learn).double()(X).to_dense()
    np.testing.assert_array_equal(found.detach().numpy(), Kernel(NET, device="cpu", dtype="float64")(X.numpy()))
    pixels = (255 * torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(5))).to(torch.uint8)
    found = gpytorch_kernel(given, SHAPE, learn=learn)(pixels).to_dense()  # of bytes is no whole number
    assert found.dtype == torch.float32
    expected = reference.kernel(NET, pixels.numpy().astype(np.float64))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5)


PARAMETERS = [
    *("raw_layers_0_weight_var", "raw_layers_0_bias_var", "raw_layers_2_weight_var"),
    *("raw_layers_4_weight_var", "raw_layers_4_bias_var"),
]


def test_positive_variances_are_parameters_a_zero_stays_zero_and_copies_keep_them() -> None:
    kernel = gpytorch_kernel(NET, SHAPE)
    assert [name for name, _ in kernel.named_parameters()] == PARAMETERS
    places = [name for name, value in NET.parameters().items() if value > 0.0 and "gain" not in name]
    assert list(kernel._raw) == places
    assert [kernel._value(name).item() for name in places] == pytest.approx([1.0, 0.1, 1.0, 1.0, 0.2])
    assert kernel.network is NET
    assert not list(gpytorch_kernel(NET, SHAPE, learn=False).parameters())
    with torch.no_grad():
        kernel.raw_layers_4_bias_var += 1.0
    changed = kernel.network.parameters()
    assert changed["layers[4].bias_var"] == pytest.approx(0.2 * np.e, rel=1e-6)
    assert changed | {"layers[4].bias_var": 0.2} == NET.parameters()
    other = gpytorch_kernel(NET, SHAPE)
    other.load_state_dict(kernel.state_dict())
    for copied in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert copied.network == kernel.network != NET
        assert torch.equal(copied(X).to_dense(), kernel(X).to_dense())


NUMBERS: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matrix": lambda kernel, x, z: kernel(x).to_dense(),
    "two sets": lambda kernel, x, z: kernel(x, z).to_dense(),
    "diagonal": lambda kernel, x, z: kernel(x, diag=True),
    "diagonal of two sets": lambda kernel, x, z: kernel(x[:4], z[:4], diag=True),
    "batch": lambda kernel, x, z: kernel(torch.stack([x, 2 * x]), z).to_dense(),
}
CASES = [(what, False) for what in NUMBERS] + [(what, True) for what in ("two sets", "diagonal of two sets")]


@pytest.mark.parametrize(("what", "equal"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 2e-4)])
def test_backward_is_the_slope_of_finite_differences(what: str, equal: bool, dtype: torch.dtype, tolerance: float):
    """Of every variance, and along a random direction of all pixels of x and of z, also where they are `equal`."""
    kernel, exact = gpytorch_kernel(NET, SHAPE).to(dtype), gpytorch_kernel(NET, SHAPE).double()
    start = {name: getattr(exact, name).detach().clone() for name in PARAMETERS}
    start |= {"x": X.flatten(1), "z": (X if equal else Z).flatten(1)}

    def numbers(at: dict[str, torch.Tensor]) -> torch.Tensor:
        for name in PARAMETERS:
            getattr(exact, name).data = at[name]
        with torch.no_grad():
            return NUMBERS[what](exact, at["x"], at["z"])

    rng = torch.Generator().manual_seed(4)
    weights = torch.randn(numbers(start).shape, generator=rng, dtype=torch.float64)
    leaves = {name: start[name].clone().to(dtype).requires_grad_() for name in "xz"}
    (weights.to(dtype) * NUMBERS[what](kernel, *leaves.values())).sum().backward()
    leaves = {name: getattr(kernel, name) for name in PARAMETERS} | leaves
    if what in ("matrix", "diagonal"):
        del leaves["z"]
    for name, leaf in leaves.items():
        step = torch.ones(1) if name in PARAMETERS else torch.randn(leaf.shape, generator=rng).double()
        moved = (start | {name: start[name] + k * 2e-4 * step.view(leaf.shape)} for k in (1, -1, 2, -2))
        up, down, further, lower = ((weights * numbers(at)).sum().item() for at in moved)
        # Differences of order four, so that the largest error is the rounding.
        expected = (8.0 * (up - down) - (further - lower)) / (12.0 * 2e-4)
        assert leaf.grad.dtype == dtype
        gradient = leaf.grad.double()
        size = max(1.0, abs(expected)) if name in PARAMETERS else float(gradient.norm() * step.norm())
        assert float((gradient * step).sum()) == pytest.approx(expected, rel=0, abs=tolerance * size)


def test_only_what_is_asked_for_is_computed_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    matrix, gradient = Kernel.__call__, Kernel.gradient

    def slopes(*args: Any, wrt: str = "parameters", **rest: Any) -> Any:
        asked.append(wrt)
        return gradient(*args, wrt=wrt, **rest)

    monkeypatch.setattr(Kernel, "__call__", lambda *args, **given: (asked.append("K"), matrix(*args, **given))[1])
    monkeypatch.setattr(Kernel, "gradient", slopes)
    x, wanted = X.flatten(1).clone(), X.flatten(1).clone().requires_grad_()
    gpytorch_kernel(NET, SHAPE, learn=False)(wanted).to_dense().sum().backward()
    kernel = gpytorch_kernel(NET, SHAPE)
    first = kernel(x).to_dense()
    first.sum().backward()  # all slopes at once
    with torch.no_grad():
        assert not kernel(x.clone()).to_dense().requires_grad  # the same question again
    assert asked == ["K", "images", "K", "parameters"]
    x += 1  # a changed tensor is a new one
    assert not torch.equal(kernel(x).to_dense(), first)


class VariationalModel(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch_kernel(NET, SHAPE))

    def forward(self, x: torch.Tensor) -> object:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_inducing_images_and_variances_are_learned() -> None:
    """Classification of the sign of the mean pixel, from inducing images that begin as noise."""
    x = images(24, seed=5).flatten(1)
    y = (x.mean(1) > 0).double()
    model = VariationalModel(0.1 * images(4, seed=6).flatten(1)).double()
    elbo = gpytorch.mlls.VariationalELBO(gpytorch.likelihoods.BernoulliLikelihood(), model, num_data=len(x))
    with torch.no_grad():
        model.variational_strategy._variational_distribution.variational_mean += 1.0
        model.variational_strategy.variational_params_initialized.fill_(1)
    for learned in ([model.variational_strategy.inducing_points], list(model.parameters())):
        optimizer, losses = torch.optim.Adam(learned, lr=0.1), []
        for _ in range(8):
            optimizer.zero_grad()
            losses.append(-elbo(model(x), y))
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < losses[0] - 1e-3


def test_the_shape_is_learned_from_images_and_what_cannot_be_meant_is_refused() -> None:
    kernel = gpytorch_kernel(NET)
    kernel(X)
    assert kernel.input_shape == SHAPE
    with pytest.raises(DataError, match=r"expected rows of 25 numbers, or \(N, 1, 5, 5\)"):
        kernel(torch.zeros(3, 24, dtype=torch.float64))
    with pytest.raises(NetworkError):
        gpytorch_kernel(NET, (0, 5, 5))
    with pytest.raises(DataError, match="complex64"):
        kernel(X.to(torch.complex64)).to_dense()
    x, told = X.clone().requires_grad_(), "a gpytorch_kernel has first derivatives only; leave out create_graph=True"
    with pytest.raises(RuntimeError, match=told):
        torch.autograd.grad(kernel(x, Z).to_dense().sum(), x, create_graph=True)
    told = "last_dim_is_batch"
    with pytest.warns(DeprecationWarning, match=told), pytest.raises(DataError, match=told):
        kernel(X.flatten(1), last_dim_is_batch=True).to_dense()


@pytest.mark.parametrize("given", [NET, Kernel(NET, "cpu", "float64", threads=2)], ids=["network", "kernel"])
def test_settings_are_checked_when_the_kernel_is_made(given: Any) -> None:
    for network, options, told in (
        (given, {"dtype": "float16"}, "dtype='float16' is not"),
        (given, {"threads": 0}, "threads=0 is not a positive integer"),
        (given, {"learn": 1}, "learn=1 is not True or False"),
        (Kernel(NET, "cpu", kind="ntk"), {}, "kind='ntk'"),
        (Sequential(Dense(), ReLU()), {}, "ends in a nonlinearity"),
    ):
        with pytest.raises(ValueError, match=told):
            gpytorch_kernel(network, SHAPE, **options)  # type: ignore[arg-type]
    made = gpytorch_kernel(given, SHAPE, threads=np.int64(1))._kernel(X.float(), NET)
    assert (made.threads, made.dtype) == (1, "float64" if isinstance(given, Kernel) else "float32")


@pytest.mark.gpu
def test_numbers_and_gradients_on_a_card_are_those_of_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no card")
    found = []
    for device in ("cpu", "cuda"):
        kernel = gpytorch_kernel(NET, SHAPE).double().to(device)
        x, z = (t.flatten(1).to(device).requires_grad_() for t in (X, Z))
        matrix = kernel(x, z).to_dense()
        assert matrix.device.type == device
        (kernel(x).to_dense().sum() + matrix.sum()).backward()
        assert x.grad is not None
        assert x.grad.device.type == device
        found.append([matrix.detach().cpu(), x.grad.cpu(), z.grad.cpu(), kernel.raw_layers_0_weight_var.grad.cpu()])  # type: ignore[union-attr]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
