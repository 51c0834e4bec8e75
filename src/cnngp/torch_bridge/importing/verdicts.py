"""The three things that a PyTorch call can be to the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Call


@dataclass(frozen=True)
class Becomes:
    call: Call


@dataclass(frozen=True)
class Passes:
    """The value goes through unchanged, as far as the kernel is concerned."""

    told: str = "Identity()"
    copies: bool = False


@dataclass(frozen=True)
class No:
    reason: str


Verdict = Becomes | Passes | No
