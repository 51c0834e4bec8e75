"""Optional packages, imported when first needed: the one place that knows which extra installs each of them."""

from __future__ import annotations

import importlib
from typing import Any

# Each module with its name in a sentence and the extra of cnngp that installs it.
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
    """The module, or one line that says what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise error(f"{what} needs {_PACKAGES[package][0]}: {install_command(package)}") from None


def install_command(package: str) -> str:
    """
    >>> install_command("optuna")
    'pip install "cnngp[search]"'
    """
    return f'pip install "cnngp[{_PACKAGES[package][1]}]"'
