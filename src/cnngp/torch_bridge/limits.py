"""Monte Carlo check that finite networks converge to the kernel: `check_limit` samples them at growing width.

The covariance of a network's outputs at width w is K + b/w + O(1/w²). It is estimated at each width from networks with
random weights; each network gives one independent estimate (averaged over its outputs), so the spread between networks
gives the standard error. The two largest widths are extrapolated: (w₂C₂ − w₁C₁)/(w₂ − w₁) has no 1/w term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, as_images, to_numpy
from cnngp.common.figures import bare_figure
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network

Array = NDArray[np.float64]

_LEVEL = 1e-3
"""Significance level: probability that a correct kernel is reported as wrong, over all entries together."""
_COARSE = 0.1
"""Largest uncertainty of the amplitude that still allows "agrees"; beyond it the verdict is "undecided"."""
_FAR = 0.3
"""Widths whose amplitude is still further than this from its extrapolated limit are too small to extrapolate."""


@dataclass(frozen=True)
class Width:
    """Covariance of the outputs at one width with its standard error; `amplitude` is its projection on the kernel."""

    channels: int
    covariance: Array
    standard_error: Array
    amplitude: float
    amplitude_error: float


@dataclass(frozen=True, repr=False)
class LimitReport:
    """Result of `check_limit`; prints as a table with the verdict as its last line."""

    kernel: Array
    widths: tuple[Width, ...]
    limit: Array
    limit_error: Array
    """Standard error of `limit`, plus a bound on what the next order 1/w² may add."""
    amplitude: float
    amplitude_error: float
    worst: float
    """Largest deviation of any entry or of the amplitude, in units of what chance allows (above 1 is too much)."""
    samples: int
    outputs: int
    verdict: Literal["agrees", "differs", "undecided"]
    sentence: str

    @property
    def ok(self) -> bool:
        return self.verdict == "agrees"

    def __repr__(self) -> str:
        return (
            f"LimitReport({self.verdict!r}, channels={tuple(w.channels for w in self.widths)}, samples={self.samples})"
        )

    def deviation(self, width: Width) -> tuple[float, float]:
        """‖C − K‖/‖K‖ at a width, and the value that chance alone would give."""
        norm = float(np.linalg.norm(self.kernel)) or 1.0
        return (
            float(np.linalg.norm(width.covariance - self.kernel)) / norm,
            float(np.linalg.norm(width.standard_error)) / norm,
        )

    def __str__(self) -> str:
        lines = ["channels  deviation from the kernel  by chance alone  amplitude"]
        for w in self.widths:
            deviation, chance = self.deviation(w)
            lines.append(
                f"{w.channels:>8}  {deviation:>25.2%}  {chance:>15.2%}  {w.amplitude:.4f} ± {w.amplitude_error:.4f}"
            )
        lines.append(f"{'limit':>8}  {'':>25}  {'':>15}  {self.amplitude:.4f} ± {self.amplitude_error:.4f}")
        return "\n".join([*lines, f"{self.verdict}: {self.sentence}"])

    def plot(self, path: str | None = None) -> Any:
        """Plot the table as a matplotlib figure, and save it to `path` if one is given."""
        figure = bare_figure(9, 4)
        left, right = figure.subplots(1, 2)
        upper = np.triu_indices(len(self.kernel))
        exact = self.kernel[upper]
        for w in self.widths:
            bars = {"fmt": "o", "ms": 3, "lw": 1, "label": f"{w.channels} channels ± 2 s.e."}
            left.errorbar(exact, w.covariance[upper], 2 * w.standard_error[upper], **bars)
        ends = [float(exact.min()), float(exact.max())]
        left.plot(ends, ends, color="black", lw=0.8)
        left.set(xlabel="kernel", ylabel="covariance of finite networks")
        left.legend()
        channels = [w.channels for w in self.widths]
        deviations, chances = zip(*map(self.deviation, self.widths), strict=True)
        right.loglog(channels, deviations, "o-", label="deviation from the kernel")
        right.loglog(channels, chances, "--", label="by chance alone")
        right.set(xlabel="channels", ylabel="‖C − K‖ / ‖K‖", xticks=channels)
        right.set_xticks([], minor=True)
        right.set_xticklabels([str(c) for c in channels])
        right.legend()
        figure.suptitle(f"{self.samples} networks a width: {self.verdict}")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def check_limit(
    model: Any,
    X: Any,
    channels: Sequence[int] = (16, 64),
    samples: int = 1000,
    seed: int = 0,
    *,
    network: Network | None = None,
    outputs: int = 64,
    device: Any = None,
    progress: Callable[[int], None] | None = None,
) -> LimitReport:
    """Sample finite networks at growing width and check that their covariance converges to the kernel.

    `model` is a network or a PyTorch module. A module runs its own forward, with layers widened until the first has
    `channels` and with weights redrawn, and is compared with the kernel of `from_torch(model, …)`. `network=` compares
    with the kernel of another network instead. A few images are enough.

    >>> import numpy as np
    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> X = np.random.default_rng(0).normal(size=(3, 1, 4, 4))
    >>> net = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
    >>> check_limit(net, X, samples=300).verdict
    'agrees'
    >>> wrong = Sequential(Conv(3), ReLU(), Conv(3, weight_var=1.3), ReLU(), Dense())
    >>> check_limit(net, X, samples=300, network=wrong).verdict
    'differs'
    """
    from . import need_torch

    need_torch("check_limit")
    import torch

    from .finite import build_finite
    from .importing.importer import import_module
    from .importing.modules import Variances
    from .sampling import outputs_of_many, seed_key, torch_device, widen

    key, device = seed_key(seed), torch_device(device)
    widths: list[int] = sorted(set(np.atleast_1d(channels).tolist()))
    if len(widths) < 2 or widths[0] < 1:
        raise DataError(f"channels={channels!r}: give at least two different positive widths, such as (16, 64)")
    if samples < 20 or outputs < 1:
        raise DataError(f"samples={samples}, outputs={outputs}: expected at least 20 samples and one output")
    images = as_images(to_numpy(X), np.dtype(np.float64))
    shape = images.shape[1:]
    if network is not None:
        net: Network = network
    elif isinstance(model, Network):
        net = model
    else:  # measured variances, without the warning about those from few numbers
        net = import_module(model, shape, Variances(), warn=False)
    K = np.asarray(Kernel(net, device="cpu", dtype="float64")(images, progress=False))  # raises before the long work
    if isinstance(model, Network):
        x = torch.as_tensor(images, dtype=torch.float32, device=device)
        finite = {w: build_finite(model, w, shape, outputs, x.dtype, device) for w in widths}
    else:
        first = next(model.parameters())
        x = torch.as_tensor(images, dtype=first.dtype, device=first.device)
        finite = {w: widen(model, shape, w, outputs) for w in widths}
    found = []
    for w in widths:  # networks of different widths are independent of one another
        F = outputs_of_many(finite[w], x, samples, (*key, w), progress=progress).numpy().astype(np.float64)
        # The outputs have mean zero, so their covariance is the mean of products: one estimate per network.
        C = np.einsum("sno,smo->snm", F, F) / outputs
        projected = np.einsum("snm,nm->s", C, K) / (float(np.sum(K * K)) or 1.0)
        error, amplitude_error = (a.std(axis=0, ddof=1) / math.sqrt(samples) for a in (C, projected))
        found.append(Width(w, C.mean(axis=0), error, float(projected.mean()), float(amplitude_error)))
    return _report(K, found, samples, outputs)


def _report(K: Array, widths: list[Width], samples: int, outputs: int) -> LimitReport:
    from scipy import stats

    near, far = widths[-2], widths[-1]
    w1, w2 = near.channels, far.channels

    def extrapolate(a: Any, b: Any) -> Any:
        return (w2 * b - w1 * a) / (w2 - w1)

    def error(a: Any, b: Any) -> Any:
        return np.hypot(w2 * b, w1 * a) / (w2 - w1)

    scale = np.sqrt(np.outer(K.diagonal(), K.diagonal()))
    limit = extrapolate(near.covariance, far.covariance)
    floor = 1e-6 * scale + np.finfo(float).tiny  # float32 networks, and images whose variance is zero
    noise = error(near.standard_error, far.standard_error) + floor
    # With C = K + b/w + c/w² and c about b²/K, the remainder after extrapolation is b²/(K w₁ w₂).
    left = (limit - far.covariance) ** 2 * (w2 / w1) / (scale + np.finfo(float).tiny)
    amplitude = float(extrapolate(near.amplitude, far.amplitude))
    amplitude_noise = float(error(near.amplitude_error, far.amplitude_error)) + 1e-6
    amplitude_left = (amplitude - far.amplitude) ** 2 * w2 / w1
    tests = K.shape[0] * (K.shape[0] + 1) // 2 + 1
    critical = float(stats.t.ppf(1.0 - _LEVEL / (2 * tests), samples - 1))
    resolution = critical * amplitude_noise + amplitude_left
    worst = max(float(np.max(np.abs(limit - K) / (critical * noise + left))), abs(amplitude - 1.0) / resolution)
    verdict, sentence = _verdict(worst, amplitude, far.amplitude, resolution)
    return LimitReport(
        *(K, tuple(widths), limit, noise + left, amplitude, amplitude_noise + amplitude_left),
        *(worst, samples, outputs, verdict, sentence),
    )


def _verdict(
    worst: float, amplitude: float, widest: float, resolution: float
) -> tuple[Literal["agrees", "differs", "undecided"], str]:
    if abs(amplitude - widest) > _FAR * abs(amplitude):
        return "undecided", (
            f"the widest networks are still {abs(widest / amplitude - 1):.0%} from their own limit; use more channels"
        )
    if worst > 1.0:
        return "differs", (
            f"as channels grow the covariance of finite networks goes to about {amplitude:.3f} times the kernel, and "
            f"an entry is {worst:.1f} times further from it than chance allows: the kernel is not their limit"
        )
    if resolution > _COARSE:
        return "undecided", f"the errors leave {resolution:.0%} of the kernel open; use more samples"
    return "agrees", (
        "as channels grow the covariance of finite networks goes to the kernel; a difference of "
        f"{resolution:.1%} of it would have shown"
    )
