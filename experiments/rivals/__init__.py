"""Every row of Table 1 computed here: the systems that the paper quotes, on its split, beside its own kernels.

`python -m experiments.rivals`. Each row is a kept piece. Needs PyTorch and GPyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnngp.common.figures import new_figure, save_figure
from cnngp.datasets.dataset import Dataset
from cnngp.paper.results import BLUE, GREY, ORANGE, Results, Row, read, row, tables, title
from cnngp.paper.setting import Piece, Setting
from cnngp.paper.table1 import SplitImages
from cnngp.torch_bridge import need_gpytorch, need_torch

from .exact import Convolutional, choose, exact, terms_of

TITLE = "Table 1: every row, run here"


@dataclass(frozen=True)
class Trained:
    """Configuration of a trained rival: arguments of its class, and of `Recipe`."""

    model: Mapping[str, Any]
    recipe: Mapping[str, Any]


@dataclass(frozen=True)
class RivalsPlan:
    """Size of each row; `train` is the number of training images, of which the expensive kernels take fewer."""

    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    resnet: Trained = Trained(
        {"width": 64, "blocks": 6}, {"epochs": 20, "batch": 512, "rate": 4e-3, "weight_decay": 0.05, "half": True}
    )
    deep_kernel: Trained = Trained({"width": 32, "features": 16}, {"epochs": 20, "batch": 512, "rate": 5e-3})
    weighted: Trained = Trained({"inducing": 384, "below": ()}, {"epochs": 5, "batch": 128, "rate": 2e-2})
    deep_conv_gp: Trained = Trained(
        {"inducing": 384, "below": ((10, 5, 2),)}, {"epochs": 6, "batch": 128, "rate": 1e-2}
    )
    inducing_points: int = 128
    """Number of inducing points of the deep kernel."""
    convolutional: tuple[Convolutional, ...] = (Convolutional(),)
    convolutional_train: tuple[int, ...] = (3_000,)
    convolutional_parts: tuple[int, ...] = (2_000, 10_000)
    """Numbers of validation and test images that they predict."""
    chosen_on: int = 1_000


FULL = RivalsPlan()
QUICK = RivalsPlan(
    train=2_000,
    validation=500,
    test=1_000,
    resnet=Trained({"width": 16, "blocks": 2}, {"epochs": 6, "batch": 64, "rate": 1e-2, "weight_decay": 0.01}),
    deep_kernel=Trained({"width": 8, "features": 8}, {"epochs": 8, "batch": 100, "rate": 1e-2}),
    weighted=Trained({"inducing": 32, "below": (), "stride": 2}, {"epochs": 10, "batch": 50, "rate": 3e-2}),
    deep_conv_gp=Trained({"inducing": 32, "below": ((6, 5, 2),), "size": 3}, {"epochs": 8, "batch": 50, "rate": 3e-2}),
    inducing_points=40,
    convolutional=(
        Convolutional(gammas=(16.0,), pixel_gammas=(16.0,), shares=(0.0, 0.3)),
        Convolutional(pool=5, gammas=(4.0, 16.0), pixel_gammas=(16.0,), shares=(0.0, 0.3)),
    ),
    convolutional_train=(150, 400),
    convolutional_parts=(100, 100),
    chosen_on=100,
)

# Approximate seconds of a row at full size on one H200, and of the quick version on two cores.
_SECONDS = {"cuda": 70.0, "cpu": 60.0}


def run(setting: Setting, plan: RivalsPlan | None = None, data: Dataset | None = None) -> Results:
    """Compute all rows; `data` needs a validation part and defaults to MNIST."""
    need_torch("experiments.rivals")
    need_gpytorch("experiments.rivals")
    plan = plan or (QUICK if setting.quick else FULL)
    data = data or setting.dataset("mnist", "paper")
    images = SplitImages.of(data, plan.train, plan.validation, plan.test)
    rows: list[Row] = []
    details: dict[str, Any] = {}
    for name, published, note, values in (
        *_trained_rows(setting, plan, images),
        *_convolutional_rows(setting, plan, data),
    ):
        details[name] = values
        rows += _rows(_heading(images), name, values, published, note)
    rows += _own_rows(setting, _heading(images))
    return Results(
        rows=rows, details={"data": data.name, "train": images.train, "rows": details}, captions={"rivals": _CAPTION}
    )


_CAPTION = "Test errors of every row of Table 1 as run here, and the published ones."
_Found = tuple[str, float | None, str, dict[str, Any]]


def _trained_rows(setting: Setting, plan: RivalsPlan, images: SplitImages) -> list[_Found]:
    kinds: tuple[tuple[str, str, float | None, str], ...] = (
        ("resnet", "ResNet, trained", 0.41, "published: Chen et al., 2018"),
        ("deep_kernel", "GP with a deep kernel", 0.60, "published: Bradshaw et al., 2017"),
        ("deep_conv_gp", "Deep convolutional GP", 1.34, "published: Kumar et al., 2018"),
        (
            "weighted",
            "Convolutional GP, inducing patches",
            1.17,
            "weights of the patches learned, no kernel on whole images; published: van der Wilk et al., 2017, with one",
        ),
    )
    found = []
    for label, name, published, note in kinds:
        how: Trained = getattr(plan, label)
        depends = {"model": dict(how.model), "recipe": dict(how.recipe), "points": plan.inducing_points, **images.facts}
        values = setting.values(
            Piece(
                f"rivals-{images.name}-{label.replace('_', '-')}",
                lambda label=label, how=how, name=name: _train(setting, plan, images, label, how, name),  # type: ignore[misc]
                depends=depends,
                seconds=_SECONDS[setting.actual_device],
            )
        )
        found.append((name, published, note, values))
    return found


def _train(
    setting: Setting, plan: RivalsPlan, images: SplitImages, label: str, how: Trained, name: str
) -> dict[str, Any]:
    import numpy as np
    import torch

    from .training import Recipe, train

    torch.manual_seed(setting.seed)
    classes = len(np.unique(images.y))
    pick = np.random.default_rng(setting.seed).permutation(images.train)
    start = torch.as_tensor(images.X[pick[: max(plan.inducing_points, 200)]])
    match label:
        case "resnet":
            from .resnet import ResNet

            rival = ResNet(start.shape[1], classes, **how.model)
        case "deep_kernel":
            from .deep_kernel import DeepKernelGP

            rival = DeepKernelGP(start[: plan.inducing_points], classes, **how.model)
        case _:
            from .deep_conv_gp import DeepConvGP

            rival = DeepConvGP(start, classes, **how.model)
    return train(rival, images, Recipe(**how.recipe), setting.actual_device, setting.seed, name)


def _convolutional_rows(setting: Setting, plan: RivalsPlan, data: Dataset) -> list[_Found]:
    found = []
    for among, train in zip(plan.convolutional, plan.convolutional_train, strict=True):
        images = SplitImages.of(data, train, *plan.convolutional_parts)
        label = f"rivals-{data.name}-convolutional-{among.pool}"
        depends = {"among": among.facts(), "chosen_on": plan.chosen_on, **images.facts}

        def compute(among: Convolutional = among, images: SplitImages = images) -> dict[str, Any]:
            choice = choose(setting, among, images, min(plan.chosen_on, images.train))
            values = exact(setting, terms_of(among, choice["best"]), images, "loo")
            return values | {"choice": choice, "parameters": 3}

        values = setting.values(Piece(label, compute, depends=depends, seconds=_SECONDS[setting.actual_device]))
        best = values["choice"]["best"]
        which = "all pairs of patches" if among.pool == "global" else f"patches within {among.pool} places"
        note = (
            f"{images.train:,} training images; by leave-one-out γ {best['gamma']:g} on patches of {among.patch} × "
            f"{among.patch}, a kernel on whole images of variance {best['pixel_var']:.2g} and γ {best['pixel_gamma']:g}"
        )
        published = 1.17 if among.pool == "global" else None
        found.append((f"Convolutional GP, exact, {which}", published, note, values))
    return found


# Exact GPs of other experiments, by the file with their results: they are shown beside the rivals if they were run.
_OWN = (("ConvNet GP", "table1"), ("Residual CNN GP", "table1"), ("ResNet GP", "table1"), ("pooled CNN GP", "beyond"))


def _own_rows(setting: Setting, table: str) -> list[Row]:
    found: list[Row] = []
    for name, experiment in _OWN:
        line, command = _line(setting, experiment, name)
        if line is None:
            command = "cnngp reproduce table1" if experiment == "table1" else f"python -m experiments.{experiment}"
            setting.say(name, f"not beside the others; for that, run `{command}` into the same folder")
            continue
        calibrated = _line(setting, "figure3", "ResNet kernel, exact GP")[0] if name == "ResNet GP" else None
        test = line["test"]
        note = f"exact, nothing in the kernel is learned; from {command}"
        for quantity, source in (
            ("validation error", line["validation"]),
            ("test error", test),
            *((q, calibrated[q]) for q in ("NLL", "ECE") if calibrated is not None),
        ):
            found.append(source | {"table": table, "result": name, "quantity": quantity, "note": note, "seconds": None})
        found.append(row(table, name, "learned parameters", unit=" ", ours=0, note=note))
        found.append(row(table, name, "time", unit="s", ours=test["seconds"], note=note))
    return found


def _line(setting: Setting, experiment: str, name: str) -> tuple[dict[str, Row] | None, str]:
    """Rows, by quantity, of a result in the first table of an experiment of the same size, and its command."""
    path = setting.out / f"{experiment}.json"
    if not path.exists() or (doc := read(path))["quick"] != setting.quick:
        return None, ""
    return tables(doc["rows"])[0].lines.get(name), doc["command"]


def _heading(images: SplitImages) -> str:
    return f"{title(images.name)}, {images.train:,} training images unless said otherwise"


def _rows(table: str, name: str, values: dict[str, Any], published: float | None, note: str) -> list[Row]:
    columns: tuple[tuple[str, str, float | None, float], ...] = (
        ("validation error", "%", None, values["validation_error"]),
        ("test error", "%", published, values["test_error"]),
        ("NLL", "", None, values["test_nll"]),
        ("ECE", "", None, values["test_ece"]),
        ("learned parameters", " ", None, values["parameters"]),
        ("time", "s", None, values["seconds"]),
    )
    return [
        row(table, name, quantity, unit=unit, published=there, ours=ours, note=note)
        for quantity, unit, there, ours in columns
    ]


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the test errors, ours beside the published ones."""
    rows = [r for r in results["rows"] if r["quantity"] == "test error"]
    figure, axes = new_figure(7.2, 0.42 * len(rows) + 1.1)
    for i, r in enumerate(rows):
        if r["published"] is not None:
            axes.plot(r["published"], i, "D", color=GREY, markersize=6)
        axes.plot(r["ours"], i, "o", color=BLUE if r["result"] in dict(_OWN) else ORANGE, markersize=6)
    axes.set_yticks(range(len(rows)), [r["result"] for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_xlim(0, 1.08 * max(max(r["published"] or 0.0, r["ours"] or 0.0) for r in rows))
    axes.set_xlabel("test error, %; diamonds: published")
    return save_figure(figure, folder, "rivals")
