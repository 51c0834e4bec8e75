"""`gpytorch_kernel`: a network's kernel inside GPyTorch's models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from cnngp.common.arrays import DataError
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network
from cnngp.network.shapes import check_input_shape
from cnngp.network.table import shape_table

from . import need_gpytorch

gpytorch: Any = need_gpytorch("gpytorch_kernel")

_KEPT = 2
"""How many matrices are remembered: training asks for the same one at every step."""


class NetworkKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """k(x, x') of an infinitely wide network on flat rows (…, N, C·H·W). It has no parameters and no gradient."""

    has_lengthscale = False

    def __init__(self, network: Network, input_shape: Sequence[int] | None, dtype: str | None, threads: int | None):
        super().__init__()
        self.network = network
        self.input_shape: tuple[int, ...] | None = None
        if input_shape is not None:
            check_input_shape(tuple(input_shape))
            shape_table(network, tuple(input_shape))
            self.input_shape = tuple(input_shape)
        self._computing_dtype = dtype
        self._threads = threads
        self._dtype_seen: Any = None
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._remembered: list[tuple[Any, Any, Any]] = []

    @property
    def dtype(self) -> Any:
        return self._dtype_seen or torch.get_default_dtype()

    def __call__(self, x1: Any, x2: Any = None, diag: bool = False, **params: Any) -> Any:
        self._dtype_seen = x1.dtype
        flat1 = self._flat(x1)
        return super().__call__(flat1, None if x2 is None else self._flat(x2), diag=diag, **params)

    def forward(self, x1: Any, x2: Any, diag: bool = False, last_dim_is_batch: bool = False, **params: Any) -> Any:
        if last_dim_is_batch:
            raise DataError("last_dim_is_batch=True would split an image into pixels; a network sees whole images")
        if torch.is_grad_enabled() and (x1.requires_grad or x2.requires_grad):
            raise NotImplementedError(
                "the kernel of a network has no gradient with respect to the images yet; keep inducing points fixed "
                "(learn_inducing_locations=False) or detach the images"
            )
        compute = self._diagonal if diag else self._matrix
        if x1.ndim == 2 and x2.ndim == 2:
            return compute(x1, x2)
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        each1, each2 = (x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (x1, x2))
        stacked = torch.stack([compute(a, b) for a, b in zip(each1, each2, strict=True)])
        return stacked.reshape(*batch, *stacked.shape[1:])

    def _matrix(self, x1: Any, x2: Any) -> Any:
        same = x1.shape == x2.shape and torch.equal(x1, x2)
        for a, b, K in self._remembered:
            if a.dtype == x1.dtype and a.device == x1.device and _equal(a, x1) and _equal(b, x2):
                return K
        kernel = self._kernel(x1)
        images = self._images(x1)
        K = (
            kernel(images, output="torch", progress=False)
            if same
            else kernel(images, self._images(x2), output="torch", progress=False)
        )
        K = K.to(dtype=x1.dtype, device=x1.device)
        self._remembered = [(x1.detach().clone(), x2.detach().clone(), K), *self._remembered][:_KEPT]
        return K

    def _diagonal(self, x1: Any, x2: Any) -> Any:
        """k(x1_i, x2_i), from the variances alone where the two are the same."""
        kernel = self._kernel(x1)
        if torch.equal(x1, x2):
            return torch.as_tensor(kernel.diag(self._images(x1)), dtype=x1.dtype, device=x1.device)
        rows = []
        for a, b in zip(x1.split(32), x2.split(32), strict=True):  # small blocks, of which the diagonal is kept
            block = kernel(self._images(a), self._images(b), output="torch", progress=False)
            rows.append(block.diagonal().to(dtype=x1.dtype, device=x1.device))
        return torch.cat(rows)

    def _kernel(self, x: Any) -> Kernel:
        device = "cuda" if x.is_cuda else "cpu"
        dtype = self._computing_dtype or ("float64" if x.dtype == torch.float64 else "float32")
        if (device, dtype) not in self._kernels:
            self._kernels[device, dtype] = Kernel(self.network, device, dtype, self._threads)  # type: ignore[arg-type]
        return self._kernels[device, dtype]

    def _flat(self, x: Any) -> Any:
        """(N, C, H, W) → (N, C·H·W); flat rows stay as they are."""
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
        assert self.input_shape is not None
        return x.detach().reshape(len(x), *self.input_shape)


def _equal(a: Any, b: Any) -> bool:
    return a is b or (a.shape == b.shape and bool(torch.equal(a, b)))


def make_kernel(
    network: Network | Kernel, input_shape: Sequence[int] | None, dtype: str | None, threads: int | None
) -> Any:
    if isinstance(network, Kernel):
        dtype = network.dtype if dtype is None else dtype
        threads = network.threads if threads is None else threads
        network = network.network
    # What is no Gaussian process, no precision or no number of threads is refused here, not at the first training step.
    Kernel(network, "cpu", "float32" if dtype is None else dtype, threads)
    return NetworkKernel(network, input_shape, dtype, threads)
