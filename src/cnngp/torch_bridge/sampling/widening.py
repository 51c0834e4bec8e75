"""The outputs of a PyTorch module at other widths, with redrawn weights: its own forward, not our reading of it.

`check_limit` compares these with the kernel of the imported network, so a mistake of the importer shows. Every layer
with weights gets `factor` times its channels (but the input's and the output's), and weights redrawn as normal numbers
whose second moment keeps E[w²]·fan-in as it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cnngp.network.layers import NetworkError

from ..importing.trace import Step, trace
from .sampling import draw

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class _Role:
    """How many channels a layer reads, whether they are the input's own, and whether the layer makes the output."""

    channels: int
    from_input: bool
    makes_output: bool


def _roles(module: Any, input_shape: tuple[int, ...]) -> dict[str, _Role]:
    """The role of each module with weights, in the order of the calls."""
    traced = trace(module, input_shape)
    carried: dict[int, tuple[int, bool]] = {0: (input_shape[0], True)}  # channels, and whether they are the input's
    outputs = {traced.output.number}
    for step in reversed(traced.steps):
        if step.number in outputs and not _is_layer(module, step):
            outputs.update(step.reads)
    roles: dict[str, _Role] = {}
    for step in traced.steps:
        sources = [carried[i] for i in step.reads]
        if _is_layer(module, step):
            part = module.get_submodule(step.module)
            roles[step.module] = _Role(*sources[0], step.number in outputs)
            channels = part.out_features if isinstance(part, nn.Linear) else part.out_channels
            carried[step.number] = (channels, False)
        else:
            carried[step.number] = next((s for s in sources if not s[1]), sources[0])
            if not step.function:
                roles[step.module] = _Role(*carried[step.number], step.number in outputs)
    return roles


def _is_layer(module: Any, step: Step) -> bool:
    return not step.function and isinstance(module.get_submodule(step.module), (*_CONVS, nn.Linear))


def first_width(module: Any, input_shape: tuple[int, ...]) -> int:
    """The channels of the first layer with weights that does not make the output: what `channels` counts."""
    for name, role in _roles(module, input_shape).items():
        part = module.get_submodule(name)
        if isinstance(part, (*_CONVS, nn.Linear)) and not role.makes_output:
            return int(part.out_features if isinstance(part, nn.Linear) else part.out_channels)
    return 1


@dataclass(frozen=True)
class Widened:
    """A widened copy of the module, and (parameter, standard deviation) of all that is redrawn."""

    module: Any
    drawn: list[tuple[Any, float]]


def widen(module: Any, input_shape: tuple[int, ...], factor: float, outputs: int) -> Widened:
    roles = _roles(module, input_shape)
    copied = copy.deepcopy(module)
    drawn: list[tuple[Any, float]] = []

    def wider(channels: int) -> int:
        return max(1, round(channels * factor))

    for name, role in roles.items():
        part = copied.get_submodule(name)
        c_in = role.channels if role.from_input else wider(role.channels)
        if isinstance(part, nn.Linear):
            locations = part.in_features // role.channels
            c_out = outputs if role.makes_output else wider(part.out_features)
            drawn += _redraw(part, part.in_features, c_in * locations, (c_out, c_in * locations), c_out)
            part.in_features, part.out_features = c_in * locations, c_out
        elif isinstance(part, _CONVS):
            c_out = outputs if role.makes_output else wider(part.out_channels)
            pair = (c_in, c_out) if isinstance(part, _TRANSPOSED) else (c_out, c_in)
            drawn += _redraw(part, part.in_channels, c_in, (*pair, *part.kernel_size), c_out)
            part.in_channels, part.out_channels = c_in, c_out
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and not role.from_input:
            # Imported only if it is the same for all channels, so its first channel tells all.
            for key in ("weight", "bias", "running_mean", "running_var"):
                tensor = getattr(part, key)
                if tensor is not None:
                    tensor.data = tensor.data[:1].repeat(outputs if role.makes_output else wider(role.channels))
        elif isinstance(part, nn.PReLU) and part.num_parameters > 1:
            part.weight.data = part.weight.data[:1].repeat(wider(role.channels))
    return Widened(copied, drawn)


def _redraw(part: Any, old_fan: int, new_fan: int, shape: tuple[int, ...], c_out: int) -> list[tuple[Any, float]]:
    second_moment = float(part.weight.detach().double().square().mean())
    part.weight = nn.Parameter(part.weight.new_empty(shape), requires_grad=False)
    drawn = [(part.weight, math.sqrt(second_moment * old_fan / new_fan))]
    if part.bias is not None:
        std = math.sqrt(float(part.bias.detach().double().square().mean()))
        part.bias = nn.Parameter(part.bias.new_empty(c_out), requires_grad=False)
        drawn.append((part.bias, std))
    return drawn


def outputs_of_module(
    module: Any,
    X: Any,
    channels: int,
    samples: int,
    seed: tuple[int, ...],
    outputs: int,
    progress: Callable[[int], None] | None,
) -> Any:
    """(samples, N, outputs): the module widened until its first layer has `channels`, redrawn for every sample."""
    first = next(module.parameters())
    x = torch.as_tensor(X, dtype=first.dtype, device=first.device)
    shape = tuple(map(int, x.shape[1:]))
    wide = widen(module, shape, channels / first_width(module, shape), outputs)
    result = torch.empty(samples, len(x), outputs, dtype=x.dtype)
    numbers = sum(p.numel() for p, _ in wide.drawn)
    with torch.no_grad():
        for i in range(samples):
            normal, taken = draw(numbers, (*seed, i), x.device), 0
            for parameter, std in wide.drawn:
                n = parameter.numel()
                parameter.copy_(normal[taken : taken + n].reshape(parameter.shape) * std)
                taken += n
            try:
                y = wide.module(x.clone())
                if y.shape[0] != len(x) or y.numel() != len(x) * outputs:
                    raise RuntimeError(f"its output has shape {tuple(y.shape)}")
            except RuntimeError as error:
                raise NetworkError(
                    f"the module's forward does not run with {channels} channels ({str(error).splitlines()[0]}); it "
                    "fixes its widths, so check the imported network: check_limit(cnngp.from_torch(module, …), X)"
                ) from None
            result[i] = y.reshape(len(x), outputs).cpu()
            if progress is not None:
                progress(1)
    return result
