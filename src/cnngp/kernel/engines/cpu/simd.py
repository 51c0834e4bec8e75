"""Explicit vectors for Numba: a `Vec` is `lanes` numbers, one per pair of images, held in machine registers.

Numba's own vectoriser gives up on loops with run-time offsets and reorders sums only with flags that would make results
depend on the processor. Here a vector is a type: LLVM maps it to whatever the processor has (AVX-512, AVX2, NEON), and
every operation is one IEEE operation, so a lane's value never depends on its neighbours or on the vector width.
Memory is passed as pointers, which cost a register where arrays cost seven; loads and stores check nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from .. import polynomials
from .plan import LANES


class Vec(types.Type):  # type: ignore[misc]
    """`lanes` numbers of one dtype."""

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
    """How many numbers of the type p points to make a vector; a constant to the compiler."""
    raise TypeError("for compiled code only")


@overload(lanes, strict=False)
def _lanes(p: Any) -> Any:
    n = LANES[str(p.dtype)]
    return lambda p: n


@register_model(Vec)
class _VecModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Vec) -> None:
        super().__init__(dmm, fe_type, _vector(fe_type))


@intrinsic
def pointer(typing_context: Any, array: Any) -> Any:
    """The address of an array's first element. The array must outlive it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, value=args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def shifted(typing_context: Any, p: Any, n: Any) -> Any:
    """The address n elements on."""
    return p(p, types.intp), lambda context, builder, signature, args: builder.gep(args[0], [args[1]])


@intrinsic
def address(typing_context: Any, number: Any) -> Any:
    """The float64 numbers at an address that is kept as an integer."""
    target = types.CPointer(types.float64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.DoubleType().as_pointer())

    return target(types.int64), codegen


@intrinsic
def address_like(typing_context: Any, p: Any, number: Any) -> Any:
    """The numbers at an address that is kept as an integer, of the type that p points to."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[1], _scalar(p.dtype).as_pointer())

    return p(p, types.int64), codegen


@intrinsic
def add_at(typing_context: Any, p: Any, index: Any, value: Any) -> Any:
    """p[index] += value, a float64 number, rounded to the type that p points to."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.gep(args[0], [args[1]])
        value = builder.fptrunc(args[2], ir.FloatType()) if p.dtype.bitwidth == 32 else args[2]
        builder.store(builder.fadd(builder.load(at, typ=_scalar(p.dtype)), value), at)
        return context.get_dummy_value()

    return types.void(p, types.intp, types.float64), codegen


@intrinsic
def exponent_of(typing_context: Any, x: Any) -> Any:
    """e with ½ ≤ x · 2^−e < 1, of a normal number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.lshr(builder.bitcast(args[0], ir.IntType(64)), ir.Constant(ir.IntType(64), 52))
        biased = builder.and_(bits, ir.Constant(ir.IntType(64), 0x7FF))
        return builder.sub(biased, ir.Constant(ir.IntType(64), 1022))

    return types.int64(types.float64), codegen


@intrinsic
def lane_sum(typing_context: Any, a: Any) -> Any:
    """The sum of a vector's lanes, halves first, as a float64 number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, n = args[0], a.lanes
        while n > 1:
            n //= 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), n), list(range(first, first + n))) for first in (0, n)
            )
            value = builder.fadd(*(builder.shuffle_vector(value, value, half) for half in (low, high)))
        scalar = builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
        return builder.fpext(scalar, ir.DoubleType()) if a.dtype.bitwidth == 32 else scalar

    return types.float64(a), codegen


@intrinsic
def load(typing_context: Any, p: Any, index: Any) -> Any:
    """The vector at p[index], …, p[index + lanes − 1]."""
    vec = Vec(p.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.bitcast(builder.gep(args[0], [args[1]]), _vector(vec).as_pointer())
        value = builder.load(at, typ=_vector(vec))
        value.align = p.dtype.bitwidth // 8
        return value

    return vec(p, types.intp), codegen


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
    """The number p[index] in every lane."""
    vec = Vec(p.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.gep(args[0], [args[1]])
        return _splat(builder, vec, builder.load(at, typ=_scalar(vec.dtype)))

    return vec(p, types.intp), codegen


@intrinsic
def constant(typing_context: Any, p: Any, value: Any) -> Any:
    """A number in every lane, rounded to the type that p points to."""
    vec = Vec(p.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        scalar = args[1]
        if vec.dtype.bitwidth == 32:
            scalar = builder.fptrunc(scalar, ir.FloatType())
        return _splat(builder, vec, scalar)

    return vec(p, types.float64), codegen


@intrinsic
def constants(typing_context: Any, p: Any, values: Any) -> Any:
    """A tuple of numbers, each in every lane, rounded to the type that p points to."""
    vec = Vec(p.dtype)
    result = types.UniTuple(vec, len(values))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = [builder.extract_value(args[1], i) for i in range(len(values))]
        return context.make_tuple(builder, result, [_spread(builder, vec, x) for x in numbers])

    return result(p, values), codegen


def _spread(builder: Any, vec: Vec, number: Any) -> Any:
    """A float64 number in every lane."""
    return _splat(builder, vec, builder.fptrunc(number, ir.FloatType()) if vec.dtype.bitwidth == 32 else number)


def _mixed(compute: Callable[..., Any], *arguments: Any) -> Any:
    """The signature and code of a function of vectors of one type, some of which may be numbers."""
    vec = next(t for t in arguments if isinstance(t, Vec))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = [
            x if isinstance(t, Vec) else _spread(builder, vec, x) for t, x in zip(signature.args, args, strict=True)
        ]
        return compute(builder, vec, *wide)

    return vec(*(t if isinstance(t, Vec) else types.float64 for t in arguments)), codegen


def _call(builder: Any, vec: Vec, name: str, args: Any) -> Any:
    t = _vector(vec)
    function_type = ir.FunctionType(t, [t] * len(args))
    full_name = f"{name}.v{vec.lanes}f{vec.dtype.bitwidth}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, full_name), args)


@intrinsic
def sqrt(typing_context: Any, a: Any) -> Any:
    return a(a), lambda context, builder, signature, args: _call(builder, a, "llvm.sqrt", args)


@intrinsic
def absolute(typing_context: Any, a: Any) -> Any:
    return a(a), lambda context, builder, signature, args: _call(builder, a, "llvm.fabs", args)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a · b + c with one rounding."""
    return _mixed(lambda builder, vec, *args: _call(builder, vec, "llvm.fma", args), a, b, c)


@intrinsic
def negated_fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """c − a · b with one rounding."""
    return _mixed(lambda builder, vec, a, b, c: _call(builder, vec, "llvm.fma", [builder.fneg(a), b, c]), a, b, c)


def _greater(builder: Any, vec: Vec, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
    return _mixed(_greater, a, b)


@intrinsic
def positive(typing_context: Any, a: Any) -> Any:
    """max(a, 0)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = constant_of(a, 0.0)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[0], zero)

    return a(a), codegen


def _chosen(builder: Any, vec: Vec, a: Any, b: Any, yes: Any, no: Any) -> Any:
    return builder.select(builder.fcmp_ordered("<", a, b), yes, no)


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """yes where a < b, else no."""
    return _mixed(_chosen, a, b, yes, no)


@intrinsic
def copysign(typing_context: Any, size: Any, sign: Any) -> Any:
    return _mixed(lambda builder, vec, *args: _call(builder, vec, "llvm.copysign", args), size, sign)


@intrinsic
def power_of_two(typing_context: Any, n: Any) -> Any:
    """2^n for whole n in the exponent's range, by writing n into the exponent bits.

    Adding 1.5·2^mantissa puts n into the low bits of the sum's representation.
    """
    bits = n.dtype.bitwidth
    mantissa, bias = (23, 127) if bits == 32 else (52, 1023)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integers = ir.VectorType(ir.IntType(bits), n.lanes)
        shifted = builder.fadd(args[0], constant_of(n, 1.5 * 2.0**mantissa))
        raw = builder.bitcast(shifted, integers)
        raw = builder.add(raw, ir.Constant(integers, [bias] * n.lanes))
        raw = builder.shl(raw, ir.Constant(integers, [mantissa] * n.lanes))
        return builder.bitcast(raw, _vector(n))

    return n(n), codegen


@intrinsic
def nearest(typing_context: Any, a: Any) -> Any:
    """The nearest whole number, ties to even."""
    return a(a), lambda context, builder, signature, args: _call(builder, a, "llvm.rint", args)


def _polynomial(name: str) -> Any:
    """Horner's rule with the coefficients of `polynomials`, by the dtype of the argument."""

    @intrinsic
    def evaluate(typing_context: Any, x: Any) -> Any:
        coefficients = getattr(polynomials, f"{name}_{x.dtype.bitwidth}")

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            total = constant_of(x, coefficients[-1])
            for c in coefficients[-2::-1]:
                total = _call(builder, x, "llvm.fma", [total, args[0], constant_of(x, c)])
            return total

        return x(x), codegen

    return evaluate


relu_g = _polynomial("RELU_G")
relu_h = _polynomial("RELU_H")
acos_h = _polynomial("ACOS_H")
asin_s = _polynomial("ASIN_S")
exp_r = _polynomial("EXP_R")
expm1_y = _polynomial("EXPM1_Y")


def _binary(operation: Any, method: str) -> None:
    @intrinsic
    def apply(typing_context: Any, a: Any, b: Any) -> Any:
        return _mixed(lambda builder, vec, *args: getattr(builder, method)(*args), a, b)

    @overload(operation, strict=False)
    def choose(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
        return (lambda a, b: apply(a, b)) if isinstance(a, Vec) or isinstance(b, Vec) else None


_binary(operator.add, "fadd")
_binary(operator.sub, "fsub")
_binary(operator.mul, "fmul")
_binary(operator.truediv, "fdiv")
