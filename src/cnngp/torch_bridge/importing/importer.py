"""Import: the calls of a module's forward, judged one by one and put together as a network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from cnngp.network.layers import Conv, ConvTranspose, Dense, Layer, NetworkError
from cnngp.network.shapes import check_input_shape, shape_text
from cnngp.network.table import shape_table

from .fold import fold
from .functions import LIKE, is_sum, judge_function, refuse_function
from .graph import Add, Call, Graph, Mean, Pad, Refused, Scale
from .modules import FIXED, judge_module
from .trace import Step, Trace, Value, altered_modules, trace
from .verdicts import Arguments, Becomes, No, Passes, Verdict
from .weights import Given, Owners, Variances


@dataclass(frozen=True)
class Row:
    """One call of the module: its name, what it is in PyTorch, the shape of its result, what it becomes or why not."""

    name: str
    kind: str
    output: tuple[int, ...]
    told: str
    refused: bool


@dataclass
class Import:
    """Everything that following a module's forward gave: one row a call, and the graph of those that were accepted."""

    rows: list[Row]
    graph: Graph

    def network(self, input_shape: Sequence[int]) -> Layer:
        for row in self.rows:
            if row.refused:
                raise Refused(f"{row.name} ({row.kind}): {row.told}")
        fold(self.graph)
        net = self.graph.network()
        try:
            output = shape_table(net, input_shape).output
        except NetworkError as error:
            raise Refused(f"the imported network does not fit {tuple(input_shape)}: {error}") from None
        if any(n != 1 for n in output):
            last = self.graph.vertices[self.graph.output].name
            raise Refused(
                f"{last}: the module's output has {shape_text(output)} locations, "
                "and a Gaussian process here has one; end in Flatten and Linear"
            )
        return net


def read_module(module: Any, input_shape: Sequence[int], variances: Variances, allow_non_gaussian: bool) -> Import:
    if not isinstance(module, nn.Module):
        raise NetworkError(f"expected a torch.nn.Module, got {type(module).__name__}: {str(module)[:60]}")
    check_input_shape(input_shape)
    altered = [Row(name, kind, (), reason, True) for name, kind, reason in altered_modules(module)]
    if altered:  # what they do could be recorded, but not what they would do to an infinite network
        return Import(altered, Graph(allow_non_gaussian))
    return _Reader(module, variances, allow_non_gaussian, input_shape).read(trace(module, tuple(input_shape)))


class _Reader:
    """Goes through the steps in order: each is judged, and each value becomes a vertex of the graph."""

    def __init__(self, module: Any, variances: Variances, allow_non_gaussian: bool, input_shape: Sequence[int]) -> None:
        self.module = module
        self.variances = variances
        self.owners = Owners()
        self.graph = Graph(allow_non_gaussian)
        self.rows: list[Row] = []
        self.vertex: dict[int, int] = {0: 0}  # of each value
        self.locations = {0: math.prod(input_shape[1:])}  # of each value, also where it is laid out flat

    def read(self, traced: Trace) -> Import:
        needed = traced.needed()
        for step in traced.steps:
            if step.number in needed:
                self._step(step)
            else:
                self._row(step.name, step.kind, (), Passes("the output does not depend on it"))
        output = traced.output
        if not isinstance(output, Value) or output.number is None:
            told = "a tensor not made from the input" if isinstance(output, Value) else f"a {type(output).__name__}"
            self._row("forward", "output", (), No(f"it returns {told}, not one tensor"))
        else:
            self.graph.output = self.vertex[output.number]
        return Import(self.rows, self.graph)

    def _step(self, step: Step) -> None:
        try:
            verdict = self._judge(step)
        except Refused as error:
            verdict = No(str(error))
        after = step.result if isinstance(step.result, Value) else None
        if after and not isinstance(verdict, No) and not after.dtype.is_floating_point:
            verdict = No(f"it makes {after.dtype} of real numbers, which rounds them or more")
        if isinstance(verdict, Becomes) and step.number in self.vertex:
            verdict = No("it returns its argument's own memory, so this is not the call that its name says")
        self._row(step.name, step.kind, after.shape[1:] if after else (), verdict)
        source = step.reads[0]
        becomes = verdict.call if isinstance(verdict, Becomes) else None
        self.vertex[step.number] = self._vertex(step, verdict) if isinstance(verdict, Becomes) else self.vertex[source]
        if after and after.ndim > 2:
            self.locations[step.number] = math.prod(after.shape[2:])
        else:
            self.locations[step.number] = 1 if isinstance(becomes, Dense | Mean) else self.locations[source]

    def _vertex(self, step: Step, verdict: Becomes) -> int:
        if not isinstance(verdict.call, Add):
            return self.graph.add(step.name, verdict.call, [self.vertex[step.reads[0]]])
        terms = []
        for value, factor in _summands(step):
            if isinstance(value, Value) and value.number is not None:
                vertex = self.vertex[value.number]
                terms.append(vertex if factor == 1.0 else self.graph.add(step.name, Scale(factor), [vertex]))
        return terms[0] if len(terms) == 1 else self.graph.add(step.name, Add(), terms)

    def _judge(self, step: Step) -> Verdict:
        if step.problem:
            return No(step.problem)
        inputs, after = step.inputs[:1] if step.function in LIKE else step.inputs, step.result
        if not step.function:
            module = self.module.get_submodule(step.module)
            shared = "" if isinstance(module, FIXED) else self.owners.problem(step.module, module)
            if shared:
                return No(shared)
            return judge_module(step.module, module, inputs, after, self.variances, self._flat(inputs))
        if not isinstance(after, Value) or step.function.startswith(("conv", "linear")):
            return refuse_function(step.function)
        constant = next((v for v in inputs if v.number is None and v.owner), None)
        if constant:
            of = f"it uses the parameter or buffer {constant.owner}"
            if all(self._is_input(v) for v in inputs if v.number is not None):
                return No(f"{of} on the input, {_TO_THE_IMAGES}")
            return No(f"{of} outside of a layer")
        if is_sum(step.function):
            return self._sum(step, after)
        if any(v.number is None for v in inputs):
            return No("it uses a tensor that is not made from the input")
        given = Arguments(step.args, step.kwargs)
        return judge_function(step.function, given, inputs[0], after, step.same_order, self._flat(inputs))

    def _flat(self, inputs: list[Value]) -> bool:
        """Whether the first of them has one location, so that its features are its channels."""
        return bool(inputs) and inputs[0].number is not None and self.locations[inputs[0].number] == 1

    def _sum(self, step: Step, after: Value) -> Verdict:
        terms = [term for term, _ in _summands(step)]
        tensors = [t for t in terms if isinstance(t, Value)]
        numbers = [t for t in terms if not isinstance(t, Value)]
        if any(n != 0 for n in numbers):
            if all(self._is_input(t) for t in tensors):
                return No(f"it shifts the input by a constant ({numbers[0]}), {_TO_THE_IMAGES}")
            return No(f"it shifts by a constant ({numbers[0]}), so what follows is not zero-mean")
        if any(t.number is None for t in tensors):
            return No("it adds a tensor that is not made from the input")
        for t in tensors:
            # The input itself may be added to every channel: its one channel is its mean over channels.
            spread = self._is_input(t, bare=True) and t.shape == (t.shape[0], 1, *after.shape[2:])
            if t.shape != after.shape and not spread:
                return No(f"it adds shapes {' and '.join(str(t.shape[1:]) for t in tensors)}")
        return Becomes(Add())

    def _is_input(self, value: Value, bare: bool = False) -> bool:
        """The images themselves, or nothing but factors and padding away from them."""
        i = None if value.number is None else self.vertex[value.number]
        while i and not bare and isinstance(self.graph.vertices[i].call, Scale | Pad):
            i = self.graph.vertices[i].inputs[0]
        return i == 0

    def _row(self, name: str, kind: str, output: tuple[int, ...], verdict: Verdict) -> None:
        match verdict:
            case Becomes(call):
                written = {Add: "Sum(…)", Scale: "a factor in its neighbour", Mean: "GlobalAvgPool()"}
                told = written.get(type(call), repr(_rounded(call)))
                self.rows.append(Row(name, kind, output, told, False))
            case Passes(told):
                self.rows.append(Row(name, kind, output, told, False))
            case No(reason):
                self.rows.append(Row(name, kind, output, reason, True))


def _rounded(call: Call) -> Call:
    """For the table only."""
    if isinstance(call, Conv | ConvTranspose | Dense):
        return replace(call, weight_var=float(f"{call.weight_var:.4g}"), bias_var=float(f"{call.bias_var:.4g}"))
    return call


_TO_THE_IMAGES = "which no layer does; do that to the images, and import the module without it"


def _summands(step: Step) -> list[tuple[Any, float]]:
    """The two terms of a + b, a.sub(b), torch.add(a, b, alpha=2) or torch.add(a, other=b), each with its factor."""
    given = Arguments((None, *step.args), {**step.kwargs, "input": None})
    terms = [given.take(1, "self", step.kwargs.get("input")), given.take(2, "other")]
    factor = float(given.take(3, "alpha", 1)) * (1.0 if step.function == "add" else -1.0)
    return list(zip(terms, (factor, 1.0) if step.function == "rsub" else (1.0, factor), strict=True))


def from_torch(
    module: Any,
    input_shape: Sequence[int],
    variances: str,
    weight_var: Given,
    bias_var: Given,
    allow_non_gaussian: bool,
    warn: bool = True,
) -> Layer:
    sources = Variances(variances, weight_var, bias_var)
    found = read_module(module, input_shape, sources, allow_non_gaussian)
    net = found.network(input_shape)
    sources.check_all_used()
    if warn and sources.warning():
        warnings.warn(sources.warning(), UserWarning, stacklevel=3)
    return net
