"""What each PyTorch call becomes: a layer, nothing at all, or a refusal with the reason.

One function a kind of call. Every rule is exact in the limit of many channels; what is not is refused by name.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from cnngp.network.layers import GELU, Conv, ConvTranspose, Dense, Elementwise, LeakyReLU, ReLU

from ..parts import Activation, Broadcast, Crop
from .fold import compact, padding_of, transposed_padding
from .graph import Call, Cut, Pad, Pairs, Scale
from .pools import MAXIMUM, pool_module
from .variances import Variances
from .verdicts import Becomes, No, Passes, Verdict

NORMALISES = "it divides by statistics of its own input, so its output is no Gaussian process of that input"
SPREADS = "no layer here copies one location to several; use a transposed convolution"

REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("MaxPool", "AdaptiveMaxPool", "FractionalMaxPool", "MaxUnpool"), MAXIMUM),
    (("LPPool",), "a power mean of several locations has no closed form here; use nn.AvgPool2d, which becomes AvgPool"),
    (("LayerNorm", "GroupNorm", "InstanceNorm", "LocalResponseNorm", "RMSNorm", "CrossMapLRN"), NORMALISES),
    (("MultiheadAttention", "Transformer"), "attention multiplies activations with one another, which is not Gaussian"),
    (("RNN", "LSTM", "GRU"), "a recurrent layer uses the same weights at every step"),
    (("Softmax", "LogSoftmax", "Softmin"), "it mixes all outputs; import the module without it"),
    (("Bilinear",), "it multiplies activations with one another, which is not Gaussian"),
    (("Embedding",), "its input is not a real-valued image"),
    (("Upsample", "UpsamplingNearest", "UpsamplingBilinear"), SPREADS),
    (("PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Fold", "Unfold"), "it trades channels for locations"),
    (("Unflatten",), "one location cannot become several again; use a transposed convolution"),
)
# fmt: off
NONLINEARITIES: dict[type, Call] = {
    nn.ReLU: ReLU(), nn.Tanh: Elementwise("tanh"), nn.SiLU: Elementwise("silu"), nn.Sigmoid: Elementwise("sigmoid"),
    nn.SELU: Elementwise("selu"), nn.Softsign: Elementwise("softsign"), nn.Mish: Elementwise("mish"),
    nn.Hardswish: Elementwise("hardswish"), nn.ReLU6: Elementwise("relu6"),
}
# fmt: on


def judge_module(name: str, module: Any, before: Any, after: Any, variances: Variances) -> Verdict:
    """`before` and `after` are data-free tensors, (batch, channels, …)."""
    kind = type(module).__name__
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return _convolution(name, module, before, variances)
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return _transposed(name, module, before, after, variances)
    if isinstance(module, nn.Linear):
        return _linear(name, module, before, variances)
    if type(module) in NONLINEARITIES:
        return Becomes(NONLINEARITIES[type(module)])
    if isinstance(module, nn.LeakyReLU):
        return Becomes(LeakyReLU(module.negative_slope))
    if isinstance(module, nn.PReLU):
        slopes = module.weight.detach().double()
        if slopes.min() != slopes.max():
            return No("its slopes differ between channels, so the channels are not alike")
        return Becomes(LeakyReLU(float(slopes[0])))
    if isinstance(module, nn.GELU):
        return gelu(module.approximate)
    if isinstance(module, nn.Softplus):
        return with_constant("softplus", "beta", module.beta)
    if isinstance(module, nn.ELU):
        return with_constant("elu", "alpha", module.alpha)
    if isinstance(module, nn.Hardtanh):
        return clamp(module.min_val, module.max_val)
    if isinstance(module, nn.Threshold):
        return threshold(module.threshold, module.value)
    if isinstance(module, nn.Flatten):
        return reshaped(before, after)
    if isinstance(module, nn.Identity):
        return Passes()
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return dropout(module.p, module.training)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _batch_norm(module)
    if isinstance(module, Activation):
        return Becomes(module.layer)
    if isinstance(module, Broadcast):
        return Passes("Identity() over channels", copies=True)
    if isinstance(module, Crop):
        return Becomes(Cut(module.ends))
    if kind[:-2] in _PAD_MODULES:  # such as ZeroPad2d
        return _pad(module.padding, _PAD_MODULES[kind[:-2]], getattr(module, "value", 0.0), before)
    pooled = pool_module(module, before, after)
    if pooled is not None:
        return pooled
    if "Pool" in kind and before.shape == after.shape and kind.startswith("Adaptive"):
        return Passes()  # every location is its own maximum
    for kinds, reason in REASONS:
        if kind.startswith(kinds):
            return No(reason)
    return No(f"no exact kernel is known here for {kind}")


def _convolution(name: str, module: Any, before: Any, variances: Variances) -> Verdict:
    if module.groups != 1:
        return No(
            f"groups={module.groups}: a filter that sees only some of the channels keeps channels apart for ever, and "
            "the limit is not of many independent channels"
        )
    axes = len(module.kernel_size)
    if before.ndim != 2 + axes:
        return No(f"its input has {before.ndim - 2} spatial axes, not {axes}")
    pads = _torch_pads(module, axes)
    weight_var, bias_var, convention = variances.of(name, module, module.in_channels * math.prod(module.kernel_size))
    return Becomes(
        Conv(
            compact(module.kernel_size),
            compact(module.stride),
            padding_of(pads, module.kernel_size, module.dilation),
            compact(module.dilation),
            weight_var,
            bias_var,
            convention,
            module.padding_mode if any(map(any, pads)) else "zeros",
        )
    )


def _torch_pads(module: Any, axes: int) -> Pairs:
    match module.padding:
        case "same":
            reach = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
            return tuple((r // 2, r - r // 2) for r in reach)
        case "valid":
            return ((0, 0),) * axes
        case entries:
            return tuple((p, p) for p in entries)


def _transposed(name: str, module: Any, before: Any, after: Any, variances: Variances) -> Verdict:
    if module.groups != 1:
        return No(f"groups={module.groups}: a filter that sees only some of the channels keeps channels apart for ever")
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    axes = len(kernel)
    # torch's own fan-in of a transposed weight is out_channels × filter; each output sums over the in_channels.
    weight_var, bias_var, convention = variances.of(name, module, module.in_channels * math.prod(kernel))
    layer = ConvTranspose(
        compact(kernel),
        compact(stride),
        0,
        compact(dilation),
        weight_var,
        bias_var,
        convention,
    )
    pads = _torch_pads(module, axes)
    # From the sizes, because forward may have been called with an output_size.
    extra = tuple(
        int(after.shape[2 + a])
        - ((int(before.shape[2 + a]) - 1) * stride[a] - sum(pads[a]) + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    )
    return Becomes(transposed_padding(layer, pads, extra, kernel, stride, dilation))


def _linear(name: str, module: Any, before: Any, variances: Variances) -> Verdict:
    if before.ndim != 2:
        return No(
            f"it acts on the last axis of {tuple(before.shape[1:])}, which is a location and not the channels; flatten "
            "first, or use a convolution with kernel_size=1"
        )
    weight_var, bias_var, _ = variances.of(name, module, module.in_features)
    return Becomes(Dense(weight_var, bias_var))


def _batch_norm(module: Any) -> Verdict:
    """y = γ(x − μ)/√(σ² + ε) + β with fixed statistics is a constant factor, if it is the same for all channels."""
    if module.training or module.running_mean is None:
        return No(
            "in training mode it divides by statistics of the batch, so an image's output depends on the other images; "
            "call module.eval() first, or remove it"
        )
    mean, var = module.running_mean.double(), module.running_var.double()
    gamma = module.weight.detach().double() if module.weight is not None else var.new_ones(())
    beta = module.bias.detach().double() if module.bias is not None else var.new_zeros(())
    factor = (gamma / (var + module.eps).sqrt()).expand_as(mean)
    shift = beta - mean * factor
    if shift.abs().max() > 0:
        return No("its fixed shift is not zero, so its output is not zero-mean; remove it, or reset its statistics")
    if float(factor.max() - factor.min()) > 1e-6 * float(factor.abs().max()):
        return No(
            "its fixed factors differ between channels, so these are not alike; remove it, or reset its statistics"
        )
    return Becomes(Scale(float(factor[0])))


def gelu(approximate: str) -> Verdict:
    return Becomes(GELU() if approximate == "none" else Elementwise("gelu_tanh"))


def with_constant(name: str, constant: str, value: float) -> Verdict:
    return Becomes(Elementwise(name)) if value == 1 else No(f"{constant}={value}; only {constant}=1 has a name here")


_LIMITS: dict[tuple[float, float], Call] = {
    (0.0, math.inf): ReLU(),
    (-1.0, 1.0): Elementwise("hardtanh"),
    (0.0, 6.0): Elementwise("relu6"),
}


def clamp(low: Any, high: Any) -> Verdict:
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


def threshold(limit: float, value: float) -> Verdict:
    """z where z > limit, else value."""
    if (limit, value) == (0, 0):
        return Becomes(ReLU())
    return No(f"threshold={limit:g} and value={value:g}; only 0 and 0, which is ReLU, have a name here")


def dropout(p: float, training: bool) -> Verdict:
    if training and p > 0:
        return No("dropout in training mode multiplies by random zeros; call module.eval() first")
    return Passes()


def reshaped(before: Any, after: Any) -> Verdict:
    """Locations and channels laid out flat: the kernel keeps them apart until a Linear sums over all of them."""
    if before.shape == after.shape:
        return Passes()
    if after.ndim == 2 and after.shape[0] == before.shape[0] and after.numel() == before.numel():
        return Passes("flattened for the next layer")
    return No(
        f"it turns {tuple(before.shape[1:])} into {tuple(after.shape[1:])}; only flattening everything into one axis "
        "keeps channels and locations"
    )


# ---- padding ---------------------------------------------------------------------------------------------------------

_PAD_MODULES = {
    "ZeroPad": "zeros",
    "ConstantPad": "zeros",
    "CircularPad": "circular",
    "ReflectionPad": "reflect",
    "ReplicationPad": "replicate",
}
_PAD_FUNCTIONS = {"constant": "zeros", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


def pad_function(widths: Any, mode: str, value: float | None, before: Any) -> Verdict:
    if mode not in _PAD_FUNCTIONS:
        return No(f"padding with mode={mode!r} has no layer here")
    return _pad(widths, _PAD_FUNCTIONS[mode], value or 0.0, before)


def _pad(widths: Any, mode: Any, value: float, before: Any) -> Verdict:
    """torch lists (left, right, top, bottom, …): the last axis first."""
    axes = before.ndim - 2
    if value != 0:
        return No(f"it pads with {value}, which is not zero-mean; only zeros keep the kernel")
    flat = list(widths)
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
    if len(pairs) > axes or any(w < 0 for w in flat):
        return No(f"padding {tuple(flat)} reaches other axes than the locations, or cuts some off")
    pairs += [(0, 0)] * (axes - len(pairs))
    return Becomes(Pad(tuple(reversed(pairs)), mode))
