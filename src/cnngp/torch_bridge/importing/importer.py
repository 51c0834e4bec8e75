"""Import of a module: each call of its forward becomes a layer or a reason why not, and the layers a network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from cnngp.common.tables import aligned
from cnngp.network.layers import Conv, ConvTranspose, Dense, Layer, Network, NetworkError
from cnngp.network.shapes import check_input_shape

from .calls import LIKE, Arguments, Passes, read_function, refusal
from .graph import UNKNOWN, Add, Call, Graph, Mean, Pad, Refused, Scale
from .modules import FIXED, Owners, Variances, read_module
from .trace import Step, Trace, Value, altered_modules, trace_twice


@dataclass(frozen=True)
class Row:
    """One call: its name, PyTorch class or function, output shape, and the layer it becomes or why it cannot."""

    name: str
    kind: str
    output: tuple[int, ...]
    told: str
    refused: bool


@dataclass(frozen=True, repr=False)
class Explanation:
    """Result of `explain`: rows in the order of the calls, then the sub-modules never called. `str` gives the table.

    `network` is the network that `from_torch` returns, or None, and then `problem` gives the reason.
    """

    rows: tuple[Row, ...]
    network: Network | None

    @property
    def ok(self) -> bool:
        return self.network is not None

    @property
    def refused(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.refused)

    @property
    def problem(self) -> str:
        return next((f"{row.name} ({row.kind}): {row.told}" for row in self.refused), "")

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"Explanation({len(self.rows)} calls, {len(self.refused)} refused, ok={self.ok})"

    def __str__(self) -> str:
        cells = [("name", "in PyTorch", "output", "becomes")]
        for row in self.rows:
            told = f"NO: {row.told}" if row.refused else row.told
            cells.append((row.name, row.kind, " × ".join(map(str, row.output)), told))
        end = repr(self.network) if self.ok else f"no Gaussian process: {self.problem}"
        return f"{aligned(cells, right=[2])}\n\n{end}"


def explain_module(
    module: Any, input_shape: Sequence[int], variances: Variances, allow_non_gaussian: bool
) -> Explanation:
    """See `cnngp.torch.explain`."""
    reader = _Reader(module, variances, allow_non_gaussian, input_shape)
    net = reader.network()
    called = {row.name for row in reader.rows}
    idle = [
        Row(name, type(part).__name__, (), "never called by forward", False)
        for name, part in module.named_modules()
        if name and not any(True for _ in part.children()) and name not in called
    ]
    return Explanation((*reader.rows, *idle), net)


def import_module(
    module: Any, input_shape: Sequence[int], variances: Variances, allow_non_gaussian: bool = False, warn: bool = True
) -> Network:
    """See `cnngp.from_torch`."""
    explained = explain_module(module, input_shape, variances, allow_non_gaussian)
    if explained.network is None:
        raise Refused(explained.problem)
    variances.check_all_used()
    if warn and variances.warning():
        warnings.warn(variances.warning(), UserWarning, stacklevel=3)
    return explained.network


_TO_THE_IMAGES = "which no layer does; do that to the images, and import the module without it"


class _Reader:
    """Reads the steps in order: each becomes a row of the explanation, and each value a vertex of the graph."""

    def __init__(self, module: Any, variances: Variances, allow_non_gaussian: bool, input_shape: Sequence[int]) -> None:
        if not isinstance(module, nn.Module):
            raise NetworkError(f"expected a torch.nn.Module, got {type(module).__name__}: {str(module)[:60]}")
        check_input_shape(input_shape)
        self.module = module
        self.variances = variances
        self.input_shape = tuple(input_shape)
        self.owners = Owners()
        self.graph = Graph(allow_non_gaussian)
        self.rows: list[Row] = []
        self.vertex: dict[int, int] = {0: 0}  # value → vertex
        self.row_of: dict[int, int] = {}  # vertex → row
        self.locations = {0: math.prod(input_shape[1:])}  # value → number of locations, also after flattening

    def network(self) -> Layer | None:
        """The network, or None if the rows contain a reason against it."""
        # Hooks and replaced methods could be traced, but what they mean for an infinite network is unknown.
        self.rows += [Row(name, kind, (), reason, True) for name, kind, reason in altered_modules(self.module)]
        if self.rows or not self._read(trace_twice(self.module, self.input_shape)):
            return None
        while True:
            fits = None if any(row.refused for row in self.rows) else self.input_shape
            try:
                net = self.graph.network(fits)
                return net if fits else None
            except Refused as error:
                if error.vertex == 0:
                    self.rows.append(Row("forward", "output", (), str(error), True))
                    return None
                row = self.row_of[error.vertex]
                self.rows[row] = replace(self.rows[row], told=str(error), refused=True)
                self.graph.vertices[error.vertex].call = UNKNOWN

    def _read(self, traced: Trace) -> bool:
        """Read all steps; return True if forward returns one tensor that depends on the input."""
        for step in traced.steps:
            if step.number in traced.needed:
                self._step(step)
                for vertex in range(len(self.row_of) + 1, len(self.graph.vertices)):
                    self.row_of[vertex] = len(self.rows) - 1
            else:
                self._row(step, "the output does not depend on it")
        output = traced.output
        if isinstance(output, Value) and output.number is not None:
            self.graph.output = self.vertex[output.number]
            return True
        told = "a tensor not made from the input" if isinstance(output, Value) else f"a {type(output).__name__}"
        self.rows.append(Row("forward", "output", (), f"it returns {told}, not one tensor", True))
        return False

    def _row(self, step: Step, told: str, refused: bool = False) -> None:
        output = step.result.shape[1:] if isinstance(step.result, Value) else ()
        self.rows.append(Row(step.name, step.kind, output, told, refused))

    def _step(self, step: Step) -> None:
        after = step.result if isinstance(step.result, Value) else None
        call: Call | Passes | None = None
        vertex = self.vertex[step.reads[0]]
        try:
            call = self._call(step)
            if after and not after.dtype.is_floating_point:
                raise Refused(f"it makes {after.dtype} of real numbers, which rounds them or more")
            if not isinstance(call, Passes):
                if step.number in self.vertex:
                    raise Refused("it returns its argument's own memory, so this is not the call that its name says")
                vertex = self._vertex(step, call)
            self._row(step, _told(call))
        except Refused as error:
            self._row(step, str(error), refused=True)
            vertex = self.graph.add(step.name, UNKNOWN, [vertex])
        self.vertex[step.number] = vertex
        if after and after.ndim > 2:
            self.locations[step.number] = math.prod(after.shape[2:])
        else:
            self.locations[step.number] = 1 if isinstance(call, Dense | Mean) else self.locations[step.reads[0]]

    def _vertex(self, step: Step, call: Call) -> int:
        if not isinstance(call, Add):
            return self.graph.add(step.name, call, [self.vertex[step.reads[0]]])
        terms = []
        for value, factor in _summands(step):
            if isinstance(value, Value):
                vertex = self.vertex[value.number or 0]
                terms.append(vertex if factor == 1.0 else self.graph.add(step.name, Scale(factor), [vertex]))
        return terms[0] if len(terms) == 1 else self.graph.add(step.name, Add(), terms)

    def _call(self, step: Step) -> Call | Passes:
        if step.problem:
            raise Refused(step.problem)
        inputs, after = step.inputs[:1] if step.function in LIKE else step.inputs, step.result
        made = [v for v in inputs if v.number is not None]
        # True if the first input has one location, so that its features are its channels.
        flat = bool(made) and inputs[0] is made[0] and self.locations[step.reads[0]] == 1
        if not step.function:
            module = self.module.get_submodule(step.module)
            if not isinstance(module, FIXED):
                self.owners.check(step.module, module)
            return read_module(step, module, self.variances, flat)
        if not isinstance(after, Value) or step.function.startswith(("conv", "linear")):
            raise refusal(step.function)
        owner = next((v.owner for v in inputs if v.number is None and v.owner), "")
        if owner:
            where = f"on the input, {_TO_THE_IMAGES}" if all(map(self._is_input, made)) else "outside of a layer"
            raise Refused(f"it uses the parameter or buffer {owner} {where}")
        if len(made) < len(inputs):
            raise Refused("it uses a tensor that is not made from the input")
        if step.function in ("add", "sub", "subtract", "rsub"):
            return self._sum(step, after)
        given = Arguments(step.args, step.kwargs)
        call = read_function(step, given, inputs[0], after, flat)
        given.check_all_taken()
        return call

    def _sum(self, step: Step, after: Value) -> Call:
        for term, _ in _summands(step):
            if isinstance(term, Value):
                # A one-channel input may be added to every channel: that does not change its mean over channels.
                spread = self.vertex[term.number or 0] == 0 and term.shape == (after.shape[0], 1, *after.shape[2:])
                if term.shape != after.shape and not spread:
                    raise Refused(f"it adds shapes {' and '.join(str(v.shape[1:]) for v in step.inputs)}")
            elif term != 0 and all(map(self._is_input, step.inputs)):
                raise Refused(f"it shifts the input by a constant ({term}), {_TO_THE_IMAGES}")
            elif term != 0:
                raise Refused(f"it shifts by a constant ({term}), so what follows is not zero-mean")
        return Add()

    def _is_input(self, value: Value) -> bool:
        """True if the value is the images, with at most factors and padding applied."""
        vertex = self.vertex[value.number or 0]
        while isinstance(self.graph.vertices[vertex].call, Scale | Pad):
            vertex = self.graph.vertices[vertex].inputs[0]
        return vertex == 0


def _told(call: Call | Passes) -> str:
    match call:
        case Passes():
            return call.told
        case Add():
            return "Sum(…)"
        case Scale():
            return "a factor in its neighbour"
        case Mean():
            return "GlobalAvgPool()"
        case Conv() | ConvTranspose() | Dense():
            rounded = {name: float(f"{getattr(call, name):.4g}") for name in ("weight_var", "bias_var")}
            return repr(replace(call, **rounded))  # type: ignore[arg-type]
        case _:
            return repr(call)


def _summands(step: Step) -> list[tuple[Any, float]]:
    """Both terms of a + b, a.sub(b), torch.add(a, b, alpha=2) or torch.add(a, other=b), each with its factor."""
    given = Arguments((None, *step.args), {**step.kwargs, "input": None})
    terms = [given.take(1, "self", step.kwargs.get("input")), given.take(2, "other")]
    factor = float(given.take(3, "alpha", 1)) * (1.0 if step.function == "add" else -1.0)
    return list(zip(terms, (factor, 1.0) if step.function == "rsub" else (1.0, factor), strict=True))
