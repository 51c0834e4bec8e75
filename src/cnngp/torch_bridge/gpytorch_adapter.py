"""`gpytorch_kernel`: a network's kernel in GPyTorch models, with the network's variances as parameters.

Gradients flow back to the variances and to the images, such as learned inducing points.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from cnngp.common.arrays import DataError
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network
from cnngp.network.placed import shape_table

from . import need_gpytorch

gpytorch: Any = need_gpytorch("gpytorch_kernel")

_KEPT = 2
"""Number of matrices in the cache: with fixed variances, training needs the same one at every step."""


class NetworkKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """Kernel k(x, x') of an infinitely wide network on flat rows (…, N, C·H·W).

    With `learn`, the parameters are logarithms, such as `raw_layers_0_weight_var`, of every positive variance, slope of
    a LeakyReLU and gamma of an Rbf; a variance of 0 has no logarithm and stays 0.
    """

    has_lengthscale = False

    def __init__(
        self,
        network: Network | Kernel,
        input_shape: Sequence[int] | None,
        dtype: str | None,
        threads: int | None,
        learn: bool,
    ) -> None:
        super().__init__()
        if not isinstance(learn, bool):
            raise ValueError(f"gpytorch_kernel: learn={learn!r} is not True or False")
        if isinstance(network, Kernel):
            if network.kind != "nngp":
                raise ValueError(
                    f"gpytorch_kernel needs the kernel of a Gaussian process, kind='nngp'; got kind={network.kind!r}"
                )
            dtype = network.dtype if dtype is None else dtype
            threads = network.threads if threads is None else threads
            network = network.network
        # An invalid network, precision or number of threads raises here, not when training begins.
        Kernel(network, "cpu", "float32" if dtype is None else dtype, threads)
        self._given, self._computing_dtype, self._threads = network, dtype, threads
        self.input_shape = None if input_shape is None else tuple(input_shape)
        if input_shape is not None:
            shape_table(network, input_shape)
        self._raw: dict[str, str] = {}  # parameter of the network → name of its logarithm
        self._first: dict[str, float] = {}  # initial logarithms: while unchanged, the exact given value is used
        for name, value in network.parameters().items() if learn else ():
            if value > 0.0 and not name.endswith("gain"):  # the weights after a gain have the same effect
                raw = self._raw[name] = "raw_" + re.sub(r"\W+", "_", name)
                self.register_parameter(raw, torch.nn.Parameter(torch.tensor([math.log(value)])))
                self.register_constraint(raw, gpytorch.constraints.Positive(torch.exp, torch.log))
                self._first[name] = getattr(self, raw).item()
        self._dtype_seen: Any = None
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self._remembered: list[tuple[Any, Any, Network, Any]] = []

    def _value(self, name: str) -> Any:
        """A parameter of the network as a one-element tensor with a gradient."""
        raw = self._raw[name]
        return getattr(self, f"{raw}_constraint").transform(getattr(self, raw))

    @property
    def network(self) -> Network:
        """The plain network with the current variances."""
        changed = [name for name, raw in self._raw.items() if getattr(self, raw).item() != self._first[name]]
        values = {name: self._value(name).item() for name in changed}
        return self._given.with_parameters(values) if changed else self._given

    @property
    def dtype(self) -> Any:
        return self._dtype_seen or torch.get_default_dtype()

    def __call__(self, x1: Any, x2: Any = None, diag: bool = False, **params: Any) -> Any:
        flat1 = self._flat(x1)
        self._dtype_seen = flat1.dtype
        return super().__call__(flat1, None if x2 is None else self._flat(x2), diag=diag, **params)

    def forward(self, x1: Any, x2: Any, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Any:
        if last_dim_is_batch:
            raise DataError("last_dim_is_batch=True would split an image into pixels; a network sees whole images")
        compute = self._diagonal if diag else self._matrix
        if x1.ndim == 2 and x2.ndim == 2:
            return compute(x1, x2)
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        each1, each2 = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (x1, x2))
        stacked = torch.stack([compute(a, b) for a, b in zip(each1, each2, strict=True)])
        return stacked.reshape(*batch, *stacked.shape[1:])

    def _matrix(self, x1: Any, x2: Any) -> Any:
        """K, differentiable with respect to the variances and the images if a gradient is needed."""
        network = self.network
        kernel, X, Z = self._kernel(x1, network), self._images(x1), None if _equal(x1, x2) else self._images(x2)
        known = (K for a, b, of, K in self._remembered if of == network and _equal(a, x1) and _equal(b, x2))
        K = next(known, None)
        if K is None:
            K = kernel(X, Z, output="torch", progress=False).to(dtype=x1.dtype, device=x1.device)
            self._remembered = [(x1.detach().clone(), x2.detach().clone(), network, K), *self._remembered][:_KEPT]
        if not self._wants_gradients(x1, x2):
            return K
        theta = torch.cat(list(map(self._value, self._raw))) if self._raw else None
        return _Differentiable.apply(theta, x1, x2, K, kernel, tuple(self._raw), X, Z)

    def _wants_gradients(self, *images: Any) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (*self.parameters(), *images))

    def _diagonal(self, x1: Any, x2: Any) -> Any:
        """k(x1_i, x2_i): from the variance recursion if the inputs are equal, else the diagonals of small blocks."""
        if _equal(x1, x2) and not self._wants_gradients(x1, x2):
            d = self._kernel(x1, self.network).diag(self._images(x1))
            return torch.as_tensor(d, dtype=x1.dtype, device=x1.device)
        first = x1.split(32)
        second = first if x1 is x2 else x2.split(32)
        return torch.cat([self._matrix(a, b).diagonal() for a, b in zip(first, second, strict=True)])

    def _kernel(self, x: Any, network: Network) -> Kernel:
        dtype = self._computing_dtype or ("float64" if x.dtype == torch.float64 else "float32")
        key: Any = (network, "cuda" if x.is_cuda else "cpu", dtype, self._threads)
        if key not in self._kernels:
            # Training changes the network at every step: the self-check runs only for the given one.
            self._kernels = {k: v for k, v in self._kernels.items() if k[0] == self._given}
            self._kernels[key] = Kernel(*key, check=network == self._given)  # type: ignore[misc]
        return self._kernels[key]

    def _flat(self, x: Any) -> Any:
        """(N, C, H, W) → (N, C·H·W); flat rows stay as they are. Integers, such as bytes, become floats."""
        if not x.is_floating_point() and not x.is_complex():
            x = x.to(torch.get_default_dtype())
        if self.input_shape is None:
            if x.ndim < 2:
                raise DataError(f"x has shape {tuple(x.shape)}; expected (N, C, H, W), or flat rows with input_shape=")
            self.input_shape = tuple(map(int, x.shape[1:]))
        if x.ndim == 1 + len(self.input_shape) and tuple(x.shape[1:]) == self.input_shape:
            return x.flatten(1)
        if x.ndim < 2 or x.shape[-1] != math.prod(self.input_shape):
            raise DataError(
                f"x has shape {tuple(x.shape)}; expected rows of {math.prod(self.input_shape)} numbers, or (N, "
                f"{', '.join(map(str, self.input_shape))})"
            )
        return x

    def _images(self, x: Any) -> Any:
        return x.detach().reshape(len(x), *self.input_shape or ())


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    """K as a function of the variances θ and two sets of images: backward turns ∂L/∂K into gradients of these."""

    @staticmethod
    def forward(
        ctx: Any, theta: Any, x1: Any, x2: Any, K: Any, kernel: Kernel, names: tuple[str, ...], X: Any, Z: Any
    ) -> Any:
        ctx.given, ctx.kernel, ctx.names, ctx.images, ctx.same = (theta, x1, x2), kernel, names, (X, Z), x1 is x2
        return K.clone()

    @staticmethod
    def backward(ctx: Any, G: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph=True: the second derivatives would be 0
            raise RuntimeError("a gpytorch_kernel has first derivatives only; leave out create_graph=True")
        weights, (X, Z) = G.detach().to("cpu", torch.float64).numpy(), ctx.images
        found: list[Any] = [None, None, None]
        if ctx.needs_input_grad[0]:
            slopes = ctx.kernel.gradient(X, Z, weights, progress=False)
            found[0] = [slopes[name] for name in ctx.names]
        if any(ctx.needs_input_grad[1:3]):  # two different tensors with equal values get one gradient each
            other = Z if Z is not None or ctx.same else X
            of_images = ctx.kernel.gradient(X, other, weights, wrt="images", progress=False)
            found[1:] = of_images if other is not None else (of_images, None)
        back = (
            torch.tensor(g, dtype=of.dtype, device=of.device).reshape(of.shape) if asked and g is not None else None
            for g, of, asked in zip(found, ctx.given, ctx.needs_input_grad, strict=False)
        )
        return *back, None, None, None, None, None


def _equal(a: Any, b: Any) -> bool:
    alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return a is b or (alike and bool(torch.equal(a, b)))
