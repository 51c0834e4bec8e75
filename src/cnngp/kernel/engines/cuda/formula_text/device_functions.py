"""The nonlinearities' formulas as CUDA text: which functions a program needs, and the expressions that call them.

Most are written from kernel/formulas (formula_writer.py); by hand are series (series_text.py) and, here, the ReLU's
family, the hottest code of all. A table keeps s = √K₁ alone for it. With p = √(K₁K₂) and u = 1 − |K|/p,

    R = 2A = max(K, 0) + p·u·√u·g(u)      θ = √u·h(u) for K ≥ 0, π − √u·h(u) for K < 0

where g and h are smooth on [0, 1]. Their polynomials (engines/polynomials.py) are minimax with the weights u√u and √u
that multiply them. Near correlation one the slope has that of a square root, so u is what decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cnngp.kernel.formulas import RELU, RELU_LIKE, SERIES, Family, formula
from cnngp.network.layers import Nonlinearity

from ...polynomials import CUDA_G_32, CUDA_G_64, CUDA_H_32, CUDA_H_64
from .formula_writer import Text, function, functions, helper_functions, horner, literal, written
from .series_text import SERIES_TEXT, series_functions

# What the working precision needs of the hardware. A test on a CPU brings its own.
PRIMITIVES = {
    "float": """\
typedef float real;
typedef float4 vec;
__device__ __forceinline__ real part(const vec& v, int k) { return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w; }
// One instruction each, good to about one unit in the last place.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float clamp01(float x) { return __saturatef(x); }
// A hair above zero: where a variance is zero K is zero too, and K/p must be 0, not 0/0.
__device__ __forceinline__ float product(float s1, float s2) { return fma(s1, s2, 1e-37f); }
""",
    "double": """\
typedef double real;
typedef double2 vec;
__device__ __forceinline__ real part(const vec& v, int k) { return k == 0 ? v.x : v.y; }
// The hardware seeds 20 bits of the high word; one cubic step leaves rounding error. Far cheaper than IEEE division and
// root. A seed is kept off zero: where p is 0 so is K, and 0 times a large number is 0.
__device__ __forceinline__ double off_zero(double x) { return __hiloint2double(max(__double2hiint(x), 0x00100000), 0); }
__device__ __forceinline__ double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(off_zero(x)));
    const double e = fma(-x, y, 1.0);
    return fma(y, fma(e, e, e), y);
}
__device__ __forceinline__ double root(double x) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(off_zero(x)));
    const double s = x * y, e = fma(-s, y, 1.0);
    return fma(s * e, fma(0.375, e, 0.5), s);
}
// Below zero by rounding only. Above one in lanes outside a map, which must stay finite: a factor of zero removes them.
__device__ __forceinline__ double clamp01(double x) {
    return __hiloint2double(min(__double2hiint(x) & 0x7fffffff, 0x3ff00000), __double2loint(x));
}
__device__ __forceinline__ double product(double s1, double s2) { return s1 * s2; }
""",
}

RELU_TEXT = Text(
    planes=1,
    pair="{relu}({K}, {args})",
    entries=("sqrt({K})",),
    diagonal="{K}",
    slope="{relu}_slope({K}, {args})",
    slope_diagonal="1.0",
    parts="relu_parts({K}, {args}, inverse({args}), 1, {unit}, {alpha}, {beta})",
    still="relu_still({K}, {unit}, {alpha})",
)
RELU_LIKE_TEXT = Text(
    planes=1,
    pair="fma({alpha}, {relu}({K}, {args}) - {K}, {K})",
    entries=("sqrt({K})",),
    diagonal="{K}",
    slope="fma({alpha}, {relu}_slope({K}, {args}), {beta})",
    slope_diagonal="1.0",
    parts="relu_like_parts({K}, {args}, inverse({args}), 1, {unit}, {alpha}, {beta})",
    still="relu_like_still({K}, {unit}, {alpha})",
)
# The formulas of kernel/formulas/relu.py take 1/s of either image, or one of them 1/p and the other 1.
INVERSE = """\
__device__ __forceinline__ real inverse(real s1, real s2) { return s1 * s2 > 0 ? reciprocal(product(s1, s2)) : 0; }
"""


def _relu_functions(dtype: str, slopes: bool) -> str:
    g, h = (CUDA_G_32, CUDA_H_32) if dtype == "float" else (CUDA_G_64, CUDA_H_64)
    zero, one = (literal(x, dtype) for x in (0.0, 1.0))
    value = f"""\
// R of a map that cannot be negative: the max(K, 0) is K.
__device__ __forceinline__ real relu_nonneg(real K, real s1, real s2) {{
    const real p = product(s1, s2), u = clamp01(fma(-K, reciprocal(p), {one}));
    const real g = {horner(g, dtype)};
    return fma(p * u * root(u), g, K);
}}
__device__ __forceinline__ real relu(real K, real s1, real s2) {{
    const real p = product(s1, s2), u = clamp01(fma(-fabs(K), reciprocal(p), {one}));
    const real g = {horner(g, dtype)};
    return fma(p * u * root(u), g, fmax(K, {zero}));
}}
"""
    if not slopes:
        return value
    turn = horner(tuple(c / math.pi for c in h), dtype)  # θ/π over √u
    return f"""{value}\
// (pi - theta) / pi. Beside R the compiler finds that they share u and its root.
__device__ __forceinline__ real relu_nonneg_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-K, reciprocal(product(s1, s2)), {one}));
    return fma(-root(u), {turn}, {one});
}}
__device__ __forceinline__ real relu_slope(real K, real s1, real s2) {{
    const real u = clamp01(fma(-fabs(K), reciprocal(product(s1, s2)), {one})), t = root(u) * ({turn});
    return K < {zero} ? t : {one} - t;
}}
"""


_BY_HAND = {RELU: RELU_TEXT, RELU_LIKE: RELU_LIKE_TEXT, SERIES: SERIES_TEXT}
# df/dK, to the first variance, to the second, and the two numbers that sums are made of (program/reverse.py); of an
# image with itself at one place dV/dK, the factor of what goes to the variance, and the two numbers.
STRUCTS = """\
struct Parts { real slope, first, second, value, extra; };
struct Still { double slope, factor, value, extra; };
"""


def formulas(dtype: str, layers: Iterable[Nonlinearity], slopes: bool = False, gradients: bool = False) -> str:
    """Device functions of the nonlinearities in float or double; with their slopes, for tangent kernels, or with what
    gradients take beside those.
    """
    families: list[Family] = sorted({formula(layer).family for layer in layers}, key=lambda family: family.name)
    relus = [family for family in families if family in (RELU, RELU_LIKE)]
    others = [family for family in families if family not in _BY_HAND]
    texts = [STRUCTS] if gradients or SERIES in families else []
    texts += [_relu_functions(dtype, slopes)] if relus else []
    texts += [helper_functions(dtype)] if others or (relus and gradients) else []
    texts += [function(family, which, dtype) for family in others for which in functions(family, slopes, gradients)]
    texts += [series_functions(gradients)] if SERIES in families else []
    if relus and gradients:
        texts += [INVERSE, *(function(family, which, dtype) for family in relus for which in ("parts", "still"))]
    return "".join(texts)


def text_of(layer: Nonlinearity) -> Text:
    family = formula(layer).family
    return _BY_HAND.get(family) or written(family)


def nonnegative(layer: Nonlinearity, argument_nonnegative: bool) -> bool:
    """Whether V cannot be negative, whatever the images."""
    sign = formula(layer).sign
    return sign == "nonnegative" or (sign == "of K" and argument_nonnegative)
