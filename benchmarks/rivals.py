"""The same kernels in PyTorch, as a careful user would write them, for comparison in benchmarks.

Plain tensor code over blocks of pairs, for any network of convolutions, ReLUs, sums and dense layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from cnngp import Conv, Dense, Identity, ReLU, Sequential, Sum
from cnngp.network import Network

Maps = tuple[Any, Any, Any]  # K(X, Z) (n·m, 1, H, W), K(X, X) (n, 1, H, W), K(Z, Z) (m, 1, H, W)


def torch_kernel(net: Network, x: Any, z: Any) -> Any:
    """Kernel (n, m) of images (n, C, H, W) and (m, C, H, W)."""
    n, m = len(x), len(z)
    xz = (x[:, None] * z[None]).mean(2).reshape(n * m, 1, *x.shape[2:])
    maps = ((xz), (x * x).mean(1, keepdim=True), (z * z).mean(1, keepdim=True))
    return _propagate(net, maps, n, m)[0].reshape(n, m)


def _propagate(net: Network, v: Maps, n: int, m: int) -> Maps:
    match net:
        case Sequential():
            for layer in net.layers:
                v = _propagate(layer, v, n, m)
            return v
        case Sum():
            branches = [_propagate(b, v, n, m) for b in net.branches]
            return tuple(sum(parts[1:], parts[0]) for parts in zip(*branches, strict=True))  # type: ignore[return-value]
        case Identity():
            return v
        case ReLU():
            return _relu(net, v, n, m)
        case Dense():
            return tuple(net.bias_var + net.weight_var * a.mean((2, 3), keepdim=True) for a in v)  # type: ignore[return-value]
        case Conv():
            k, s = net.kernel_size, net.stride
            assert isinstance(k, int)
            assert isinstance(s, int)
            assert net.padding == "same"
            scale = net.weight_var * (1 if net.fan_in == "patch" else k * k)
            before = (k - 1) // 2
            pad = (before, k - 1 - before) * 2
            return tuple(  # type: ignore[return-value]
                net.bias_var + scale * F.avg_pool2d(F.pad(a, pad) if k > 1 else a, k, s) for a in v
            )
        case _:
            raise ValueError(f"no rival for {net!r}")


def _relu(net: ReLU, v: Maps, n: int, m: int) -> Maps:
    xz, xx, zz = v
    h, w = xz.shape[-2:]
    p = (xx.reshape(n, 1, h, w) * zz.reshape(1, m, h, w)).sqrt().clamp_(min=1e-30).reshape(n * m, 1, h, w)
    c = (xz / p).clamp_(-1.0, 1.0)
    theta = torch.acos(c)
    g = net.gain**2
    return p * ((1.0 - c * c).sqrt() + (math.pi - theta) * c) * (g / (2.0 * math.pi)), xx * (g / 2), zz * (g / 2)
