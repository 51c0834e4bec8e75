"""Cache of self-check results: how far a kernel and the float64 reference are apart.

Verdicts are kept in memory and as small files of JSON: in CNNGP_CACHE, in NUMBA_CACHE_DIR, where the compiled code lies
too, or else in the user's cache folder. A place that cannot be written, or a file that is damaged or belongs to another
verdict, costs a new comparison and nothing else. A verdict is known by the network, the shape of the images, the engine
and the code, so none outlives a change of any of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cnngp.common.files import user_cache, write_atomically
from cnngp.network.layers import Network

from .program import Kind


@dataclass(frozen=True)
class Verdict:
    """How far an engine and the float64 reference are apart on two images.

    `error` is max|K − R|/max|R| over the pair and both diagonals, None where the reference is too slow to be asked;
    `bound` is what rounding explains. Where whole images would have taken too long, `crop` is the size that both were
    cropped to.
    """

    error: float | None
    bound: float
    crop: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.error is None:
            return "not compared: the float64 reference would take too long on this network"
        on = "two images" if self.crop is None else f"two images, cropped to {' × '.join(map(str, self.crop))}"
        return f"{self.error:.1e} from the float64 reference on {on}, where rounding explains {self.bound:.0e}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Any) -> Verdict:
        error, bound, crop = data["error"], float(data["bound"]), data["crop"]
        if not math.isfinite(bound) or (error is not None and not math.isfinite(error)):
            raise ValueError(data)
        return cls(error if error is None else float(error), bound, crop if crop is None else tuple(map(int, crop)))


_known: dict[str, Verdict] = {}


def key(network: Network, input_shape: tuple[int, ...], engine: str, kind: Kind = "nngp") -> str:
    """The name of a verdict: a digest of all that it depends on."""
    parts = (network.fingerprint, input_shape, engine, kind, platform.machine(), _processor(), _code())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def remembered(key: str, compare: Callable[[], Verdict | None]) -> Verdict | None:
    """What was found before, by this process or another; or what is found now."""
    if key not in _known:
        # Not there, not whole, not JSON, or a user without a home: it is compared again.
        with suppress(OSError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError):
            data = json.loads((folder() / f"{key}.json").read_text())
            verdict = Verdict.of(data)
            if data["sha256"] == _checksum(key, verdict):
                _known[key] = verdict
    if key not in _known and (found := compare()) is not None:
        _known[key] = found
        with suppress(OSError, RuntimeError):  # a place that cannot be written, or a user without a home
            content = found.as_dict() | {"sha256": _checksum(key, found)}
            write_atomically(folder() / f"{key}.json", json.dumps(content))
    return _known.get(key)


def _checksum(key: str, verdict: Verdict) -> str:
    """Also of the name, so that the file of another verdict is not taken for this one."""
    return hashlib.sha256(json.dumps([key, verdict.as_dict()]).encode()).hexdigest()


def folder() -> Path:
    if os.environ.get("CNNGP_CACHE"):
        return Path(os.environ["CNNGP_CACHE"], "checks")
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"], "cnngp-checks")
    return user_cache() / "checks"


@functools.cache
def _processor() -> str:
    """The kind of processor that code was compiled for."""
    from llvmlite import binding

    return str(binding.get_host_cpu_name())


@functools.cache
def _code() -> str:
    """Changes when a file that numbers depend on does."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted([*here.rglob("*.py"), *here.with_name("network").rglob("*.py")]):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)} ".encode() + content)
    return digest.hexdigest()
