"""Numbers and polynomials as C++, and what the CUDA text of a family of nonlinearities consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnngp.kernel.program import Activation


@dataclass(frozen=True)
class Text:
    """A family's formulas as C++ expressions, with names in braces for what `filled` puts there."""

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
    parts: str
    """`Parts` of a pair: f', what goes to either variance, and the two numbers that a gradient's sums are made of."""
    still: str
    """`Still` at X = X', in float64: df/dK, the factor of what goes to the variance, and the two numbers."""
    takes_unit: bool = False
    """Whether the pair formula needs the unit of K."""
    slope_takes_unit: bool = False
    peak: str = "{K}"
    """What the range check looks at, the largest over all locations: see `check_range`."""


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
        return cls(*(literal(x, dtype) for x in (a.unit, *a.coefficients)))


def filled(
    text: str, c: Constants, K: str = "K", first: Sequence[str] = (), second: Sequence[str] = (), nonneg: bool = False
) -> str:
    """An expression of a `Text`; `first` and `second` are the two images' table entries, `nonneg` says that K ≥ 0."""
    args = ", ".join(f"{x}, {y}" for x, y in zip(first, second, strict=True))
    return text.format(K=K, args=args, relu="relu_nonneg" if nonneg else "relu", **vars(c))


def literal(value: float, dtype: str) -> str:
    """A C++ literal of the working precision that keeps every bit of a double."""
    return f"{value!r}f" if dtype == "float" else repr(value)


def horner(coefficients: tuple[float, ...], dtype: str) -> str:
    """A polynomial in u."""
    text = literal(coefficients[-1], dtype)
    for c in coefficients[-2::-1]:
        text = f"fma({text}, u, {literal(c, dtype)})"
    return text
