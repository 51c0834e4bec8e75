"""Arrays that behave like CuPy's towards NumPy, on the CPU: NumPy's functions do not take them, operators do not mix
them with NumPy's arrays, and they do not become such by themselves. What runs on them does not stumble over that on a
card.
"""

import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.lib.mixins import NDArrayOperatorsMixin


class ndarray(NDArrayOperatorsMixin):
    __module__ = "cupy"
    __hash__ = object.__hash__

    def __init__(self, a: Any) -> None:
        self._a = np.asarray(a)

    def get(self) -> np.ndarray:
        return self._a

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if any(isinstance(a, np.ndarray) and a.ndim for a in (*inputs, *out)):
            raise TypeError(f"{ufunc.__name__} of a CuPy and a NumPy array")
        result = getattr(ufunc, method)(*map(_unwrap, inputs), out=_unwrap(out) or None, **options)
        return out[0] if out else _wrap(result)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} on a CuPy array")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._a, name)
        return _wrapped(value) if callable(value) or isinstance(value, np.ndarray) else value

    def __getitem__(self, key: Any) -> Any:
        return _wrap(self._a[_unwrap(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("a NumPy array was assigned to a CuPy array")
        self._a[_unwrap(key)] = _unwrap(value)

    @property
    def flags(self) -> Any:
        return types.SimpleNamespace(c_contiguous=self._a.flags.c_contiguous)  # CuPy's know of no read-only arrays

    def __len__(self) -> int:
        return len(self._a)

    def __float__(self) -> float:
        return float(self._a)

    def __bool__(self) -> bool:
        return bool(self._a)


def _wrap(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wrap, value))
    return ndarray(value) if isinstance(value, np.ndarray | np.generic) else value


def _unwrap(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_unwrap, value))
    return value._a if isinstance(value, ndarray) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _wrap(value)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _wrap(value(*map(_unwrap, args), **{k: _unwrap(v) for k, v in kwargs.items()}))

    return call


class _Module(types.ModuleType):
    """NumPy's functions on the arrays above."""

    def __init__(self, name: str, source: Any) -> None:
        super().__init__(name)
        self._source = source

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._source, name)
        return value if isinstance(value, type) or not callable(value) else _wrapped(value)


def modules() -> dict[str, types.ModuleType]:
    """What to put into sys.modules in CuPy's place."""
    cupy = _Module("cupy", np)
    cupy.ndarray = ndarray  # type: ignore[attr-defined]
    cupy.linalg = _Module("cupy.linalg", np.linalg)  # type: ignore[attr-defined]
    cupyx, scipy_ = types.ModuleType("cupyx"), types.ModuleType("cupyx.scipy")
    return {
        "cupy": cupy,
        "cupyx": cupyx,
        "cupyx.scipy": scipy_,
        "cupyx.scipy.linalg": _Module("cupyx.scipy.linalg", scipy.linalg),
    }


def install(monkeypatch: pytest.MonkeyPatch, given: Mapping[str, types.ModuleType] | None = None) -> None:
    """Put the modules, by default those above, in CuPy's place until the test ends."""
    for name, module in (modules() if given is None else given).items():
        monkeypatch.setitem(sys.modules, name, module)
