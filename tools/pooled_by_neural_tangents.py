"""Print the numbers of tests/network/test_reference.py: pooled tangent kernels by neural-tangents 0.6.5, in float64.

    python tools/pooled_by_neural_tangents.py        # needs neural-tangents==0.6.5 jax==0.5.3, but not cnngp

The images come from a formula, so that both programs have the same ones without a random number generator.
"""

import json

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from neural_tangents import stax  # noqa: E402


def images(channels: int, height: int, width: int) -> np.ndarray:
    """Images (3, height, width, channels): waves of three frequencies. The test has the same, channels first."""
    n, c, i, j = np.ogrid[:3, :channels, :height, :width]
    return np.moveaxis(np.sin(1.0 + n + (0.7 + 0.3 * n) * i + (1.1 - 0.2 * n) * j * (c + 1)), 1, -1)


def conv(size: int, stride: int = 1, padding: str = "SAME"):
    return stax.Conv(1, (size, size), (stride, stride), padding=padding, W_std=2**0.5, b_std=0.1**0.5)


def pool(size: int, stride: int):
    return stax.AvgPool((size, size), (stride, stride), padding="VALID")


def dense():
    return stax.Dense(1, W_std=2**0.5, b_std=0.1**0.5)


def head():
    return stax.serial(stax.Flatten(), dense())


block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), stax.serial(stax.Relu(), conv(3))), stax.FanInSum())
NETWORKS = {
    "lenet": (stax.serial(conv(3), stax.Relu(), pool(2, 2), conv(3), stax.Relu(), pool(2, 2), head()), (1, 8, 8)),
    "overlapping": (stax.serial(conv(3), stax.Relu(), pool(3, 2), conv(2, 1, "VALID"), stax.Relu(), head()), (2, 9, 7)),
    "strided": (stax.serial(conv(3, 3, "VALID"), stax.Relu(), conv(3), stax.Relu(), pool(2, 1), head()), (1, 12, 12)),
    "global": (stax.serial(conv(3), stax.Relu(), conv(3), stax.Erf(), stax.GlobalAvgPool(), dense()), (2, 6, 5)),
    "residual": (
        stax.serial(
            conv(3), block, stax.Relu(), pool(2, 2), conv(3), block, stax.Relu(), stax.GlobalAvgPool(), dense()
        ),
        (1, 6, 6),
    ),
}

if __name__ == "__main__":
    found = {}
    for name, ((_, _, kernel), shape) in NETWORKS.items():
        found[name] = np.asarray(kernel(images(*shape), None, "ntk"))[np.triu_indices(3)].tolist()
    print(json.dumps(found, indent=1))
