"""The nonlinearities' formulas as CUDA device functions, for one pair of images at one location.

A formula takes K in buffer units and, from each image, the numbers that its table keeps for the location (`entries`);
it is symmetric in the two images to the last bit, so K(x, z) = K(z, x) exactly. `Activation` (program/ops.py) says
what each returns. ReLU, LeakyReLU, Abs and Step use polynomials instead of acos: with p = √(K₁K₂) and u = 1 − |K|/p,

    R = 2A = max(K, 0) + p·u·√u·g(u)      θ = √u·h(u) for K ≥ 0, π − √u·h(u) for K < 0

where g and h are smooth on [0, 1]. Their polynomials (engines/polynomials.py) are minimax with the weights u√u and √u
that multiply them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cnngp.kernel.engines.polynomials import CUDA_G_32, CUDA_G_64, CUDA_H_32, CUDA_H_64
from cnngp.kernel.program import Activation
from cnngp.kernel.program.formulas import Family, formula
from cnngp.network.layers import Nonlinearity

_LOG2_E = 1.0 / math.log(2.0)


def literal(value: float, dtype: str) -> str:
    """A C++ literal of the working precision that keeps every bit of a double."""
    return f"{value!r}f" if dtype == "float" else repr(value)


def horner(coefficients: tuple[float, ...], dtype: str) -> str:
    """A polynomial in u."""
    text = literal(coefficients[-1], dtype)
    for c in coefficients[-2::-1]:
        text = f"fma({text}, u, {literal(c, dtype)})"
    return text


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


def formulas(dtype: str, layers: Iterable[Nonlinearity]) -> str:
    """Device functions of all nonlinearities; the compiler drops those that a network does not use.

    Stores remember the text, so what came later stands in it only where it is used: Rbf.
    """
    g = horner(CUDA_G_32 if dtype == "float" else CUDA_G_64, dtype)
    h = horner(CUDA_H_32 if dtype == "float" else CUDA_H_64, dtype)
    zero, one, half, two, pi = (literal(x, dtype) for x in (0.0, 1.0, 0.5, 2.0, 3.141592653589793))
    quarter, over2pi = (literal(x, dtype) for x in (0.25, 0.15915494309189535))
    return f"""\
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
__device__ __forceinline__ real step(real K, real s1, real s2) {{  // pi - theta
    const real u = clamp01(fma(-fabs(K), reciprocal(product(s1, s2)), {one}));
    const real t = root(u) * ({h}), f = K < {zero} ? t : {pi} - t;
    return s1 * s2 > {zero} ? f : {zero};
}}
__device__ __forceinline__ real arcsine(real K, real a1, real a2) {{  // Erf; a = sqrt(2 unit / (1 + 2 K11))
    return asin(fmin(fmax(K * (a1 * a2), -{one}), {one}));
}}
__device__ __forceinline__ real sine(real K, real h1, real h2) {{  // h = K11 / 2, |K| <= h1 + h2
    const real k = fabs(K), e = exp(fmin(k - (h1 + h2), {zero})) * expm1(-{two} * k);
    return K < {zero} ? {half} * e : -{half} * e;
}}
__device__ __forceinline__ real cosine(real K, real h1, real h2) {{
    const real k = fabs(K);
    return {half} * exp(fmin(k - (h1 + h2), {zero})) * ({one} + exp(-{two} * k));
}}
// s = sqrt(K11), a = 1/sqrt(1 + K11)
__device__ __forceinline__ real gelu(real K, real s1, real s2, real a1, real a2) {{
    const real p = s1 * s2, a = a1 * a2, r = K * a, d1 = a1 * a1, d2 = a2 * a2, k = fabs(K);
    // q^2 = 1 - r^2 = (1 + K11 + K22 + (K11 K22 - K^2)) a^2, with no cancellation
    const real q2 = fma(-d1, d2, d1 + d2) + fmax((p - k) * a, {zero}) * ((p + k) * a);
    const real q = sqrt(q2), arc = asin(fmin(fmax(r, -{one}), {one}));
    return fma({quarter}, K, {over2pi} * fma(K, arc, a * fma(p * p, q2, r * r) / q));
}}
{_rbf(dtype) if any(formula(layer).family is Family.RBF for layer in layers) else ""}"""


def _rbf(dtype: str) -> str:
    """e^(K − h − h') as a power of two: rounding its exponent x moves it by x e^-x in the last place, at most 1/e."""
    return f"""\
__device__ __forceinline__ real rbf(real unit, real K, real h1, real h2) {{  // h = K11 / 2
    return exp2({literal(_LOG2_E, dtype)} * fmin(fma(unit, K, -(h1 + h2)), {literal(0.0, dtype)}));
}}
"""


# Elementwise: V = sum of A_j(s1) A_j(s2) rho^k. series/tables.py has the mathematics; a table keeps 1/s and the A_j.
SERIES_FORMULAS = """\
struct Terms { const real* at; long long plane; };
// Horner's rule in rho^2 over the even rows and over the odd ones; shifts[j] is log2 of the step in power to row j.
__device__ real series_pair(real K, Terms a, Terms b, int even, int odd, const unsigned char* shifts)
{
    const real rho = fmin(fmax(K * (a.at[0] * b.at[0]), (real)-1), (real)1), x = rho * rho;
    real totals[2];
#pragma unroll
    for (int parity = 0; parity < 2; parity++) {
        const int first = parity ? even : 0, count = parity ? odd : even;
        real total = 0, power = x;
        int known = 0;  // power is x^(2^known)
        for (int j = count - 1; j >= 0; j--) {
            const int step = j + 1 < count ? shifts[first + j + 1] : 0;
            if (step != known) {
                power = x;
                for (int k = 0; k < step; k++) power *= power;
                known = step;
            }
            const long long row = (first + j + 1) * a.plane;
            total = fma(total, power, a.at[row] * b.at[row]);
        }
        totals[parity] = total;
    }
    return fma(rho, totals[1], totals[0]);
}
"""

SERIES_DIAGONAL = """\
__device__ double chebyshev(const double* c, int count, double t)
{
    double b1 = 0.0, b2 = 0.0;
    for (int k = count - 1; k > 0; k--) {
        const double b = c[k] + 2.0 * t * b1 - b2;
        b2 = b1;
        b1 = b;
    }
    return c[0] + t * b1 - b2;
}
// The terms A_j(s) into a table row, and E[fn(s z)^2] returned. The series is packed as cpu_series.py says.
__device__ double series_entries(double s, const double* packed, real* row, long long plane, int even, int odd)
{
    const int panels = (int)packed[0], rows = (int)packed[1], width = (int)packed[2], second = (int)packed[3];
    const int first_odd = (int)packed[5];
    const double* edges = packed + 7;
    const double* coefficients = edges + panels + 1;
    s = fmin(s, edges[panels]);  // what lies beyond is refused, once the peaks are known
    const int p = s < edges[1] ? 0 : min(ilogb(s) + 1 - (int)packed[6], panels - 1);
    const double t = (2.0 * s - edges[p] - edges[p + 1]) / (edges[p + 1] - edges[p]);
    const double q = p == 0 && packed[4] > 0.0 ? s : 1.0;
    for (int j = 0; j < even + odd; j++) {
        const int r = j < even ? j : first_odd + j - even;
        row[j * plane] = (real)(q * chebyshev(coefficients + (p * rows + r) * width, width, t));
    }
    return q * q * chebyshev(coefficients + panels * rows * width + p * second, second, t);
}
"""


# The variance recursion, always in float64: V of one image with itself, K in buffer units (see `Activation`).
DIAGONAL_FORMULAS = """\
__device__ double gelu_variance(double K) {
    const double r = K / (1.0 + K), q2 = (1.0 + 2.0 * K) / ((1.0 + K) * (1.0 + K));
    return 0.25 * K + 0.15915494309189535 * (K * asin(r) + (r * r + K * K * q2) / sqrt(1.0 + 2.0 * K));
}
"""


@dataclass(frozen=True)
class _Text:
    """A family's formulas as C++ expressions, with names in braces for what stands there."""

    pair: str
    """f of a pair: {K} in buffer units, {args} the entries of the two images' tables in turn."""
    entries: tuple[str, ...]
    """What a table keeps of the variance {K} (buffer units), one float64 expression a plane."""
    diagonal: str
    """f at X = X', in float64."""
    slope: str
    """f' of a pair."""
    slope_diagonal: str
    """f' at X = X', in float64."""
    takes_unit: bool = False
    """Whether the pair formula needs the true K, and not K in buffer units."""
    peak: str = "{K}"
    """What the range check looks at, the largest over all locations: see `check_range`."""


_TEXTS = {
    Family.RELU: _Text("{relu}({K}, {args})", ("sqrt({K})",), "{K}", "{relu}_slope({K}, {args})", "1.0"),
    Family.RELU_LIKE: _Text(
        "fma({alpha}, {relu}({K}, {args}) - {K}, {K})",
        ("sqrt({K})",),
        "{K}",
        "fma({alpha}, {relu}_slope({K}, {args}), {beta})",
        "1.0",
    ),
    Family.STEP: _Text(
        "step({K}, {args})",
        ("sqrt({K})",),
        "({K} > 0.0 ? 3.141592653589793 : 0.0)",
        "",
        "",
        peak="({K} > 0.0 ? fmax({K}, 1.0 / {K}) : 0.0)",
    ),
    Family.ERF: _Text(
        "arcsine({K}, {args})",
        ("sqrt(2.0 * {unit} / (1.0 + 2.0 * {unit} * {K}))",),
        "asin(2.0 * {unit} * {K} / (1.0 + 2.0 * {unit} * {K}))",
        "arcsine_slope({K}, {args}, {unit})",
        "2.0 * {unit} / sqrt(1.0 + 4.0 * {unit} * {K})",
    ),
    Family.SIN: _Text(
        "sine({unit} * {K}, {args})",
        ("0.5 * {unit} * {K}",),
        "-0.5 * expm1(-2.0 * {unit} * {K})",
        "{unit} * cosine({unit} * {K}, {args})",
        "0.5 * {unit} * (1.0 + exp(-2.0 * {unit} * {K}))",
        takes_unit=True,
    ),
    Family.COS: _Text(
        "cosine({unit} * {K}, {args})",
        ("0.5 * {unit} * {K}",),
        "0.5 * (1.0 + exp(-2.0 * {unit} * {K}))",
        "{unit} * sine({unit} * {K}, {args})",
        "-0.5 * {unit} * expm1(-2.0 * {unit} * {K})",
        takes_unit=True,
    ),
    Family.RBF: _Text(
        "rbf({unit}, {K}, {args})",
        ("0.5 * {unit} * {K}",),
        "1.0",
        "{unit} * rbf({unit}, {K}, {args})",
        "{unit}",
        takes_unit=True,
    ),
    Family.GELU: _Text(
        "gelu({unit} * {K}, {args})",
        ("sqrt({unit} * {K})", "1.0 / sqrt(1.0 + {unit} * {K})"),
        "gelu_variance({unit} * {K})",
        "{unit} * gelu_slope({unit} * {K}, {args})",
        "{unit} * gelu_variance_slope({unit} * {K})",
        takes_unit=True,
    ),
    # One argument for each image: where its numbers begin, `plane` apart. Behind 1/s stand the series' terms, which
    # `series_entries` leaves.
    Family.SERIES: _Text(
        "series_pair({K}, {args}, {even}, {odd}, shifts + {shifts})",
        ("({K} > 0.0 ? 1.0 / sqrt({K}) : 0.0)",),
        "series_entries(sqrt({unit} * {K}), panels + op.series, row + op.offset + op.plane + slot(e, op.width), "
        "op.plane, {even}, {odd})",
        "series_slope({K}, {args}, {even}, {odd}, shifts + {shifts})",
        "({K} > 0.0 ? series_variance_slope(sqrt({unit} * {K}), panels + op.series, {even}, {odd}, shifts + {shifts}) "
        "/ {K} : 0.0)",
    ),
}


@dataclass(frozen=True)
class Constants:
    """The numbers of an activation as C++ expressions: literals, or fields of whatever the code loops over."""

    unit: str
    alpha: str
    beta: str
    even: str = "0"
    odd: str = "0"
    shifts: str = "0"

    @classmethod
    def literals(cls, a: Activation, dtype: str) -> Constants:
        alpha, beta = a.coefficients
        return cls(literal(a.unit, dtype), literal(alpha, dtype), literal(beta, dtype))


def _text(layer: Nonlinearity) -> _Text:
    return _TEXTS[formula(layer).family]


def planes(layer: Nonlinearity, terms: int = 0) -> int:
    """How many numbers a table keeps for each location; `terms` of an Elementwise's series."""
    return len(_text(layer).entries) + terms


def takes_unit(layer: Nonlinearity, slope: bool = False) -> bool:
    """Whether f or, where it is asked for, f' needs to know the unit of K."""
    return _text(layer).takes_unit or (slope and not formula(layer).homogeneous)


def pair_formula(
    layer: Nonlinearity, K: str, c: Constants, first: list[str], second: list[str], nonneg: bool = False
) -> str:
    """f(K) as an expression; `first` and `second` are the two images' table entries, `nonneg` says that K ≥ 0."""
    args = ", ".join(f"{x}, {y}" for x, y in zip(first, second, strict=True))
    return _text(layer).pair.format(K=K, args=args, relu="relu_nonneg" if nonneg else "relu", **vars(c))


def slope_formula(
    layer: Nonlinearity, K: str, c: Constants, first: list[str], second: list[str], nonneg: bool = False
) -> str:
    """f'(K) as an expression, with the same arguments."""
    args = ", ".join(f"{x}, {y}" for x, y in zip(first, second, strict=True))
    return _text(layer).slope.format(K=K, args=args, relu="relu_nonneg" if nonneg else "relu", **vars(c))


def slope_diagonal(layer: Nonlinearity, K: str, c: Constants) -> str:
    """f' at X = X', in float64."""
    return _text(layer).slope_diagonal.format(K=K, **vars(c))


def entries(layer: Nonlinearity, K: str, unit: str) -> list[str]:
    """What a table keeps of the variance K (buffer units), one float64 expression a plane."""
    return [text.format(K=K, unit=unit) for text in _text(layer).entries]


def peak_of(layer: Nonlinearity, K: str) -> str:
    return _text(layer).peak.format(K=K)


def diagonal_formula(layer: Nonlinearity, K: str, c: Constants) -> str:
    """f at X = X', in float64."""
    if formula(layer).homogeneous:
        return K
    return _text(layer).diagonal.format(K=K, **vars(c))


def nonnegative(layer: Nonlinearity, argument_nonnegative: bool) -> bool:
    """Whether V cannot be negative, whatever the images."""
    sign = formula(layer).sign
    return sign == "nonnegative" or (sign == "of K" and argument_nonnegative)
