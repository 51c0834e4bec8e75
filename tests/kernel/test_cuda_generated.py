"""The generated CUDA on the networks that the kernel's own tests generate, down to the smallest."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import lower
from cnngp.network import reference
from helpers.cuda_cases import OnCpu, images
from helpers.cuda_on_cpu import needs_compiler
from helpers.networks import networks_with_shapes, relu_like


@needs_compiler
@pytest.mark.slow
@given(drawn=networks_with_shapes(relu_like, max_pixels=150), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_generated_networks(drawn: Any, seed: int) -> None:
    """Run as C++; compiled for a card where nvcc is there."""
    net, shape = drawn
    program = lower(net, shape)
    source = generate(program, "float32")
    X = images(np.random.default_rng(seed), 4, shape)
    with tempfile.TemporaryDirectory() as folder:
        K = OnCpu(source).cross(X, X)
        if shutil.which("nvcc"):
            Path(folder, "kernels.cu").write_text(source.text)
            command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", "-w", "-o", "kernels.cubin", "kernels.cu"]
            subprocess.run(command, cwd=folder, check=True)
    assert np.array_equal(K, K.T)
    R = reference.kernel(net, X)
    others = ~np.eye(len(X), dtype=bool)
    assert np.abs(K - R)[others].max() <= 1e-6 * np.abs(R).max()
