"""`sample_network`: one finite PyTorch module of a network, its weights drawn with the layers' variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
import torch
from torch import nn

from cnngp.common.checks import is_whole
from cnngp.network.layers import (
    GELU,
    AvgPool,
    ConvTranspose,
    Dense,
    Elementwise,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    Pool,
    ReLU,
)

from ..parts import Activation, Branches, Broadcast, Crop
from .geometry import conv_arguments
from .plan import Apply, Average, Channels, ModulePlan, Parallel, Part, Series, Weights, Widen, make_plan

Seed = int | tuple[int, ...]

_CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_POOL = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_GLOBAL = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
# fmt: off
_PAD = {
    "constant": {1: nn.ZeroPad1d, 2: nn.ZeroPad2d, 3: nn.ZeroPad3d},
    "circular": {1: nn.CircularPad1d, 2: nn.CircularPad2d, 3: nn.CircularPad3d},
    "reflect": {1: nn.ReflectionPad1d, 2: nn.ReflectionPad2d, 3: nn.ReflectionPad3d},
    "replicate": {1: nn.ReplicationPad1d, 2: nn.ReplicationPad2d, 3: nn.ReplicationPad3d},
}
# fmt: on


def seed_key(seed: Any) -> tuple[int, ...]:
    """A seed as plain integers, or what is wrong with it."""
    key = tuple(seed) if isinstance(seed, (tuple, list)) else (seed,)
    if not key or not all(is_whole(k, least=0) for k in key):
        raise NetworkError(f"seed={seed!r} is not a non-negative integer or a tuple of them")
    return tuple(map(int, key))


def torch_device(device: Any) -> torch.device:
    """The device that was asked for, the CPU for None; refuses one that this PyTorch has not."""
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:  # each kind of device has its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NetworkError(
            f"device={device!r} cannot be used by PyTorch {torch.__version__} here ({reason}); use 'cpu'"
        ) from None
    return found


def draw(numbers: int, seed: Seed, device: Any) -> Any:
    """Standard normal numbers: the same for a seed on one kind of device, whatever else is drawn before or after."""
    sequence = np.random.SeedSequence(seed_key(seed))
    if torch.device(device).type == "cpu":
        # torch's own generator on the CPU keeps 32 bits of a seed, too few for many networks.
        generator = np.random.Generator(np.random.SFC64(sequence))
        return torch.from_numpy(generator.standard_normal(numbers, dtype=np.float32))
    card = torch.Generator(device=device)
    card.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    return torch.randn(numbers, generator=card, device=device, dtype=torch.float32)


def sample_module(
    net: Network, channels: Channels, input_shape: Sequence[int], seed: Seed, outputs: int, dtype: Any, device: Any
) -> Any:
    plan = make_plan(net, channels, input_shape, outputs)
    seed = seed_key(seed)
    device = torch_device(device)
    dtype = dtype or torch.float32
    with torch.device("meta"):  # torch's own initial weights would be drawn for nothing
        built = _build(plan.root)
    module = nn.Sequential(*built) if len(built) != 1 or not isinstance(built[0], nn.Sequential) else built[0]
    if plan.weights[-1].out:
        module.append(nn.Flatten())
    module = module.to_empty(device=device).to(dtype)
    _reset_buffers(module)
    _fill(module, plan, draw(plan.numbers, seed, device))
    return module


def _reset_buffers(module: Any) -> None:
    for part in module.modules():
        if isinstance(part, Broadcast):
            part.reset()


def _fill(module: Any, plan: ModulePlan, normal: Any) -> None:
    layers = [m for m in module.modules() if hasattr(m, "cnngp_layer")]
    taken = 0

    def take(parameter: Any, std: float) -> None:
        nonlocal taken
        n = parameter.numel()
        parameter.copy_(normal[taken : taken + n].reshape(parameter.shape).to(parameter.dtype) * std)
        taken += n

    order = {id(w): i for i, w in enumerate(plan.weights)}
    with torch.no_grad():
        for layer in sorted(layers, key=lambda m: order[id(m.cnngp_weights)]):
            take(layer.weight, layer.cnngp_weights.weight_std)
            if layer.bias is not None:
                take(layer.bias, layer.cnngp_weights.bias_std)
            del layer.cnngp_weights


def _build(part: Part) -> list[Any]:
    """The part as modules to run one after the other."""
    match part:
        case Weights():
            return _layer(part)
        case Apply(layer):
            return [_activation(layer)]
        case Average(layer, spatial):
            return _pool(layer, len(spatial))
        case Widen():
            return [Broadcast(part.channels, part.out_channels)]
        case Series():
            return [module for p in part.parts for module in _build(p)]
        case Parallel():
            return [Branches(*(_one(_build(p)) for p in part.parts))]
        case _:
            assert_never(part)


def _one(modules: list[Any]) -> Any:
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules) if modules else nn.Identity()


def _layer(w: Weights) -> list[Any]:
    bias = w.layer.bias_var > 0
    before, after = [], []
    if isinstance(w.layer, Dense):
        before = [nn.Flatten()] if w.spatial else []
        layer = nn.Linear(w.shape[1], w.c_out, bias=bias)
    else:
        a, axes = conv_arguments(w), len(w.spatial)
        if isinstance(w.layer, ConvTranspose):
            layer = _TRANSPOSED[axes](
                w.c_in, w.c_out, a.kernel_size, a.stride, a.padding, a.output_padding, bias=bias, dilation=a.dilation
            )
            after = [Crop(a.crop)] if any(a.crop) else []
        else:
            before = [_PAD[a.pad_mode][axes](a.pad)] if any(a.pad) else []
            layer = _CONV[axes](w.c_in, w.c_out, a.kernel_size, a.stride, a.padding, a.dilation, bias=bias)
    layer.cnngp_layer = w.layer
    layer.cnngp_weights = w
    return [*before, layer, *after]


def _pool(layer: Pool, axes: int) -> list[Any]:
    if isinstance(layer, AvgPool):
        return [_POOL[axes](layer.size, layer.stride, layer.padding, count_include_pad=layer.count_include_pad)]
    return [_GLOBAL[axes](1), nn.Flatten()] if axes else []


def _activation(layer: Nonlinearity) -> Any:
    match layer:
        case ReLU(gain=1.0):
            return nn.ReLU()
        case LeakyReLU():
            return nn.LeakyReLU(layer.slope)
        case GELU():
            return nn.GELU()
        case Elementwise(fn="tanh"):
            return nn.Tanh()
        case Elementwise(fn="silu"):
            return nn.SiLU()
        case _:
            return Activation(layer)
