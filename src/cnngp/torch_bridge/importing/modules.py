"""Modules of `torch.nn` with weights: the layer that each becomes, and the variances of its weights.

Measured variances are second moments about zero: weight_var = E[w²]·fan-in, bias_var = E[b²]. They are meaningful only
if the weights are independent draws with mean zero, as the infinite-width limit assumes, so weights that are clearly
not (constant, mostly zero, with a mean, shared or correlated) raise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from cnngp.network.layers import Conv, ConvTranspose, Dense, FanIn, LeakyReLU, NetworkError

from ..parts import Activation, Broadcast
from .calls import Passes, layer_norm, refusal
from .graph import Call, Refused, Scale, compact, spelled, transposed_padding
from .trace import Step, Value

Given = float | Mapping[str, float] | None
SOURCES = ("measured", "initial", "drawn")

FEW = 30
"""With fewer numbers a measured variance is only a guess: its relative standard error is at least about 1/√n."""
_SURE = 5.0
"""√n·|mean|/RMS of n independent symmetric numbers exceeds this with probability at most 2·exp(−5²/2)."""
_MATTERS = 0.01
"""Smallest share of a layer's variance due to a nonzero mean that raises."""


class Variances:
    """Weight and bias variances by layer: given by the user, else from `source`.

    `"measured"` uses the current weights; `"initial"` the variance of PyTorch's initialisation where the weights fit
    it; `"drawn"` the variances that `sample_network` used, so that a round trip is exact.
    """

    def __init__(self, source: str = "measured", weight_var: Given = None, bias_var: Given = None) -> None:
        if source not in SOURCES:
            raise NetworkError(f"variances={source!r} is not one of {', '.join(map(repr, SOURCES))}")
        self.source = source
        self.given = {"weight": weight_var, "bias": bias_var}
        self.seen: set[str] = set()
        self.few: dict[str, dict[str, int]] = {"weight": {}, "bias": {}}
        """Layers whose variance was measured from few numbers, with their count."""

    def of(self, name: str, module: Any, fan_in: int) -> tuple[float, float, FanIn]:
        """(weight_var, bias_var, fan_in convention) of the layer `name`."""
        self.seen.add(name)
        drawn: Any = getattr(module, "cnngp_layer", None) if self.source == "drawn" else None
        if self.source == "drawn" and drawn is None:
            raise NetworkError(f"{name}: variances='drawn' needs a module made by sample_network; use 'measured'")
        plain = plain_weights(module)
        found = []
        for which, terms in (("weight", fan_in), ("bias", 1)):
            given = self.given[which]
            value = given.get(name) if isinstance(given, Mapping) else given
            if which not in plain:
                if isinstance(given, Mapping) and value:
                    raise NetworkError(f"{name}: bias_var={value} is given for it, but it has no bias")
                value = 0.0
            elif value is None and drawn is not None:
                value = getattr(drawn, f"{which}_var")
            elif value is None:
                value = terms * self._mean_square(which, name, plain, terms)
            found.append(float(value))
        return found[0], found[1], getattr(drawn, "fan_in", "patch")

    def _mean_square(self, which: str, name: str, plain: dict[str, Any], terms: int) -> float:
        """E[w²], from PyTorch's initial distribution or from the numbers themselves."""
        tensor, words = plain[which], f"{which}s" if which == "weight" else "biases"
        bound = 1.0 / math.sqrt(max(1, math.prod(plain["weight"].shape[1:])))  # uniform on ±1/√fan-in
        is_empty = tensor.device.type == "meta"
        if self.source == "initial" and (is_empty or _is_uniform(tensor, bound)):
            return bound**2 / 3.0
        if is_empty:
            raise NetworkError(
                f"{name}: its weights hold no data (meta device); give weight_var= and bias_var= or variances='initial'"
            )
        values = tensor.detach().double().flatten()
        square = float(values.square().mean())
        told = _not_drawn(values, math.sqrt(square), terms) if math.isfinite(square) else "are not finite"
        if told:
            raise Refused(
                f"its {words} {told}, and the limit is of independent {words} about zero; initialise it "
                f"otherwise, or give the variance that they are to have, {which}_var={{{name!r}: …}}"
            )
        if square > 0.0 and len(values) < FEW:
            self.few[which][name] = len(values)
        return square

    def check_all_used(self) -> None:
        """Raise for a variance given to a name that no layer has, which is most likely misspelt."""
        for which, given in self.given.items():
            unknown = sorted(set(given) - self.seen) if isinstance(given, Mapping) else []
            if unknown:
                raise NetworkError(
                    f"{which}_var names {', '.join(map(repr, unknown))}, but the layers with weights are "
                    f"{', '.join(map(repr, sorted(self.seen)))}"
                )

    def warning(self) -> str:
        """Warning about variances that were measured from few numbers, or ""."""
        told = [
            f"{which}_var of {', '.join(f'{name!r} ({n})' for name, n in names.items())}"
            for which, names in self.few.items()
            if names
        ]
        if not told:
            return ""
        return (
            f"from_torch measured {' and '.join(told)} from fewer than {FEW} numbers (how many in brackets), so two "
            "fresh modules of this class are two kernels; variances='initial' takes the law of PyTorch's own "
            "initialisation, weight_var= and bias_var= take what you say"
        )


def _not_drawn(values: Any, rms: float, terms: int) -> str:
    """Evidence that the numbers are not independent draws with mean zero, or ""."""
    if rms == 0.0:
        return ""
    mean, n = float(values.mean()), len(values)
    if n > 1 and bool((values == values[0]).all()):
        return f"are all {float(values[0]):.6g}"
    if int((values == 0.0).sum()) > n / 2:
        return "are more than half exactly 0"
    one_sign = n > 17 and bool((values.sign() == values[0].sign()).all())
    if terms * (mean / rms) ** 2 < _MATTERS or (math.sqrt(n) * abs(mean) < _SURE * rms and not one_sign):
        return ""
    return f"have a mean of {mean:.4g} beside a root mean square of {rms:.4g}"


def plain_weights(module: Any) -> dict[str, Any]:
    """The layer's weight and bias. Reading a parametrization may change it, so a copy is read."""
    if parametrize.is_parametrized(module):
        module = copy.deepcopy(module).eval()
    found = {which: getattr(module, which, None) for which in ("weight", "bias")}
    return {which: t for which, t in found.items() if isinstance(t, torch.Tensor)}


def _is_uniform(tensor: Any, bound: float) -> bool:
    """True if a Kolmogorov–Smirnov test accepts the numbers as uniform draws on ±bound."""
    from scipy import stats

    values = tensor.detach().double().flatten().cpu()
    if bool((values == values[0]).all()) and (len(values) > 1 or float(values[0]) == 0.0):
        return False
    some = values[:: max(1, len(values) // 10_000)] / bound
    if float(values.abs().max()) > bound * 1.001:  # half precision rounds
        return False
    return bool(stats.kstest(some.numpy(), "uniform", args=(-1.0, 2.0)).pvalue > 1e-6)


class Owners:
    """Registry of the weights of all layers so far: the layers of a network must be independent."""

    def __init__(self) -> None:
        self._weights: list[tuple[str, str, Any]] = []  # (layer, name of its tensor, tensor)

    def check(self, name: str, module: Any) -> None:
        """Raise `Refused` if the module is used twice, or its weights are shared or correlated with another layer's."""
        if any(layer == name for layer, _, _ in self._weights):
            raise Refused("it is used more than once with the same weights; each use needs its own module")
        own = dict(module.named_parameters()) | plain_weights(module)
        for which, p in own.items():
            for _, other, q in self._weights:
                if _share_memory(p, q):
                    raise Refused(f"it shares its weights with {other}; the layers of a network must be independent")
                if p.shape == q.shape and _correlated(p, q):
                    raise Refused(
                        f"its {which} is correlated with {other}, as a copy is; the layers of a network must be "
                        "independent: initialise one of them again, such as with reset_parameters()"
                    )
        self._weights += [(name, f"{name}.{which}" if name else which, p) for which, p in own.items()]


def _correlated(a: Any, b: Any) -> bool:
    """True if two tensors correlate more than independent ones would by chance."""
    if "meta" in (a.device.type, b.device.type):
        return False
    x, y = (t.detach().flatten().double() for t in (a, b.to(a.device)))
    x, y = x - x.mean(), y - y.mean()  # layers may have equal constant biases whose variance the user gives
    if len(x) < 8:  # so few numbers correlate by chance: only exact copies count, unless they are constant
        return bool((x != 0.0).any()) and torch.equal(a, b.to(a.device))
    product = abs(float(x @ y))
    bound = min(max(0.1, _SURE / math.sqrt(len(x))), 1.0 - 1e-6)
    return product > bound * float(x.norm() * y.norm()) + 1e-12


def _share_memory(a: Any, b: Any) -> bool:
    """True if two tensors overlap in memory, as a tensor and its `detach()` or `.data` do."""

    def memory(t: Any) -> tuple[int, int, int]:
        """(storage, first element, end)."""
        storage, first = t.untyped_storage(), int(t.storage_offset())
        reach = sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) if t.numel() else -1
        return int(storage.data_ptr() or storage._cdata), first, first + reach + 1

    (one, first, last), (other, start, end) = memory(a), memory(b)
    return one == other and first < end and start < last


# ---- what each becomes -----------------------------------------------------------------------------------------------

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
FIXED = (nn.PReLU, nn.modules.batchnorm._BatchNorm, *_NORMS)
"""Modules whose parameters define a fixed function: they are not random weights, so they may be reused."""


def read_module(step: Step, module: Any, variances: Variances, one_location: bool) -> Call | Passes:
    """Return what the call of a module becomes, or raise `Refused`."""
    kind = type(module).__name__
    if len(step.inputs) != 1 or not isinstance(step.result, Value):
        raise refusal(kind)
    before = step.inputs[0]
    match module:
        case nn.modules.conv._ConvNd():
            return _convolution(step.module, module, before, step.result, variances)
        case nn.Linear():
            if before.ndim != 2:
                raise Refused(
                    f"it acts on the last axis of {before.shape[1:]}, which is a location and not the channels; "
                    "flatten first, or use a convolution with kernel_size=1"
                )
            return Dense(*variances.of(step.module, module, module.in_features)[:2])
        case nn.PReLU():
            slopes = module.weight.detach().double()
            if slopes.min() != slopes.max():
                raise Refused("its slopes differ between channels, so the channels are not alike")
            return LeakyReLU(float(slopes[0]))
        case nn.modules.batchnorm._BatchNorm():
            return _batch_norm(module)
        case _ if isinstance(module, _NORMS):  # those with weights, initially 1; others appear as function calls
            weight, bias = module.weight, getattr(module, "bias", None)
            over = module.num_groups if isinstance(module, nn.GroupNorm) else getattr(module, "normalized_shape", 0)
            call = layer_norm(over, module.eps, before, one_location)
            if (weight is not None and (weight != 1).any()) or (bias is not None and (bias != 0).any()):
                raise Refused(
                    "its weights are not all 1, or its biases not 0, so its channels are not alike; reset them"
                )
            return call
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
    # PyTorch's own fan-in of a transposed weight is out_channels × filter, but each output sums over in_channels.
    weighted = variances.of(name, module, module.in_channels * math.prod(kernel))
    k, s, d = compact(kernel), compact(stride), compact(dilation)
    if not module.transposed:
        return spelled(Conv(k, s, module.padding, d, *weighted, module.padding_mode), axes)
    pads = tuple((p, p) for p in module.padding)
    # output_padding from the sizes, because forward may have been called with an output_size.
    extra = [
        after.shape[2 + a] - ((before.shape[2 + a] - 1) * stride[a] - sum(pads[a]) + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    ]
    return transposed_padding(ConvTranspose(k, s, 0, d, *weighted), pads, extra)


def _batch_norm(module: Any) -> Call:
    """Constant factor of y = γ(x − μ)/√(σ² + ε) + β with fixed statistics; it must be the same for all channels."""
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
