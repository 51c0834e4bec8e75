"""Numbers and polynomials as C++, and the CUDA text of a nonlinearity's formulas, by hand or from kernel/formulas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A family's formulas as C++ expressions, with names in braces for what stands there."""

    planes: int
    """How many numbers a table keeps for each location, beside a series' terms."""
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
    back: str
    """`Parts` of a pair: f', what goes to either variance, and the two numbers that a gradient's sums are made of."""
    still: str
    """`Still` at X = X', in float64: df/dK, the factor of what goes to the variance, and the two numbers."""
    takes_unit: bool = False
    """Whether the pair formula needs the unit of K."""
    slope_takes_unit: bool = False
    peak: str = "{K}"
    """What the range check looks at, the largest over all locations: see `check_range`."""


def literal(value: float, dtype: str) -> str:
    """A C++ literal of the working precision that keeps every bit of a double."""
    return f"{value!r}f" if dtype == "float" else repr(value)


def horner(coefficients: tuple[float, ...], dtype: str) -> str:
    """A polynomial in u."""
    text = literal(coefficients[-1], dtype)
    for c in coefficients[-2::-1]:
        text = f"fma({text}, u, {literal(c, dtype)})"
    return text
