"""What each module of `torch.nn` with weights becomes: a layer, a constant factor, or a refusal with the reason."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from cnngp.network.layers import Conv, ConvTranspose, Dense, LeakyReLU

from ..parts import Activation, Broadcast, Crop
from .fold import compact, spelled, transposed_padding
from .functions import layer_norm
from .graph import Cut, Scale
from .trace import Value
from .verdicts import Becomes, No, Passes, Verdict
from .weights import Variances

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("MultiheadAttention", "Transformer"), "attention multiplies activations with one another, which is not Gaussian"),
    (("RNN", "LSTM", "GRU"), "a recurrent layer uses the same weights at every step"),
    (("Bilinear",), "it multiplies activations with one another, which is not Gaussian"),
    (("Embedding",), "its input is not a real-valued image"),
)


FIXED = (
    *(nn.PReLU, nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    nn.modules.instancenorm._InstanceNorm,
)
"""Modules whose parameters are those of a fixed function: they may be used again, and are no random weights."""


def judge_module(
    name: str, module: Any, inputs: list[Value], after: Any, variances: Variances, one_location: bool
) -> Verdict:
    kind = type(module).__name__
    for kinds, reason in _REASONS:
        if kind.startswith(kinds):
            return No(reason)
    if len(inputs) != 1 or not isinstance(after, Value):
        return No("it is called on more than one tensor, or gives more than one")
    before = inputs[0]
    if isinstance(module, nn.modules.conv._ConvNd):
        return _convolution(name, module, before, after, variances)
    if isinstance(module, nn.Linear):
        return _linear(name, module, before, variances)
    if isinstance(module, nn.PReLU):
        slopes = module.weight.detach().double()
        if slopes.min() != slopes.max():
            return No("its slopes differ between channels, so the channels are not alike")
        return Becomes(LeakyReLU(float(slopes[0])))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _batch_norm(module)
    if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.modules.instancenorm._InstanceNorm):
        return _norm(module, before, one_location)
    if isinstance(module, Activation):
        return Becomes(module.layer)
    if isinstance(module, Broadcast):
        return Passes("Identity() over channels")
    if isinstance(module, Crop):
        return Becomes(Cut(module.ends))
    return No(f"no exact kernel is known here for {kind}")


def _convolution(name: str, module: Any, before: Value, after: Value, variances: Variances) -> Verdict:
    if module.groups != 1:
        return No(
            f"groups={module.groups}: a filter that sees only some of the channels keeps channels apart for ever, and "
            "the limit is not of many independent channels"
        )
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    axes = len(kernel)
    if before.ndim != 2 + axes:
        return No(f"its input has {before.ndim - 2} spatial axes, not {axes}")
    # torch's own fan-in of a transposed weight is out_channels × filter; each output sums over the in_channels.
    weight_var, bias_var, fan_in = variances.of(name, module, module.in_channels * math.prod(kernel))
    if not module.transposed:
        conv = Conv(
            compact(kernel),
            compact(stride),
            module.padding,
            compact(dilation),
            weight_var,
            bias_var,
            fan_in,
            module.padding_mode,
        )
        return Becomes(spelled(conv, axes))
    layer = ConvTranspose(compact(kernel), compact(stride), 0, compact(dilation), weight_var, bias_var, fan_in)
    pads = tuple((p, p) for p in module.padding)
    # From the sizes, because forward may have been called with an output_size.
    extra = tuple(
        after.shape[2 + a] - ((before.shape[2 + a] - 1) * stride[a] - sum(pads[a]) + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    )
    return Becomes(transposed_padding(layer, pads, extra, kernel, stride, dilation))


def _linear(name: str, module: Any, before: Value, variances: Variances) -> Verdict:
    if before.ndim != 2:
        return No(
            f"it acts on the last axis of {before.shape[1:]}, which is a location and not the channels; flatten "
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


def _norm(module: Any, before: Value, one_location: bool) -> Verdict:
    """Norms with weights, which are 1 in a new one; those without call the function."""
    weight, bias = module.weight, getattr(module, "bias", None)
    over = module.num_groups if isinstance(module, nn.GroupNorm) else getattr(module, "normalized_shape", 0)
    verdict = layer_norm(over, module.eps, before, one_location)
    if isinstance(verdict, No):
        return verdict
    if (weight is not None and (weight != 1).any()) or (bias is not None and (bias != 0).any()):
        return No("its weights are not all 1, or its biases not 0, so its channels are not alike; reset them")
    return verdict
