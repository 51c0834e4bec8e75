"""The paper's ResNet with the average pooling of He et al., beside the version without it in Table 1.

The authors replaced the global average pool by a dense layer, "because computing its output variance requires the
off-diagonal elements", and expected pooling to close the gap to trained networks. Here the same network has its global
pool, or a small pool of stride 1, before the dense layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cnngp.common import memory
from cnngp.common.progress import duration
from cnngp.datasets.dataset import Dataset
from cnngp.network import zoo
from cnngp.paper import table1
from cnngp.paper.results import Results, Row
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages

TITLE = "Table 1 with average pooling: the ResNet as it was meant"


@dataclass(frozen=True)
class PooledPlan:
    """Size of the experiment."""

    depth: int = 32
    pools: Sequence[int] = (2, 4)
    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000

    def cases(self) -> tuple[table1.Case, ...]:
        """Networks without a pool, with small pools, and with a global pool; the first has published errors."""
        validation, test = (0.68, 0.84) if self.depth == 32 and self.train == 50_000 else (None, None)
        name = f"ResNet-{self.depth} GP"
        network = zoo.resnet(self.depth)
        plain = table1.Case("resnet", f"{name}, dense layer", network, validation, test, "as in the paper")
        small = [
            table1.Case(f"resnet-pool{k}", f"{name}, pool of {k} × {k}", zoo.resnet(self.depth, pool=k))
            for k in self.pools
        ]
        whole = table1.Case("resnet-global", f"{name}, global pool", zoo.resnet(self.depth, pool="global"))
        return (plain, *small, whole)


FULL = PooledPlan()
QUICK = PooledPlan(depth=8, pools=(2, 4), train=300, validation=200, test=500)


def run(setting: Setting, plan: PooledPlan | None = None, data: Dataset | None = None) -> Results:
    """Compute all rows; `data` needs a validation part and defaults to MNIST."""
    plan = plan or (QUICK if setting.quick else FULL)
    images = SplitImages.of(data or setting.dataset("mnist", "paper"), plan.train, plan.validation, plan.test)
    cases = plan.cases()
    _tell_plan(setting, cases, images)
    found = setting.run([table1.case_piece(setting, case, images) for case in cases])
    networks = {case.name: values for case, values in zip(cases, found, strict=True)}
    rows: list[Row] = []
    for case, values in zip(cases, found, strict=True):
        cost = f"{case.network.shapes(images.X.shape[1:]).elements:,} covariances a pair"
        note = f"{case.note}; {cost}" if case.note else cost
        rows += table1.rows_of(table1.heading(images), case.name, values, case.validation, case.test, note)
    return Results(rows=rows, details={"train": images.train, "networks": networks}, captions={})


def _tell_plan(setting: Setting, cases: Sequence[table1.Case], images: SplitImages) -> None:
    """Print pairs, time and memory before anything is computed; raise if the memory is not available."""
    n = len(images.X)
    need = 12 * n * n  # the matrix in float32, and a copy in float64 that becomes the factor
    times = ", ".join(f"{case.label} {duration(table1.estimate(setting, case.network, images))}" for case in cases)
    setting.say("plan", f"{images.pairs:,} pairs for each network, about: {times}; {need / 1e9:.1f} GB of memory")
    memory.require(need, f"an exact fit of {n:,} images", setting.actual_device)


if __name__ == "__main__":
    from experiments.command import run as run_command

    run_command("pooled")
