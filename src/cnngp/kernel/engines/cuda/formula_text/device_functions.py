"""CUDA text of the nonlinearities' formulas: the functions that a program needs, and the expressions that call them.

Most are generated from kernel/formulas (formula_writer.py). Two are written by hand here: the families of the ReLU, the
hottest code, and the Hermite series of an Elementwise. For the ReLU a table holds only s = √K₁. With p = √(K₁K₂) and
u = 1 − |K|/p,

    R = 2A = max(K, 0) + p·u·√u·g(u)      θ = √u·h(u) for K ≥ 0, π − √u·h(u) for K < 0

where g and h are smooth on [0, 1]. Their polynomials (engines/polynomials.py) are minimax with the weights u√u and √u
that multiply them. Near correlation one the slope behaves like a square root, so the accuracy of u is decisive.

A series V = Σ_j A_j(s) A_j(s') ρ^k may have any length. A table holds 1/s and the A_j(s), for gradients followed by
s A_j'(s). series/tables.py has the mathematics, and series/packed.py the packed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from cnngp.kernel.formulas import RELU, RELU_LIKE, SERIES, Family, formula
from cnngp.network.layers import Nonlinearity

from ...polynomials import CUDA_G_32, CUDA_G_64, CUDA_H_32, CUDA_H_64
from .formula_writer import Text, function, functions, helper_functions, horner, literal, written

# Hardware primitives of the working precision. A test on a CPU has its own.
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
# The formulas of kernel/formulas/relu.py take 1/s of each image, or equivalently 1/p of one and 1 of the other.
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


# ---- series ----------------------------------------------------------------------------------------------------------

# V = E(x) + rho O(x) with x = rho^2: Horner's rule over the even rows and over the odd ones, for each sum, its
# derivative by x, and the sums with s A_j'(s) of each image. SLOPE and SHARES select the parts that are computed.
SERIES_PAIR = """\
struct Terms { const real* at; long long plane; };
// log2 of the step in power to row j is shifts[-1 - j] of the even rows and shifts[j] of the odd ones.
template <bool SLOPE, bool SHARES>
__device__ Parts series(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
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
            const int step = j + 1 < count ? shifts[parity ? j + 1 : -2 - j] : 0;
            if (step != known) {
                power = x;
                its_slope = 1;
                for (int k = 0; k < step; k++) { its_slope *= 2 * power; power *= power; }
                known = step;
            }
            const long long row = (start + j + 1) * a.plane;
            const real A = a.at[row], B = b.at[row];
            if (SLOPE) slope = fma(slope, power, total * its_slope);
            total = fma(total, power, A * B);
            if (SHARES) first = fma(first, power, a.at[row + behind] * B);
            if (SHARES) second = fma(second, power, A * b.at[row + behind]);
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

# For an image with itself, in float64.
SERIES_OWN = """\
// A packed series at s: the panel that s lies in, its place t there, and s times the derivative of t by s.
struct Panel {
    const double *row, *second;
    int first_odd, width, terms;
    double t, per_s;
    bool power;
    __device__ Panel(double& s, const double* packed)
    {
        const int panels = (int)packed[0], rows = (int)packed[1];
        const double* edges = packed + 7;
        s = fmin(s, edges[panels]);  // what lies beyond is refused, once the peaks are known
        const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
        const double length = edges[p + 1] - edges[p];
        width = (int)packed[2];
        terms = (int)packed[3];
        first_odd = (int)packed[5];
        row = edges + panels + 1 + p * rows * width;
        second = edges + panels + 1 + panels * rows * width + p * terms;
        t = (2.0 * s - edges[p] - edges[p + 1]) / length;
        per_s = 2.0 * s / length;
        power = p == 0 && packed[4] > 0.0;
    }
};
// A Chebyshev sum by Clenshaw's rule, and its derivative.
struct Sum { double value, slope; };
__device__ Sum chebyshev(const double* c, int count, double t)
{
    double b1 = 0.0, b2 = 0.0, d1 = 0.0, d2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double d = 2.0 * b1 + 2.0 * t * d1 - d2, b = c[k] + 2.0 * t * b1 - b2;
        d2 = d1; d1 = d; b2 = b1; b1 = b;
    }
    return {c[0] + t * b1 - b2, b1 + t * d1 - d2};
}
// A_j(s), and s A_j'(s): s times a derivative by s is that by log s.
__device__ Sum series_row(const Panel& here, double s, int j, int even)
{
    const Sum sum = chebyshev(here.row + (j < even ? j : here.first_odd + j - even) * here.width, here.width, here.t);
    const double slope = sum.slope * here.per_s;
    if (here.power) return {s * sum.value, s * (sum.value + slope)};
    return {sum.value, slope};
}
// The terms A_j(s) into a table and, where it has them, s A_j'(s) behind; E[fn(s z)^2] is returned.
__device__ double series_entries(double s, const double* packed, double* row, long long plane, int even, int odd)
{
    const Panel here(s, packed);
    for (int j = 0; j < even + odd; j++) {
        const Sum term = series_row(here, s, j, even);
        row[j * plane] = term.value;
        if (BEHIND) row[(even + odd + j) * plane] = term.slope;
    }
    return (here.power ? s * s : 1.0) * chebyshev(here.second, here.terms, here.t).value;
}
// The sum of k A_j(s)^2.
__device__ double series_variance_slope(double s, const double* packed, int even, int odd, const unsigned char* shifts)
{
    const Panel here(s, packed);
    double total = 0.0;
    int k = 0;
    for (int j = 0; j < even + odd; j++) {
        k = j == even ? 1 : j == 0 ? 0 : k + (2 << shifts[j < even ? -1 - j : j - even]);
        const double A = series_row(here, s, j, even).value;
        total += k * A * A;
    }
    return total;
}
__device__ Still series_still(double K, double unit, const double* packed)
{
    double s = sqrt(unit * K);
    const Panel here(s, packed);
    const Sum sum = chebyshev(here.second, here.terms, here.t);
    const double q = here.power ? s * s : 1.0, half = K > 0.0 ? 0.5 / K : 0.0;  // 1/2K is d log s / dK
    return {half * q * ((here.power ? 2.0 * sum.value : 0.0) + sum.slope * here.per_s), half, q * sum.value, 0.0};
}
"""

# One argument for each image: the start of its numbers, which are `plane` apart. After 1/s come the series' terms,
# which `series_entries` writes.
_SERIES_ARGUMENTS = "({K}, {args}, {even}, {odd}, shifts + {shifts})"
SERIES_TEXT = Text(
    planes=1,
    pair=f"series<false, false>{_SERIES_ARGUMENTS}.value",
    entries=("({K} > 0.0 ? 1.0 / sqrt({K}) : 0.0)",),
    diagonal="series_entries(sqrt({unit} * {K}), panels + op.series, mine + op.whole, op.whole, {even}, {odd})",
    slope=f"series<true, false>{_SERIES_ARGUMENTS}.slope",
    slope_diagonal="({K} > 0.0 ? series_variance_slope(sqrt({unit} * {K}), panels + op.series, {even}, {odd}, "
    "shifts + {shifts}) / {K} : 0.0)",
    parts=f"series<true, true>{_SERIES_ARGUMENTS}",
    still="series_still({K}, {unit}, panels + op.series)",
)


# ---- all of them -----------------------------------------------------------------------------------------------------

_BY_HAND = {RELU: RELU_TEXT, RELU_LIKE: RELU_LIKE_TEXT, SERIES: SERIES_TEXT}
# df/dK, the derivatives by the first and the second variance, and the two numbers for sums (program/reverse.py); for an
# image with itself at one location dV/dK, the factor of the derivative by the variance, and the two numbers.
STRUCTS = """\
struct Parts { real slope, first, second, value, extra; };
struct Still { double slope, factor, value, extra; };
"""


def formulas(dtype: str, layers: Iterable[Nonlinearity], slopes: bool = False, gradients: bool = False) -> str:
    """Device functions of the nonlinearities in float or double; `slopes` adds their slopes, for tangent kernels, and
    `gradients` the functions for gradients.
    """
    families: list[Family] = sorted({formula(layer).family for layer in layers}, key=lambda family: family.name)
    relus = [family for family in families if family in (RELU, RELU_LIKE)]
    others = [family for family in families if family not in _BY_HAND]
    texts = [STRUCTS] if gradients or SERIES in families else []
    texts += [_relu_functions(dtype, slopes)] if relus else []
    texts += [helper_functions(dtype)] if others or (relus and gradients) else []
    texts += [function(family, which, dtype) for family in others for which in functions(family, slopes, gradients)]
    texts += [SERIES_PAIR, SERIES_OWN.replace("BEHIND", str(gradients).lower())] if SERIES in families else []
    if relus and gradients:
        texts += [INVERSE, *(function(family, which, dtype) for family in relus for which in ("parts", "still"))]
    return "".join(texts)


def text_of(layer: Nonlinearity) -> Text:
    family = formula(layer).family
    return _BY_HAND.get(family) or written(family)
