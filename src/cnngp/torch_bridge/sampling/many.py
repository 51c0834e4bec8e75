"""`sample_outputs`: the outputs of thousands of finite networks on the same images, a batch of networks at a time.

A batch of S networks is one network whose convolutions have S groups, so every layer is one call. Activations have
shape (N, S·channels, …); while they are still the same for all networks, (N, channels, …). Network i draws its weights
from the seed (seed, i) alone, so the batch changes nothing but the order of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch.nn import functional as F

from cnngp.common.arrays import DataError, as_real, to_numpy
from cnngp.network.layers import Conv, ConvTranspose, Dense, Network, NetworkError, ReLU

from ..parts import average, broadcast, torch_function
from .geometry import ConvArguments, conv_arguments
from .plan import Apply, Average, Channels, ModulePlan, Parallel, Part, Series, Weights, Widen, make_plan
from .sampling import draw, seed_key, torch_device

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_BUDGET = {"cpu": 2**28, "cuda": 2**32}
"""Bytes of activations and weights alive at once."""
_ENOUGH = {"cpu": 2**18, "cuda": 2**22}
"""Activations a call from which more networks gain nothing: a group is then slower than a call of its own."""
_MOST = 64


@dataclass(frozen=True)
class _Value:
    """An activation; `shared` while it is the same for all networks, `fresh` if nothing else will read it."""

    x: Any
    shared: bool
    fresh: bool


@dataclass(frozen=True)
class _Slot:
    """Where a layer's random numbers lie and what is done with them: worked out once, used for every network."""

    start: int
    size: int
    shape: tuple[int, ...]
    weight_std: float
    bias: int
    bias_std: float
    conv: ConvArguments | None


def _slots(plan: ModulePlan) -> dict[int, _Slot]:
    slots, start = {}, 0
    for w in plan.weights:
        size = math.prod(w.shape)
        conv = None if isinstance(w.layer, Dense) else conv_arguments(w)
        slots[id(w)] = _Slot(start, size, w.shape, w.weight_std, w.numbers - size, w.bias_std, conv)
        start += w.numbers
    return slots


class _Batch:
    """S networks with their weights, run on some images. `normal`: (S, numbers of the plan)."""

    def __init__(self, plan: ModulePlan, slots: dict[int, _Slot], normal: Any, dtype: Any) -> None:
        self.plan, self.slots, self.normal, self.dtype = plan, slots, normal, dtype
        self.S = len(normal)

    def weight(self, slot: _Slot) -> Any:
        """(S, *shape)."""
        numbers = self.normal[:, slot.start : slot.start + slot.size].to(self.dtype)
        return (numbers * slot.weight_std).reshape(self.S, *slot.shape)

    def bias(self, slot: _Slot) -> Any:
        """(S·c_out,), or None."""
        if not slot.bias:
            return None
        end = slot.start + slot.size
        return (self.normal[:, end : end + slot.bias].to(self.dtype) * slot.bias_std).reshape(-1)

    def outputs(self, images: Any) -> Any:
        """(N, C, …) → (S, N, outputs)."""
        value = self.run(self.plan.root, _Value(images, shared=True, fresh=False))
        return value.x.reshape(len(images), self.S, -1).transpose(0, 1)

    def run(self, part: Part, value: _Value) -> _Value:
        match part:
            case Weights():
                x = self.dense(part, value) if isinstance(part.layer, Dense) else self.convolve(part, value)
                return _Value(x, shared=False, fresh=True)
            case Apply(layer):
                if value.fresh and layer == ReLU():
                    return _Value(value.x.relu_(), value.shared, fresh=True)
                return _Value(torch_function(layer)(value.x), value.shared, fresh=True)
            case Average(layer):
                return _Value(average(layer)(value.x), value.shared, fresh=True)
            case Widen():
                return self.widen(part, value)
            case Series():
                for p in part.parts:
                    value = self.run(p, value)
                return value
            case Parallel():
                return self.parallel(part, value)
            case _:
                assert_never(part)

    def convolve(self, w: Weights, value: _Value) -> Any:
        slot, axes = self.slots[id(w)], len(w.spatial)
        a = slot.conv
        assert a is not None
        weight, bias = self.weight(slot), self.bias(slot)
        groups = 1 if value.shared else self.S
        x = F.pad(value.x, a.pad, mode=a.pad_mode) if any(a.pad) else value.x
        if isinstance(w.layer, Conv):
            return _CONV[axes](x, weight.flatten(0, 1), bias, a.stride, a.padding, a.dilation, groups)
        assert isinstance(w.layer, ConvTranspose)
        # torch wants (S·c_in, c_out, …) for S groups, and (c_in, S·c_out, …) for one input that all networks share.
        weight = weight.transpose(0, 1).flatten(1, 2) if value.shared else weight.flatten(0, 1)
        y = _TRANSPOSED[axes](x, weight, bias, a.stride, a.padding, a.output_padding, groups, a.dilation)
        for axis, end in enumerate(a.crop):
            y = y.narrow(2 + axis, 0, y.shape[2 + axis] - end)
        return y

    def dense(self, w: Weights, value: _Value) -> Any:
        """Σ over channels and locations: (S, N, c_in·locations) @ (S, c_in·locations, c_out)."""
        slot, n = self.slots[id(w)], len(value.x)
        weight, bias = self.weight(slot), self.bias(slot)
        if value.shared:
            y = value.x.flatten(1) @ weight.flatten(0, 1).T
        else:
            x = value.x.reshape(n, self.S, -1).transpose(0, 1)
            y = torch.bmm(x, weight.transpose(1, 2)).transpose(0, 1).reshape(n, -1)
        return y if bias is None else y + bias

    def widen(self, part: Widen, value: _Value) -> _Value:
        source, scale = (t.to(value.x.device) for t in broadcast(part.channels, part.out_channels))
        each = value.x if value.shared else value.x.unflatten(1, (self.S, -1))
        axis = 1 if value.shared else 2
        factor = scale.to(value.x.dtype).reshape(-1, *[1] * (each.ndim - axis - 1))
        x = each.index_select(axis, source) * factor
        return _Value(x if value.shared else x.flatten(1, 2), value.shared, fresh=True)

    def parallel(self, part: Parallel, value: _Value) -> _Value:
        read = _Value(value.x, value.shared, fresh=False)
        terms = [self.run(p, read) for p in part.parts]
        shared = all(t.shared for t in terms)
        own = next((i for i, t in enumerate(terms) if t.fresh and t.shared == shared), None)  # may be written to
        total = self.spread(terms[0], shared).clone() if own is None else terms[own].x
        for i, t in enumerate(terms):
            if i != (own or 0):
                total += self.spread(t, shared)
        return _Value(total, shared, fresh=True)

    def spread(self, value: _Value, shared: bool) -> Any:
        if value.shared == shared:
            return value.x
        return value.x.repeat(1, self.S, *[1] * (value.x.ndim - 2))


def outputs_of_many(
    net: Network,
    X: Any,
    channels: Channels,
    samples: int,
    seed: int,
    outputs: int,
    dtype: Any,
    device: Any,
    batch: int | None,
    progress: Callable[[int], None] | None,
) -> Any:
    """(samples, N, outputs), on the CPU."""
    key = seed_key(seed)
    device = torch_device(device)
    if isinstance(X, torch.Tensor) and X.is_complex():
        raise DataError(f"X has type {X.dtype}; expected real numbers")
    real = X if isinstance(X, torch.Tensor) else as_real(to_numpy(X, "X"), "X")
    images = torch.as_tensor(real, dtype=dtype or torch.float32, device=device)
    if images.ndim < 2 or len(images) == 0 or samples < 1:
        raise NetworkError(
            f"X of shape {tuple(images.shape)} and samples={samples}: expected (N, C, …) and at least one"
        )
    plan = make_plan(net, channels, tuple(map(int, images.shape[1:])), outputs)
    size, chunk = _sizes(plan, len(images), images.element_size(), device.type, batch)
    slots = _slots(plan)
    # Results stay on the device until the end, so that a card never waits to hand them over.
    result = torch.empty(samples, len(images), outputs, dtype=images.dtype, device=device)
    with torch.no_grad():
        for first in range(0, samples, size):
            drawn = [draw(plan.numbers, (*key, i), device) for i in range(first, min(first + size, samples))]
            networks = _Batch(plan, slots, torch.stack(drawn) if len(drawn) > 1 else drawn[0][None], images.dtype)
            for rows in _slices(len(images), chunk):
                result[first : first + len(drawn), rows] = networks.outputs(images[rows])
            if progress is not None:
                progress(len(drawn))
    return result.cpu()


def _sizes(plan: ModulePlan, images: int, itemsize: int, device: str, batch: int | None) -> tuple[int, int]:
    """Networks and images at a time: long enough calls, and what is alive at once within the budget."""
    budget, enough = (limits.get(device, limits["cuda"]) for limits in (_BUDGET, _ENOUGH))
    a_network, an_image = 3 * plan.numbers * itemsize, plan.floats_per_image * itemsize
    chunk = max(1, min(images, budget // (2 * an_image)))
    useful = 3 * enough // (chunk * plan.floats_per_image)
    fitting = max(1, min(_MOST, useful, budget // (a_network + chunk * an_image)))
    if batch is not None and batch < 1:
        raise NetworkError(f"batch={batch}: at least one network at a time")
    return batch or fitting, chunk


def _slices(n: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, n)) for i in range(0, n, step))
