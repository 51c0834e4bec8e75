"""Self-checks of kernels on the user's own images: an engine against the float64 reference, and a GPU's gradient
against the CPU's.

Two images are compared at the first use of each network, image shape and engine; the certificate of a fit makes the
same comparison (`compare`).

An engine's error is up to `documented_bound`: 1e-6 in float32 and 1e-12 in float64. Some networks amplify
rounding: Step and the ReLU's slope behave like a square root at correlation one, Erf and tanh become steep as the
variance grows, Sin and Cos take its exponential. If an error is larger, the amplification is measured: the reference
runs again with every covariance K(x, z) made smaller by a unit in the last place after every layer, the worst
direction. With pools, which add covariances of both signs, it runs a third time with all of them shifted down, because
such a sum may be smaller than the rounding of its terms. The largest of these is the bound. An engine is wrong if its
error is a hundred times larger.

A GPU's gradient is compared with the CPU's in float64. Its error is up to 1e-5 in float32 and 1e-10 in float64,
relative to each derivative, or for a small one to a thousandth of the largest. Some derivatives are less accurate, such
as those by a bias of 0 where two patches have correlation one; the error of the CPU's own float32 gradient shows by how
much. Effects of rounding scale at worst with the square root of the unit in the last place, which gives the bound for
float64.

Verdicts are cached as small JSON files in CNNGP_CACHE, or else in the user's cache folder, keyed by the network, the
shape of the images, the engine and the code.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.files import user_cache, write_atomically
from cnngp.network import reference
from cnngp.network.functions import breakpoints
from cnngp.network.layers import AvgPool, Elementwise, GlobalAvgPool, Network, NetworkError, Nonlinearity, as_layer
from cnngp.network.placed import placed
from cnngp.network.walk import leaves

from .engines.base import Engine, Gradient, GradientEngine, RangeError
from .engines.cpu.machine_code import digest_of, machine_digest
from .program import Kind

Array = NDArray[np.float64]

FAR = 100.0
"""An error of this many times the bound is wrong."""
SIDES = (math.inf, 48, 32, 16, 8, 4, 3, 2, 1)
"""Sides to which the images may be cropped."""
TIMES = 16
"""Largest number of locations, in multiples of the affordable one, for a network that needs larger images."""
LOOKED_AT = 64
"""The two images compared are chosen among this many."""

_DOCUMENTED, _DOCUMENTED_GRADIENT = {4: 1e-6, 8: 1e-12}, {4: 1e-5, 8: 1e-10}
# The reference rounds correlations too: by one unit each in two roots, their product and the quotient.
_OWN_ROUNDING = 4 * float(np.finfo(np.float64).eps)
# From this many nonlinearities and pools on, the bound grows with their number.
_DEEP = 150
# Accuracy of the reference's quadrature for an Elementwise: with a known kink, with a jump of the slope that the
# tangent kernel needs, and for a bare function, which may have either.
_WITH_KINK, _WITH_JUMP, _BARE = 1e-5, 3e-3, 1e-3
# ∂L/∂K of two images: all positive, so that little cancels, and all different.
_WEIGHTS = np.array([[1.0, 0.75], [0.5, 1.25]])


class WrongKernelError(RuntimeError):
    """Error for an engine whose result differs from the reference by far more than rounding explains.

    >>> from cnngp import Dense, Kernel, WrongKernelError
    >>> try:
    ...     K = Kernel(Dense(), device="cpu")([[1.0, 2.0]])
    ... except WrongKernelError as error:
    ...     print("please report this:", error)
    """


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison between an engine and the float64 reference.

    `error` is max|K − R|/max|R| over pairs and diagonal, None if the reference is too slow to run; `bound` is the error
    that rounding explains. If whole images would have taken too long, `crop` is the size to which they were cropped.
    """

    error: float | None
    bound: float
    crop: tuple[int, ...] | None = None

    @property
    def is_wrong(self) -> bool:
        return self.error is not None and not self.error <= FAR * self.bound  # NaN is wrong too

    def __str__(self) -> str:
        if self.error is None:
            return "not compared: the float64 reference would take too long on this network"
        on = "two images" if self.crop is None else f"two images, cropped to {' × '.join(map(str, self.crop))}"
        return f"{self.error:.1e} from the float64 reference on {on}, where rounding explains {self.bound:.0e}"


def remembered(network: Network, known_by: tuple[Any, ...], compare: Callable[[], Verdict | None]) -> Verdict | None:
    """Return the cached verdict for a network and the other keys `known_by`, or compare now and cache the result.

    A damaged file or a folder that cannot be written only costs a new comparison.
    """
    key = hashlib.sha256(repr((network.fingerprint, *known_by, machine_digest(), _code())).encode()).hexdigest()
    with suppress(OSError, ValueError, LookupError, TypeError, RuntimeError):
        data = json.loads((folder() / f"{key}.json").read_text())
        return Verdict(data["error"], data["bound"], None if data["crop"] is None else tuple(data["crop"]))
    found = compare()
    if found is not None:
        with suppress(OSError, RuntimeError):  # a folder that cannot be written, or a user without a home
            write_atomically(folder() / f"{key}.json", json.dumps(asdict(found)))
    return found


def folder() -> Path:
    return Path(os.environ.get("CNNGP_CACHE") or user_cache()) / "checks"


@functools.cache
def _code() -> str:
    """Digest of the source files on which the numbers depend."""
    room = Path(__file__).parents[1]
    return digest_of(room, [*room.glob("kernel/**/*.py"), *room.glob("network/**/*.py")])


def documented_bound(network: Network, dtype: np.dtype[Any], kind: Kind = "nngp") -> float:
    """Bound of max|K − R|/max|R| for networks that do not amplify rounding, such as ReLU networks."""
    layers = [layer for _, layer in leaves(as_layer(network))]
    depth = sum(isinstance(layer, Nonlinearity | AvgPool | GlobalAvgPool) for layer in layers)
    bound = _DOCUMENTED[dtype.itemsize] * max(1.0, depth / _DEEP)
    for layer in layers:
        if isinstance(layer, Elementwise):
            kinked = _WITH_KINK if kind == "nngp" else _WITH_JUMP
            rough = 0.0 if isinstance(layer.fn, str) and not breakpoints(layer.fn) else kinked
            bound = max(bound, rough if isinstance(layer.fn, str) else max(_BARE, kinked))
    return bound


def compare(network: Network, X: Any, K: Any, dtype: np.dtype[Any], kind: Kind = "nngp") -> Verdict | None:
    """Compare K (n, n) of that kind, computed in `dtype`, with the reference on the images X (n, C, …).

    Returns None if the reference is zero or beyond float64, so that there is nothing to compare with. The amplification
    of rounding is measured only if the error is beyond the documented bound.
    """
    with np.errstate(all="ignore"):
        R = _reference(network, X, kind)
        scale = float(np.abs(R).max())
        if not 0.0 < scale < math.inf or not np.isfinite(R).all():
            return None
        error = float(np.abs(np.asarray(K, np.float64) - R).max()) / scale
        bound = documented_bound(network, dtype, kind)
        if error <= bound:  # more need not be explained
            return Verdict(error, bound)
        loss = max(float(np.finfo(dtype).eps), _OWN_ROUNDING)
        ways: list[Rounding] = [lambda K: K * (1.0 - loss)]
        if reference.has_pools(as_layer(network)):
            ways.append(lambda K: K - loss * np.abs(K))
        moved = [float(np.abs(_reference(network, X, kind, way) - R).max()) / scale for way in ways]
    return Verdict(error, max(bound, *moved))


Rounding = Callable[[Array], Array]


def _reference(network: Network, X: Any, kind: Kind, rounding: Rounding = np.asarray) -> Array:
    """Reference kernel matrix of the images, with `rounding` applied to K(x, z) and Θ(x, z) around every layer."""
    layer = as_layer(network)
    x = to_numpy(X).astype(np.float64)
    first, second = (x[:1], x[1:]) if len(x) == 2 else (x, x)

    def rounded(maps: reference.Maps) -> reference.Maps:
        return maps.map(lambda V: _rounded(V, rounding))

    end = reference.propagate(layer, rounded(reference.begin(layer, first, second, kind)), rounded)
    V = end.K if end.theta is None else end.theta
    if len(x) == 2:  # one covariance and two variances, a third of the work
        K12, K11, K22 = (float(v.item()) for v in (V.xz, V.xx, V.zz))
        return np.array([[K11, K12], [K12, K22]])
    R = V.xz.reshape(len(x), len(x))
    np.fill_diagonal(R, V.xx.ravel())
    return R


def _rounded(V: reference.Covariances, rounding: Rounding) -> reference.Covariances:
    """Round K(x, z); with pools also the covariances between two locations of one image, because many of them have
    correlation one, such as those between blank locations with a bias.
    """
    if not V.full:
        return replace(V, xz=rounding(V.xz))

    def own(K: Array) -> Array:
        places = np.ogrid[tuple(map(slice, K.shape[2 : 2 + V.axes]))]
        equal: Any = (slice(None), slice(None), *places, *places)
        moved = rounding(K)
        moved[equal] = K[equal]
        return moved

    return replace(V, xz=rounding(V.xz), xx=own(V.xx), zz=own(V.zz))


def check(
    network: Network,
    dtype: np.dtype[Any],
    engine_for: Callable[[tuple[int, ...]], Engine],
    to_engine: Callable[[Any], Any],
    images: Any,
    kind: Kind = "nngp",
) -> Verdict | None:
    """Compare an engine with the reference on two of these images, (N, C, …); raise `WrongKernelError` if it is wrong.

    `to_engine` converts images to the engine's form. Returns None if these images allow no comparison: blank ones, or
    images out of range, which the caller reports for all of them.
    """
    pair = two_of(to_numpy(images[:LOOKED_AT]))
    shape = _affordable(network, pair.shape[1:])
    if shape is None:
        return Verdict(None, documented_bound(network, dtype, kind))
    pair = _cropped(pair, shape)
    engine = engine_for(shape)
    try:
        x = to_engine(pair)
        K = engine.symmetric(x.reshape(*x.shape[:2], -1))
    except (RangeError, NetworkError):
        return None
    found = compare(network, pair, K, dtype, kind)
    if found is None:
        return None
    if found.is_wrong:
        R = _reference(network, pair, kind)
        worst = np.unravel_index(np.nanargmax(np.where(np.isnan(K), np.inf, np.abs(K - R))), R.shape)
        raise WrongKernelError(
            f"the engine {engine.identity} computes this network wrongly on images of shape {shape}: it gives "
            f"{float(K[worst]):.6g} where the float64 reference gives {R[worst]:.6g}, {found.error:.1g} of the largest "
            f"entry apart where rounding explains {found.bound:.0e}. {_report(network)} Another device or dtype may be "
            "right; Kernel(…, check=False) turns this check off"
        )
    return replace(found, crop=None if shape == tuple(images.shape[1:]) else shape[1:])


def two_of(images: NDArray[Any]) -> NDArray[Any]:
    """Return the two images with the most nonzero pixels; a single image is paired with its mirror image."""
    if len(images) == 1:
        return np.concatenate([images, images[..., ::-1]])
    shown = np.count_nonzero(images.reshape(len(images), -1), axis=1)
    return images[np.argsort(-shown, kind="stable")[:2]]


def _cropped(images: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Crop the centre of the images."""
    middle = (slice((n - m) // 2, (n - m) // 2 + m) for n, m in zip(images.shape[2:], shape[1:], strict=True))
    return np.ascontiguousarray(images[(slice(None), slice(None), *middle)])


def is_affordable(network: Network, shape: tuple[int, ...], times: int = 1) -> bool:
    """True if two images of this shape, (C, …), have at most `times` the locations for about a second of the reference.

    With pools the reference computes the covariances of all pairs of locations, and after an Elementwise each of them
    by quadrature.
    """
    layers = [layer for _, layer in leaves(as_layer(network))]
    functions = [layer.fn for layer in layers if isinstance(layer, Elementwise)]
    most = 1 if any(map(breakpoints, functions)) else 16 if functions else 2**16
    return math.prod(shape[1:]) <= times * (math.isqrt(most) if reference.has_pools(as_layer(network)) else most)


def _affordable(network: Network, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of the crop that is compared: the largest affordable one, or the smallest that the network accepts.

    None if even that would take far too long.
    """
    smallest = None
    for side in SIDES:
        part = (shape[0], *(int(min(n, side)) for n in shape[1:]))
        with suppress(NetworkError):  # too small for a filter, or another number of outputs
            placed(as_layer(network), part[1:])
            smallest = part
            if is_affordable(network, part):
                break
    return smallest if smallest is not None and is_affordable(network, smallest, TIMES) else None


def _report(network: Network) -> str:
    return f"This is a bug of cnngp: please report it with the network, {network!r}."


# ---- gradients -----------------------------------------------------------------------------------------------------


def check_gradient(
    network: Network,
    dtype: np.dtype[Any],
    engine: GradientEngine,
    on_cpu: Callable[[str], GradientEngine],
    to_engine: Callable[[Any], Any],
    images: Any,
) -> Verdict | None:
    """Compare a GPU's gradient with the CPU's on two of these images, (N, C, …); `WrongKernelError` if it is wrong.

    `on_cpu` makes the CPU's engine for a precision. Returns None if the images are blank or out of range.
    """
    pair = two_of(to_numpy(images[:LOOKED_AT]))
    try:
        found = _derivatives(engine, to_engine(pair))
        double = _derivatives(on_cpu("float64"), pair.astype(np.float64))
    except (RangeError, NetworkError):
        return None
    if not all(0.0 < np.abs(numbers).max(initial=0.0) < math.inf for numbers in double):
        return None
    bound = _DOCUMENTED_GRADIENT[dtype.itemsize]
    with suppress(RangeError, NetworkError):  # float32 may not hold these images
        off = float(_apart(_derivatives(on_cpu("float32"), pair.astype(np.float32)), double).max())
        times = math.sqrt(float(np.finfo(dtype).eps) / float(np.finfo(np.float32).eps))
        bound = max(bound, off * times) if math.isfinite(off) else bound
    apart = _apart(found, double)
    worst = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
    verdict = Verdict(float(apart[worst]), bound)
    if verdict.is_wrong:
        names = list(network.parameters())
        pixel = f"pixel {worst - len(names)} of the two images"
        mine, theirs = np.concatenate(found)[worst], np.concatenate(double)[worst]
        raise WrongKernelError(
            f"the engine {engine.identity} computes the gradient of this network wrongly on images of shape "
            f"{pair.shape[1:]}: by {names[worst] if worst < len(names) else pixel} it gives {mine:.6g} where the CPU "
            f"gives {theirs:.6g}, {apart[worst]:.1g} of it apart where rounding explains {bound:.0e}. "
            f"{_report(network)} Kernel(…, device='cpu') has the CPU's gradient; Kernel(…, check=False) turns this "
            "check off"
        )
    return verdict


def _apart(found: list[Array], expected: list[Array]) -> Array:
    """Error of each derivative relative to its size, or to a thousandth of the largest of its kind."""
    pairs = zip(found, expected, strict=True)
    return np.concatenate([np.abs(a - b) / np.maximum(np.abs(b), 1e-3 * np.abs(b).max()) for a, b in pairs])


def _derivatives(engine: GradientEngine, pair: Any) -> list[Array]:
    """Derivatives by parameters and, if the engine computes them, by pixels."""
    found: Gradient = engine.gradient(pair.reshape(*pair.shape[:2], -1), None, _WEIGHTS)
    numbers = [np.array(list(found.parameters.values()))]
    return numbers if found.of_x is None else [*numbers, found.of_x.ravel()]
