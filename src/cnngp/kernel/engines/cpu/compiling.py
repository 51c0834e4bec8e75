"""Compilation of the engine's functions with Numba. Only `machine_code.py` imports this, for code not yet on disk."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import compiler, dispatcher, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target

from .machine_code import Function

_OPTIONS = {"error_model": "numpy"}


class _Compiler(dispatcher._FunctionCompiler):  # type: ignore[misc, name-defined]
    """Compiles functions that only compiled code calls, without wrappers for Python."""

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        return flags


class _Part(CPUDispatcher):  # type: ignore[misc]
    """A function that is compiled for the types that it is called with, without the wrapper by which Python could call
    it, which would take a third of the time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        options = _OPTIONS | {"forceinline": True, "nopython": True}
        super().__init__(function, targetoptions=options)
        self._compiler = _Compiler(function, cpu_target, options, {}, compiler.Compiler)

    def compile(self, sig: Any) -> Any:
        arguments, return_type = sigutils.normalize_signature(sig)
        if arguments not in self.overloads:
            made = self._compiler.compile(arguments, return_type)
            made = made._replace(entry_point=object())  # the key by which Numba identifies it
            self.targetctx.insert_user_function(made.entry_point, made.fndesc, [made.library])
            self.overloads[arguments] = made
        return self.overloads[arguments].entry_point


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator for parts of compiled functions, which are inlined; they stay small, as LLVM optimises all at once."""
    return _Part(function)


@global_compiler_lock
def object_code(function: Function, dtype: str, symbol: str) -> bytes:
    """Compile a function for one precision to an object file, in which its name is `symbol`."""
    from .work import signature

    module, _, name = function.path.rpartition(".")
    python = getattr(import_module(f".{module}", __package__), name)
    if function.numbers:
        python = python(*function.numbers)
    arguments = signature(function.kind, python, dtype)
    result = _Compiler(python, cpu_target, _OPTIONS, {}, compiler.Compiler).compile(arguments, types.void)
    library = result.library
    library.add_ir_module(_with_plain_name(library, result.fndesc, symbol))
    library.enable_object_caching()
    library.get_pointer_to_function(symbol)
    return bytes(library._get_compiled_object())


def _with_plain_name(library: Any, description: Any, symbol: str) -> Any:
    """Make a module with a function `symbol` that calls the compiled one. No function raises, so status is ignored."""
    context = cpu_target.target_context
    convention = context.call_conv
    module = library.create_ir_module("plain")
    inner = ir.Function(
        module, convention.get_function_type(description.restype, description.argtypes), description.llvm_func_name
    )
    plain_type = ir.FunctionType(ir.VoidType(), [context.get_value_type(t) for t in description.argtypes])
    plain = ir.Function(module, plain_type, symbol)
    builder = ir.IRBuilder(plain.append_basic_block())
    convention.call_function(builder, inner, description.restype, description.argtypes, plain.args)
    builder.ret_void()
    return module
