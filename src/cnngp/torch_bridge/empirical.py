"""Empirical kernel of one finite PyTorch module: its tangent kernel, or the inner products of its outputs.

Gradients are computed for blocks of images that fit in a memory budget, and the matrix is filled tile by tile. Outputs
are processed one after the other, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from cnngp.common.arrays import DataError
from cnngp.gp.linalg import blocks

from .sampling import image_tensor

_BUDGET = {"cpu": 2**29, "cuda": 2**33}
"""Memory budget in bytes for gradients at one time."""
_AT_ONCE = 64
"""Images per call of the module."""

Rows = Callable[[Any, int], Any]
"""(images, index of an output) → one row of numbers for each image; the kernel consists of their inner products."""


def kernel_of(module: Any, X: Any, Z: Any, kind: str, parametrization: str, tile: int | None) -> NDArray[np.float64]:
    """See `cnngp.torch.empirical_kernel`."""
    _check(module, kind, parametrization, tile)
    like = next(module.parameters(), torch.zeros(()))
    x = image_tensor(X, "X", like.dtype, like.device)
    z = x if Z is None else image_tensor(Z, "Z", like.dtype, like.device)
    if x.shape[1:] != z.shape[1:]:
        raise DataError(f"X holds images of shape {tuple(x.shape[1:])} and Z of shape {tuple(z.shape[1:])}")
    try:
        outputs = _outputs(module, x[:1]).shape[1]
    except RuntimeError as error:
        shape = tuple(x.shape[1:])
        raise DataError(f"empirical_kernel: the module does not take images of shape {shape}: {error}") from error
    if kind == "ntk":
        rows, numbers = _gradients(module, parametrization == "ntk")
    else:
        numbers = outputs

        def rows(images: Any, output: int) -> Any:
            return torch.cat([_outputs(module, part) for part in images.split(_AT_ONCE)])

    size = tile or max(1, _BUDGET.get(x.device.type, _BUDGET["cuda"]) // (3 * numbers * x.element_size()))
    K = np.zeros((len(x), len(z)))
    for output in range(outputs if kind == "ntk" else 1):
        for a in blocks(len(x), size):
            left = rows(x[a], output)
            for b in blocks(len(z), size):
                if Z is None and b.start < a.start:
                    continue
                right = left if Z is None and a == b else rows(z[b], output)
                K[a, b] += (left @ right.T).cpu().numpy()
    K /= outputs
    return K if Z is not None else np.triu(K) + np.triu(K, 1).T


def _gradients(module: Any, scaled: bool) -> tuple[Rows, int]:
    """Function for ∂f_o/∂θ over the parameters that require a gradient, and the length of one image's row."""
    learned = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    if not learned:
        raise DataError("empirical_kernel: no parameter of the module requires a gradient")
    # θ = √E[θ²] ω with ω of variance 1, so ∂f/∂ω = √E[θ²] ∂f/∂θ.
    scales = {name: float(p.double().square().mean()) ** 0.5 if scaled else 1.0 for name, p in learned.items()}

    def rows(images: Any, output: int) -> Any:
        def value(parameters: dict[str, Any], x: Any) -> Any:
            return functional_call(module, parameters, (x[None],)).flatten()[output]

        each = vmap(grad(value), in_dims=(None, 0), chunk_size=_AT_ONCE)(learned, images)
        return torch.cat([each[name].detach().flatten(1) * scale for name, scale in scales.items()], dim=1)

    return rows, sum(p.numel() for p in learned.values())


def _outputs(module: Any, images: Any) -> Any:
    with torch.no_grad():
        y = module(images.clone())
    if not isinstance(y, torch.Tensor) or len(y) != len(images):
        told = f"shape {tuple(y.shape)}" if isinstance(y, torch.Tensor) else type(y).__name__
        raise DataError(f"empirical_kernel: of {len(images)} images the module makes {told}, not one row for each")
    return y.flatten(1)


def _check(module: Any, kind: str, parametrization: str, tile: int | None) -> None:
    if not isinstance(module, nn.Module):
        raise DataError(f"empirical_kernel: expected a torch.nn.Module, got {type(module).__name__}")
    if kind not in ("ntk", "nngp"):
        raise ValueError(f"empirical_kernel: kind={kind!r} is not 'ntk' or 'nngp'")
    if parametrization not in ("standard", "ntk"):
        raise ValueError(f"empirical_kernel: parametrization={parametrization!r} is not 'standard' or 'ntk'")
    if tile is not None and tile < 1:
        raise ValueError(f"empirical_kernel: tile={tile} is not a positive number of images")
    for name, part in module.named_modules():
        if part.training and isinstance(part, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd):
            raise DataError(
                f"empirical_kernel: {name or 'the module'} ({type(part).__name__}) is in training mode, where it is "
                "random or mixes images; call module.eval() first"
            )
