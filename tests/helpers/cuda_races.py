"""A gradient's kernels on threads of the CPU, watched by a sanitizer (cuda_on_cpu.hpp), in a process of their own.

Kernels that run on fibers go from barrier to barrier one thread after the other, so a barrier that is missing does no
harm there. On a card it does, once in a while; here it is found.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnngp import from_json
from cnngp.kernel.engines.cuda import engine as cuda
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network
from helpers.fake_cards import Cards


@functools.cache
def sanitizer() -> dict[str, str]:
    """The environment in which a process has the sanitizer; skips where this machine cannot run one."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    found = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    env = os.environ | {"LD_PRELOAD": found.stdout.strip(), "PYTHONPATH": os.pathsep.join(sys.path)}
    if subprocess.run([sys.executable, "-c", ""], env=env, capture_output=True, check=False).returncode:
        pytest.skip("needs g++ with a thread sanitizer")
    return env


def watched(
    net: Network, X: np.ndarray, G: np.ndarray, shared: int, line: str, without: str
) -> tuple[dict[str, float], str]:
    """The gradient of the matrix of X, and what the sanitizer said; `line` of the text is replaced by `without`."""
    asked = json.dumps([net.to_json(), X.tolist(), G.tolist(), shared, line, without])
    command = [sys.executable, "-m", "helpers.cuda_races"]
    told = subprocess.run(command, env=sanitizer(), input=asked, capture_output=True, text=True, check=False)
    return json.loads(told.stdout or "{}"), told.stderr


def _main(net: str, X: Any, G: Any, shared: int, line: str, without: str) -> dict[str, float]:
    honest = cuda.generate_gradient

    def changed(*arguments: Any, **options: Any) -> Any:
        source = honest(*arguments, **options)
        assert line in source.body
        return replace(source, body=source.body.replace(line, without) if line else source.body)

    with pytest.MonkeyPatch.context() as patch:
        Cards(shared=shared, sanitized=True).install(patch)
        patch.setattr(cuda, "generate_gradient", changed)
        images = np.array(X, np.float32)
        engine = cuda.CudaGradient(reverse(from_json(net), images.shape[1:], to_images=True), "float32")
        return engine.gradient(images.reshape(*images.shape[:2], -1), None, np.array(G)).parameters


if __name__ == "__main__":
    print(json.dumps(_main(*json.load(sys.stdin))))
