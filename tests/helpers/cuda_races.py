"""A gradient's kernels in float32 on threads of the CPU, watched by a sanitizer (cuda_threads.hpp).

Kernels that run on fibers go from barrier to barrier one thread after the other, so a barrier that is missing does no
harm there. On a card it does, once in a while; here it is found.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from cnngp.kernel.engines.cuda.cuda_source import CudaSource

COMPILE = ["g++", "-std=c++20", "-O1", "-g", "-w", "-fsanitize=thread", "-o", "kernels", "kernels.cpp"]
BLOCKS = 2


@functools.cache
def sanitizer_works() -> bool:
    """Whether a program with two threads can be compiled and run under the sanitizer on this machine."""
    if shutil.which("g++") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        text = "#include <barrier>\n#include <thread>\nint main() { std::thread t([] {}); t.join(); }\n"
        Path(folder, "kernels.cpp").write_text(text)
        made = subprocess.run(COMPILE, cwd=folder, capture_output=True, check=False)
        return made.returncode == 0 and subprocess.run([f"{folder}/kernels"], check=False).returncode == 0


def watched(
    source: CudaSource, X: np.ndarray, G: np.ndarray, panels: np.ndarray, folder: Path
) -> tuple[dict[str, float], str]:
    """The gradient of the matrix of X by its parameters, in units of the program, and what the sanitizer said."""
    n, data, backward = len(X), source.data, source.backward
    given = {
        "X": X.astype(np.float32),
        "weights": np.triu(G + G.T, 1).astype(np.float32),
        "seeds": G.diagonal().astype(np.float64),
        "panels": panels,
        "ints": data.ints,
        "reals": data.reals,
    }
    for name, values in given.items():
        values.tofile(folder / name)
    # A thread may look at a peak while another one writes it, and then takes the larger one by an atomic.
    body = source.body.replace("if (!(K <= *(volatile double*)at)) atomicMax", "atomicMax")
    body = body.replace("extern __shared__", "extern").replace("__shared__", "static")
    program = "ints.data(), reals.data()"
    scratch, shared = (
        max(getattr(launch, kind) for launch in source.launches.values()) for kind in ("scratch", "shared")
    )
    text = f"""
#include "{Path(__file__).with_name("cuda_threads.hpp")}"
alignas(16) vec dynamic_shared[{shared // 16 + 1}];
{body}
int main()
{{
    const int n = {n};
    auto X = contents<float>("X"), weights = contents<float>("weights");
    auto seeds = contents<double>("seeds"), panels = contents<double>("panels"), reals = contents<double>("reals");
    auto ints = contents<int>("ints");
    vector<float> rows(n * {source.data.layout.row}), shares(n * {backward.entries});
    vector<double> peaks(n * {data.sites}), sums(n * {backward.slots}), own(n * {backward.slots});
    vector<double> pixels(n * {backward.pixels});
    vector<char> scratch({BLOCKS * scratch} + 1);
    launch({BLOCKS}, {source.launches["tables"].threads}, [&] {{
        tables(X.data(), rows.data(), peaks.data(), own.data(), n, scratch.data(), panels.data(), {program}); }});
    for (int phase = 0; phase < n; phase++)
        launch({BLOCKS}, {source.pairs.threads}, [&] {{
            pairs(rows.data(), rows.data(), weights.data(), n, n, phase, 1, shares.data(), shares.data(), sums.data(),
                  scratch.data(), {program}); }});
    launch({BLOCKS}, {source.launches["self_pairs"].threads}, [&] {{
        self_pairs(X.data(), seeds.data(), shares.data(), own.data(), pixels.data(), peaks.data(), n, scratch.data(),
               panels.data(), {program}); }});
    for (int s = 0; s < {backward.slots}; s++) {{
        double total = 0;
        for (int i = 0; i < n; i++) total += sums[i * {backward.slots} + s] + own[i * {backward.slots} + s];
        printf("%.17g\\n", total);
    }}
}}
"""
    (folder / "kernels.cpp").write_text(text)
    subprocess.run(COMPILE, cwd=folder, check=True)
    told = subprocess.run(["./kernels"], cwd=folder, capture_output=True, text=True, check=False)
    found: dict[str, float] = {}
    for parts, value in zip(backward.shares, map(float, told.stdout.split()), strict=False):
        for name, factor in parts:
            found[name] = found.get(name, 0.0) + factor * value
    return found, told.stderr
