"""Both kernels of pooled networks against neural-tangents 0.6.5 (Novak et al. 2020), which carries all covariances.

The numbers were written by tools/pooled_by_neural_tangents.py, in float64, with jax 0.10.2 (whose
moved names were put back where neural-tangents looks for them).
"""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Erf, GlobalAvgPool, Identity, Kernel, ReLU, Sequential, Sum
from cnngp.kernel.program import Kind
from cnngp.network import Network, reference

# fmt: off
BY_NEURAL_TANGENTS = {
    "lenet": [
        0.5181027417727688, 0.4926240647711041, 0.47516015407299794,
        0.5148543007481219, 0.4886673082854395, 0.501933655294005,
    ],
    "overlapping": [
        0.6920631379728613, 0.6186503153135707, 0.5880205409038951,
        0.6938491452723963, 0.6244470822749967, 0.6881942262472649,
    ],
    "strided": [
        0.6939694494422376, 0.6525291397093556, 0.6429341741317924,
        0.7116180836958921, 0.655000503248383, 0.699640558669211,
    ],
    "global": [
        0.4254524826668, 0.41540608817595015, 0.41033333924953863,
        0.4206513485888449, 0.4162750836320106, 0.42256022617537115,
    ],
    "residual": [
        1.0958943301264463, 1.072288984578217, 1.0506000163523326,
        1.0845325355089368, 1.0610586883915043, 1.0686394442338274,
    ],
}
TANGENT_BY_NEURAL_TANGENTS = {
    "lenet": [
        0.949209226254534, 0.8230453878783014, 0.7575922131528736,
        0.9399456812006223, 0.817548073915344, 0.9077601665575328,
    ],
    "overlapping": [
        1.5292332297783937, 1.1535619670727688, 1.0243368405827042,
        1.5371430735748972, 1.1810994871662035, 1.5255692553696476,
    ],
    "strided": [
        1.3045475043915917, 1.0388088726737434, 0.9864300059536739,
        1.4070348935476846, 1.05149244857534, 1.3303410129045525,
    ],
    "global": [
        0.8554728695308382, 0.8129828805498811, 0.7878114989560827,
        0.8418236209477199, 0.8186638628438473, 0.8512680130263365,
    ],
    "residual": [
        2.0981425124679047, 1.9201980262954956, 1.8183345795503025,
        2.0725331979813744, 1.904374077945354, 2.0376367988995017,
    ],
}
# fmt: on
"""The upper triangles of both kernels of three images, row by row."""


def conv(size: int, stride: int = 1, padding: str = "same") -> Conv:
    return Conv(size, stride, padding, weight_var=2.0, bias_var=0.1)  # type: ignore[arg-type]


R, D, G = ReLU(), Dense(weight_var=2.0, bias_var=0.1), GlobalAvgPool()
BLOCK = Sum(Identity(), Sequential(R, conv(3)))
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "lenet": (Sequential(conv(3), R, AvgPool(2), conv(3), R, AvgPool(2), D), (1, 8, 8)),
    "overlapping": (Sequential(conv(3), R, AvgPool(3, 2), conv(2, 1, "valid"), R, D), (2, 9, 7)),
    "strided": (Sequential(conv(3, 3, "valid"), R, conv(3), R, AvgPool(2, 1), D), (1, 12, 12)),
    "global": (Sequential(conv(3), R, conv(3), Erf(), G, D), (2, 6, 5)),
    "residual": (Sequential(conv(3), BLOCK, R, AvgPool(2), conv(3), BLOCK, R, G, D), (1, 6, 6)),
}


def images(channels: int, height: int, width: int) -> np.ndarray:
    n, c, i, j = np.ogrid[:3, :channels, :height, :width]
    return np.sin(1.0 + n + (0.7 + 0.3 * n) * i + (1.1 - 0.2 * n) * j * (c + 1))


@pytest.mark.parametrize(("kind", "numbers"), [("nngp", BY_NEURAL_TANGENTS), ("ntk", TANGENT_BY_NEURAL_TANGENTS)])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_rivals_numbers(name: str, kind: Kind, numbers: dict[str, list[float]]) -> None:
    net, shape = NETWORKS[name]
    expected, X, upper = np.array(numbers[name]), images(*shape), np.triu_indices(3)
    # Two float64 programs that round in different places; a slip in the mathematics would be far larger.
    np.testing.assert_allclose(reference.kernel(net, X, kind=kind)[upper], expected, rtol=1e-11)
    double, single = (Kernel(net, device="cpu", dtype=dtype, kind=kind)(X)[upper] for dtype in ("float64", "float32"))
    np.testing.assert_allclose(double, expected, rtol=1e-11)
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-6 * expected.max())
