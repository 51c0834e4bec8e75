"""What is compiled and imported, and when: a prepared kernel compiles nothing, the package imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers.kernels import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_prepared_kernels_compile_nothing_more(dtype):
    """In a process of its own, where nothing is compiled or loaded yet."""
    script = f"""
import json, time
import numpy as np
from cnngp import Kernel, zoo
from cnngp.kernel.engines.cpu import machine_code

X = np.random.default_rng(0).uniform(size=(40, 1, 8, 8)).astype("{dtype}")
kernel = Kernel(zoo.small_cnn(), "cpu", "{dtype}")
begun = time.perf_counter()
seconds = kernel.prepare(X)
whole = time.perf_counter() - begun
prepared = len(machine_code._loaded)
kernel(X), kernel(X[:10], X), kernel.diag(X)
print(json.dumps([seconds, whole, prepared, len(machine_code._loaded)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, whole, prepared, after = json.loads(done.stdout)
    assert 0.9 * whole < seconds < whole
    assert 0 < prepared == after


def imported_by(code):
    script = f"import sys\n{code}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numba", "llvmlite", "sklearn", "scipy", "torch", "zarr", "cupy", "dask", "matplotlib", "pandas", "click"}


def test_importing_the_package_imports_nothing_heavy():
    assert not imported_by("import cnngp") & (HEAVY | {"numpy"})


def test_describing_a_network_imports_nothing_heavy():
    code = """
from cnngp import from_json, zoo
net = from_json(zoo.resnet(32).to_json())
print(net, net.fingerprint, net.shapes((1, 28, 28)))
"""
    assert not imported_by(code) & (HEAVY | {"numpy"})


def test_a_kernel_does_not_import_what_it_does_not_use():
    assert not imported_by("from cnngp import Kernel, zoo\nKernel(zoo.resnet(8), device='cpu')") & HEAVY
