"""Explicit SIMD vectors for Numba: a `Vec` is `lanes` numbers in machine registers, one per pair of images.

Numba's own vectoriser gives up on loops with run-time offsets and reorders sums only with flags that would make results
depend on the processor. Here a vector is a type: LLVM maps it to the instructions of the processor (AVX-512, AVX2,
NEON), and every operation is one IEEE operation, so a lane's value never depends on its neighbours or on the vector
width. Memory is passed as pointers, which take one register where arrays take seven; loads and stores are unchecked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from .. import polynomials
from .columns import LANES


class Vec(types.Type):  # type: ignore[misc]
    """Numba type of a vector of `lanes` numbers of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.lanes = LANES[str(dtype)]
        super().__init__(name=f"Vec({dtype}x{self.lanes})")


def _scalar(dtype: Any) -> Any:
    if isinstance(dtype, types.Integer):
        return ir.IntType(dtype.bitwidth)
    return ir.FloatType() if dtype.bitwidth == 32 else ir.DoubleType()


def _vector(vec: Vec) -> Any:
    return ir.VectorType(_scalar(vec.dtype), vec.lanes)


def constant_of(vec: Vec, value: float) -> Any:
    return ir.Constant(_vector(vec), [value] * vec.lanes)


def lanes(p: Any) -> int:
    """Number of lanes of a vector of the type that p points to; a compile-time constant."""
    raise TypeError("for compiled code only")


@overload(lanes, strict=False)
def _lanes(p: Any) -> Any:
    n = LANES[str(p.dtype)]
    return lambda p: n


@register_model(Vec)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, _vector(fe_type))


def _code(signature: Any, compute: Callable[..., Any]) -> Any:
    """Return value of an intrinsic, from the function that writes its code with a builder."""
    return signature, lambda context, builder, signature, args: compute(builder, *args)


@intrinsic
def shifted(typing_context: Any, p: Any, n: Any) -> Any:
    """Return the pointer p + n elements."""
    return _code(p(p, types.intp), lambda builder, p, n: builder.gep(p, [n]))


@intrinsic
def address(typing_context: Any, number: Any) -> Any:
    """Convert an integer address to a pointer to float64 numbers."""
    target = types.CPointer(types.float64)
    return _code(target(types.int64), lambda builder, n: builder.inttoptr(n, ir.DoubleType().as_pointer()))


@intrinsic
def address_like(typing_context: Any, p: Any, number: Any) -> Any:
    """Convert an integer address to a pointer of the type of p."""
    pointer = _scalar(p.dtype).as_pointer()
    return _code(p(p, types.int64), lambda builder, p, n: builder.inttoptr(n, pointer))


@intrinsic
def add_at(typing_context: Any, p: Any, index: Any, value: Any) -> Any:
    """p[index] += value, where the float64 value is first rounded to the type that p points to."""
    single, scalar = p.dtype.bitwidth == 32, _scalar(p.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.gep(args[0], [args[1]])
        value = builder.fptrunc(args[2], scalar) if single else args[2]
        builder.store(builder.fadd(builder.load(at, typ=scalar), value), at)
        return context.get_dummy_value()

    return types.void(p, types.intp, types.float64), codegen


@intrinsic
def exponent_of(typing_context: Any, x: Any) -> Any:
    """Return e with ½ ≤ x · 2^−e < 1, for a normal number x."""
    whole = ir.IntType(64)

    def compute(builder: Any, x: Any) -> Any:
        bits = builder.lshr(builder.bitcast(x, whole), ir.Constant(whole, 52))
        return builder.sub(builder.and_(bits, ir.Constant(whole, 0x7FF)), ir.Constant(whole, 1022))

    return _code(types.int64(types.float64), compute)


@intrinsic
def lane_sum(typing_context: Any, a: Any) -> Any:
    """Sum of a vector's lanes, by adding halves, as a float64 number."""

    def compute(builder: Any, value: Any) -> Any:
        n, whole = a.lanes, ir.IntType(32)
        while n > 1:
            n //= 2
            low, high = (ir.Constant(ir.VectorType(whole, n), list(range(k, k + n))) for k in (0, n))
            value = builder.fadd(*(builder.shuffle_vector(value, value, half) for half in (low, high)))
        scalar = builder.extract_element(value, ir.Constant(whole, 0))
        return builder.fpext(scalar, ir.DoubleType()) if a.dtype.bitwidth == 32 else scalar

    return _code(types.float64(a), compute)


@intrinsic
def load(typing_context: Any, p: Any, index: Any) -> Any:
    """Load the vector p[index], …, p[index + lanes − 1]."""
    vec, align = Vec(p.dtype), p.dtype.bitwidth // 8

    def compute(builder: Any, p: Any, index: Any) -> Any:
        value = builder.load(builder.bitcast(builder.gep(p, [index]), _vector(vec).as_pointer()), typ=_vector(vec))
        value.align = align
        return value

    return _code(vec(p, types.intp), compute)


@intrinsic
def store(typing_context: Any, p: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.bitcast(builder.gep(args[0], [args[1]]), _vector(value).as_pointer())
        builder.store(args[2], at).align = p.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(p, types.intp, value), codegen


def _splat(builder: Any, vec: Vec, scalar: Any) -> Any:
    undefined = ir.Constant(_vector(vec), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vec.lanes), [0] * vec.lanes)
    return builder.shuffle_vector(first, undefined, lanes)


@intrinsic
def splat(typing_context: Any, p: Any, index: Any) -> Any:
    """Vector with the number p[index] in every lane."""
    vec, scalar = Vec(p.dtype), _scalar(p.dtype)
    return _code(vec(p, types.intp), lambda b, p, i: _splat(b, vec, b.load(b.gep(p, [i]), typ=scalar)))


@intrinsic
def constant(typing_context: Any, p: Any, value: Any) -> Any:
    """Vector with a number in every lane, rounded to the type that p points to."""
    vec = Vec(p.dtype)

    return _code(vec(p, types.float64), lambda builder, p, value: _spread(builder, vec, value))


@intrinsic
def constants(typing_context: Any, p: Any, values: Any) -> Any:
    """Tuple of vectors from a tuple of numbers, each in every lane and rounded to the type that p points to."""
    vec = Vec(p.dtype)
    result = types.UniTuple(vec, len(values))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = [builder.extract_value(args[1], i) for i in range(len(values))]
        return context.make_tuple(builder, result, [_spread(builder, vec, x) for x in numbers])

    return result(p, values), codegen


def _spread(builder: Any, vec: Vec, number: Any) -> Any:
    """Vector with a float64 number in every lane."""
    return _splat(builder, vec, builder.fptrunc(number, ir.FloatType()) if vec.dtype.bitwidth == 32 else number)


Compute = Callable[..., Any]
"""Writes the code of an operation: (builder, vector type, vectors) → vector."""


def _elementwise(arity: int, compute: Compute) -> Any:
    """Make a function of vectors of one type; some arguments may be numbers."""

    def apply(typing_context: Any, *arguments: Any) -> Any:
        vec = next(t for t in arguments if isinstance(t, Vec))

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            typed = zip(signature.args, args, strict=True)
            return compute(builder, vec, *(x if isinstance(t, Vec) else _spread(builder, vec, x) for t, x in typed))

        return vec(*(t if isinstance(t, Vec) else types.float64 for t in arguments)), codegen

    names = ["context", *"abcd"[:arity]]  # Numba needs names here and accepts no *args
    apply.__signature__ = Signature([Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names])  # type: ignore[attr-defined]
    return intrinsic(apply)


def _llvm(name: str) -> Compute:
    """A vector function built into LLVM."""

    def compute(builder: Any, vec: Vec, *args: Any) -> Any:
        t = _vector(vec)
        function_type = ir.FunctionType(t, [t] * len(args))
        full_name = f"llvm.{name}.v{vec.lanes}f{vec.dtype.bitwidth}"
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, full_name), args)

    return compute


_fma = _llvm("fma")


def _greater(builder: Any, vec: Vec, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _chosen(builder: Any, vec: Vec, a: Any, b: Any, yes: Any, no: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), yes, no)


def _two_to(builder: Any, vec: Vec, n: Any) -> Any:
    """2^n: adding 1.5·2^mantissa puts n into the low bits of the sum, which are then shifted to the exponent."""
    bits = vec.dtype.bitwidth
    mantissa, bias = (23, 127) if bits == 32 else (52, 1023)
    integers = ir.VectorType(ir.IntType(bits), vec.lanes)
    raw = builder.bitcast(builder.fadd(n, constant_of(vec, 1.5 * 2.0**mantissa)), integers)
    raw = builder.add(raw, ir.Constant(integers, [bias] * vec.lanes))
    raw = builder.shl(raw, ir.Constant(integers, [mantissa] * vec.lanes))
    return builder.bitcast(raw, _vector(vec))


def _polynomial(name: str) -> Any:
    """Polynomial by Horner's rule, with the coefficients of `polynomials` for the dtype of the argument."""

    def compute(builder: Any, vec: Vec, x: Any) -> Any:
        coefficients = getattr(polynomials, f"{name}_{vec.dtype.bitwidth}")
        total = constant_of(vec, coefficients[-1])
        for c in coefficients[-2::-1]:
            total = _fma(builder, vec, total, x, constant_of(vec, c))
        return total

    return _elementwise(1, compute)


sqrt, absolute = _elementwise(1, _llvm("sqrt")), _elementwise(1, _llvm("fabs"))
copysign = _elementwise(2, _llvm("copysign"))
nearest = _elementwise(1, _llvm("rint"))
"""The nearest integer, ties to even."""
power_of_two = _elementwise(1, _two_to)
"""2^n for an integer n in the exponent's range."""
fma = _elementwise(3, _fma)
"""a · b + c with one rounding."""
negated_fma = _elementwise(3, lambda builder, vec, a, b, c: _fma(builder, vec, builder.fneg(a), b, c))
"""c − a · b with one rounding."""
maximum = _elementwise(2, _greater)
positive = _elementwise(1, lambda builder, vec, a: _greater(builder, vec, a, constant_of(vec, 0.0)))
"""max(a, 0)."""
where_less = _elementwise(4, _chosen)
"""`yes` where a < b, else `no`."""

relu_g, relu_h = _polynomial("RELU_G"), _polynomial("RELU_H")
acos_h, asin_s = _polynomial("ACOS_H"), _polynomial("ASIN_S")
exp_r, expm1_y = _polynomial("EXP_R"), _polynomial("EXPM1_Y")


def _operator(operation: Any, method: str) -> None:
    apply = _elementwise(2, lambda builder, vec, a, b: getattr(builder, method)(a, b))

    @overload(operation, strict=False)
    def choose(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
        return (lambda a, b: apply(a, b)) if isinstance(a, Vec) or isinstance(b, Vec) else None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")
