"""The outputs of a PyTorch module at other widths, with redrawn weights: its own forward, not our reading of it.

`check_limit` compares these with the kernel of the imported network, so a mistake of the importer shows. Every layer
with weights gets `factor` times its channels (but the input's and the output's), and weights redrawn as normal numbers
whose second moment keeps E[w²]·fan-in as it was.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from cnngp.network.layers import NetworkError

from .drawing import Finite
from .importing.trace import trace

_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")


def widen(module: Any, input_shape: tuple[int, ...], channels: int, outputs: int) -> Finite:
    """A copy of the module whose first layer has `channels`, and the others so many times more as well."""
    copied = copy.deepcopy(module)
    parts = {name or "the module": part for name, part in copied.named_modules()}
    traced = trace(module, input_shape)
    makers = {traced.output.number}  # the output, and the values that it is a plain function of
    for step in reversed(traced.steps):
        if step.number in makers and not _width(parts.get(step.name)):
            makers.update(step.reads)
    hidden = (_width(parts.get(step.name)) for step in traced.steps if step.number not in makers)
    factor = channels / next(filter(None, hidden), 1)
    stds: dict[str, float] = {}
    carried = {0: (input_shape[0], input_shape[0])}  # channels of each value, as they are and as they become
    for step in traced.steps:
        # A value of the input's channels may be added to one of hidden channels, and spreads over these.
        old, new = max(carried[i] for i in step.reads)
        part = parts.get(step.name)
        width = _width(part)
        if width:
            c_out = outputs if step.number in makers else max(1, round(width * factor))
            _redraw(part, step.module, old, new, c_out, stds)
            old, new = width, c_out
        elif old != new and part is not None:
            _widen_function(part, new)
        carried[step.number] = old, new
    finite = Finite(copied, stds, outputs)
    try:
        finite.floats_per_image(input_shape)
    except NetworkError as error:
        raise NetworkError(
            f"the module's forward does not run with {channels} channels ({error}); it fixes its widths, so check the "
            "imported network: check_limit(cnngp.from_torch(module, …), X)"
        ) from None
    return finite


def _width(part: Any) -> int:
    """The channels that a layer with random weights makes; 0 for any other module."""
    match part:
        case nn.Linear():
            return int(part.out_features)
        case nn.modules.conv._ConvNd():
            return int(part.out_channels)
        case _:
            return 0


def _redraw(part: Any, name: str, old: int, new: int, c_out: int, stds: dict[str, float]) -> None:
    """Room for new weights, with their standard deviations, where `old` channels in become `new`."""
    if parametrize.is_parametrized(part):
        for which in list(part.parametrizations):
            parametrize.remove_parametrizations(part, which)
    if isinstance(part, nn.Linear):
        inputs = part.in_features // old * new  # of each location
        terms, shape = inputs / part.in_features, (c_out, inputs)
        part.in_features, part.out_features = inputs, c_out
    else:
        terms = new / part.in_channels
        shape = (*((new, c_out) if part.transposed else (c_out, new)), *part.kernel_size)
        part.in_channels, part.out_channels = new, c_out
    for which, size, scale in (("weight", shape, 1.0 / terms), ("bias", (c_out,), 1.0)):
        tensor = getattr(part, which)
        if tensor is not None:
            mean_square = float(tensor.detach().double().square().mean())
            stds[f"{name}.{which}" if name else which] = math.sqrt(mean_square * scale)
            setattr(part, which, nn.Parameter(tensor.new_empty(size), requires_grad=False))


def _widen_function(part: Any, channels: int) -> None:
    """A batch norm, a norm or a PReLU on more channels; it is the same for all of them, or it is not imported."""
    for key in _PER_CHANNEL:
        tensor = getattr(part, key, None)
        if tensor is not None and tensor.numel() > 1:
            tensor.data = tensor.data[:1].repeat(channels, *(1,) * (tensor.ndim - 1))
    if isinstance(part, nn.LayerNorm | nn.RMSNorm):
        part.normalized_shape = (channels, *part.normalized_shape[1:])
    elif isinstance(part, nn.GroupNorm):
        part.num_channels = channels
