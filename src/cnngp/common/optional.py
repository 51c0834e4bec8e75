"""Lazy imports: optional packages, each with the extra that installs it, and the names of the package's own modules."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# For each module, its name in messages and the extra of cnngp that installs it.
_PACKAGES = {
    "cupy": ("CuPy", "cuda"),
    "distributed": ("dask.distributed", "dask"),
    "gpytorch": ("GPyTorch", "torch"),
    "matplotlib": ("matplotlib", "plots"),
    "optuna": ("Optuna", "search"),
    "pooch": ("pooch", "data"),
    "torch": ("PyTorch", "torch"),
}


def need(module: str, what: str, error: type[Exception] = ImportError) -> Any:
    """Import a module, or raise `error` with what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise error(f"{what} needs {_PACKAGES[package][0]}: {install_command(package)}") from None


def install_command(package: str) -> str:
    """Return the command that installs an optional package.

    >>> install_command("optuna")
    'pip install "cnngp[search]"'
    """
    return f'pip install "cnngp[{_PACKAGES[package][1]}]"'


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from the imports in the stub next to `__init__.py`.

    The stub has lines such as `from .network import Conv as Conv`, which type checkers read too; a name may be a
    module. Names imported from the package itself, its own modules, are found but are not in `__all__`.
    """
    where: dict[str, str] = {}
    for statement in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            where |= {alias.name: f"{package}.{statement.module or ''}".rstrip(".") for alias in statement.names}

    def getattr_(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = where[name]
        is_module = home == package or not hasattr(importlib.import_module(home), name)
        value: Any = importlib.import_module(f"{home}.{name}") if is_module else getattr(sys.modules[home], name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_, lambda: sorted(where), [name for name, home in where.items() if home != package]
