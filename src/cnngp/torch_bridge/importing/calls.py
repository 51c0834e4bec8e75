"""Rules that turn functions and methods called in `forward` into layers: `F.relu(x)`, `x.view(…)`, `x * 0.5`.

Modules of `torch.nn` without weights, such as `nn.ReLU()`, also arrive here, because they call one function. Every rule
is exact in the limit of many channels; a call without such a rule raises and is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from cnngp.network.layers import GELU, Abs, AvgPool, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, ReLU, Sign, Sin

from .graph import Call, Mean, Pad, Refused, Scale, compact
from .trace import Step, Value

# fmt: off
_NONLINEARITIES: dict[str, Call] = {
    "relu": ReLU(), "erf": Erf(), "abs": Abs(), "absolute": Abs(), "sin": Sin(), "cos": Cos(),
    "sign": Sign(),
    "atan": Elementwise("arctan"), "arctan": Elementwise("arctan"),
    **{f: Elementwise(f) for f in ("tanh", "sigmoid", "silu", "selu", "softsign", "mish", "hardswish", "relu6")},
}
_SAME = {"contiguous", "to", "float", "double", "type_as", "requires_grad", "identity", "clone", "detach", "data"}
_RESHAPES = {"flatten", "view", "reshape", "squeeze", "view_as", "reshape_as"}
LIKE = {"type_as", "view_as", "reshape_as"}
"""Functions that use only the shape or dtype of their second tensor."""
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
# fmt: on

_MULTIPLIES = "it multiplies activations with one another, and a product of Gaussians is not Gaussian"
_NORMALISES = "it divides by statistics of its own input, so its output is no Gaussian process of that input"
_REASONS: dict[tuple[str, ...], str] = {
    ("max_pool", "adaptive_max_pool", "fractional_max_pool", "max_unpool", "amax", "max"): (
        "the maximum of several locations is not Gaussian and its covariance has no closed form here; "
        "use the average, nn.AvgPool2d, which becomes AvgPool, or a convolution with stride"
    ),
    ("lp_pool",): "a power mean of several locations has no closed form here; use nn.AvgPool2d, which becomes AvgPool",
    ("sum",): "no layer here is the sum of locations; use their mean, times a constant",
    ("batch_norm", "layer_norm", "group_norm", "instance_norm", "normalize", "rms_norm", "local_resp"): _NORMALISES,
    ("softmax", "log_softmax", "softmin"): "it mixes all outputs; import the module without it",
    ("matmul", "bmm", "einsum", "baddbmm", "scaled_dot_product", "multihead", "transformer", "bilinear"): _MULTIPLIES,
    ("rnn", "lstm", "gru"): "a recurrent layer uses the same weights at every step",
    ("embedding",): "its input is not a real-valued image",
    ("cat", "concat", "stack"): "there is no layer for joined channels; add the branches",
    ("interpolate", "upsample", "repeat", "expand", "tile"): (
        "no layer here copies one location to several; use a transposed convolution"
    ),
    ("permute", "transpose", "movedim", "swapaxes", "pixel_", "channel_shuffle", "fold", "unfold"): (
        "it trades channels for locations"
    ),
    ("unflatten",): "one location cannot become several again; use a transposed convolution",
    ("rand", "bernoulli", "normal", "uniform"): "it is random anew at every call, and the kernel is of one function",
    ("getitem", "setitem", "index", "select", "narrow", "gather", "flip", "roll"): (
        "it takes, moves or writes single numbers, channels, locations or images; a layer treats them all alike"
    ),
    ("conv", "linear"): (
        "the weights are handed to a function; use the nn.Module of that name, so that its weights have a name"
    ),
    ("rdiv", "rtruediv", "reciprocal"): "one over an activation is not Gaussian",
}


@dataclass(frozen=True)
class Passes:
    """A call that does not change the kernel, such as a reshape."""

    told: str = "Identity()"


class Arguments:
    """Arguments of a function after its first tensor, by position or name. Those that no rule takes raise at the end.

    >>> given = Arguments(("x", 0.2), {"inplace": True, "scale": 3})
    >>> given.take(1, "negative_slope", 0.01)
    0.2
    >>> given.check_all_taken()
    Traceback (most recent call last):
    ...
    cnngp.torch_bridge.importing.graph.Refused: what its argument scale=3 does is not known here
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        known = ("inplace", "out", "input")  # the trace already shows which tensor is written to
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        self._given = {key: v for key, v in given if key != 0 and key not in known}

    def take(self, place: int, name: str, default: Any = None) -> Any:
        return self._given.pop(name) if name in self._given else self._given.pop(place, default)

    def take_all(self) -> None:
        self._given = {}

    def check_all_taken(self) -> None:
        left = {key: v for key, v in self._given.items() if v is not None}
        if left:
            told = ", ".join(f"{key}={v!r}" if isinstance(key, str) else repr(v) for key, v in left.items())
            raise Refused(f"what its argument {told} does is not known here")


def read_function(step: Step, given: Arguments, before: Value, after: Value, one_location: bool) -> Call | Passes:
    """Return what the call of a function becomes, or raise `Refused`; `before` is its first tensor argument.

    Sums are handled elsewhere.
    """
    function = step.function
    if function in _NONLINEARITIES:
        return _NONLINEARITIES[function]
    if function in _SAME or function in _RESHAPES or (function == "getitem" and step.same_order):
        given.take_all()
        if function in _RESHAPES and before.dtype != after.dtype:
            raise Refused(f"it reads the bits of {before.dtype} as {after.dtype}")
        # After flattening, the kernel keeps locations and channels separate until a Linear sums over all of them.
        if before.shape == after.shape:
            return Passes()
        if after.ndim == 2 and after.shape[0] == before.shape[0] and after.numel == before.numel:
            return Passes("flattened for the next layer")
        raise Refused(
            f"it turns {before.shape[1:]} into {after.shape[1:]}; only flattening everything into one axis keeps "
            "channels and locations"
        )
    if function in _DROPOUTS:
        p, training = given.take(1, "p", 0.5), given.take(2, "training", True)
        if training and p > 0:
            raise Refused("dropout in training mode multiplies by random zeros; call module.eval() first")
        return Passes()
    if function.startswith(("avg_pool", "adaptive_")) and before.ndim != 2 + int(function[-2]):
        raise Refused(f"its input has {before.ndim - 2} spatial axes, not {function[-2]}")
    match function:
        case "leaky_relu":
            return LeakyReLU(given.take(1, "negative_slope", 0.01))
        case "gelu":
            return GELU() if given.take(1, "approximate", "none") == "none" else Elementwise("gelu_tanh")
        case "softplus" | "elu" | "threshold":
            for place, (name, value) in enumerate(_FIXED[function].items(), start=1):
                if given.take(place, name, value) != value:
                    raise Refused(f"only with {name}={value} it has a name here")
            return ReLU() if function == "threshold" else Elementwise(function)
        case "hardtanh":
            return _clamp(given.take(1, "min_val", -1.0), given.take(2, "max_val", 1.0))
        case "clamp" | "clip" | "clamp_min":
            return _clamp(given.take(1, "min"), given.take(2, "max"))
        case "pad":
            widths, mode = given.take(1, "pad"), given.take(2, "mode", "constant")
            return _pad(widths, mode, given.take(3, "value", 0.0) or 0.0, before)
        case "neg" | "negative":
            return Scale(-1.0)
        case "mul" | "multiply" | "div" | "divide" | "true_divide":
            factor = given.take(1, "other")
            if not isinstance(factor, int | float) or isinstance(factor, bool):
                raise Refused(_MULTIPLIES)
            if not factor:
                raise Refused("a factor of zero, or a division by it")
            return Scale(float(factor) if function.startswith("mul") else 1.0 / factor)
        case "avg_pool1d" | "avg_pool2d" | "avg_pool3d":
            return _average(given, before, after)
        case "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d":
            given.take_all()
            return _adaptive(before.shape[2:], after.shape[2:])
        case "adaptive_max_pool1d" | "adaptive_max_pool2d" | "adaptive_max_pool3d" if before.shape == after.shape:
            given.take_all()
            return Passes()  # every location is its own maximum
        case "layer_norm" | "group_norm" | "rms_norm":
            over = given.take(1, "num_groups" if function == "group_norm" else "normalized_shape")
            eps = given.take(3, "eps") if function == "rms_norm" else given.take(4, "eps", 1e-5)
            return layer_norm(over, eps, before, one_location)
        case "mean":
            return _mean(given.take(1, "dim"), given.take(2, "keepdim", False), before)
        case _:
            raise refusal(function)


def refusal(name: str) -> Refused:
    """Error with the reason why a function or a module of torch.nn has no exact kernel."""
    known = (reason for names, reason in _REASONS.items() if name.lower().startswith(names))
    return Refused(next(known, f"no exact kernel is known here for {name}"))


def layer_norm(over: Any, eps: float | None, before: Value, one_location: bool) -> Call:
    """Norm over all channels and locations: with infinitely many channels, it divides by a known standard deviation.

    `over` is the number of groups, or the normalised shape.
    """
    flat = before.ndim == 2
    if (flat and not one_location) or (over != 1 and tuple(np.atleast_1d(over)) != tuple(before.shape[1:])):
        raise Refused(f"{_NORMALISES}; a norm over all channels and all locations of an image has one")
    return LayerNorm("channels" if flat else "all", torch.finfo(before.dtype).eps if eps is None else float(eps))


_FIXED: dict[str, dict[str, float]] = {
    "softplus": {"beta": 1, "threshold": 20},
    "elu": {"alpha": 1},
    "threshold": {"threshold": 0, "value": 0},
}
_LIMITS: dict[tuple[float, float], Call] = {
    (0.0, math.inf): ReLU(),
    (-1.0, 1.0): Elementwise("hardtanh"),
    (0.0, 6.0): Elementwise("relu6"),
}


def _clamp(low: Any, high: Any) -> Call:
    """min(max(z, low), high); None means no limit."""
    if not all(limit is None or isinstance(limit, int | float) for limit in (low, high)):
        raise Refused("its limits are tensors; only numbers are the same for every channel and location")
    limits = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    if limits not in _LIMITS:
        raise Refused(
            f"limits {limits[0]:g} and {limits[1]:g}; only 0 and inf (ReLU), -1 and 1 (hardtanh), 0 and 6 (relu6) "
            "have a name here"
        )
    return _LIMITS[limits]


_PADS = {"constant": "zeros", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


def _pad(widths: Any, name: str, value: float, before: Value) -> Call:
    """Padding from PyTorch's list (left, right, top, bottom, …), which has the last axis first."""
    mode: Any = _PADS.get(name)
    axes, flat = before.ndim - 2, list(widths)
    if mode is None:
        raise Refused(f"padding with mode={name!r} has no layer here")
    if value != 0:
        raise Refused(f"it pads with {value}, which is not zero-mean; only zeros keep the kernel")
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    if len(pairs) > axes:
        raise Refused(f"padding {tuple(flat)} reaches other axes than the locations")
    pairs += [(0, 0)] * (axes - len(pairs))
    return Pad(tuple(reversed(pairs)), mode)


# ---- pools -----------------------------------------------------------------------------------------------------------


def _average(given: Arguments, before: Value, after: Value) -> Call:
    """`F.avg_pool1d`, `F.avg_pool2d` and `F.avg_pool3d`."""
    sizes = before.shape[2:]

    def spread(value: Any) -> tuple[int, ...]:
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        return values * len(sizes) if len(values) == 1 else values

    k = spread(given.take(1, "kernel_size"))
    s, p = spread(given.take(2, "stride") or k), spread(given.take(3, "padding", 0))
    ceil_mode, count_include_pad = given.take(4, "ceil_mode", False), given.take(5, "count_include_pad", True)
    divisor = given.take(6, "divisor_override")
    if divisor is not None and divisor != math.prod(k):
        raise Refused(
            f"divisor_override={divisor} is not the number of locations in the window, {math.prod(k)}; leave it out "
            "and multiply by a constant"
        )
    whole = [(n + 2 * q - w) // step + 1 for n, w, step, q in zip(sizes, k, s, p, strict=True)]
    if ceil_mode and whole != list(after.shape[2:]):
        raise Refused("ceil_mode=True makes windows at the end that are cut off; use ceil_mode=False, or other sizes")
    # with a divisor_override, PyTorch divides every window by it, padding or not
    counted = bool(count_include_pad) or not any(p) or divisor is not None
    return AvgPool(compact(k), None if s == k else compact(s), compact(p), counted)


def _adaptive(sizes: tuple[int, ...], outs: tuple[int, ...]) -> Call | Passes:
    """Adaptive pool: window i of n on m locations is ⌊i·m/n⌋ to ⌈(i+1)·m/n⌉; a plain pool if all are alike."""
    if sizes == outs:
        return Passes()  # every location is its own average
    if set(outs) == {1}:
        return Mean(sizes)
    windows = []  # (size, stride) along each axis
    for m, n in zip(sizes, outs, strict=True):
        starts = [i * m // n for i in range(n)]
        lengths = {-(-(i + 1) * m // n) - start for i, start in enumerate(starts)}
        steps = {b - a for a, b in pairwise(starts)} or {m}
        if len(lengths) > 1 or len(steps) > 1 or 0 in steps:
            raise Refused(
                f"its windows differ in size where {' × '.join(map(str, sizes))} locations become "
                f"{' × '.join(map(str, outs))}; use sizes that divide the map, or nn.AvgPool{len(sizes)}d"
            )
        windows.append((lengths.pop(), steps.pop()))
    k, s = zip(*windows, strict=True)
    return AvgPool(compact(k), None if s == k else compact(s))


def _mean(dims: Any, keepdim: bool, before: Value) -> Call:
    """`x.mean((2, 3))`: mean over all locations, or over some axes with `keepdim=True`."""
    listed = dims if isinstance(dims, list | tuple) else [dims]
    axes = [] if dims is None else sorted(d % before.ndim for d in listed)
    sizes = before.shape[2:]
    if not sizes or not axes or axes[0] < 2:
        raise Refused("it averages over images or channels; average over the locations, x.mean((2, 3))")
    if len(axes) == len(sizes):
        return Mean(sizes)
    if not keepdim:
        raise Refused("it averages over some of the axes only and drops them; average over all, or use keepdim=True")
    return AvgPool(tuple(m if a + 2 in axes else 1 for a, m in enumerate(sizes)))
