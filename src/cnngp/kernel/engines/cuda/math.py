"""The nonlinearities' formulas as CUDA text: which functions a program needs, and the expressions that call them.

A formula takes K in buffer units and, from each image, the numbers that its table keeps for the location (`entries`).
Most are written from kernel/formulas (formula_writer.py); by hand are the ReLU's family (relu_text.py) and series
(series_text.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cnngp.kernel.formulas import RELU, RELU_LIKE, SERIES, Family, formula
from cnngp.kernel.program import Activation
from cnngp.network.layers import Nonlinearity

from . import series_text as series
from .formula_text import Text, literal
from .formula_writer import back_functions, family_functions, helper_functions, still_functions, written
from .relu_text import RELU_LIKE_TEXT, RELU_STILL, RELU_TEXT, relu_back_functions, relu_functions

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


_BY_HAND = {RELU: RELU_TEXT, RELU_LIKE: RELU_LIKE_TEXT, SERIES: series.SERIES_TEXT}


def _families(layers: Iterable[Nonlinearity]) -> list[Family]:
    return sorted({formula(layer).family for layer in layers}, key=lambda family: family.name)


def formulas(dtype: str, layers: Iterable[Nonlinearity], slopes: bool = False) -> str:
    """Device functions of the nonlinearities in float or double; their slopes too, for tangent kernels."""
    families = _families(layers)
    relu = relu_functions(dtype, slopes) if {RELU, RELU_LIKE} & set(families) else ""
    others = [family_functions(f, dtype, slopes) for f in families if f not in _BY_HAND]
    sums = series.series_functions(slopes) if SERIES in families else ""
    return relu + (helper_functions(dtype) if others else "") + "".join(others) + sums


PARTS = """\
// df/dK, to the first variance, to the second, and the two numbers that sums are made of (program/reverse.py)
struct Parts { real slope, first, second, value, extra; };
"""
STILL = """\
// dV/dK, the factor of what goes to the variance, and the two numbers
struct Still { double slope, factor, value, extra; };
"""


def back_formulas(dtype: str, layers: Iterable[Nonlinearity]) -> str:
    """The device functions of gradients for pairs, beside those of `formulas`."""
    families = _families(layers)
    relu = relu_back_functions(dtype) if {RELU, RELU_LIKE} & set(families) else ""
    others = "".join(back_functions(f, dtype) for f in families if f not in _BY_HAND)
    return PARTS + relu + others + (series.BACK if SERIES in families else "")


def still_formulas(layers: Iterable[Nonlinearity]) -> str:
    """Those for an image with itself at one place, in float64."""
    families = _families(layers)
    relu = RELU_STILL if {RELU, RELU_LIKE} & set(families) else ""
    others = "".join(still_functions(f) for f in families if f not in _BY_HAND)
    return STILL + relu + others + (series.STILL if SERIES in families else "")


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


def _text(layer: Nonlinearity) -> Text:
    family = formula(layer).family
    return _BY_HAND.get(family) or written(family)


def planes(layer: Nonlinearity, terms: int = 0) -> int:
    """How many numbers a table keeps for each location; `terms` of an Elementwise's series."""
    return _text(layer).planes + terms


def takes_unit(layer: Nonlinearity, slope: bool = False) -> bool:
    """Whether f or, where it is asked for, f' needs to know the unit of K."""
    return _text(layer).takes_unit or (slope and _text(layer).slope_takes_unit)


def _called(text: str, K: str, c: Constants, first: list[str], second: list[str], nonneg: bool) -> str:
    args = ", ".join(f"{x}, {y}" for x, y in zip(first, second, strict=True))
    return text.format(K=K, args=args, relu="relu_nonneg" if nonneg else "relu", **vars(c))


def pair_formula(
    layer: Nonlinearity, K: str, c: Constants, first: list[str], second: list[str], nonneg: bool = False
) -> str:
    """f(K) as an expression; `first` and `second` are the two images' table entries, `nonneg` says that K ≥ 0."""
    return _called(_text(layer).pair, K, c, first, second, nonneg)


def slope_formula(
    layer: Nonlinearity, K: str, c: Constants, first: list[str], second: list[str], nonneg: bool = False
) -> str:
    """f'(K) as an expression, with the same arguments."""
    return _called(_text(layer).slope, K, c, first, second, nonneg)


def slope_diagonal(layer: Nonlinearity, K: str, c: Constants) -> str:
    """f' at X = X', in float64."""
    return _text(layer).slope_diagonal.format(K=K, **vars(c))


def entries(layer: Nonlinearity, K: str, c: Constants) -> list[str]:
    """What a table keeps of the variance K (buffer units), one float64 expression a plane."""
    return [text.format(K=K, **vars(c)) for text in _text(layer).entries]


def peak_of(layer: Nonlinearity, K: str, c: Constants) -> str:
    """What the range check looks at."""
    return _text(layer).peak.format(K=K, **vars(c))


def diagonal_formula(layer: Nonlinearity, K: str, c: Constants) -> str:
    """f at X = X', in float64."""
    return _text(layer).diagonal.format(K=K, **vars(c))


def pair_back(layer: Nonlinearity, c: Constants, tables: list[str], plane: str) -> str:
    """`Parts` of K as an expression; the numbers of the two images begin at `tables`, and are `plane` apart."""
    if formula(layer).family is SERIES:
        args = ", ".join(f"Terms{{{t}, {plane}}}" for t in tables)
    else:
        args = ", ".join(f"({t})[{p} * {plane}]" for p in range(planes(layer)) for t in tables)
    return _text(layer).back.format(K="K", args=args, **vars(c))


def still_back(layer: Nonlinearity, c: Constants) -> str:
    """`Still` of the variance K as an expression."""
    return _text(layer).still.format(K="K", **vars(c))


def nonnegative(layer: Nonlinearity, argument_nonnegative: bool) -> bool:
    """Whether V cannot be negative, whatever the images."""
    sign = formula(layer).sign
    return sign == "nonnegative" or (sign == "of K" and argument_nonnegative)
