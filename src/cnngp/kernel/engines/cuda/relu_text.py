"""ReLU, LeakyReLU and Abs as CUDA text, by hand: the hottest code of all. A table keeps s = √K₁ alone.

With p = √(K₁K₂) and u = 1 − |K|/p,

    R = 2A = max(K, 0) + p·u·√u·g(u)      θ = √u·h(u) for K ≥ 0, π − √u·h(u) for K < 0

where g and h are smooth on [0, 1]. Their polynomials (engines/polynomials.py) are minimax with the weights u√u and √u
that multiply them. Near correlation one the slope has that of a square root, so u is what decides.
"""

from __future__ import annotations

import math

from ..polynomials import CUDA_G_32, CUDA_G_64, CUDA_H_32, CUDA_H_64
from .formula_text import Text, horner, literal


def relu_functions(dtype: str, slopes: bool) -> str:
    g = horner(CUDA_G_32 if dtype == "float" else CUDA_G_64, dtype)
    zero, one = (literal(x, dtype) for x in (0.0, 1.0))
    value = f"""\
// R of a map that cannot be negative: the max(K, 0) is K.
__device__ __forceinline__ real relu_nonneg(real K, real s1, real s2) {{
    const real p = product(s1, s2), u = clamp01(fma(-K, reciprocal(p), {one}));
    const real g = {g};
    return fma(p * u * root(u), g, K);
}}
__device__ __forceinline__ real relu(real K, real s1, real s2) {{
    const real p = product(s1, s2), u = clamp01(fma(-fabs(K), reciprocal(p), {one}));
    const real g = {g};
    return fma(p * u * root(u), g, fmax(K, {zero}));
}}
"""
    return value + (_slopes(dtype) if slopes else "")


def _angle(dtype: str) -> str:
    """θ/π over √u."""
    return horner(tuple(c / math.pi for c in (CUDA_H_32 if dtype == "float" else CUDA_H_64)), dtype)


def _slopes(dtype: str) -> str:
    zero, one = (literal(x, dtype) for x in (0.0, 1.0))
    return f"""\
// (pi - theta) / pi. Beside R the compiler finds that they share u and its root.
__device__ __forceinline__ real relu_nonneg_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-K, reciprocal(product(s1, s2)), {one}));
    return fma(-root(u), {_angle(dtype)}, {one});
}}
__device__ __forceinline__ real relu_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-fabs(K), reciprocal(product(s1, s2)), {one})), t = root(u) * ({_angle(dtype)});
    return K < {zero} ? t : {one} - t;
}}
"""


def relu_back_functions(dtype: str) -> str:
    zero, one, two, over_pi = (literal(x, dtype) for x in (0.0, 1.0, 2.0, 1.0 / math.pi))
    return f"""\
__device__ __forceinline__ Parts relu_back(real K, real s1, real s2) {{
    const real p = product(s1, s2);
    const real u = s1 * s2 > {zero} ? clamp01(fma(-fabs(K), reciprocal(p), {one})) : {zero};
    const real r = root(u), t = r * ({_angle(dtype)}), slope = K < {zero} ? t : {one} - t, sine = r * root({two} - u);
    return {{slope, sine * s2, sine * s1, fma(slope, K, sine * p * {over_pi}), {zero}}};
}}
__device__ __forceinline__ Parts relu_like_back(real K, real s1, real s2, real alpha, real beta) {{
    const Parts b = relu_back(K, s1, s2);
    return {{fma(alpha, b.slope, beta), alpha * b.first, alpha * b.second, b.value, K}};
}}
"""


RELU_STILL = """\
__device__ Still relu_still(double K, double alpha, double beta) {
    return {alpha + beta, K > 0.0 ? 0.15915494309189535 / sqrt(K) : 0.0, K, K};
}
"""

RELU_TEXT = Text(
    planes=1,
    pair="{relu}({K}, {args})",
    entries=("sqrt({K})",),
    diagonal="{K}",
    slope="{relu}_slope({K}, {args})",
    slope_diagonal="1.0",
    back="relu_back({K}, {args})",
    still="relu_still({K}, 1.0, 0.0)",
)
RELU_LIKE_TEXT = Text(
    planes=1,
    pair="fma({alpha}, {relu}({K}, {args}) - {K}, {K})",
    entries=("sqrt({K})",),
    diagonal="{K}",
    slope="fma({alpha}, {relu}_slope({K}, {args}), {beta})",
    slope_diagonal="1.0",
    back="relu_like_back({K}, {args}, {alpha}, {beta})",
    still="relu_still({K}, {alpha}, {beta})",
)
