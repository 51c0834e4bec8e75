"""The same for functions and methods that a `forward` calls: `F.relu(x)`, `x + y`, `x.view(…)`, `x * 0.5`."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional as F

from cnngp.network.layers import Abs, Cos, Elementwise, Erf, LeakyReLU, ReLU, Sin

from .graph import Call, Scale
from .pools import MAXIMUM, adaptive, average, mean
from .rules import (
    NORMALISES,
    SPREADS,
    clamp,
    dropout,
    gelu,
    pad_function,
    reshaped,
    threshold,
    with_constant,
)
from .verdicts import Becomes, No, Passes, Verdict

# fmt: off
_NAMES: dict[Any, str] = {
    operator.add: "add", operator.iadd: "add_", operator.sub: "sub", operator.isub: "sub_",
    operator.mul: "mul", operator.imul: "mul_", operator.truediv: "div", operator.itruediv: "div_",
    operator.neg: "neg", operator.getitem: "getitem", torch.special.erf: "erf", F.dropout1d: "dropout",
    F.dropout2d: "dropout", F.dropout3d: "dropout", F.alpha_dropout: "dropout", F.feature_alpha_dropout: "dropout",
}
_NONLINEARITIES: dict[str, Call] = {
    "relu": ReLU(), "erf": Erf(), "abs": Abs(), "absolute": Abs(), "sin": Sin(), "cos": Cos(),
    "atan": Elementwise("arctan"), "arctan": Elementwise("arctan"),
    **{f: Elementwise(f) for f in ("tanh", "sigmoid", "silu", "selu", "softsign", "mish", "hardswish", "relu6")},
}
_SAME = {"contiguous", "to", "float", "double", "type_as", "requires_grad_", "identity"}
_COPIES = {"clone", "detach"}
_RESHAPES = {"flatten", "view", "reshape", "squeeze", "getitem", "view_as", "reshape_as"}
# fmt: on

_MULTIPLIES = "it multiplies activations with one another, and a product of Gaussians is not Gaussian"
_REASONS: dict[str, str] = {
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "amax", "max"), MAXIMUM),
    "sum": "no layer here is the sum of locations; use their mean, times a constant",
    **dict.fromkeys(("batch_norm", "layer_norm", "group_norm", "instance_norm", "normalize", "rms_norm"), NORMALISES),
    **dict.fromkeys(("softmax", "log_softmax"), "it mixes all outputs; import the module without it"),
    **dict.fromkeys(("matmul", "bmm", "einsum", "baddbmm", "scaled_dot_product_attention"), _MULTIPLIES),
    **dict.fromkeys(
        ("cat", "concat", "concatenate", "stack"), "there is no layer for joined channels; add the branches"
    ),
    **dict.fromkeys(("interpolate", "upsample", "repeat", "expand", "repeat_interleave"), SPREADS),
    **dict.fromkeys(("permute", "transpose", "movedim", "swapaxes"), "it trades channels for locations"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "linear", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        "the weights are handed to a function; use the nn.Module of that name, so that its weights have a name",
    ),
}


def function_name(target: Any) -> str:
    """One name for `torch.add`, `Tensor.add`, `operator.add`; in-place forms keep their underscore."""
    if isinstance(target, str):
        return target
    return _NAMES.get(target) or getattr(target, "__name__", str(target)).removeprefix("boolean_")


def is_in_place(name: str, kwargs: dict[str, Any]) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or bool(kwargs.get("inplace"))


def is_sum(name: str) -> bool:
    return name.rstrip("_") in ("add", "sub", "subtract")


def judge_function(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], before: Any, after: Any) -> Verdict:
    """`args` and `kwargs` hold data-free tensors; `before` is the first of them. Sums are not judged here."""
    plain = name.rstrip("_")
    if plain in _NONLINEARITIES:
        return Becomes(_NONLINEARITIES[plain])
    if plain in _SAME:
        return Passes()
    if plain in _COPIES:
        return Passes(copies=True)
    if plain in _RESHAPES and isinstance(before, torch.Tensor):
        return reshaped(before, after)
    match plain:
        case "leaky_relu":
            return Becomes(LeakyReLU(_argument(args, kwargs, 1, "negative_slope", 0.01)))
        case "gelu":
            return gelu(_argument(args, kwargs, 1, "approximate", "none"))
        case "softplus":
            return with_constant("softplus", "beta", _argument(args, kwargs, 1, "beta", 1))
        case "elu":
            return with_constant("elu", "alpha", _argument(args, kwargs, 1, "alpha", 1))
        case "hardtanh":
            return clamp(_argument(args, kwargs, 1, "min_val", -1.0), _argument(args, kwargs, 2, "max_val", 1.0))
        case "clamp" | "clip":
            return clamp(_argument(args, kwargs, 1, "min", None), _argument(args, kwargs, 2, "max", None))
        case "clamp_min":
            return clamp(_argument(args, kwargs, 1, "min", None), None)
        case "clamp_max":
            return clamp(None, _argument(args, kwargs, 1, "max", None))
        case "threshold" | "_threshold":
            return threshold(_argument(args, kwargs, 1, "threshold", 0), _argument(args, kwargs, 2, "value", 0))
        case "dropout":
            return dropout(_argument(args, kwargs, 1, "p", 0.5), _argument(args, kwargs, 2, "training", True))
        case "pad":
            mode = _argument(args, kwargs, 2, "mode", "constant")
            return pad_function(args[1], mode, _argument(args, kwargs, 3, "value", 0.0), before)
        case "neg" | "negative":
            return Becomes(Scale(-1.0))
        case "mul" | "multiply" | "div" | "divide" | "true_divide":
            return _factor(plain, args)
        case "avg_pool1d" | "avg_pool2d" | "avg_pool3d":
            return average(int(plain[-2]), _pool_arguments(args, kwargs), before, after)
        case "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d":
            return adaptive(int(plain[-2]), before, after)
        case "mean":
            return mean(_argument(args, kwargs, 1, "dim", None), _argument(args, kwargs, 2, "keepdim", False), before)
        case _:
            return No(_REASONS.get(plain, f"no exact kernel is known here for {plain}"))


def _factor(name: str, args: tuple[Any, ...]) -> Verdict:
    numbers = [a for a in args if isinstance(a, int | float) and not isinstance(a, bool)]
    if len(numbers) != 1 or len(args) != 2:
        return No(_MULTIPLIES)
    number = float(numbers[0])
    if name.startswith(("div", "true")):
        if not isinstance(args[0], torch.Tensor):
            return No("one over an activation is not Gaussian")
        number = 1.0 / number if number else 0.0
    return Becomes(Scale(number)) if number else No("a factor of zero, or a division by it")


def _pool_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    defaults = {"kernel_size": None, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}
    named = enumerate([*defaults.items(), ("divisor_override", None)], start=1)
    return tuple(_argument(args, kwargs, place, name, default) for place, (name, default) in named)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, default: Any) -> Any:
    return kwargs[name] if name in kwargs else args[place] if len(args) > place else default
