"""Which weight_var and bias_var an imported layer gets, and whether its weights can be independent draws about zero.

Measured variances are second moments about zero: weight_var = E[w²]·fan-in, bias_var = E[b²]. They mean something only
where the weights are what the limit takes them for, so what shows that they are not is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils import parametrize

from cnngp.network.layers import Dense, FanIn, NetworkError

from .fold import Refused

Given = float | Mapping[str, float] | None
SOURCES = ("measured", "initial", "drawn")

FEW = 30
"""With fewer numbers a measured variance is a guess: its relative standard error is about 1/√n and more."""
_SURE = 5.0
"""√n·|mean|/RMS of n independent symmetric numbers is larger than this with probability at most 2·exp(−5²/2)."""
_MATTERS = 0.01
"""The least share of a layer's variance that a mean makes before anybody has to hear of it."""
_WORDS = {"weight": "weights", "bias": "biases"}


class Variances:
    """`"measured"` from the present weights, `"initial"` by the law of PyTorch's own initialisation where the weights
    are from it, `"drawn"` as `sample_network` drew them, so that a round trip is exact; or as the user says.
    """

    def __init__(self, source: str = "measured", weight_var: Given = None, bias_var: Given = None) -> None:
        if source not in SOURCES:
            raise NetworkError(f"variances={source!r} is not one of {', '.join(map(repr, SOURCES))}")
        self.source = source
        self.given = {"weight": weight_var, "bias": bias_var}
        self.seen: set[str] = set()
        self.few: dict[str, dict[str, int]] = {"weight": {}, "bias": {}}
        """Of each layer whose variance was measured from few numbers, how many."""

    def of(self, name: str, module: Any, fan_in: int) -> tuple[float, float, FanIn]:
        """(weight_var, bias_var, fan_in convention) of the layer `name`."""
        self.seen.add(name)
        drawn: Any = getattr(module, "cnngp_layer", None)
        if self.source == "drawn" and drawn is None:
            raise NetworkError(f"{name}: variances='drawn' needs a module made by sample_network; use 'measured'")
        convention: FanIn = drawn.fan_in if self.source == "drawn" and not isinstance(drawn, Dense) else "patch"
        plain = plain_weights(module)
        found = []
        for which, terms in (("weight", fan_in), ("bias", 1)):
            given = self.given[which]
            value = given.get(name) if isinstance(given, Mapping) else given
            if which not in plain:
                if isinstance(given, Mapping) and value:
                    raise NetworkError(f"{name}: bias_var={value} is given for it, but it has no bias")
                value = 0.0
            elif value is None:
                here = self.source == "drawn"
                value = getattr(drawn, f"{which}_var") if here else self._found(which, name, plain, terms)
            found.append(float(value))
        return found[0], found[1], convention

    def _found(self, which: str, name: str, plain: dict[str, Any], terms: int) -> float:
        """The variance times `terms`, by the initial law or from the numbers themselves."""
        tensor = plain[which]
        bound = 1.0 / math.sqrt(max(1, math.prod(plain["weight"].shape[1:])))  # uniform on ±1/√fan-in
        if self.source == "initial" and (tensor.device.type == "meta" or _is_uniform(tensor, bound)):
            return terms * bound**2 / 3.0
        if tensor.device.type == "meta":
            raise NetworkError(
                f"{name}: its weights hold no data (meta device); give weight_var= and bias_var= or variances='initial'"
            )
        values = tensor.detach().double().flatten()
        square = float(values.square().mean())
        if not math.isfinite(square):
            raise Refused(f"its {_WORDS[which]} are not finite")
        if square > 0.0:
            told = _not_drawn(values, math.sqrt(square), terms)
            if told:
                words = _WORDS[which]
                raise Refused(
                    f"its {words} {told}, and the limit is of independent {words} about zero; initialise it "
                    f"otherwise, or give the variance that they are to have, {which}_var={{{name!r}: …}}"
                )
            if len(values) < FEW:
                self.few[which][name] = len(values)
        return terms * square

    def check_all_used(self) -> None:
        """A name that no layer has is a typing error, not a wish."""
        for which, given in self.given.items():
            unknown = sorted(set(given) - self.seen) if isinstance(given, Mapping) else []
            if unknown:
                raise NetworkError(
                    f"{which}_var names {', '.join(map(repr, unknown))}, but the layers with weights are "
                    f"{', '.join(map(repr, sorted(self.seen)))}"
                )

    def warning(self) -> str:
        """What to say of variances that were measured from few numbers, or ""."""
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
    """How numbers show that they are no independent draws about zero, or ""."""
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
    """The layer's weight and bias. To read a parametrization may change it, so that of a copy is read."""
    if parametrize.is_parametrized(module):
        module = copy.deepcopy(module).eval()
    found = {which: getattr(module, which, None) for which in ("weight", "bias")}
    return {which: t for which, t in found.items() if isinstance(t, torch.Tensor)}


def _is_uniform(tensor: Any, bound: float) -> bool:
    """Whether the numbers can be draws from the uniform law on ±bound, by a test of Kolmogorov and Smirnov."""
    from scipy import stats

    values = tensor.detach().double().flatten().cpu()
    if bool((values == values[0]).all()) and (len(values) > 1 or float(values[0]) == 0.0):
        return False
    some = values[:: max(1, len(values) // 10_000)] / bound
    if float(values.abs().max()) > bound * 1.001:  # half precision rounds
        return False
    return bool(stats.kstest(some.numpy(), "uniform", args=(-1.0, 2.0)).pvalue > 1e-6)


class Owners:
    """Which layer each memory and each set of values belongs to: the layers of a network have to be independent."""

    def __init__(self) -> None:
        self._memory: dict[int, list[tuple[int, int, str]]] = {}  # of each memory: from, to, whose
        self._values: dict[tuple[int, str, str], tuple[str, str]] = {}  # of each set: the layer, and its tensor
        self._weights: dict[tuple[int, ...], list[tuple[str, str, Any]]] = {}  # by shape: the layer, its tensor
        self._used: set[str] = set()

    def check(self, name: str, module: Any) -> None:
        """`Refused` where the module's weights are not its own."""
        for which, p in (dict(module.named_parameters()) | plain_weights(module)).items():
            here = f"{name}.{which}" if name else which
            memory, first, last = _memory(p)
            others = self._memory.setdefault(memory, [])
            for start, end, other in others:
                if other != here and first < end and start < last:
                    raise Refused(f"it shares its weights with {other}; the layers of a network must be independent")
            others.append((first, last, here))
            if name in self._used:
                raise Refused("it is used more than once with the same weights; each use needs its own module")
            layer, other = self._values.setdefault(_values(p, here), (name, here))
            if layer != name:
                raise Refused(
                    f"its {which} has the same values as {other}, as a copy has; the layers of a network must be "
                    "independent: initialise one of them again, such as with reset_parameters()"
                )
            alike = self._weights.setdefault(tuple(p.shape), [])
            for layer, other, weights in alike:
                if layer != name and _correlated(p, weights):
                    raise Refused(
                        f"its {which} is correlated with {other}, as a copy that was trained further; the layers of a "
                        "network must be independent"
                    )
            alike.append((name, here, p))
        self._used.add(name)


def _correlated(a: Any, b: Any) -> bool:
    """Whether two tensors have more in common than chance gives independent ones."""
    if "meta" in (a.device.type, b.device.type):
        return False
    x, y = (t.detach().flatten().double() for t in (a, b.to(a.device)))
    x, y = x - x.mean(), y - y.mean()  # layers may have constant biases whose variance the user gives
    product = abs(float(x @ y))
    return product > max(0.1, _SURE / math.sqrt(len(x))) * float(x.norm() * y.norm()) + 1e-12


def _memory(tensor: Any) -> tuple[int, int, int]:
    """Which memory a tensor's numbers lie in, from where to where: the same for its `detach()` and `.data`."""
    storage = tensor.untyped_storage()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    first = int(tensor.storage_offset())
    return int(storage.data_ptr() or storage._cdata), first, first + reach + 1


def _values(tensor: Any, here: str) -> tuple[int, str, str]:
    """The same for the same values in any order, of any sign and times any factor; numbers that are all alike, such as
    zeros, are no copy of one another."""
    if tensor.device.type == "meta" or not tensor.numel():
        return 0, here, ""
    values = tensor.detach().double().abs().cpu().flatten()
    if bool((values == values[0]).all()) and (len(values) > 1 or float(values[0]) == 0.0):
        return 0, here, ""
    if len(values) < 8 and tensor.element_size() < 4:  # so few numbers of so few bits may be equal by chance
        return 0, here, ""
    if len(values) > 1:
        values = values / float(values.max())
    return int(values.numel()), f"{float(values.sum()):.7e}", f"{float(values.square().sum()):.7e}"
