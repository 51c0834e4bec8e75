"""Which weight_var and bias_var an imported layer gets: measured from its weights, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cnngp.network.layers import Dense, FanIn, NetworkError

Given = float | Mapping[str, float] | None
SOURCES = ("init", "drawn")


class Variances:
    """Measured variances are second moments about zero: weight_var = E[w²]·fan-in, bias_var = E[b²].

    `"drawn"` takes those that `sample_network` drew a module's weights with, so that a round trip is exact.
    """

    def __init__(self, source: str, weight_var: Given, bias_var: Given) -> None:
        if source not in SOURCES:
            raise NetworkError(f"variances={source!r} is not one of {', '.join(map(repr, SOURCES))}")
        self.source = source
        self.given = {"weight_var": weight_var, "bias_var": bias_var}
        self.seen: set[str] = set()

    def of(self, name: str, module: Any, fan_in: int) -> tuple[float, float, FanIn]:
        """(weight_var, bias_var, fan_in convention) of the layer `name`."""
        self.seen.add(name)
        drawn: Any = getattr(module, "cnngp_layer", None)
        convention: FanIn = "patch"
        if self.source == "drawn":
            if drawn is None:
                raise NetworkError(f"{name}: variances='drawn' needs a module made by sample_network; use 'init'")
            convention = "patch" if isinstance(drawn, Dense) else drawn.fan_in
        weight = self._given("weight_var", name)
        if weight is None:
            weight = drawn.weight_var if self.source == "drawn" else fan_in * _mean_square(module.weight, name)
        bias = self._given("bias_var", name)
        if module.bias is None:
            if isinstance(self.given["bias_var"], Mapping) and bias:
                raise NetworkError(f"{name}: bias_var={bias} is given for it, but it has no bias")
            bias = 0.0
        elif bias is None:
            bias = drawn.bias_var if self.source == "drawn" else _mean_square(module.bias, name)
        return float(weight), float(bias), convention

    def _given(self, which: str, name: str) -> float | None:
        given = self.given[which]
        return given.get(name) if isinstance(given, Mapping) else given

    def check_all_used(self) -> None:
        """A name that no layer has is a typing error, not a wish."""
        for which, given in self.given.items():
            unknown = sorted(set(given) - self.seen) if isinstance(given, Mapping) else []
            if unknown:
                raise NetworkError(
                    f"{which} names {', '.join(map(repr, unknown))}, but the layers with weights are "
                    f"{', '.join(map(repr, sorted(self.seen)))}"
                )


def _mean_square(tensor: Any, name: str) -> float:
    if tensor.device.type == "meta":
        raise NetworkError(f"{name}: its weights hold no data (meta device); give weight_var= and bias_var=")
    value = float(tensor.detach().double().square().mean())
    if value != value or value == float("inf"):
        raise NetworkError(f"{name}: its weights are not finite")
    return value
