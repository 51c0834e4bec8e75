"""Cache of self-check results: how far a kernel and the float64 reference are apart.

Verdicts are kept in memory and as small files of JSON: in CNNGP_CACHE, in NUMBA_CACHE_DIR, where the compiled code lies
too, or else in the user's cache folder. A place that cannot be written or a damaged file costs a new comparison and
nothing else. A verdict is known by the network, the shape of the images, the engine and the code, so none outlives a
change of any of them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cnngp.common.files import user_cache, write_atomically
from cnngp.network.layers import Network

from .engines.cpu.machine_code import digest_of, machine_digest
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


_known: dict[str, Verdict] = {}


def key(network: Network, input_shape: tuple[int, ...], engine: str, kind: Kind = "nngp") -> str:
    """The name of a verdict: a digest of all that it depends on."""
    parts = (network.fingerprint, input_shape, engine, kind, machine_digest(), _code())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def remembered(key: str, compare: Callable[[], Verdict | None]) -> Verdict | None:
    """What was found before, by this process or another; or what is found now."""
    if key not in _known:
        # Not there, not whole, not JSON, or a user without a home: it is compared again.
        with suppress(OSError, ValueError, LookupError, TypeError, RuntimeError):
            data = json.loads((folder() / f"{key}.json").read_text())
            crop = data["crop"]
            _known[key] = Verdict(data["error"], data["bound"], None if crop is None else tuple(crop))
    if key not in _known and (found := compare()) is not None:
        _known[key] = found
        with suppress(OSError, RuntimeError):  # a place that cannot be written, or a user without a home
            write_atomically(folder() / f"{key}.json", json.dumps(asdict(found)))
    return _known.get(key)


def folder() -> Path:
    if os.environ.get("CNNGP_CACHE"):
        return Path(os.environ["CNNGP_CACHE"], "checks")
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"], "cnngp-checks")
    return user_cache() / "checks"


@functools.cache
def _code() -> str:
    """Changes when a file that numbers depend on does."""
    room = Path(__file__).parents[1]
    return digest_of(room, [*room.glob("kernel/**/*.py"), *room.glob("network/**/*.py")])
