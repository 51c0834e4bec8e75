"""Time the paper's run from the files to the errors: `python -m experiments.whole_run '{"data": "mnist", …}'`.

Prints one line of JSON. The time includes everything except the start of Python: imports, reading, compiling, kernels,
solve and predictions.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ROWS = 2048
"""Rows of K(test, training) converted to float64 at a time."""


def whole_run(request: dict[str, Any]) -> dict[str, Any]:
    """Errors in percent and seconds of each part; `timings.py` makes the `request`."""
    timing: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        timing[part] = time.perf_counter() - began

    began = time.perf_counter()
    with timed("import"):
        import numpy as np

        from cnngp.common.arrays import to_numpy
        from cnngp.common.devices import output_on
        from cnngp.datasets import sets as datasets
        from cnngp.gp.checks import float64_buffer
        from cnngp.gp.linalg import blocks, factorised, namespace
        from cnngp.kernel.kernel import Kernel
        from cnngp.network.zoo import resnet
        from cnngp.paper.results import percent
        from cnngp.paper.setting import wait

    train, validation, test = request["sizes"]
    with timed("read"):
        data = datasets.load(request["data"], split="paper")
        X, y = data.X[:train], data.y[:train]
        assert data.X_validation is not None
        assert data.y_validation is not None
        others = {
            "validation": (data.X_validation[:validation], data.y_validation[:validation]),
            "test": (data.X_test[:test], data.y_test[:test]),
        }
    output = output_on(request["device"])
    with timed("compile"):
        kernel = Kernel(resnet(request["depth"]), request["device"], threads=request["threads"])
        wait(kernel(X[:2], output=output, progress=False))
        wait(kernel(X[:2], X[:2], output=output, progress=False))
    with timed("kernels"):
        K = kernel(X, output=output, progress=False)
        cross = {name: kernel(x, X, output=output, progress=False) for name, (x, _) in others.items()}
        wait(K)
    with timed("solve"):
        xp = namespace(K)
        classes = np.unique(y)
        Y = xp.asarray(2.0 * (y[:, None] == classes) - 1.0)
        factor, jitter = factorised(float64_buffer(K), 0.0)
        alpha = factor.solve(Y)
        wait(alpha)
    with timed("predict"):
        wrong = {}
        for name, (_, labels) in others.items():
            means = [cross[name][rows].astype(np.float64) @ alpha for rows in blocks(len(labels), _ROWS)]
            wrong[name] = classes[to_numpy(xp.concatenate(means)).argmax(1)] != labels
    timing["whole"] = time.perf_counter() - began
    with timed("leave_one_out"):  # beyond the paper, so not part of the whole time
        left_out = to_numpy(Y - alpha / factor.inverse_diagonal()[:, None]).argmax(1)
    n = len(X)
    pairs = n * (n - 1) // 2 + n * sum(len(x) for x, _ in others.values())
    errors = {f"{name}_error": percent(w) for name, w in wrong.items()}
    return {"pairs": pairs, "timing": timing, "jitter": jitter, "loo_error": percent(classes[left_out] != y), **errors}


if __name__ == "__main__":
    print(json.dumps(whole_run(json.loads(sys.argv[1]))))
