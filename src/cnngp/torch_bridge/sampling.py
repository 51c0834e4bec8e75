"""Outputs of thousands of finite networks with random weights on the same images, and a user's module made wider.

A batch of modules runs as one, by `torch.vmap` over their weights. The weights of module i depend only on the seed
(seed, i), so the batch size changes nothing but rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from cnngp.common.arrays import DataError, as_real, to_numpy
from cnngp.common.errors import is_whole
from cnngp.gp.linalg import blocks
from cnngp.network.layers import NetworkError

from .importing.trace import BATCH, Value, trace

Seed = int | tuple[int, ...]

_BUDGET = {"cpu": 2**28, "cuda": 2**32}
"""Memory budget in bytes for activations and weights at one time."""
_ENOUGH = {"cpu": 2**18, "cuda": 2**22}
"""Activations per call beyond which more networks gain nothing: a batched call is then slower than single calls."""
_MOST = 64


@dataclass(frozen=True)
class Finite:
    """A module, and the standard deviation of each of its random parameters, in the order of drawing."""

    module: Any
    stds: dict[str, float]
    outputs: int

    @property
    def drawn(self) -> dict[str, Any]:
        parameters = dict(self.module.named_parameters())
        return {name: parameters[name] for name in self.stds}

    @property
    def numbers(self) -> int:
        return sum(p.numel() for p in self.drawn.values())

    def floats_per_image(self, input_shape: Sequence[int]) -> int:
        """Approximate number of activations of one image in memory at one time: three maps of the largest size."""
        traced = trace(self.module, tuple(map(int, input_shape)))
        if not isinstance(traced.output, Value) or traced.output.numel != BATCH * self.outputs:
            raise NetworkError(f"it gives {traced.output}, not {self.outputs} numbers an image")
        maps = [value for step in traced.steps for value in (*step.inputs, step.result) if isinstance(value, Value)]
        return 3 * max(m.numel // BATCH for m in maps)

    def weights(self, normal: Any) -> dict[str, Any]:
        """Parameters of S modules, each (S, *shape), from standard normal numbers (S, numbers)."""
        found, start = {}, 0
        for name, p in self.drawn.items():
            some = normal[:, start : start + p.numel()].to(p.dtype) * self.stds[name]
            found[name] = some.reshape(len(normal), *p.shape)
            start += p.numel()
        return found

    def fill(self, seed: Seed) -> None:
        """Draw the weights of the module in place."""
        device = next(iter(self.drawn.values())).device
        values = self.weights(draw(self.numbers, seed, device)[None])
        with torch.no_grad():
            for name, p in self.drawn.items():
                p.copy_(values[name][0])


def seed_key(seed: Any) -> tuple[int, ...]:
    """Return the seed as a tuple of plain integers; raises if it is not one."""
    key = tuple(seed) if isinstance(seed, (tuple, list)) else (seed,)
    if not key or not all(is_whole(k, least=0) for k in key):
        raise NetworkError(f"seed={seed!r} is not a non-negative integer or a tuple of them")
    return tuple(map(int, key))


def torch_device(device: Any) -> torch.device:
    """Return the requested device, the CPU for None; raises if this PyTorch build does not support it."""
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:  # the type depends on the device
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NetworkError(
            f"device={device!r} cannot be used by PyTorch {torch.__version__} here ({reason}); use 'cpu'"
        ) from None
    return found


def image_tensor(X: Any, name: str, dtype: Any, device: Any) -> Any:
    """Convert images (N, C, …), an array or a tensor of any real type, to a tensor without a gradient."""
    images = X if isinstance(X, torch.Tensor) else torch.as_tensor(as_real(to_numpy(X, name), name))
    if images.ndim < 2 or len(images) == 0 or images.is_complex():
        told = f"shape {tuple(images.shape)} and type {images.dtype}"
        raise DataError(f"{name} has {told}; expected real images (N, C, …), at least one")
    return images.detach().to(dtype=dtype, device=device)


def draw(numbers: int, seed: Seed, device: Any) -> Any:
    """Standard normal numbers that depend only on the seed and the kind of device, not on earlier draws."""
    sequence = np.random.SeedSequence(seed_key(seed))
    if torch.device(device).type == "cpu":
        # PyTorch's CPU generator keeps only 32 bits of a seed, too few for many networks.
        generator = np.random.Generator(np.random.SFC64(sequence))
        return torch.from_numpy(generator.standard_normal(numbers, dtype=np.float32))
    card = torch.Generator(device=device)
    card.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    return torch.randn(numbers, generator=card, device=device, dtype=torch.float32)


def outputs_of_many(
    finite: Finite,
    images: Any,
    samples: int,
    key: tuple[int, ...],
    batch: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Outputs (samples, N, outputs), on the CPU, of modules with weights from the seeds (*key, 0), (*key, 1), …"""
    networks, rows = _sizes(finite, images, batch)

    def run(parameters: dict[str, Any], x: Any) -> Any:
        return functional_call(finite.module, parameters, (x.clone(),))  # because forward may modify its input

    def run_all(weights: dict[str, Any], x: Any) -> Any:
        try:
            return torch.vmap(run, in_dims=(0, None))(weights, x)
        except RuntimeError:  # vmap does not support some calls, such as those with out=; other errors are raised again
            count = len(next(iter(weights.values())))
            return torch.stack([run({name: w[i] for name, w in weights.items()}, x) for i in range(count)])

    # Results stay on the device until the end, so that a GPU never waits for a transfer.
    result = torch.empty(samples, len(images), finite.outputs, dtype=images.dtype, device=images.device)
    with torch.no_grad():
        for first in range(0, samples, networks):
            now = range(first, min(first + networks, samples))
            weights = finite.weights(torch.stack([draw(finite.numbers, (*key, i), images.device) for i in now]))
            for part in blocks(len(images), rows):
                y = run_all(weights, images[part])
                result[first : first + len(now), part] = y.reshape(len(now), -1, finite.outputs)
            if progress is not None:
                progress(len(now))
    return result.cpu()


def _sizes(finite: Finite, images: Any, batch: int | None) -> tuple[int, int]:
    """Number of networks and of images per call: enough work for one call, within the memory budget."""
    if batch is not None and batch < 1:
        raise NetworkError(f"batch={batch}: at least one network at a time")
    kind = images.device.type
    budget, enough = (limits.get(kind, limits["cuda"]) for limits in (_BUDGET, _ENOUGH))
    floats = finite.floats_per_image(images.shape[1:])
    a_network, an_image = 3 * finite.numbers * images.element_size(), floats * images.element_size()
    rows = max(1, min(len(images), budget // (2 * an_image)))
    useful = 3 * enough // (rows * floats)
    fitting = max(1, min(_MOST, useful, budget // (a_network + rows * an_image)))
    return batch or fitting, rows


# ---- a user's module at other widths ---------------------------------------------------------------------------------


def widen(module: Any, input_shape: tuple[int, ...], channels: int, outputs: int) -> Finite:
    """A copy of the module whose first hidden layer has `channels`, and the other layers widened by the same factor.

    The copy runs the module's own forward, not the imported network, so `check_limit` finds mistakes of the importer.
    The input keeps its channels, and the output gets `outputs`; the new weights are normal with the same E[w²]·fan-in.
    """
    copied = copy.deepcopy(module)
    parts = {name or "the module": part for name, part in copied.named_modules()}
    traced = trace(module, input_shape)
    makers = {traced.output.number}  # the output, and values between it and the output layers
    for step in reversed(traced.steps):
        if step.number in makers and not _width(parts.get(step.name)):
            makers.update(step.reads)
    hidden = (_width(parts.get(step.name)) for step in traced.steps if step.number not in makers)
    factor = channels / next(filter(None, hidden), 1)
    stds: dict[str, float] = {}
    carried = {0: (input_shape[0], input_shape[0])}  # channels of each value: (original, widened)
    for step in traced.steps:
        # A value with the input's channels may be added to one with hidden channels, and is broadcast over them.
        old, new = max(carried[i] for i in step.reads)
        part = parts.get(step.name)
        if width := _width(part):
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
    """Number of output channels of a layer with random weights; 0 for any other module."""
    if isinstance(part, nn.Linear):
        return int(part.out_features)
    return int(part.out_channels) if isinstance(part, nn.modules.conv._ConvNd) else 0


def _redraw(part: Any, name: str, old: int, new: int, c_out: int, stds: dict[str, float]) -> None:
    """Allocate weights for `new` instead of `old` input channels, and record their standard deviations in `stds`."""
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
    """Widen a batch norm, a norm or a PReLU: the importer accepts only those that treat all channels alike."""
    for key in ("weight", "bias", "running_mean", "running_var"):
        tensor = getattr(part, key, None)
        if tensor is not None and tensor.numel() > 1:
            tensor.data = tensor.data[:1].repeat(channels, *(1,) * (tensor.ndim - 1))
    if isinstance(part, nn.LayerNorm | nn.RMSNorm):
        part.normalized_shape = (channels, *part.normalized_shape[1:])
    elif isinstance(part, nn.GroupNorm):
        part.num_channels = channels
