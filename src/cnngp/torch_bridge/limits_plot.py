"""The picture of a `LimitReport`: covariances against the kernel, and the deviation against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cnngp.common.figures import bare_figure

if TYPE_CHECKING:
    from .limits import LimitReport


def plot(report: LimitReport, path: str | None) -> Any:
    figure = bare_figure(9, 4)
    left, right = figure.subplots(1, 2)
    upper = np.triu_indices(len(report.kernel))
    exact = report.kernel[upper]
    for w in report.widths:
        left.errorbar(
            exact,
            w.covariance[upper],
            2 * w.standard_error[upper],
            fmt="o",
            ms=3,
            lw=1,
            label=f"{w.channels} channels ± 2 s.e.",
        )
    ends = [float(exact.min()), float(exact.max())]
    left.plot(ends, ends, color="black", lw=0.8)
    left.set(xlabel="kernel", ylabel="covariance of finite networks")
    left.legend()
    channels = [w.channels for w in report.widths]
    found = [report.deviation(w) for w in report.widths]
    right.loglog(channels, [deviation for deviation, _ in found], "o-", label="deviation from the kernel")
    right.loglog(channels, [chance for _, chance in found], "--", label="by chance alone")
    right.set(xlabel="channels", ylabel="‖C − K‖ / ‖K‖", xticks=channels)
    right.set_xticks([], minor=True)
    right.set_xticklabels([str(c) for c in channels])
    right.legend()
    figure.suptitle(f"{report.samples} networks a width: {report.verdict}")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
