"""What the generator of networks reaches: it is only worth what it draws.

`pytest -m slow tests/kernel/test_generator.py -s` prints the branches of the planners and of the writers of CUDA source
that generated networks do not take.
"""

from __future__ import annotations

import numpy as np
import pytest

from cnngp.kernel import program
from cnngp.kernel.engines.cpu import plan
from cnngp.kernel.engines.cuda import (
    cuda_source,
    dense_kernel,
    registers,
    table_layout,
)
from cnngp.kernel.engines.cuda.walk import program_data, program_walk, walk_kernels
from cnngp.kernel.engines.cuda.warp import box_sums, warp_kernel, warp_layout, warp_steps
from cnngp.kernel.program import lower, lowering, nodes, ops, scheduling
from cnngp.kernel.program.reverse import reverse
from cnngp.network import geometry, placed, shapes
from helpers import pooled
from helpers.branches import Branches
from helpers.generator import RELU_LIKE, SMOOTH, Random, random_network
from helpers.sweep import SHAPES, sweep

PLANNERS = [geometry, shapes, placed, program, lowering, nodes, ops, scheduling, plan]
WRITERS = [cuda_source, program_data, program_walk, walk_kernels, dense_kernel, table_layout, registers]
WRITERS += [warp_layout, box_sums, warp_steps, warp_kernel]


def test_every_draw_is_a_network_that_fits_its_images() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        net, shape = random_network(rng)
        assert lower(net, shape).spatial == shape[1:]


@pytest.mark.slow
def test_generated_networks_take_nearly_every_branch_of_the_planners_and_writers() -> None:
    """What is left: an Elementwise's series and forced choices, which have tests of their own, and extreme sizes."""
    rng = np.random.default_rng(0)
    networks = [random_network(rng, (*RELU_LIKE, *SMOOTH)) for _ in range(80)]
    networks += [random_network(rng, max_pixels=900, axes=(1, 2, 2, 2, 3), scale=2.6) for _ in range(80)]
    for spatial in (shape for same in SHAPES.values() for shape in same):
        networks += sweep([spatial], 5, 50)
    pick = Random(rng)
    networks += [pooled.network(pick, lambda: pick.among(RELU_LIKE), 800) for _ in range(100)]
    branches = Branches([*PLANNERS, *WRITERS])
    paths = set()
    for net, shape in networks:
        with branches.watching():
            for kind in ("nngp", "ntk"):
                made = lower(net, shape, kind)
                plan.make_plan(made, {})
                paths |= {cuda_source.generate(made, dtype).path for dtype in ("float32", "float64")}
            for to_images in (False, True) if made.elements < 500 else ():
                cuda_source.generate_gradient(reverse(net, shape, to_images), "float32")
    assert paths == {"warp", "dense", "sheets", "walk"}
    taken = branches.taken()
    missed = [name for name, seen in taken.items() if not seen]
    told = "\n".join([f"{len(taken) - len(missed)} of {len(taken)} branches taken; not:", *missed])
    print(told)
    assert len(missed) <= 0.1 * len(taken), told
