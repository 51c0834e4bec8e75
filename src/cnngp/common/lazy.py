"""Packages whose names load when first used: the stub beside `__init__.py` is the one list of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the imports in its stub.

    A stub has lines such as `from .network import Conv as Conv`, which type checkers read too; a name may be a module.
    """
    where: dict[str, str] = {}
    for statement in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.level:
            where |= {alias.name: "." * statement.level + (statement.module or "") for alias in statement.names}

    def getattr_(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        relative = where[name]
        module = importlib.import_module(relative, package) if relative != "." else sys.modules[package]
        if relative == "." or not hasattr(module, name):
            value: Any = importlib.import_module(f"{relative.rstrip('.')}.{name}", package)
        else:
            value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_, lambda: sorted(where), list(where)
