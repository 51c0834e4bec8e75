"""What each function or method that a `forward` calls becomes: `F.relu(x)`, `x.view(…)`, `x * 0.5`, `nn.ReLU()(x)`.

Modules of `torch.nn` without weights are here too: they call one function. Every rule is exact in the limit of many
channels; what is not is refused by name.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from cnngp.network.layers import GELU, Abs, Cos, Elementwise, Erf, LayerNorm, LeakyReLU, ReLU, Sign, Sin

from .graph import Call, Pad, Scale
from .pools import MAXIMUM, adaptive, average, mean
from .trace import Value
from .verdicts import Arguments, Becomes, No, Passes, Verdict

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
"""Functions that read only the shape or the type of their second tensor."""
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
# fmt: on

_MULTIPLIES = "it multiplies activations with one another, and a product of Gaussians is not Gaussian"
NORMALISES = "it divides by statistics of its own input, so its output is no Gaussian process of that input"
_SPREADS = "no layer here copies one location to several; use a transposed convolution"
_TRADES = "it trades channels for locations"
_RANDOM = "it is random anew at every call, and the kernel is of one function"
_REASONS: dict[tuple[str, ...], str] = {
    ("max_pool", "adaptive_max_pool", "fractional_max_pool", "max_unpool", "amax", "max"): MAXIMUM,
    ("lp_pool",): "a power mean of several locations has no closed form here; use nn.AvgPool2d, which becomes AvgPool",
    ("sum",): "no layer here is the sum of locations; use their mean, times a constant",
    ("batch_norm", "layer_norm", "group_norm", "instance_norm", "normalize", "rms_norm", "local_resp"): NORMALISES,
    ("softmax", "log_softmax", "softmin"): "it mixes all outputs; import the module without it",
    ("matmul", "bmm", "einsum", "baddbmm", "scaled_dot_product_attention"): _MULTIPLIES,
    ("cat", "concat", "stack"): "there is no layer for joined channels; add the branches",
    ("interpolate", "upsample", "repeat", "expand", "tile"): _SPREADS,
    ("permute", "transpose", "movedim", "swapaxes", "pixel_", "channel_shuffle", "fold", "unfold"): _TRADES,
    ("unflatten",): "one location cannot become several again; use a transposed convolution",
    ("rand", "bernoulli", "normal", "uniform"): _RANDOM,
    ("getitem", "setitem", "index", "select", "narrow", "gather", "flip", "roll"): (
        "it takes, moves or writes single numbers, channels, locations or images; a layer treats them all alike"
    ),
    ("conv", "linear"): (
        "the weights are handed to a function; use the nn.Module of that name, so that its weights have a name"
    ),
}


def is_sum(function: str) -> bool:
    return function in ("add", "sub", "subtract", "rsub")


def judge_function(
    function: str, given: Arguments, before: Value, after: Value, same_order: bool, one_location: bool
) -> Verdict:
    """`before` is the first tensor among the arguments and `after` the result. Sums are not judged here."""
    verdict = _judge(function, given, before, after, same_order, one_location)
    if not isinstance(verdict, No) and given.left:
        told = ", ".join(f"{key}={v!r}" if isinstance(key, str) else repr(v) for key, v in given.left.items())
        return No(f"what its argument {told} does is not known here")
    return verdict


def _judge(
    function: str, given: Arguments, before: Value, after: Value, same_order: bool, one_location: bool
) -> Verdict:
    if function in _NONLINEARITIES:
        return Becomes(_NONLINEARITIES[function])
    if function in _SAME or (function == "getitem" and same_order):
        given.take_all()
        return reshaped(before, after)
    if function in _RESHAPES:
        given.take_all()
        if before.dtype != after.dtype:
            return No(f"it reads the bits of {before.dtype} as {after.dtype}")
        return reshaped(before, after)
    if function in _DROPOUTS:
        return _dropout(given.take(1, "p", 0.5), given.take(2, "training", True))
    match function:
        case "leaky_relu":
            return Becomes(LeakyReLU(given.take(1, "negative_slope", 0.01)))
        case "gelu":
            approximate = given.take(1, "approximate", "none")
            return Becomes(GELU() if approximate == "none" else Elementwise("gelu_tanh"))
        case "softplus":
            beta, linear_from = given.take(1, "beta", 1), given.take(2, "threshold", 20)
            if linear_from < 20:
                return No(f"threshold={linear_from}: a straight line from there on; only 20 and more are softplus")
            return _with_constant("softplus", "beta", beta)
        case "elu":
            return _with_constant("elu", "alpha", given.take(1, "alpha", 1))
        case "hardtanh":
            return _clamp(given.take(1, "min_val", -1.0), given.take(2, "max_val", 1.0))
        case "clamp" | "clip":
            return _clamp(given.take(1, "min"), given.take(2, "max"))
        case "clamp_min":
            return _clamp(given.take(1, "min"), None)
        case "clamp_max":
            return _clamp(None, given.take(1, "max"))
        case "threshold":
            return _threshold(given.take(1, "threshold", 0), given.take(2, "value", 0))
        case "pad":
            widths, mode = given.take(1, "pad"), given.take(2, "mode", "constant")
            return _pad(widths, mode, given.take(3, "value", 0.0) or 0.0, before)
        case "neg" | "negative":
            return Becomes(Scale(-1.0))
        case "mul" | "multiply" | "div" | "divide" | "true_divide":
            return _factor(function, before, given.take(1, "other"))
        case "rdiv" | "rtruediv" | "reciprocal":
            return No("one over an activation is not Gaussian")
        case "avg_pool1d" | "avg_pool2d" | "avg_pool3d":
            return average(int(function[-2]), given, before, after)
        case "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d":
            given.take(1, "output_size")
            return adaptive(int(function[-2]), before, after)
        case "adaptive_max_pool1d" | "adaptive_max_pool2d" | "adaptive_max_pool3d" if before.shape == after.shape:
            given.take_all()
            return Passes()  # every location is its own maximum
        case "layer_norm" | "group_norm" | "rms_norm":
            over = given.take(1, "num_groups" if function == "group_norm" else "normalized_shape")
            eps = given.take(3, "eps") if function == "rms_norm" else given.take(4, "eps", 1e-5)
            return layer_norm(over, eps, before, one_location)
        case "mean":
            return mean(given.take(1, "dim"), given.take(2, "keepdim", False), before)
        case _:
            return refuse_function(function)


def layer_norm(over: Any, eps: float | None, before: Value, one_location: bool) -> Verdict:
    """Of features without locations it is a division by their deviation, which is known of infinitely many.

    `over` is the number of groups, or the shape of what is normalised.
    """
    if before.ndim != 2 or not one_location or over not in (1, (before.shape[1],), [before.shape[1]]):
        return No(f"{NORMALISES}; a norm of all features of an input without locations has one")
    return Becomes(LayerNorm(eps=torch.finfo(before.dtype).eps if eps is None else float(eps)))


def refuse_function(function: str) -> No:
    for names, reason in _REASONS.items():
        if function.startswith(names):
            return No(reason)
    return No(f"no exact kernel is known here for {function}")


def _factor(function: str, before: Value, factor: Any) -> Verdict:
    if not isinstance(factor, int | float) or isinstance(factor, bool):
        return No(_MULTIPLIES)
    number = float(factor)
    if function.startswith(("div", "true")):
        number = 1.0 / number if number else 0.0
    return Becomes(Scale(number)) if number else No("a factor of zero, or a division by it")


def _with_constant(name: str, constant: str, value: float) -> Verdict:
    return Becomes(Elementwise(name)) if value == 1 else No(f"{constant}={value}; only {constant}=1 has a name here")


_LIMITS: dict[tuple[float, float], Call] = {
    (0.0, math.inf): ReLU(),
    (-1.0, 1.0): Elementwise("hardtanh"),
    (0.0, 6.0): Elementwise("relu6"),
}


def _clamp(low: Any, high: Any) -> Verdict:
    """min(max(z, low), high); None is no limit."""
    if not all(limit is None or isinstance(limit, int | float) for limit in (low, high)):
        return No("its limits are tensors; only numbers are the same for every channel and location")
    limits = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
    if limits in _LIMITS:
        return Becomes(_LIMITS[limits])
    return No(
        f"limits {limits[0]:g} and {limits[1]:g}; only 0 and inf (ReLU), -1 and 1 (hardtanh), 0 and 6 (relu6) have a "
        "name here"
    )


def _threshold(limit: float, value: float) -> Verdict:
    """z where z > limit, else value."""
    if (limit, value) == (0, 0):
        return Becomes(ReLU())
    return No(f"threshold={limit:g} and value={value:g}; only 0 and 0, which is ReLU, have a name here")


def _dropout(p: float, training: bool) -> Verdict:
    if training and p > 0:
        return No("dropout in training mode multiplies by random zeros; call module.eval() first")
    return Passes()


def reshaped(before: Value, after: Value) -> Verdict:
    """Locations and channels laid out flat: the kernel keeps them apart until a Linear sums over all of them."""
    if before.shape == after.shape:
        return Passes()
    if after.ndim == 2 and after.shape[0] == before.shape[0] and after.numel == before.numel:
        return Passes("flattened for the next layer")
    return No(
        f"it turns {before.shape[1:]} into {after.shape[1:]}; only flattening everything into one axis keeps channels "
        "and locations"
    )


_PADS = {"constant": "zeros", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


def _pad(widths: Any, name: str, value: float, before: Value) -> Verdict:
    """torch lists (left, right, top, bottom, …): the last axis first."""
    mode: Any = _PADS.get(name)
    axes, flat = before.ndim - 2, list(widths)
    if mode is None:
        return No(f"padding with mode={name!r} has no layer here")
    if value != 0:
        return No(f"it pads with {value}, which is not zero-mean; only zeros keep the kernel")
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    if len(pairs) > axes or any(w < 0 for w in flat):
        return No(f"padding {tuple(flat)} reaches other axes than the locations, or cuts some off")
    pairs += [(0, 0)] * (axes - len(pairs))
    return Becomes(Pad(tuple(reversed(pairs)), mode))
