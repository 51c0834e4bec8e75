"""What a PyTorch module's `forward` does, as a list of calls with the shape of every result.

`torch.fx` records the calls; the same calls run at once on a shadow of the module whose tensors have shapes but no
data (the `meta` device). So code that looks at shapes (`x.view(x.size(0), -1)`, `if x.shape[1] != …`) takes the branch
that it really takes, no arithmetic is done, and nothing of the user's module (batch statistics, random state) changes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from cnngp.network.layers import NetworkError

from ..parts import OWN_LEAVES

BATCH = 2
"""A batch of two: an axis of size one would hide code that mixes the images of a batch."""


class _ShapeProxy(fx.Proxy):  # type: ignore[misc]
    """Stands for a tensor in `forward`; shapes and types are real, so Python code may branch on them."""

    @property
    def shape(self) -> Any:
        return self.node.meta["value"].shape

    @property
    def ndim(self) -> int:
        return int(self.node.meta["value"].ndim)

    @property
    def dtype(self) -> Any:
        return self.node.meta["value"].dtype

    @property
    def device(self) -> Any:
        return self.node.meta["value"].device

    def size(self, dim: int | None = None) -> Any:
        value = self.node.meta["value"]
        return value.size() if dim is None else value.size(dim)

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return int(self.node.meta["value"].numel())

    def __len__(self) -> int:
        return len(self.node.meta["value"])


class _ShapeTracer(fx.Tracer):  # type: ignore[misc]
    def __init__(self, input_shape: Sequence[int], dtype: Any) -> None:
        super().__init__()
        self._input = torch.empty((BATCH, *input_shape), device="meta", dtype=dtype)
        self._running = False  # inside a leaf's own forward nothing is recorded

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        if isinstance(m, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            return False
        return isinstance(m, OWN_LEAVES) or bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: Any) -> Any:
        return _ShapeProxy(node, self)

    def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self._running else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return attr_val if self._running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **named: Any) -> Any:
        node = super().create_node(kind, target, args, kwargs, *rest, **named)
        within = list(self.module_stack)
        node.meta["within"] = module_name(within[-1]) if within else ""
        self._running = True
        try:
            with warnings.catch_warnings():  # torch warns of slow paths, and nothing is computed here
                warnings.simplefilter("ignore")
                node.meta["value"] = self._run(node)
        except NetworkError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()
            raise NetworkError(
                f"{call_name(node)}: running it on an input of shape {tuple(self._input.shape[1:])} failed: "
                f"{reason[0] if reason else type(error).__name__}"
            ) from None
        finally:
            self._running = False
        return node

    def _run(self, node: Any) -> Any:
        args = fx.node.map_arg(node.args, lambda n: n.meta["value"])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: n.meta["value"])
        match node.op:
            case "placeholder":
                return self._input
            case "get_attr":
                value: Any = self.root
                for part in node.target.split("."):
                    value = getattr(value, part)
                return value
            case "call_module":
                return self.root.get_submodule(node.target)(*args, **kwargs)
            case "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            case "call_function":
                return node.target(*args, **kwargs)
            case _:
                return None


class _Root(nn.Module):  # type: ignore[misc]
    """Calls the module on one input: further arguments of its forward keep their defaults."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)


def module_name(target: str) -> str:
    """The name inside the user's module of what the tracer calls "module.…"; the module itself is ""."""
    return target.removeprefix("module").removeprefix(".")


def call_name(node: Any) -> str:
    """How messages name a call: the module's dotted name, or the function with the module whose forward calls it."""
    if node.op == "call_module":
        return module_name(node.target) or "the module"
    if node.op == "placeholder":
        return "(input)"
    function = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{function} in {node.meta['within'] or 'forward'}"


def shadow(module: Any) -> Any:
    """A copy of the module with every parameter and buffer on the meta device; costs no memory for the weights."""
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
    """(name, class, why not) of the parts whose call does something else than their class says."""
    found = []
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.lazy.LazyModuleMixin) and part.has_uninitialized_params():
            continue  # its own hook makes its weights; `shadow` says what to do
        reason = ""
        if part._forward_pre_hooks or part._forward_hooks:
            before = "pre-hook" if part._forward_pre_hooks else "hook"
            reason = f"it has a forward {before}, which may change what it computes; remove it and import again"
        elif "forward" in vars(part):
            reason = "its forward was replaced on this instance; make a class of its own with that forward"
        if reason:
            found.append((name or "the module", type(part).__name__, reason))
    return found


def trace(module: Any, input_shape: Sequence[int]) -> Any:
    """The module's calls as an fx graph; `node.meta["value"]` holds a data-free tensor of the result's shape."""
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    try:
        return _ShapeTracer(input_shape, dtype).trace(_Root(shadow(module)))
    except fx.proxy.TraceError as error:
        raise NetworkError(
            f"forward decides by the values of a tensor or takes one apart, so it cannot be followed: {error}"
        ) from None
    except TypeError as error:
        raise NetworkError(f"forward cannot be called on one input: {error}") from None
