"""What each module of `torch.nn` with weights becomes: a layer, a constant factor, or a refusal with the reason."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from cnngp.network.layers import Conv, ConvTranspose, Dense, LeakyReLU

from ..parts import Activation, Broadcast
from .fold import Call, Refused, Scale, compact, spelled, transposed_padding
from .functions import Passes, layer_norm, refusal
from .trace import Value
from .weights import Variances

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
FIXED = (nn.PReLU, nn.modules.batchnorm._BatchNorm, *_NORMS)
"""Modules whose parameters are those of a fixed function: they may be used again, and are no random weights."""


def read_module(
    name: str, module: Any, inputs: list[Value], after: Any, variances: Variances, one_location: bool
) -> Call | Passes:
    """What the call of a module becomes, or `Refused`."""
    kind = type(module).__name__
    if len(inputs) != 1 or not isinstance(after, Value):
        raise refusal(kind)
    before = inputs[0]
    match module:
        case nn.modules.conv._ConvNd():
            return _convolution(name, module, before, after, variances)
        case nn.Linear():
            if before.ndim != 2:
                raise Refused(
                    f"it acts on the last axis of {before.shape[1:]}, which is a location and not the channels; "
                    "flatten first, or use a convolution with kernel_size=1"
                )
            return Dense(*variances.of(name, module, module.in_features)[:2])
        case nn.PReLU():
            slopes = module.weight.detach().double()
            if slopes.min() != slopes.max():
                raise Refused("its slopes differ between channels, so the channels are not alike")
            return LeakyReLU(float(slopes[0]))
        case nn.modules.batchnorm._BatchNorm():
            return _batch_norm(module)
        case nn.LayerNorm() | nn.GroupNorm() | nn.RMSNorm() | nn.modules.instancenorm._InstanceNorm():
            return _norm(module, before, one_location)
        case Activation():
            return module.layer
        case Broadcast():
            return Passes("Identity() over channels")
        case _:
            raise refusal(kind)


def _convolution(name: str, module: Any, before: Value, after: Value, variances: Variances) -> Call:
    if module.groups != 1:
        raise Refused(
            f"groups={module.groups}: a filter that sees only some of the channels keeps channels apart for ever, and "
            "the limit is not of many independent channels"
        )
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    axes = len(kernel)
    if before.ndim != 2 + axes:
        raise Refused(f"its input has {before.ndim - 2} spatial axes, not {axes}")
    # torch's own fan-in of a transposed weight is out_channels × filter; each output sums over the in_channels.
    weighted = variances.of(name, module, module.in_channels * math.prod(kernel))
    k, s, d = compact(kernel), compact(stride), compact(dilation)
    if not module.transposed:
        return spelled(Conv(k, s, module.padding, d, *weighted, module.padding_mode), axes)
    pads = tuple((p, p) for p in module.padding)
    # From the sizes, because forward may have been called with an output_size.
    extra = [
        after.shape[2 + a] - ((before.shape[2 + a] - 1) * stride[a] - sum(pads[a]) + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    ]
    return transposed_padding(ConvTranspose(k, s, 0, d, *weighted), pads, extra)


def _batch_norm(module: Any) -> Call:
    """y = γ(x − μ)/√(σ² + ε) + β with fixed statistics is a constant factor, if it is the same for all channels."""
    if module.training or module.running_mean is None:
        raise Refused(
            "in training mode it divides by statistics of the batch, so an image's output depends on the other images; "
            "call module.eval() first, or remove it"
        )
    mean, var = module.running_mean.double(), module.running_var.double()
    gamma = module.weight.detach().double() if module.weight is not None else var.new_ones(())
    beta = module.bias.detach().double() if module.bias is not None else var.new_zeros(())
    factor = (gamma / (var + module.eps).sqrt()).expand_as(mean)
    if (beta - mean * factor).abs().max() > 0:
        raise Refused("its fixed shift is not zero, so its output is not zero-mean; remove it, or reset its statistics")
    if float(factor.max() - factor.min()) > 1e-6 * float(factor.abs().max()):
        raise Refused(
            "its fixed factors differ between channels, so these are not alike; remove it, or reset its statistics"
        )
    return Scale(float(factor[0]))


def _norm(module: Any, before: Value, one_location: bool) -> Call:
    """Norms with weights, which are 1 in a new one; those without call the function."""
    weight, bias = module.weight, getattr(module, "bias", None)
    over = module.num_groups if isinstance(module, nn.GroupNorm) else getattr(module, "normalized_shape", 0)
    call = layer_norm(over, module.eps, before, one_location)
    if (weight is not None and (weight != 1).any()) or (bias is not None and (bias != 0).any()):
        raise Refused("its weights are not all 1, or its biases not 0, so its channels are not alike; reset them")
    return call
