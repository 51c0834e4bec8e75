"""CUDA text of the formulas of kernel/formulas, made by calling them with symbolic operands that record operations.

A family becomes device functions with its name: `erf_value`, `erf_slope`, `erf_parts` for pairs in the working
precision, and `erf_entry0` …, `erf_diagonal`, `erf_slope_diagonal`, `erf_still`, `erf_peak` for an image with itself,
in float64. They are symmetric in the two images to the last bit, so K(x, z) = K(z, x) exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cnngp.kernel.formulas import Family
from cnngp.kernel.formulas.family import itself
from cnngp.kernel.formulas.primitives import Operand
from cnngp.kernel.program import Activation

from ...polynomials import ACOS_H_32, ASIN_S_32, ASIN_S_64, CUDA_G_32, CUDA_G_64, CUDA_H_64


@dataclass(frozen=True)
class Text:
    """A family's formulas as C++ expressions, with names in braces that `filled` replaces.

    For a pair, with {K} in buffer units and {args} the alternating entries of the two images' tables: `pair` is f,
    `slope` f', and `parts` a `Parts` (device_functions.py). At X = X', in float64: `diagonal` is f, `slope_diagonal`
    f', `still` a `Still`, and `peak` the number that the range check uses. `entries` are the `planes` numbers that a
    table holds for each location, besides a series' terms.
    """

    planes: int
    pair: str
    entries: tuple[str, ...]
    diagonal: str
    slope: str
    slope_diagonal: str
    parts: str
    still: str
    takes_unit: bool = False
    """True if the pair formula needs the unit of K."""
    slope_takes_unit: bool = False
    peak: str = "{K}"


def literals(a: Activation, dtype: str) -> dict[str, str]:
    """Numbers of an activation, by their names in a `Text`."""
    values = a.unit, *a.coefficients
    return {name: literal(x, dtype) for name, x in zip(("unit", "alpha", "beta"), values, strict=True)}


def filled(
    text: str,
    constants: Mapping[str, str],
    K: str = "K",
    first: Sequence[str] = (),
    second: Sequence[str] = (),
    nonneg: bool = False,
) -> str:
    """Fill in an expression of a `Text`, with an activation's numbers as literals or as loop variables.

    `first` and `second` are the two images' table entries; `nonneg` means K ≥ 0.
    """
    args = ", ".join(f"{x}, {y}" for x, y in zip(first, second, strict=True))
    return text.format(K=K, args=args, relu="relu_nonneg" if nonneg else "relu", **constants)


def literal(value: float, dtype: str) -> str:
    """Return a C++ literal of the working precision, with all digits of a double."""
    return f"{value!r}f" if dtype == "float" else repr(value)


def horner(coefficients: tuple[float, ...], dtype: str) -> str:
    """Write a polynomial in u by Horner's rule."""
    text = literal(coefficients[-1], dtype)
    for c in coefficients[-2::-1]:
        text = f"fma({text}, u, {literal(c, dtype)})"
    return text


# Functions of kernel/formulas/primitives.py with another name in CUDA.
_FUNCTIONS = {
    "+": "{} + {}",
    # The compiler would fuse aa + bb and round only one product, which would depend on the order of the images.
    "sum of products": "unfused({}, {})",
    "-": "{} - {}",
    "*": "{} * {}",
    "/": "{} / {}",
    "maximum": "fmax({}, {})",
    "where_less": "({} < {} ? {} : {})",
    "absolute": "fabs({})",
    "positive": "at_least_0({})",
    "negated_fma": "fma(-({}), {}, {})",
    "asin": "arcsine({}, {})",
    "exp_negative": "exp({})",
    "one_minus_exp": "-expm1(-{})",
    "power": "pow({}, {})",
}


class Writer:
    """Collects the statements of one function; `kind` is the type of its numbers, `dtype` that of its literals."""

    def __init__(self, kind: str, dtype: str) -> None:
        self.kind, self.dtype = kind, dtype
        self.names: dict[str, str] = {}
        self.read: dict[str, list[str]] = {}
        """Names that each statement reads."""
        self.products: dict[str, bool] = {}
        """True for each name that is a product."""

    def text(self, x: Any) -> str:
        return x.name if isinstance(x, Written) else literal(float(x), self.dtype)

    def needed(self, results: Sequence[Any]) -> set[str]:
        """Return the names on which results depend."""
        found: set[str] = set()
        open_ends = [self.text(x) for x in results]
        while open_ends:
            name = open_ends.pop()
            if name not in found:
                found.add(name)
                open_ends += self.read.get(name, [])
        return found


class Written(Operand):
    """A number in the function being written, identified by its name."""

    def __init__(self, writer: Writer, name: str) -> None:
        self.writer, self.name = writer, name

    def applied(self, function: str, *args: Any) -> Written:
        writer = self.writer
        texts = [writer.text(x) for x in args]
        if function == "+" and writer.kind == "real" and all(writer.products.get(text, False) for text in texts):
            function = "sum of products"
        form = _FUNCTIONS.get(function, f"{function}({', '.join('{}' for _ in texts)})")
        name = writer.names.setdefault(form.format(*texts), f"v{len(writer.names)}")
        writer.read.setdefault(name, texts)
        writer.products[name] = function == "*"
        return Written(writer, name)


_OF_PAIRS = {"value": "real", "slope": "real", "parts": "Parts"}
"""Formulas for pairs and their return types."""


def _result(family: Family, which: str, dtype: str) -> tuple[Writer, Any]:
    """Record a family's formula; return the writer and the result. `entry0` is the first entry of its table."""
    pairs = which in _OF_PAIRS
    writer = Writer("real", dtype) if pairs else Writer("double", "double")
    names = "K", "unit", "alpha", "beta" if pairs else "SMALLEST"
    K, *numbers = (Written(writer, name) for name in names)
    if pairs:
        a, b = ([Written(writer, f"{image}{p}") for p in range(family.entries)] for image in "ab")
        return writer, getattr(family, which)(K, a, b, family.constants(*numbers))
    if which.startswith("entry"):
        assert family.table is not None
        return writer, family.table(K, tuple(numbers))[int(which.removeprefix("entry"))]
    return writer, getattr(family, which)(K, tuple(numbers))


def function(family: Family, which: str, dtype: str) -> str:
    """Write a family's formula as a device function."""
    writer, result = _result(family, which, dtype)
    arguments = "double K, double unit, double alpha"
    if which in _OF_PAIRS:
        entries = (f"{image}{p}" for p in range(family.entries) for image in "ab")
        arguments = ", ".join(f"real {name}" for name in ("K", *entries, "unit", "alpha", "beta"))
    results = result if isinstance(result, tuple) else (result,)
    needed, returned = writer.needed(results), ", ".join(map(writer.text, results))
    lines = [f"    const {writer.kind} {v} = {value};\n" for value, v in writer.names.items() if v in needed]
    returns = _OF_PAIRS.get(which, "Still" if which == "still" else "double")
    returned = f"{{{returned}}}" if isinstance(result, tuple) else returned
    head = f"__device__ __forceinline__ {returns} {family.name}_{which}({arguments})"
    return f"{head} {{\n{''.join(lines)}    return {returned};\n}}\n"


def functions(family: Family, slopes: bool, gradients: bool) -> list[str]:
    """Names of a family's functions that a program needs."""
    names = ["value", *(f"entry{p}" for p in range(family.entries)), "diagonal"]
    names += ["peak"] * (family.peak is not itself)
    names += ["slope", "slope_diagonal"] * (slopes and family.slope is not None)
    return names + ["parts", "still"] * gradients


@cache
def written(family: Family) -> Text:
    """Return the `Text` that calls a family's functions."""
    name, own = family.name, "({K}, {unit}, {alpha})"
    pair = "({K}, {args}, {unit}, {alpha}, {beta})"

    def reads_unit(which: str) -> bool:
        writer, result = _result(family, which, "double")
        return "unit" in writer.needed((result,))

    return Text(
        planes=family.entries,
        pair=f"{name}_value{pair}",
        entries=tuple(f"{name}_entry{p}{own}" for p in range(family.entries)),
        diagonal=f"{name}_diagonal{own}",
        slope=f"{name}_slope{pair}",
        slope_diagonal=f"{name}_slope_diagonal{own}",
        parts=f"{name}_parts{pair}",
        still=f"{name}_still{own}",
        takes_unit=reads_unit("value"),
        slope_takes_unit=family.slope is not None and reads_unit("slope"),
        peak="{K}" if family.peak is itself else f"{name}_peak{own}",
    )


def helper_functions(dtype: str) -> str:
    """Write the functions that formulas call; acos(1 - u) and asin are polynomials, as on a CPU."""
    turn = horner(ACOS_H_32 if dtype == "float" else CUDA_H_64, dtype)
    near = horner(ASIN_S_32 if dtype == "float" else ASIN_S_64, dtype)
    g = horner(CUDA_G_32 if dtype == "float" else CUDA_G_64, dtype)
    zero, half, right = (literal(x, dtype) for x in (0.0, 0.5, 1.5707963267948966))
    return f"""\
// Below this a standard deviation counts as 0.
#define SMALLEST (sizeof(::real) == 4 ? {2.0**-62!r} : {2.0**-510!r})
__device__ __forceinline__ real unfused(real x, real y) {{ return __{"f" if dtype == "float" else "d"}add_rn(x, y); }}
__device__ __forceinline__ real at_least_0(real x) {{ return fmax(x, {zero}); }}
__device__ __forceinline__ real turn(real u) {{ return sqrt(u) * ({turn}); }}
__device__ __forceinline__ real relu_g(real u) {{ return {g}; }}
// asin(x), given u = 1 - |x|
__device__ __forceinline__ real arcsine(real x, real rest) {{
    const real u = x * x, near = fabs(x) * ({near});
    return copysign(fabs(x) < {half} ? near : {right} - turn(rest), x);
}}
"""
