"""The compiled interpreter: runs a plan's operations on maps whose elements are vectors, one lane per pair.

One compiled function serves every network, shape and layer, because the inner loops run over lanes, whose number is
fixed, and not over columns, whose number is not. A map of a group of pairs lives in L2; a row of it, and the ring of
activated rows that a convolution sums, in L1.

A workspace is: POWERS vectors for `series_row`, a row of zeros that stands for padding, the maps of the images that are
worked on together, and scratch for two of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from .cpu_fused import fused_plane
from .cpu_plan import (
    A0,
    A1,
    ACT,
    B0,
    B1,
    BIAS,
    BOX,
    C0,
    C1,
    COLUMNS,
    DST,
    EVEN_TERMS,
    FLOATS,
    FUSED,
    KEEP,
    NO_ACT,
    ODD_TERMS,
    PLANE_TAPS,
    PLANES,
    POINTWISE,
    RELU,
    RING,
    ROW_K,
    ROW_NEED,
    ROW_SHARED,
    ROW_TAPS,
    SCALE,
    SERIES_AT,
    SHIFTS,
    SITE,
    SRC,
    STORE,
    TABLE,
    WRITE,
)
from .cpu_rows import POWERS, STORED, activate_pairs, activate_variances, jit, merged, relu_two_rows, write
from .cpu_sums import sum_plane_row
from .simd import constant, fma, lanes, load, pointer, shifted, splat, store

# Numba compiles a function anew for every literal argument; these are plain numbers to it.
ZERO, ONE, TWO, NOT = np.int64(0), np.int64(1), np.int64(2), np.bool_(False)


class Job(NamedTuple):
    """What an operation works with: pointers, and how far the second of two row images lies behind the first."""

    m: Any  # the workspace
    rows: Any  # addresses of the rows that a box sums
    taps: Any
    own: Any  # tables of the row images; None in the variance recursion, which has only lanes
    table: Any  # table of the column images, or of the images whose variances are computed
    panels: Any
    peaks: Any
    smallest: float
    images: Any  # 1 or 2 row images at a time
    map_step: Any
    scratch_step: Any
    own_step: Any


def activate(
    job: Any, src: int, dst: int, n: int, entry: int, op: Any, numbers: Any, own_at: Any, images: Any, src_step: Any,
    dst_step: Any,
) -> None:  # fmt: skip
    """f on n columns from map element `entry` of the activation on, for one or two row images."""


@overload(activate, strict=False)
def _activate(
    job: Any, src: Any, dst: Any, n: Any, entry: Any, op: Any, numbers: Any, own_at: Any, images: Any, src_step: Any,
    dst_step: Any,
) -> Any:  # fmt: skip
    def variances(job, src, dst, n, entry, op, numbers, own_at, images, src_step, dst_step):  # type: ignore[no-untyped-def]
        L = lanes(job.m)
        activate_variances(
            op[ACT], job.m, src, dst, n, job.table, op[TABLE] + entry, op[A0] * op[B0] * op[C0], numbers, job.peaks,
            op[SITE] * L, job.smallest, L, op[EVEN_TERMS], op[ODD_TERMS], shifted(job.panels, op[SERIES_AT]),
        )  # fmt: skip

    def pairs(job, src, dst, n, entry, op, numbers, own_at, images, src_step, dst_step):  # type: ignore[no-untyped-def]
        at = op[TABLE] + entry
        size = op[A0] * op[B0] * op[C0]
        L = lanes(job.m)
        if op[ACT] == RELU and images == 2:
            one = constant(job.m, 1.0)
            relu_two_rows(
                job.m, src, dst, n, job.own, own_at + at, job.table, at, size, L, src_step, dst_step, job.own_step,
                STORED, one, one, one,
            )  # fmt: skip
        else:
            for b in range(images):
                activate_pairs(
                    op[ACT], job.m, src + b * src_step, dst + b * dst_step, n, job.own, own_at + b * job.own_step + at,
                    job.table, at, size, numbers, L, op[EVEN_TERMS], op[ODD_TERMS], shifted(job.taps, op[SHIFTS]),
                )  # fmt: skip

    return variances if _is_variances(job) else pairs


def _is_variances(job: Any) -> bool:
    return isinstance(job.types[Job._fields.index("own")], types.NoneType)


@jit
def box_plane(
    job: Any, src: int, dst: int, plane: int, active: Any, scratch: int, op: Any, numbers: Any, own_at: Any, images: Any
) -> None:
    """One plane: activate rows as they are needed, sum them down and along. Output rows come in twos where they can."""
    L = lanes(job.m)
    width = op[C0] * L
    k, ring = op[ROW_K], op[RING]
    taps, rows = job.taps, job.rows
    ready = 0
    row = 0
    while row < op[B1]:
        two = op[ROW_SHARED] == 1 and row + 1 < op[B1]
        if active:
            need = taps[op[ROW_NEED] + (row + 1 if two else row)]
            while ready < need:
                activate(
                    job, src + ready * width, scratch + (ready % ring) * width, op[C0],
                    (plane * op[B0] + ready) * op[C0], op, numbers, own_at, images, job.map_step, job.scratch_step,
                )  # fmt: skip
                ready += 1
        first = op[ROW_TAPS] + row * k
        for b in range(images):
            base = scratch + b * job.scratch_step if active else src + b * job.map_step
            for t in range(k + 1 if two else k):
                tap = taps[first + t] if t < k else taps[first + k + k - 1]
                rows[t] = POWERS * L if tap < 0 else base + ((tap % ring) if active else tap) * width
            sums = scratch + b * job.scratch_step + (ring * width if active else 0)
            to = dst + b * job.map_step + row * op[C1] * L
            sum_plane_row(job.m, rows, k, two, to, sums, op, numbers, taps)
        row += 2 if two else 1


def box_rows(
    job: Any, src: int, dst: int, plane: int, active: Any, scratch: int, op: Any, numbers: Any, own_at: Any
) -> None:
    """`fused_plane` where it serves, else `box_plane`; always the latter in the variance recursion."""


@overload(box_rows, strict=False)
def _box_rows(
    job: Any, src: Any, dst: Any, plane: Any, active: Any, scratch: Any, op: Any, numbers: Any, own_at: Any
) -> Any:
    def variances(job, src, dst, plane, active, scratch, op, numbers, own_at):  # type: ignore[no-untyped-def]
        box_plane(job, src, dst, plane, active, scratch, op, numbers, own_at, job.images)

    def pairs(job, src, dst, plane, active, scratch, op, numbers, own_at):  # type: ignore[no-untyped-def]
        if op[BOX] == FUSED:
            fused_plane(
                job.m, src, dst, plane, scratch, job.rows, op, numbers, job.own, own_at, job.table, job.map_step,
                job.scratch_step, job.own_step,
            )  # fmt: skip
        else:
            box_plane(job, src, dst, plane, active, scratch, op, numbers, own_at, job.images)

    return variances if _is_variances(job) else pairs


def relu_map(job: Any, src: int, dst: int, op: Any, numbers: Any, own_at: Any) -> Any:
    """A pointwise ReLU of two row images, added to or written over dst in one pass. False where it does not apply."""


@overload(relu_map, strict=False)
def _relu_map(job: Any, src: Any, dst: Any, op: Any, numbers: Any, own_at: Any) -> Any:
    def variances(job, src, dst, op, numbers, own_at):  # type: ignore[no-untyped-def]
        return False

    def pairs(job, src, dst, op, numbers, own_at):  # type: ignore[no-untyped-def]
        if op[ACT] != RELU or job.images != 2:
            return False
        m, at = job.m, op[TABLE]
        size = op[A0] * op[B0] * op[C0]
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        relu_two_rows(
            m, src, dst, size, job.own, own_at + at, job.table, at, size, lanes(m), job.map_step, job.map_step,
            job.own_step, op[WRITE], keep, scale, bias,
        )  # fmt: skip
        return True

    return variances if _is_variances(job) else pairs


@merged
def pointwise(job: Any, src: int, dst: int, scratch: int, op: Any, numbers: Any, own_at: Any) -> None:
    """An operation without sums."""
    if relu_map(job, src, dst, op, numbers, own_at):
        return
    m = job.m
    L = lanes(m)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    width = op[C0] * L
    active = op[ACT] != NO_ACT
    plain = op[WRITE] == STORE
    for r in range(op[A0] * op[B0]):
        row, to = src + r * width, dst + r * width
        into, into_step = (to, job.map_step) if plain else (scratch, job.scratch_step)
        if active:
            activate(
                job, row, into, op[C0], r * op[C0], op, numbers, own_at, job.images, job.map_step, into_step
            )  # fmt: skip
            if plain:
                continue
        for b in range(job.images):
            result = into + b * into_step if active else row + b * job.map_step
            for c in range(op[C0]):
                write(m, to + b * job.map_step + c * L, load(m, result + c * L), op[WRITE], keep, scale, bias)


@merged
def box_planes(job: Any, src: int, dst: int, scratch: int, op: Any, numbers: Any, own_at: Any) -> None:
    """An operation that sums planes too: activate the whole map, sum its planes, then each sum's rows and columns."""
    m, taps = job.m, job.taps
    L = lanes(m)
    width = op[C0] * L
    plane_in, plane_out = op[B0] * width, op[B1] * op[C1] * L
    for b in range(job.images):
        activated, sums = src + b * job.map_step, scratch
        if op[ACT] != NO_ACT:
            activated = scratch
            for r in range(op[A0] * op[B0]):
                activate(
                    job, src + b * job.map_step + r * width, scratch + r * width, op[C0], r * op[C0], op, numbers,
                    own_at + b * job.own_step, ONE, ZERO, ZERO,
                )  # fmt: skip
            sums += op[A0] * plane_in
        offsets = op[PLANE_TAPS]
        entries = offsets + op[A1] + 1
        for a in range(op[A1]):
            for x in range(0, plane_in, L):
                s = constant(m, 0.0)
                for t in range(taps[offsets + a], taps[offsets + a + 1]):
                    s = s + load(m, activated + taps[entries + t] * plane_in + x)
                store(m, sums + x, s)
            to = dst + b * job.map_step + a * plane_out
            box_plane(job, sums, to, a, NOT, sums + plane_in, op, numbers, own_at, ONE)


@merged
def run_op(job: Any, base: int, scratch: int, op: Any, numbers: Any, own_at: Any) -> None:
    """dst ← keep · dst + scale · box(f(src)) + bias for a group of lanes; the row images' maps start at `base`."""
    L = lanes(job.m)
    src, dst = base + op[SRC] * L, base + op[DST] * L
    if op[BOX] == POINTWISE:
        pointwise(job, src, dst, scratch, op, numbers, own_at)
    elif op[BOX] == PLANES:
        box_planes(job, src, dst, scratch, op, numbers, own_at)
    else:
        plane_in, plane_out = op[B0] * op[C0] * L, op[B1] * op[C1] * L
        active = op[ACT] != NO_ACT
        for a in range(op[A1]):
            box_rows(job, src + a * plane_in, dst + a * plane_out, a, active, scratch, op, numbers, own_at)


@jit
def multiply_images(m: Any, to: int, own: Any, own_at: int, lane: Any, channels: int, locations: int) -> None:
    """Σ_c x_c x'_c at each location; channels in blocks of 64, so that rounding does not grow with their number."""
    L = lanes(m)
    for e in range(locations):
        total = constant(m, 0.0)
        for first in range(0, channels, 64):
            part = constant(m, 0.0)
            for c in range(first, min(first + 64, channels)):
                at = c * locations + e
                part = fma(splat(own, own_at + at), load(lane, at * L), part)
            total = total + part
        store(m, to + e * L, total)


@jit
def square_images(m: Any, to: int, lane: Any, channels: int, locations: int) -> None:
    """Σ_c x_c² at each location of `lanes` images."""
    L = lanes(m)
    for e in range(locations):
        total = constant(m, 0.0)
        for c in range(channels):
            x = load(lane, (c * locations + e) * L)
            total = fma(x, x, total)
        store(m, to + e * L, total)


@jit
def image_tables(
    ints: Any, floats: Any, taps: Any, panels: Any, shape: Any, X: Any, first: int, count: int, maps: Any, rows: Any,
    pixels: Any, table: Any, peaks: Any, smallest: float,
) -> None:  # fmt: skip
    """The variance recursion of up to `lanes` images in float64; spare lanes repeat the last image.

    Afterwards `table` holds their entries lane by lane, `peaks` the largest variance at each site, and the output
    buffer K(x, x) in its unit. `shape` is (channels, locations, width, buffers, input, scratch).
    """
    m, lane_pixels = pointer(maps), pointer(pixels)
    L = lanes(m)
    channels, locations, width, buffers, start, _ = shape
    for e in range(channels * locations):
        for lane in range(L):
            lane_pixels[e * L + lane] = X[first + min(lane, count - 1), e]
    base = (POWERS + width) * L
    square_images(m, base + start * L, lane_pixels, channels, locations)
    job = Job(
        m, pointer(rows), pointer(taps), None, pointer(table), pointer(panels), pointer(peaks), smallest, ONE, ZERO,
        ZERO, ZERO,
    )  # fmt: skip
    for o in range(len(ints)):
        op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
        run_op(job, base, base + buffers * L, op, numbers, ZERO)


@jit
def pair_block(
    ints: Any, floats: Any, taps: Any, panels: Any, peaks: Any, shape: Any, output: int, unit: Any, maps: Any,
    rows: Any, block: int, X: Any, own: Any, first: int, last: int, pixels: Any, table: Any, out: Any, row0: int,
    column0: int, count: int, symmetric: bool,
) -> None:  # fmt: skip
    """K of row images first … last−1 with one group of column images, `block` rows at a time.

    Row image i is entry i of X and `own`; its kernel values go to out[row0 + i, column0 : column0 + count]. Where
    symmetric, only those right of the diagonal are written, and mirrored.
    """
    m, images, lane_pixels = pointer(maps), pointer(X), pointer(pixels)
    L = lanes(m)
    channels, locations, width, buffers, start, scratch_size = shape
    entries = own.shape[1]
    base = (POWERS + width) * L
    scratch = base + block * buffers * L
    for i0 in range(first, last, block):
        n = min(block, last - i0)
        for b in range(n + n % 2):  # images go in twos, an odd one with itself, so that all are computed alike
            at = base + (b * buffers + start) * L
            image = min(i0 + b, last - 1)
            multiply_images(m, at, images, image * channels * locations, lane_pixels, channels, locations)
        for o in range(len(ints)):
            op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
            for b in range(0, n, 2):
                job = Job(
                    m, pointer(rows), pointer(taps), pointer(own), pointer(table), pointer(panels), pointer(peaks), 0.0,
                    TWO, buffers * L, scratch_size * L, entries if b + 1 < n else 0,
                )  # fmt: skip
                run_op(job, base + b * buffers * L, scratch, op, numbers, (i0 + b) * entries)
        for b in range(n):
            i = row0 + i0 + b
            at = base + (b * buffers + output) * L
            for lane in range(count):
                j = column0 + lane
                if not symmetric:
                    out[i, j] = m[at + lane] * unit
                elif j > i:
                    value = m[at + lane] * unit
                    out[i, j] = value
                    out[j, i] = value


@jit
def spread_rows(table: Any, count: int, own: Any, first: int) -> None:
    """Tables lane by lane (float64) → a row per image in the working precision."""
    p = pointer(table)
    L = lanes(p)
    for lane in range(count):
        for e in range(own.shape[1]):
            own[first + lane, e] = p[e * L + lane]


@jit
def spread_lanes(source: Any, target: Any, first: int) -> None:
    """Vectors of few lanes (float64) → lanes first … of vectors of the working precision."""
    p, q = pointer(source), pointer(target)
    L0, L1 = lanes(p), lanes(q)
    for e in range(len(source) // L0):
        for lane in range(L0):
            q[e * L1 + first + lane] = p[e * L0 + lane]
