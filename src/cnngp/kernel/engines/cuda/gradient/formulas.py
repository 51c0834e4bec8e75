"""The way back through each nonlinearity as CUDA device functions: what goes to K and to the two images' variances.

For pairs `Parts` has ∂f/∂K and what goes to the variances, without the factors that depend on one image alone; those
come with `Still`, once an image, where an image meets itself at one place:

    RELU       ∂R/∂K = (π − θ)/π,           ∂R/∂K₁ = sin θ · s'            · (1/s)/2π
    ERF        aa'/√(1 − x²), x = Kaa',     x/√(1 − x²)                    · −a²/2
    SIN, COS   unit · (cos, sin),           f                              · −unit/2
    RBF        unit · f,                    f                              · −unit/2
    GELU       as below,                    q k'(k + 2a) − (x²/q)(…)       · unit · a²/4π
    SERIES     (1/ss') ∂V/∂ρ,               Σ_j s A_j'(s) A_j(s') ρ^k − ρ ∂V/∂ρ     · 1/2K₁

The numbers from tables are those of math.py; of a series s A_j'(s) stand behind the A_j(s). Where a variance is 0 the
two images count as equal (network/adjoint.py says why).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cnngp.kernel.engines.polynomials import CUDA_H_32, CUDA_H_64
from cnngp.kernel.program.formulas import Family, formula
from cnngp.network.layers import Elementwise, Nonlinearity

from ..math import Constants, horner, literal, planes


def back_formulas(dtype: str, families: set[Family]) -> str:
    """The device functions for pairs, beside those of math.py."""
    h = horner(tuple(c / math.pi for c in (CUDA_H_32 if dtype == "float" else CUDA_H_64)), dtype)
    zero, one, two, four, half, quarter = (literal(x, dtype) for x in (0.0, 1.0, 2.0, 4.0, 0.5, 0.25))
    over_pi, over_2pi = (literal(x, dtype) for x in (1.0 / math.pi, 0.5 / math.pi))
    texts = [
        f"""\
// df/dK, to the first variance, to the second, and the two numbers that sums are made of (program/reverse.py)
struct Parts {{ real slope, first, second, value, extra; }};
__device__ __forceinline__ Parts relu_back(real K, real s1, real s2) {{
    const real p = product(s1, s2);
    const real u = s1 * s2 > {zero} ? clamp01(fma(-fabs(K), reciprocal(p), {one})) : {zero};
    const real r = root(u), t = r * ({h}), slope = K < {zero} ? t : {one} - t, sine = r * root({two} - u);
    return {{slope, sine * s2, sine * s1, fma(slope, K, sine * p * {over_pi}), {zero}}};
}}
__device__ __forceinline__ Parts relu_like_back(real K, real s1, real s2, real alpha, real beta) {{
    const Parts b = relu_back(K, s1, s2);
    return {{fma(alpha, b.slope, beta), alpha * b.first, alpha * b.second, b.value, K}};
}}
// 1 - x^2 is at least d1 + d2 - d1 d2 with d = 1 / (1 + 2 K11) = a^2 / (2 unit), because |K| <= sqrt(K11 K22)
__device__ __forceinline__ Parts arcsine_back(real K, real a1, real a2, real unit) {{
    const real a = a1 * a2, x = fmin(fmax(K * a, -{one}), {one}), k = fabs(x), over = {half} / unit;
    const real d1 = a1 * a1 * over, d2 = a2 * a2 * over;
    const real q = sqrt(fmax(({one} - k) * ({one} + k), fma(-d1, d2, d1 + d2)));
    return {{a / q, x / q, x / q, asin(x), {zero}}};
}}
__device__ __forceinline__ Parts sine_back(real K, real h1, real h2, real unit) {{
    const real f = sine(unit * K, h1, h2);
    return {{unit * cosine(unit * K, h1, h2), f, f, f, {zero}}};
}}
__device__ __forceinline__ Parts cosine_back(real K, real h1, real h2, real unit) {{
    const real f = cosine(unit * K, h1, h2);
    return {{unit * sine(unit * K, h1, h2), f, f, f, {zero}}};
}}
// s = sqrt(K11), a = 1/sqrt(1 + K11)
__device__ __forceinline__ Parts gelu_back(real K, real s1, real s2, real a1, real a2, real unit) {{
    const real true_K = unit * K, p = s1 * s2, a = a1 * a2, x = true_K * a, d1 = a1 * a1, d2 = a2 * a2;
    const real k = fabs(true_K);
    const real q = sqrt(fma(-d1, d2, d1 + d2) + fmax((p - k) * a, {zero}) * ((p + k) * a));
    const real k1 = s1 * s1 * a1, k2 = s2 * s2 * a2, arc = asin(fmin(fmax(x, -{one}), {one}));
    const real ratio = x / q, square = ratio * ratio;
    const real slope = fma({over_2pi}, fma(ratio, fma(d1 * d2, {one} + square, d1 + d2), arc), {quarter});
    const real common = x * ratio * fma(a, {four} + square, fma(k1, a2, k2 * a1));
    const real value = fma({quarter}, true_K, {over_2pi} * fma(true_K, arc, fma(k1 * k2, q, x * ratio * a)));
    return {{unit * slope, fma(q * k2, fma({two}, a1, k1), -common), fma(q * k1, fma({two}, a2, k2), -common), value,
             {zero}}};
}}
"""
    ]
    if Family.RBF in families:
        texts.append(f"""\
__device__ __forceinline__ Parts rbf_back(real K, real h1, real h2, real unit) {{
    const real f = rbf(unit, K, h1, h2), x = fmin(fma(unit, K, -(h1 + h2)), {zero});
    return {{unit * f, f, f, f, f * x}};
}}
""")
    if Family.SERIES in families:
        texts.append(_SERIES)
    return "".join(texts)


# V = E(x) + rho O(x) with x = rho^2: of each the sum, its derivative by x, and the sums with s A_j'(s) of either image.
_SERIES = """\
__device__ Parts series_back(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
{
    const real r = a.at[0] * b.at[0], rho = fmin(fmax(K * r, (real)-1), (real)1), x = rho * rho;
    const long long behind = (long long)(even + odd) * a.plane;
    real totals[2], slopes[2], firsts[2], seconds[2];
#pragma unroll
    for (int parity = 0; parity < 2; parity++) {
        const int start = parity ? even : 0, count = parity ? odd : even;
        real total = 0, slope = 0, first = 0, second = 0, power = x, its_slope = 1;
        int known = 0;  // power is x^(2^known)
        for (int j = count - 1; j >= 0; j--) {
            const int step = j + 1 < count ? shifts[start + j + 1] : 0;
            if (step != known) {
                power = x;
                its_slope = 1;
                for (int k = 0; k < step; k++) { its_slope *= 2 * power; power *= power; }
                known = step;
            }
            const long long row = (start + j + 1) * a.plane;
            const real A = a.at[row], B = b.at[row];
            slope = fma(slope, power, total * its_slope);
            total = fma(total, power, A * B);
            first = fma(first, power, a.at[row + behind] * B);
            second = fma(second, power, A * b.at[row + behind]);
        }
        totals[parity] = total;
        slopes[parity] = slope;
        firsts[parity] = first;
        seconds[parity] = second;
    }
    const real by_rho = fma(2 * rho, fma(slopes[1], rho, slopes[0]), totals[1]), turned = rho * by_rho;
    return {r * by_rho, fma(rho, firsts[1], firsts[0]) - turned, fma(rho, seconds[1], seconds[0]) - turned,
            fma(rho, totals[1], totals[0]), (real)0};
}
"""

# In float64, of an image with itself at one place: dV/dK, what the shares of its variance are multiplied with, and the
# two numbers that sums are made of.
STILL_FORMULAS = """\
struct Still { double slope, factor, value, extra; };
__device__ Still relu_still(double K, double alpha, double beta) {
    return {alpha + beta, K > 0.0 ? 0.15915494309189535 / sqrt(K) : 0.0, K, K};
}
__device__ Still arcsine_still(double K, double unit) {
    const double t = 2.0 * unit * K, r = sqrt(1.0 + 2.0 * t);
    return {2.0 * unit / ((1.0 + t) * r), -unit / (1.0 + t), atan2(t, r), 0.0};
}
__device__ Still sine_still(double K, double unit) {
    return {unit * exp(-2.0 * unit * K), -0.5 * unit, -0.5 * expm1(-2.0 * unit * K), 0.0};
}
__device__ Still cosine_still(double K, double unit) {
    const double e = exp(-2.0 * unit * K);
    return {-unit * e, -0.5 * unit, 0.5 + 0.5 * e, 0.0};
}
__device__ Still rbf_still(double unit) { return {0.0, -0.5 * unit, 1.0, 0.0}; }
__device__ Still gelu_still(double K, double unit) {
    const double over_2pi = 0.15915494309189535, k = unit * K, r = sqrt(1.0 + 2.0 * k);
    const double d = 1.0 / (1.0 + k), x = k * d, q = r * d, angle = atan2(k, r), ratio = x / q;
    const double by_covariance = 0.25 + over_2pi * (angle + ratio * d * (2.0 + d + d * ratio * ratio));
    const double inner = q * x * (2.0 + k) - ratio * x * d * (4.0 + 2.0 * k + ratio * ratio);
    return {unit * (by_covariance + over_2pi * inner * d), 0.5 * over_2pi * unit * d,
            0.25 * k + over_2pi * (k * angle + x * x * d / q + k * x * q), 0.0};
}
"""

# The series is packed as series/packed.py says; s times a derivative by s is that by log s.
SERIES_STILL_FORMULAS = """\
struct Panel { int p; double t, per_s; bool power; };
__device__ Panel panel_of(double s, const double* packed)
{
    const int panels = (int)packed[0];
    const double* edges = packed + 7;
    s = fmin(s, edges[panels]);
    const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
    const double width = edges[p + 1] - edges[p];
    return {p, (2.0 * s - edges[p] - edges[p + 1]) / width, 2.0 * s / width, p == 0 && packed[4] > 0.0};
}
// A Chebyshev sum by Clenshaw's rule, and its derivative.
__device__ void chebyshev_both(const double* c, int count, double t, double& value, double& slope)
{
    double b1 = 0.0, b2 = 0.0, d1 = 0.0, d2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double d = 2.0 * b1 + 2.0 * t * d1 - d2, b = c[k] + 2.0 * t * b1 - b2;
        d2 = d1; d1 = d; b2 = b1; b1 = b;
    }
    value = c[0] + t * b1 - b2;
    slope = b1 + t * d1 - d2;
}
// s A_j'(s) into a table, behind the A_j(s).
__device__ double series_behind(double s, const double* packed, double* row, long long plane, int even, int odd)
{
    const int rows = (int)packed[1], width = (int)packed[2], first_odd = (int)packed[5];
    const double* coefficients = packed + 7 + (int)packed[0] + 1;
    const Panel here = panel_of(s, packed);
    for (int j = 0; j < even + odd; j++) {
        const int r = j < even ? j : first_odd + j - even;
        double value, slope;
        chebyshev_both(coefficients + (here.p * rows + r) * width, width, here.t, value, slope);
        row[j * plane] = here.power ? s * (value + slope * here.per_s) : slope * here.per_s;
    }
    return 0.0;
}
__device__ Still series_still(double K, double unit, const double* packed)
{
    const int panels = (int)packed[0], rows = (int)packed[1], width = (int)packed[2], second = (int)packed[3];
    const double s = sqrt(unit * K);
    const Panel here = panel_of(s, packed);
    double value, slope;
    chebyshev_both(packed + 7 + panels + 1 + panels * rows * width + here.p * second, second, here.t, value, slope);
    const double q = here.power ? s * s : 1.0, half = K > 0.0 ? 0.5 / K : 0.0;  // 1/2K is d log s / dK
    return {half * q * ((here.power ? 2.0 * value : 0.0) + slope * here.per_s), half, q * value, 0.0};
}
"""


@dataclass(frozen=True)
class _Text:
    pair: str
    still: str


_TEXTS = {
    Family.RELU: _Text("relu_back({K}, {args})", "relu_still({K}, 1.0, 0.0)"),
    Family.RELU_LIKE: _Text("relu_like_back({K}, {args}, {alpha}, {beta})", "relu_still({K}, {alpha}, {beta})"),
    Family.ERF: _Text("arcsine_back({K}, {args}, {unit})", "arcsine_still({K}, {unit})"),
    Family.SIN: _Text("sine_back({K}, {args}, {unit})", "sine_still({K}, {unit})"),
    Family.COS: _Text("cosine_back({K}, {args}, {unit})", "cosine_still({K}, {unit})"),
    Family.RBF: _Text("rbf_back({K}, {args}, {unit})", "rbf_still({unit})"),
    Family.GELU: _Text("gelu_back({K}, {args}, {unit})", "gelu_still({K}, {unit})"),
    Family.SERIES: _Text(
        "series_back({K}, {args}, {even}, {odd}, shifts + {shifts})", "series_still({K}, {unit}, panels + op.series)"
    ),
}


def pair_back(layer: Nonlinearity, c: Constants, tables: Sequence[str], plane: str) -> str:
    """`Parts` of K as an expression; the numbers of the two images begin at `tables`, and are `plane` apart."""
    if isinstance(layer, Elementwise):
        args = ", ".join(f"Terms{{{t}, {plane}}}" for t in tables)
    else:
        args = ", ".join(f"({t})[{p} * {plane}]" for p in range(planes(layer)) for t in tables)
    return _TEXTS[formula(layer).family].pair.format(K="K", args=args, **vars(c))


def still_back(layer: Nonlinearity, c: Constants) -> str:
    """`Still` of the variance K as an expression."""
    return _TEXTS[formula(layer).family].still.format(K="K", **vars(c))
