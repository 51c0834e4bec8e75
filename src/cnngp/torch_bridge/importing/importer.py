"""Import: the calls of a module's forward, judged one by one and put together as a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from cnngp.network.layers import Conv, ConvTranspose, Dense, Layer, NetworkError
from cnngp.network.shapes import check_input_shape, shape_text
from cnngp.network.table import shape_table

from .calls import function_name, is_in_place, is_sum, judge_function
from .fold import fold
from .graph import Add, Call, Graph, Mean, Pad, Refused, Scale
from .rules import judge_module
from .trace import altered_modules, call_name, module_name, trace
from .variances import Given, Variances
from .verdicts import Becomes, No, Passes, Verdict


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
    graph = trace(module, tuple(input_shape))
    return _Reader(module, variances, allow_non_gaussian).read(graph)


class _Reader:
    """Goes through the calls in order. A value has a vertex, and a storage that in-place calls write to."""

    def __init__(self, module: Any, variances: Variances, allow_non_gaussian: bool) -> None:
        self.module = module
        self.variances = variances
        self.graph = Graph(allow_non_gaussian)
        self.rows: list[Row] = []
        self.vertex: dict[Any, int] = {}
        self.storage: dict[Any, Any] = {}
        self.weights: dict[int, list[tuple[int, int, str]]] = {}  # of each memory: from, to, whose
        self.used: set[str] = set()

    def read(self, graph: Any) -> Import:
        for node in graph.nodes:
            match node.op:
                case "placeholder":
                    self.vertex[node], self.storage[node] = 0, node
                case "get_attr":
                    pass
                case "output":
                    self._output(node)
                case _:
                    self._call(node)
        return Import(self.rows, self.graph)

    def _output(self, node: Any) -> None:
        value = node.args[0]
        if not isinstance(value, fx.Node) or value not in self.vertex:
            told = "a tensor not made from the input" if isinstance(value, fx.Node) else f"a {type(value).__name__}"
            self._row("forward", "output", (), No(f"it returns {told}, not one tensor"))
        else:
            self.graph.output = self.vertex[value]

    def _call(self, node: Any) -> None:
        name, after = call_name(node), node.meta["value"]
        kind, in_place, verdict = self._judge(node)
        tensor = isinstance(after, torch.Tensor)
        self._row(name, kind, tuple(after.shape[1:]) if tensor else (), verdict)
        inputs = [n for n in node.all_input_nodes if n in self.vertex]
        if not inputs:
            return
        first = inputs[0]
        if isinstance(verdict, Passes | No):
            self.vertex[node] = self.vertex[first]
            self.storage[node] = self.storage[first] if isinstance(verdict, Passes) and not verdict.copies else node
            return
        self.vertex[node], self.storage[node] = self._add(node, name, verdict), node
        if in_place:
            self._overwrite(first, node)

    def _overwrite(self, old: Any, new: Any) -> None:
        """After an in-place call every name for the old value means the new one."""
        written = self.storage[old]
        for node, storage in self.storage.items():
            if storage is written:
                self.vertex[node], self.storage[node] = self.vertex[new], new

    def _add(self, node: Any, name: str, verdict: Becomes) -> int:
        if not isinstance(verdict.call, Add):
            return self.graph.add(name, verdict.call, [self.vertex[node.all_input_nodes[0]]])
        sign = -1.0 if function_name(node.target).startswith("sub") else 1.0
        factors = [1.0, sign * float(node.kwargs.get("alpha", 1))]
        terms = []
        for argument, factor in zip(_summands(node), factors, strict=True):
            if not isinstance(argument, fx.Node):
                continue
            vertex = self.vertex[argument]
            terms.append(vertex if factor == 1.0 else self.graph.add(name, Scale(factor), [vertex]))
        return terms[0] if len(terms) == 1 else self.graph.add(name, Add(), terms)

    def _judge(self, node: Any) -> tuple[str, bool, Verdict]:
        inputs = node.all_input_nodes
        before = inputs[0].meta["value"] if inputs else None
        after = node.meta["value"]
        parameters = [n.target for n in inputs if n.op == "get_attr"]
        if node.op == "call_module":
            name = module_name(node.target)
            original = self.module.get_submodule(name)
            kind = type(original).__name__
            shared = self._shared(name, original)
            if shared:
                return kind, False, No(shared)
            if len(inputs) != 1 or not isinstance(after, torch.Tensor):
                verdict = judge_module(name, original, after, after, self.variances)
                return kind, False, verdict if isinstance(verdict, No) else No("it is called on more than one tensor")
            verdict = judge_module(name, original, before, after, self.variances)
            return kind, bool(getattr(original, "inplace", False)), verdict
        name = function_name(node.target)
        in_place = is_in_place(name, node.kwargs)
        if parameters and name not in ("linear",) and not name.startswith("conv"):
            of = f"it uses the parameter or buffer {module_name(parameters[0])}"
            others = [n for n in inputs if n.op != "get_attr"]
            if others and all(self._is_input(n) for n in others):
                return name, in_place, No(f"{of} on the input, {_TO_THE_IMAGES}")
            return name, in_place, No(f"{of} outside of a layer")
        if is_sum(name):
            return name, in_place, self._sum(node)
        values = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["value"])
        return name, in_place, judge_function(name, values[0], values[1], before, after)

    def _sum(self, node: Any) -> Verdict:
        terms = _summands(node)
        tensors = [t for t in terms if isinstance(t, fx.Node)]
        numbers = [t for t in terms if not isinstance(t, fx.Node)]
        if any(n != 0 for n in numbers):
            if all(self._is_input(t) for t in tensors):
                return No(f"it shifts the input by a constant ({numbers[0]}), {_TO_THE_IMAGES}")
            return No(f"it shifts by a constant ({numbers[0]}), so what follows is not zero-mean")
        if not all(t in self.vertex for t in tensors):
            return No("it adds a tensor that is not made from the input")
        whole = node.meta["value"].shape
        for t in tensors:
            shape = t.meta["value"].shape
            # The input itself may be added to every channel: its one channel is its mean over channels.
            spread = self.vertex[t] == 0 and tuple(shape) == (shape[0], 1, *whole[2:])
            if shape != whole and not spread:
                return No(f"it adds shapes {' and '.join(str(tuple(t.meta['value'].shape[1:])) for t in tensors)}")
        return Becomes(Add())

    def _is_input(self, node: Any) -> bool:
        """The images themselves, or nothing but factors and padding away from them."""
        i = self.vertex.get(node)
        while i and isinstance(self.graph.vertices[i].call, Scale | Pad):
            i = self.graph.vertices[i].inputs[0]
        return i == 0

    def _shared(self, name: str, module: Any) -> str:
        """Why the module's weights are not its own, or "". Norms and PReLU count as fixed functions, not as weights."""
        if isinstance(module, nn.PReLU | nn.modules.batchnorm._BatchNorm):
            return ""
        own = {w: getattr(module, w) for w in ("weight", "bias") if isinstance(getattr(module, w, None), torch.Tensor)}
        for which, p in (dict(module.named_parameters()) | own).items():
            here = f"{name}.{which}" if name else which
            memory, first, last = _memory(p)
            others = self.weights.setdefault(memory, [])
            for start, end, other in others:
                if other != here and first < end and start < last:
                    return f"it shares its weights with {other}; the layers of a network must be independent"
            others.append((first, last, here))
            if name in self.used:
                return "it is used more than once with the same weights; each use needs its own module"
        self.used.add(name)
        return ""

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


def _memory(tensor: Any) -> tuple[int, int, int]:
    """Which memory a tensor's numbers lie in, from where to where: the same for its `detach()` and `.data`."""
    storage = tensor.untyped_storage()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else -1
    first = int(tensor.storage_offset())
    return int(storage.data_ptr() or storage._cdata), first, first + reach + 1


def _rounded(call: Call) -> Call:
    """For the table only."""
    if isinstance(call, Conv | ConvTranspose | Dense):
        return replace(call, weight_var=float(f"{call.weight_var:.4g}"), bias_var=float(f"{call.bias_var:.4g}"))
    return call


_TO_THE_IMAGES = "which no layer does; do that to the images, and import the module without it"


def _summands(node: Any) -> list[Any]:
    """The two terms of a + b, a.add(b), torch.add(a, b) or torch.add(a, other=b)."""
    return [*node.args, *(node.kwargs[k] for k in ("input", "other") if k in node.kwargs)][:2]


def from_torch(
    module: Any,
    input_shape: Sequence[int],
    variances: str,
    weight_var: Given,
    bias_var: Given,
    allow_non_gaussian: bool,
) -> Layer:
    sources = Variances(variances, weight_var, bias_var)
    found = read_module(module, input_shape, sources, allow_non_gaussian)
    net = found.network(input_shape)
    sources.check_all_used()
    return net
