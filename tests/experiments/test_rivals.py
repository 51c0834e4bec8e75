"""The rivals of Table 1 at a size for tests: each is measured and counted rightly, and stands in the table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.rivals import RivalsPlan, Trained
from experiments.rivals.exact import Convolutional, Term, exact

from cnngp import GPClassifier, zoo
from cnngp.paper.results import tables
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages
from experiments import rivals
from helpers.experiments import digits_in_three

torch = pytest.importorskip("torch")
pytest.importorskip("gpytorch")

from experiments.rivals.deep_conv_gp import DeepConvGP, patches_of  # noqa: E402
from experiments.rivals.resnet import ResNet  # noqa: E402
from experiments.rivals.training import learned_parameters  # noqa: E402

DATA = digits_in_three(400, 100, 200)
PLAN = RivalsPlan(
    train=400,
    validation=100,
    test=200,
    resnet=Trained({"width": 8, "blocks": 1}, {"epochs": 1, "batch": 100, "rate": 2e-2}),
    deep_kernel=Trained({"width": 4, "features": 4}, {"epochs": 1, "batch": 100, "rate": 3e-2}),
    weighted=Trained({"inducing": 10, "below": (), "size": 3}, {"epochs": 1, "batch": 100, "rate": 5e-2}),
    deep_conv_gp=Trained({"inducing": 20, "below": ((4, 3, 1),), "size": 3}, {"epochs": 4, "batch": 40, "rate": 5e-2}),
    inducing_points=20,
    convolutional=(Convolutional(3, "global", (4.0,), (8.0,), (0.0, 0.5)), Convolutional(3, 3, (4.0,), (8.0,), (0.5,))),
    convolutional_train=(100, 150),
    convolutional_parts=(100, 200),
    chosen_on=60,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    where = Setting(tmp_path_factory.mktemp("rivals"), device="cpu")
    return rivals.run(where, PLAN, DATA), where


@pytest.mark.slow
@pytest.mark.usefixtures("one_torch_thread")
def test_every_rival_learns_something(tmp_path: Path) -> None:
    """Ten classes: by chance 90 % are wrong."""
    plan = PLAN
    for name, epochs in (("resnet", 6), ("deep_kernel", 20), ("weighted", 20), ("deep_conv_gp", 20)):
        few: Trained = getattr(PLAN, name)
        model = few.model | ({"inducing": 20} if "inducing" in few.model else {})
        plan = replace(plan, **{name: Trained(model, few.recipe | {"epochs": epochs, "batch": 40})})
    rows = rivals.run(Setting(tmp_path, device="cpu"), plan, DATA)["details"]["rows"]
    assert len(rows) == 6
    for name, values in rows.items():
        assert values["test_error"] < 35.0, name
        assert values["test_nll"] < 1.4, name
        assert 0.0 <= values["test_ece"] < 0.5, name


def test_the_table_shows_every_quantity_of_every_row_and_finished_rows_are_kept(found: Any, monkeypatch: Any) -> None:
    (table,) = tables(found[0]["rows"])
    assert table.quantities == ("validation error", "test error", "NLL", "ECE", "learned parameters", "time")
    assert all(set(line) == set(table.quantities) for line in table.lines.values())
    published = {name: line["test error"]["published"] for name, line in table.lines.items()}
    assert published["ResNet, trained"] == 0.41
    assert published["Convolutional GP, exact, patches within 3 places"] is None
    assert "400 training images" in table.name
    monkeypatch.setattr(rivals, "_train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr(rivals, "exact", lambda *_: pytest.fail("computed again"))
    assert rivals.run(found[1], PLAN, DATA)["rows"] == found[0]["rows"]


def test_exact_rows_are_what_the_estimator_gives(tmp_path: Path) -> None:
    images = SplitImages.of(DATA, 120, 100, 200)
    values = exact(Setting(tmp_path, device="cpu"), (Term(zoo.small_cnn()),), images, 0.0)
    clf = GPClassifier(zoo.small_cnn(), device="cpu").fit(DATA.X[:120], DATA.y[:120])
    assert values["validation_error"] == pytest.approx(100 * (1 - clf.score(DATA.X_validation, DATA.y_validation)))
    P = clf.predict_proba(DATA.X_test)
    nll = -np.log(P[np.arange(200), np.searchsorted(clf.classes_, DATA.y_test)]).mean()
    assert values["test_nll"] == pytest.approx(nll, rel=1e-4)
    assert values["loo_error"] == pytest.approx(100 * clf.loo_error_)


def test_a_prior_is_the_weighted_sum_over_all_pairs_of_patches() -> None:
    """With q(v) = N(0, I) nothing is learned yet: mean 0, variance Σ w_p w_q k(p, q), and no divergence."""
    torch.manual_seed(0)
    start = torch.as_tensor(DATA.X[:30])
    model = DeepConvGP(start, 3, inducing=15, below=(), size=3)
    with torch.no_grad():
        model.weights.uniform_(0.1, 1.0)
        model.last.packed.copy_((model.last.lower[0] == model.last.lower[1]).expand_as(model.last.packed).float())
        mean, variance = model.functions(start[:4])
        assert model.last.divergence().item() == pytest.approx(0.0, abs=1e-4)
    rows, places = patches_of(start[:4], 3, 1)
    assert places == (6, 6)
    w = model.weights.detach().double().numpy()
    scale, length = model.last.log_variance.exp().item(), model.last.log_lengthscale.exp().item()
    for b in range(4):
        P = rows[b].double().numpy()
        K = scale * np.exp(-((P[:, None] - P[None]) ** 2).sum(-1) / (2.0 * length**2))
        assert variance[b].numpy() == pytest.approx(np.full(3, w @ K @ w), rel=1e-4)
    assert mean.abs().max().item() == 0.0


def test_learned_parameters_are_counted() -> None:
    assert 0.55e6 < learned_parameters(ResNet(1, 10)) < 0.65e6
    model = ResNet(1, 10, width=8, blocks=1)
    first, halved, block, last = 9 * 8 + 8, 2 * (16 + 16 * 64 + 8), 2 * (9 * 64 + 16), 16 + 8 * 10 + 10
    assert learned_parameters(model) == first + halved + block + last
    gp = DeepConvGP(torch.as_tensor(DATA.X[:10]), 10, inducing=5, below=((2, 3, 1),), size=3)
    patch_gp = 2 + 5 * 9 + 5 * 2 + 2 * 15  # lengthscale and variance; Z; m; R, lower triangular
    last = 2 + 5 * 18 + 5 * 10 + 10 * 15 + 16  # 18 numbers in a patch of two channels, 4 × 4 places
    assert learned_parameters(gp) == patch_gp + last
