"""What the kernels for pairs and for images with themselves have in common: their memory, and steps as CUDA text."""

from __future__ import annotations

from dataclasses import dataclass

from ..walk import SHARED_MOST
from .walk import BACK, TOTAL, BackWalk

PARTS = 2 * 64 * 8  # bytes of shared memory that the sums of warps take beside the maps, at most


@dataclass(frozen=True)
class Memory:
    """A block's maps and sums: `shared` bytes of shared memory or, where they do not fit, part of `scratch`."""

    text: str
    shared: int
    scratch: int

    @classmethod
    def of_pairs(cls, walk: BackWalk, real: str, shared_limit: int) -> Memory:
        return cls._of(walk, "real", 4 if real == "float" else 8, 0, shared_limit)

    @classmethod
    def of_images(cls, walk: BackWalk, shared_limit: int) -> Memory:
        """Before the maps stand the image's own table and the shares that it was given."""
        made = cls._of(walk, "double", 8, 8 * (walk.own_size + walk.entries), shared_limit)
        own = f"double* own = (double*)(scratch + (long long)blockIdx.x * {made.scratch});\n"
        return cls(f"{own}    double* given = own + {walk.own_size};\n    {made.text}", made.shared, made.scratch)

    @classmethod
    def _of(cls, walk: BackWalk, real: str, item: int, before: int, shared_limit: int) -> Memory:
        maps = -(-walk.size * item // 8) * 8
        size = maps + 8 * walk.slots
        in_shared = size <= min(SHARED_MOST, shared_limit - PARTS)
        scratch = -(-(before + (0 if in_shared else size)) // 256) * 256
        base = "(char*)dynamic_shared" if in_shared else f"scratch + (long long)blockIdx.x * {scratch} + {before}"
        text = "extern __shared__ vec dynamic_shared[];\n    " * in_shared
        text += f"char* base = {base};\n    {real}* mem = ({real}*)base;\n    double* sums = (double*)(base + {maps});"
        return cls(text, size if in_shared else 0, scratch)


def sums(real: str) -> str:
    """Behind a step: what the threads have found goes to the sums, and the others may go on."""
    return f"""\
        {real}* parts = all_parts[k % 2];  // those of the step before may still be read
        if (way.slot >= 0) leave_sum(value, parts);
        if (way.extra_slot >= 0) leave_sum(extra, parts + 32);
        __syncthreads();
        if (threadIdx.x == 0) {{
            if (way.slot >= 0) sums[way.slot] += collected(parts);
            if (way.extra_slot >= 0) sums[way.extra_slot] += collected(parts + 32);
        }}
"""


def simple_steps(real: str) -> str:
    """Steps of the way back that are the same for pairs and for images with themselves, as branches."""
    return f"""\
        if (way.kind == {TOTAL}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) value += mem[op.src + e];
        }} else if (way.kind == {BACK} && op.formula < 0) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const {real} h = mem[way.times + e], t = ({real})x.scale * h;
                value = fma(h, mem[op.src + e], value);
                if (way.writes) mem[op.dst + e] = x.keep == 0.0 ? t : t + mem[op.dst + e];
            }}
        }}"""
