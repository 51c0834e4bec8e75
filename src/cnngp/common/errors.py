"""Errors about files: one line that says what was found, what was expected and what to do."""

from __future__ import annotations


class DatasetError(ValueError):
    """Data that is missing, broken or not what was asked for."""


class ModelFileError(ValueError):
    """A saved model that cannot be trusted or read."""


class StoreError(ValueError):
    """A store of kernel matrices that cannot be used as asked: of something else, damaged, full or not writable."""


def one_line(error: object) -> str:
    """What an error says, in one line; the name of its kind where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
