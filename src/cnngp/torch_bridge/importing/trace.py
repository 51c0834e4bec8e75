"""Trace a PyTorch module's `forward`: the calls it makes, as values and the steps that produce them.

`forward` runs on a shadow copy of the module whose tensors have shapes but no data (the `meta` device). Python code in
it takes the branches that it would really take, no arithmetic is done, and the user's module does not change. A
`TorchFunctionMode` sees every PyTorch call.

Values are numbered, and a value never changes: a call that writes into a tensor makes a new value, and from then on
every tensor that shares the memory, such as a view, a `detach()` or an alias, refers to the new one.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from cnngp.network.layers import NetworkError

from ..parts import OWN_LEAVES

BATCH = 13
"""A batch size that no other axis is likely to have, so that code that mixes the images of a batch is noticed."""

_OF_SIZES = ("view", "reshape", "unflatten", "expand", "repeat", "getitem", "narrow")
"""Functions whose arguments may contain the batch size; their shapes show whether they mix images."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_BY_VALUE = (
    *("Boolean value of Tensor", "to Scalar", "to Python scalars", "no data!", "an index", "device type tensor"),
    "on meta tensors",
)
"""Parts of PyTorch's error messages when code needs the data of a tensor without data."""


@dataclass(frozen=True)
class Value:
    """A tensor without its data. `number` is None if the tensor does not depend on the input."""

    number: int | None
    shape: tuple[int, ...]
    dtype: Any
    owner: str = ""
    """Name of the parameter or buffer that it is, if any."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Step:
    """One call. Tensors in the arguments and the result are represented by `Value`s."""

    name: str
    """Name in messages: the dotted name of a module, or a function and the module whose forward calls it."""
    kind: str
    function: str
    """Plain name of the function, such as "add" for `x += y`; "" for a call of a module with weights."""
    module: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    number: int
    """Number of the value that it makes, or of which its result is a view."""
    same_order: bool
    """True if the result is the argument's own memory, all of it and in the same order."""
    problem: str = ""
    """Reason why values cannot be followed through this call; "" if they can."""

    @property
    def inputs(self) -> list[Value]:
        return [v for v in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(v, Value)]

    @property
    def reads(self) -> list[int]:
        """Numbers of the values made from the input that the call reads, in the order of its arguments."""
        return [v.number for v in self.inputs if v.number is not None]

    @property
    def told(self) -> tuple[Any, ...]:
        """Key for comparing calls: the call and, unless they are sizes, its arguments, with tensors by value number."""
        arguments = () if self.function in _OF_SIZES else (self.args, self.kwargs)
        told = pytree.tree_map(lambda a: a.number if isinstance(a, Value) else repr(a), arguments)
        return self.name, self.function, told, self.number


@dataclass(frozen=True)
class Trace:
    """Steps in the order of the calls. Value 0 is the input; `output` is what forward returns."""

    steps: list[Step]
    output: Any

    @cached_property
    def needed(self) -> set[int | None]:
        """Numbers of the values on which the output depends, with its own; everything else can be ignored."""
        needed = {v.number for v in pytree.tree_leaves(self.output) if isinstance(v, Value)}
        for step in reversed(self.steps):
            if step.number in needed:
                needed.update(step.reads)
        return needed


def trace(module: Any, input_shape: Sequence[int], batch: int = BATCH) -> Trace:
    """Trace the module's forward on a batch of inputs of this shape."""
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    x = torch.empty((batch, *input_shape), device="meta", dtype=dtype)
    followed = _shadow(module)
    follower = _Follower(followed, x)
    with torch.no_grad(), torch.device("meta"), follower:
        result = _told_of("forward", tuple(input_shape), lambda: followed(x))
    after = dict(followed.named_parameters())
    changed = [name for name, p in follower.weights.items() if follower.owner(after.get(name, p)) != name]
    if changed or len(after) != len(follower.weights):
        raise NetworkError(f"forward replaces its own weights, {', '.join(changed) or 'by others'}")
    if isinstance(result, torch.Tensor) and id(result) not in follower.kept and _memory(result) in follower.numbers:
        raise NetworkError("forward returns a part of a tensor that was taken in a way that cannot be followed")
    return Trace(follower.steps, pytree.tree_map(follower.value, result))


def trace_twice(module: Any, input_shape: Sequence[int]) -> Trace:
    """Like `trace`, but raises if forward makes different calls for two batch sizes."""
    first, second = (trace(module, input_shape, batch) for batch in (BATCH, BATCH + 4))
    calls, again = ([step for step in found.steps if step.number in found.needed] for found in (first, second))
    for a, b in zip_longest(calls, again):
        if a is None or b is None or a.told != b.told:
            why = "it depends on the number of images, or changes from one call of forward to another"
            raise NetworkError(f"{(a or b).name}: {why}")
    return first


class _Follower(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, module: Any, x: Any) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.shape = tuple(x.shape[1:])
        self.kept: dict[int, Any] = {}  # tensors by id; kept alive, so that no id is reused
        self.numbers: dict[int, int] = {}  # memory → number of the value that it holds now
        self.count = 0
        self.running = False  # nothing is recorded inside a call
        self.within: list[tuple[str, str]] = [("", "")]  # stack of running modules, with the class if from torch.nn
        self.weights = dict(module.named_parameters())
        self.owners: dict[int, str] = {_memory(t): name for name, t in (*self.weights.items(), *module.named_buffers())}
        self.keep(x, 0)
        for name, part in module.named_modules():
            part.forward = partial(self.enter, name, part, part.forward)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.running:
            return func(*args, **(kwargs or {}))
        function = _function_name(func)
        name, kind = self.within[-1]
        called = (name or "the module", kind) if kind else (f"{function} in {name or 'forward'}", function)
        return self.call(func, *called, function, "", args, kwargs or {})

    def enter(self, name: str, part: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a module's forward: one step for a torch.nn module with weights, else the steps of the calls in it."""
        if self.running:
            return forward(*args, **kwargs)
        kind, own = type(part).__name__, _is_torchs_own(part)
        called = name or "the module", kind
        weights = [*part.named_parameters(), *part.named_buffers()]
        weighted = weights or any(isinstance(t, torch.Tensor) for t in vars(part).values())
        if isinstance(part, OWN_LEAVES) or (own and weighted):
            is_own = all(self.owner(t) for _, t in weights)
            problem = "" if is_own else "other weights than its own are given to the call"
            return self.call(forward, *called, "", name, args, kwargs, problem)
        self.within.append((name, kind if own else ""))
        before = len(self.steps)
        try:
            result = forward(*args, **kwargs)
        finally:
            self.within.pop()
        if own and len(self.steps) == before:  # such as Identity
            self.call(lambda *_, **__: result, *called, "identity", "", args, kwargs)
        return result

    def call(
        self,
        run: Callable[..., Any],
        name: str,
        kind: str,
        function: str,
        module: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        problem: str = "",
    ) -> Any:
        tensors = _tensors((args, kwargs))
        given_args, given_kwargs = pytree.tree_map(self.value, (tuple(args), dict(kwargs)))
        if any(_memory(t) in self.numbers and id(t) not in self.kept for t in tensors):
            problem = "it reads a part of a tensor that was taken in a way that cannot be followed"

        def versions() -> list[int]:
            return [t._version for t in tensors]  # raises in torch.inference_mode

        self.running = True
        try:
            before = _told_of(name, self.shape, versions)
            result = _told_of(name, self.shape, lambda: run(*args, **kwargs))
        finally:
            self.running = False
        made = _tensors(result)
        written = [t for t, old, new in zip(tensors, before, versions(), strict=True) if old != new]
        for t in written:
            if self.owner(t) in self.weights:
                raise NetworkError(f"{name}: forward writes into its own weights, {self.owner(t)}")
        if not any(_memory(t) in self.numbers for t in tensors) or not (made or written):
            return result  # a call on constants, or a query such as a shape
        if any(_memory(t) != _memory(made[0]) or not _is_whole(t) for t in written if made):
            problem = problem or "it writes into a part of a tensor, or into another one than it returns"
        fresh = bool(written) or not made or _memory(made[0]) not in self.numbers
        self.count += fresh
        number = self.count if fresh else self.numbers[_memory(made[0])]
        for t in (*made, *written):
            self.keep(t, number)
        same_order = len(made) == 1 and any(_same_order(t, made[0]) for t in tensors) and not fresh
        after = pytree.tree_map(self.value, result)
        arguments = given_args, given_kwargs, after
        self.steps.append(Step(name, kind, function, module, *arguments, number, same_order, problem))
        return result

    def keep(self, t: Any, number: int) -> None:
        self.kept[id(t)] = t
        self.numbers[_memory(t)] = number

    def owner(self, t: Any) -> str:
        """Name of the parameter or buffer that the tensor is, or ""."""
        return self.owners.get(_memory(t), "")

    def value(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        return Value(self.numbers.get(_memory(t)), tuple(map(int, t.shape)), t.dtype, self.owner(t))


def _tensors(tree: Any) -> list[Any]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _memory(t: Any) -> int:
    return int(t.untyped_storage()._cdata)


def _is_whole(t: Any) -> bool:
    return bool(t.numel() * t.element_size() == t.untyped_storage().nbytes())


def _same_order(a: Any, b: Any) -> bool:
    if _memory(a) != _memory(b) or a.storage_offset() != b.storage_offset():
        return False
    alike = a.shape == b.shape and a.stride() == b.stride()
    return bool(alike or (a.numel() == b.numel() and a.is_contiguous() and b.is_contiguous()))


def _function_name(func: Any) -> str:
    """Plain name of a function, the same for `torch.add`, `Tensor.add_`, `x += y` and `torch.ops.aten.add.Tensor`."""
    if isinstance(func, torch._ops.OpOverload):
        func = func.overloadpacket
    words = (resolve_name(func) or getattr(func, "__name__", str(func))).split(".")
    return next((w.strip("_") for w in reversed(words) if w not in ("__get__", "__set__")), str(func))


def _is_torchs_own(part: Any) -> bool:
    """True if the module's class is from torch.nn; for a parametrized class, the class it had before."""
    kind = next(c for c in type(part).__mro__ if c.__module__ != "torch.nn.utils.parametrize")
    return kind.__module__.startswith("torch.nn.") and not isinstance(part, _CONTAINERS)


def _told_of(name: str, shape: tuple[int, ...], run: Callable[[], Any]) -> Any:
    """Return `run()`; any error becomes a one-line `NetworkError` that names the call."""
    try:
        with warnings.catch_warnings():  # PyTorch warns about slow paths, but nothing is computed here
            warnings.simplefilter("ignore")
            return run()
    except NetworkError:
        raise
    except Exception as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if any(words in line for words in _BY_VALUE):
            told = "forward decides by the values of a tensor or takes one apart, so it cannot be followed"
        else:
            told = f"{name}: running it on an input of shape {shape} failed"
        raise NetworkError(f"{told}: {line}") from error


def _shadow(module: Any) -> Any:
    """Copy of the module with every parameter and buffer on the meta device, so the weights take no memory."""
    memo: dict[int, Any] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise NetworkError(
                f"{name} has no shape yet (a lazy layer); run the module once on an input, then import it"
            )
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=False)
    for _, b in module.named_buffers(remove_duplicate=False):
        memo[id(b)] = torch.empty_like(b, device="meta")
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise NetworkError(f"the module cannot be copied to follow its forward: {error}") from None


def altered_modules(module: Any) -> list[tuple[str, str, str]]:
    """(name, class, reason) of each part whose call does not do what its class says, such as one with a hook."""
    found = []
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            continue  # its hook creates its weights; `_shadow` raises with a remedy
        reason = ""
        replaced = [key for key, v in vars(part).items() if callable(v) and callable(getattr(type(part), key, None))]
        if part._forward_pre_hooks or part._forward_hooks:
            before = "pre-hook" if part._forward_pre_hooks else "hook"
            reason = f"it has a forward {before}, which may change what it computes; remove it and import again"
        elif "forward" in replaced or (replaced and _is_torchs_own(part)):
            reason = f"its {replaced[0]} was replaced on this instance; make a class of its own with that {replaced[0]}"
        elif isinstance(part, torch.jit.ScriptModule):
            reason = "it was compiled by torch.jit, so its calls cannot be followed; import the module it was made from"
        if reason:
            found.append((name or "the module", type(part).__name__, reason))
    return found
