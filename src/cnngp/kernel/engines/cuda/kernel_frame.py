"""Launches of kernels of every kind, and the statements that write their results."""

from __future__ import annotations

from dataclasses import dataclass

from cnngp.kernel.program import Program

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block may have on an H100 or H200."""
# Behind the other arguments of `pairs` in programs of a tangent kernel.
THETA_ARGUMENTS = ", real* __restrict__ theta, real* __restrict__ theta_mirror"


@dataclass(frozen=True)
class Launch:
    """Threads of a block, its dynamic shared memory, and its bytes of scratch in global memory."""

    threads: int
    shared: int
    scratch: int


def stores(K: str, tangents: bool, indent: str = " " * 8) -> str:
    """Statements that write a pair's results; beside Θ, in `T`, K only where it is wanted."""
    lines = [f"out[i * ld + j] = {K};", f"if (mirror) mirror[j * ld + i] = {K};"]
    if tangents:
        lines = ["if (out) " + lines[0], *lines[1:], "theta[i * ld + j] = T;"]
        lines.append("if (theta_mirror) theta_mirror[j * ld + i] = T;")
    return "\n".join(indent + line for line in lines)


def comment(program: Program, real: str, path: str) -> str:
    """The first lines of a text with the network's numbers in it."""
    return f"// {program.network!r}\n// on {program.channels} x {program.spatial}, {real}, path {path}\n"
