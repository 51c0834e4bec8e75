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
    return a(a, a, a), lambda context, builder, signature, args: _call(builder, a, "llvm.fma", args)


@intrinsic
def negated_fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """c − a · b with one rounding."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call(builder, a, "llvm.fma", [builder.fneg(args[0]), args[1], args[2]])

    return a(a, a, a), codegen


@intrinsic
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return a(a, a), codegen


@intrinsic
def positive(typing_context: Any, a: Any) -> Any:
    """max(a, 0)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = constant_of(a, 0.0)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), args[0], zero)

    return a(a), codegen


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """yes where a < b, else no."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return a(a, a, a, a), codegen


@intrinsic
def copysign(typing_context: Any, size: Any, sign: Any) -> Any:
    return size(size, size), lambda context, builder, signature, args: _call(builder, size, "llvm.copysign", args)


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


def _binary(method: str) -> Any:
    @intrinsic
    def apply(typing_context: Any, a: Any, b: Any) -> Any:
        return a(a, a), lambda context, builder, signature, args: getattr(builder, method)(*args)

    return apply


_add, _subtract, _multiply, _divide = (_binary(m) for m in ("fadd", "fsub", "fmul", "fdiv"))


def _are_vectors(a: Any, b: Any) -> bool:
    return isinstance(a, Vec) and isinstance(b, Vec)


@overload(operator.add, strict=False)
def _overload_add(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
    return (lambda a, b: _add(a, b)) if _are_vectors(a, b) else None


@overload(operator.sub, strict=False)
def _overload_subtract(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
    return (lambda a, b: _subtract(a, b)) if _are_vectors(a, b) else None


@overload(operator.mul, strict=False)
def _overload_multiply(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
    return (lambda a, b: _multiply(a, b)) if _are_vectors(a, b) else None


@overload(operator.truediv, strict=False)
def _overload_divide(a: Any, b: Any) -> Callable[[Any, Any], Any] | None:
    return (lambda a, b: _divide(a, b)) if _are_vectors(a, b) else None
