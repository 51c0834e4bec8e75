"""How the kernels leave their results, as CUDA text: K, and of a tangent kernel's program Θ too."""

from __future__ import annotations

from collections.abc import Sequence

from cnngp.kernel.program import Program

# Behind the other arguments of `pairs` in programs of a tangent kernel.
THETA_ARGUMENTS = ", real* __restrict__ theta, real* __restrict__ theta_mirror"


def results(program: Program, buffers: Sequence[int]) -> str:
    """Statements of one thread that write what a walk has left in memory."""
    text = f"        const real K = (real){program.unit!r} * mem[{buffers[program.output]}];\n"
    if program.theta is not None:
        text += f"        const real T = (real){program.theta_unit!r} * mem[{buffers[program.theta]}];\n"
    return text + stores("K", program.theta is not None)


def stores(K: str, tangents: bool, indent: str = " " * 8) -> str:
    """Statements that write a pair's results; beside Θ, in `T`, K only where it is wanted."""
    lines = [f"out[i * ld + j] = {K};", f"if (mirror) mirror[j * ld + i] = {K};"]
    if tangents:
        lines = ["if (out) " + lines[0], *lines[1:], "theta[i * ld + j] = T;"]
        lines.append("if (theta_mirror) theta_mirror[j * ld + i] = T;")
    return "\n".join(indent + line for line in lines)


def theta_diagonal(program: Program, buffers: Sequence[int]) -> str:
    """What a tangent kernel's program adds to the tables' kernel: Θ(x, x) behind all K(x, x)."""
    if program.theta is None:
        return ""
    return f"    if (threadIdx.x == 0) diagonal[n + i] = {program.theta_unit!r} * mem[{buffers[program.theta]}];\n"
