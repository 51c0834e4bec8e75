"""Experiments at a size for tests: digits with a validation part, and the cells of a table."""

from typing import Any

from cnngp import datasets


def digits_in_three(train: int, validation: int, test: int) -> datasets.Dataset:
    d, end = datasets.digits(), train + validation
    return datasets.Dataset(
        *("digits", d.X[:train], d.y[:train], d.X_test[:test], d.y_test[:test], d.X[train:end], d.y[train:end])
    )


def cell(found: Any, result: str, quantity: str) -> Any:
    """The row of a result and a quantity."""
    return next(r for r in found["rows"] if r["result"] == result and r["quantity"] == quantity)
