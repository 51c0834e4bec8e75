"""Which way a program with pools runs, and how it is launched: as a chain of segments (kernel.py) or in general."""

from __future__ import annotations

import math

from ..warp.plan import LANES
from ..warp.source import live_words
from .kernel import SheetKernel, SheetLaunch, SheetWriter
from .plan import Chain
from .walk import SheetWalk

CACHED = 160 * 1024  # bytes of table rows that stay in a multiprocessor's first cache
OWN_MOST = 3072  # entries of pooled sheets up to which a warp keeps a pair's in its shared memory


def fits(chain: Chain, dtype: str) -> bool:
    """Whether maps are narrow enough for a warp and few enough for its registers."""
    for segment in chain.segments:
        maps = [segment.start, *(s.dst for s in segment.steps)]
        if max(m.shape[2] for m in maps) > LANES or live_words(segment.start, segment.steps, dtype) > 136:
            return False
    return True


def launch(walk: SheetWalk, chain: Chain, dtype: str) -> SheetLaunch:
    """A warp for a pair where its pooled sheets are few, and else a block; as measured (docs/gpu.md)."""
    pooled = sum(s.rows.count * s.columns.count * math.prod(s.start.shape) for s in chain.segments[1:])
    tasks = chain.segments[0].rows.count * chain.segments[0].columns.count
    wide = dtype == "double" or max(live_words(s.start, s.steps, dtype) for s in chain.segments) > 64
    if tasks <= 100 and pooled <= OWN_MOST:
        if wide:
            return SheetLaunch(1, 8, 1)
        return SheetLaunch(1, 4, 4) if len(walk.program.activations) <= 8 else SheetLaunch(1, 16, 1)
    if wide:
        return SheetLaunch(8, 1, 1)
    # As many blocks as have their rows in the first cache together: planes of one image, and twice those of the other.
    planes = [walk.program.channels * math.prod(walk.program.shape), *(a.size for a in walk.program.activations)]
    blocks = next((k for k in (4, 2) if k * 3 * 4 * sum(planes) <= CACHED), 1)
    return SheetLaunch(16 // blocks, 1, blocks)


def sheet_kernel(walk: SheetWalk, chain: Chain, dtype: str, shape: SheetLaunch | None = None) -> SheetKernel:
    return SheetWriter(walk, chain, dtype).kernel(shape or launch(walk, chain, dtype))
