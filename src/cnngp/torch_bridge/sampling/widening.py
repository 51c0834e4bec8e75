"""The outputs of a PyTorch module at other widths, with redrawn weights: its own forward, not our reading of it.

`check_limit` compares these with the kernel of the imported network, so a mistake of the importer shows. Every layer
with weights gets `factor` times its channels (but the input's and the output's), and weights redrawn as normal numbers
whose second moment keeps E[w²]·fan-in as it was.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from cnngp.network.layers import NetworkError

from ..importing.trace import Step, trace
from .drawing import Finite

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
            carried[step.number] = (_channels(part), False)
        else:
            carried[step.number] = next((s for s in sources if not s[1]), sources[0])
            if not step.function:
                roles[step.module] = _Role(*carried[step.number], step.number in outputs)
    return roles


def _is_layer(module: Any, step: Step) -> bool:
    return not step.function and isinstance(module.get_submodule(step.module), (*_CONVS, nn.Linear))


def widen(module: Any, input_shape: tuple[int, ...], channels: int, outputs: int) -> Finite:
    """A copy of the module whose first layer has `channels`, and the others so many times more as well."""
    roles = _roles(module, input_shape)
    factor = channels / _first_width(module, roles)
    copied = copy.deepcopy(module)
    stds: dict[str, float] = {}

    def wider(channels: int) -> int:
        return max(1, round(channels * factor))

    def redraw(name: str, part: Any, terms: float, shape: tuple[int, ...], c_out: int) -> None:
        """New weights, of which each output sums `terms` times as many."""
        for which, new, scale in (("weight", shape, 1.0 / terms), ("bias", (c_out,), 1.0)):
            old = getattr(part, which)
            if old is not None:
                stds[f"{name}.{which}" if name else which] = math.sqrt(_mean_square(old) * scale)
                setattr(part, which, nn.Parameter(old.new_empty(new), requires_grad=False))

    for name, role in roles.items():
        part = copied.get_submodule(name)
        if parametrize.is_parametrized(part):
            for which in list(part.parametrizations):
                parametrize.remove_parametrizations(part, which)
        c_in = role.channels if role.from_input else wider(role.channels)
        if isinstance(part, nn.Linear):
            locations = part.in_features // role.channels
            c_out = outputs if role.makes_output else wider(part.out_features)
            redraw(name, part, c_in * locations / part.in_features, (c_out, c_in * locations), c_out)
            part.in_features, part.out_features = c_in * locations, c_out
        elif isinstance(part, _CONVS):
            c_out = outputs if role.makes_output else wider(part.out_channels)
            pair = (c_in, c_out) if isinstance(part, _TRANSPOSED) else (c_out, c_in)
            redraw(name, part, c_in / part.in_channels, (*pair, *part.kernel_size), c_out)
            part.in_channels, part.out_channels = c_in, c_out
        elif isinstance(part, nn.modules.batchnorm._BatchNorm) and not role.from_input:
            # Imported only if it is the same for all channels, so its first channel tells all.
            for key in ("weight", "bias", "running_mean", "running_var"):
                tensor = getattr(part, key)
                if tensor is not None:
                    tensor.data = tensor.data[:1].repeat(outputs if role.makes_output else wider(role.channels))
        elif isinstance(part, nn.PReLU) and part.num_parameters > 1:
            part.weight.data = part.weight.data[:1].repeat(wider(role.channels))
    finite = Finite(copied, stds, outputs)
    try:
        finite.floats_per_image(input_shape)
    except NetworkError as error:
        raise NetworkError(
            f"the module's forward does not run with {channels} channels ({error}); it fixes its widths, so check the "
            "imported network: check_limit(cnngp.from_torch(module, …), X)"
        ) from None
    return finite


def _first_width(module: Any, roles: dict[str, _Role]) -> int:
    """The channels of the first layer with weights that does not make the output: what `channels` counts."""
    for name, role in roles.items():
        part = module.get_submodule(name)
        if isinstance(part, (*_CONVS, nn.Linear)) and not role.makes_output:
            return _channels(part)
    return 1


def _channels(part: Any) -> int:
    return int(part.out_features if isinstance(part, nn.Linear) else part.out_channels)


def _mean_square(tensor: Any) -> float:
    return float(tensor.detach().double().square().mean())
