"""`python -m experiments.…` at a size for tests: kernels beside the paper's, CIFAR-10, and the time of a whole run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.command import commands
from scipy import stats
from sklearn.gaussian_process.kernels import RBF

from cnngp import AvgPool, Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, datasets, zoo
from cnngp.cli import run
from cnngp.common.errors import DatasetError
from cnngp.datasets import preparation, sets
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import lower
from cnngp.paper import results, table1
from cnngp.paper.setting import Setting
from cnngp.paper.table1 import SplitImages
from experiments import baselines, beyond, cifar10, pooled, timings, whole_run
from helpers.experiments import cell, digits_in_three
from helpers.idx_files import write_as_fashion_mnist

DATA = digits_in_three(200, 100, 500)


def telling(folder: Path) -> tuple[Setting, list[str]]:
    """A setting, and what it says."""
    told: list[str] = []
    return Setting(folder, device="cpu", say=lambda name, text: told.append(f"{name}: {text}")), told


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_as_fashion_mnist(folder / "fashion_mnist")
    return folder


def errors(net: Any, train: int, test: int) -> dict[str, Any]:
    """Percent of wrong predictions of a fit of its own."""
    clf = GPClassifier(net, device="cpu").fit(DATA.X[:train], DATA.y[:train])
    wrong = 1 - clf.score(DATA.X_test[:test], DATA.y_test[:test])
    return {"test": pytest.approx(100 * wrong), "leave-one-out": pytest.approx(100 * clf.loo_error_)}


# ---- baselines -------------------------------------------------------------------------------------------------------


def test_the_best_of_a_few_networks_and_the_rbf_kernel(tmp_path: Path) -> None:
    plan = baselines.BaselinesPlan(200, 100, 500, baselines.DENSE[1:9:7], chosen_on=40, lengthscale_on=120)
    found = baselines.run(Setting(tmp_path, device="cpu"), plan, DATA)
    choice = found["details"]["networks"]["Dense NNGP"]["choice"]
    few = [GPClassifier(baselines._dense(c), device="cpu").fit(DATA.X[:40], DATA.y[:40]) for c in plan.dense]
    wrong = [100 - 100 * clf.score(DATA.X_validation, DATA.y_validation) for clf in few]
    assert choice["validation_errors"] == pytest.approx(wrong)
    best = choice["candidates"][int(np.argmin(wrong))]
    assert f"hidden layers {best[0]}, {best[3]}" in cell(found, "Dense NNGP", "test")["note"]
    assert cell(found, "Dense NNGP", "test")["published"] == 1.21
    K = RBF(found["details"]["networks"]["RBF GP"]["lengthscale"])(DATA.X.reshape(200, -1).astype(float))
    clf = GPClassifier().fit(y=DATA.y, K=K)
    assert cell(found, "RBF GP", "leave-one-out")["ours"] == pytest.approx(100 * clf.loo_error_)


def test_the_kernel_is_scikit_learns_and_its_lengthscale_the_most_likely_one(tmp_path: Path) -> None:
    setting, images, y = Setting(tmp_path, device="cpu"), DATA.X[:80], DATA.y[:80]
    X, Y = images.reshape(80, -1).astype(np.float64), np.where(y[:, None] == np.arange(10), 1.0, -1.0)
    kernel = baselines.rbf(setting, 1.7, images.shape[1:])
    np.testing.assert_allclose(kernel(images, progress=False), RBF(1.7)(X), rtol=0, atol=1e-12)

    def log_likelihood(lengthscale: float) -> float:
        K = RBF(lengthscale)(X)
        amplitude = np.mean(Y * np.linalg.solve(K, Y))
        return float(sum(stats.multivariate_normal(cov=amplitude * K).logpdf(Y[:, c]) for c in range(10)))

    best = baselines.most_likely_lengthscale(setting, images, y)
    grid = best * np.exp(np.linspace(-2.0, 0.9, 40))
    assert log_likelihood(best) >= max(map(log_likelihood, grid)) - 0.01 * abs(log_likelihood(best))
    assert log_likelihood(best) > max(log_likelihood(1.1 * best), log_likelihood(best / 1.1))


def test_fashion_mnist_stands_in_a_table_of_its_own(data_folder: Path, tmp_path: Path) -> None:
    setting = Setting(tmp_path, device="cpu", data=data_folder)
    images = SplitImages.of(setting.dataset("fashion_mnist", "paper"), 100, 40, 60)
    details, rows = baselines.fashion(setting, [table1.Case("cnn", "CNN", zoo.small_cnn(), 0.7, 0.9)], images)
    assert set(details) == {"CNN"}
    assert {r["table"] for r in rows} == {"Fashion-MNIST, error in percent, 100 training images"}
    assert all(r["published"] is None for r in rows)


# ---- beyond ----------------------------------------------------------------------------------------------------------

NETS = {"pooled": beyond.pooled(Conv(3, weight_var=2.0), AvgPool(3, stride=1)), "dense": zoo.dense_nngp(1)}
PLAN = beyond.BeyondPlan(train=120, validation=60, test=80, chosen_on=60, candidates=NETS)


def test_the_best_by_leave_one_out_is_fitted_and_long_kernels_are_kept_tile_by_tile(tmp_path: Path, monkeypatch: Any):
    here, told = telling(tmp_path)
    found = beyond.run(here, PLAN, DATA)
    choice = found["details"]["choice"]["networks"]
    best = min(choice, key=lambda name: choice[name]["loo_log_loss"])
    assert found["details"]["chosen"] == best
    # The choice written out: the same images, the same exact GP.
    few = np.sort(np.random.default_rng(0).choice(120, 60, replace=False))
    clf = GPClassifier(NETS[best], device="cpu").fit(DATA.X[few], DATA.y[few])
    right = clf.loo_probabilities_[np.arange(60), DATA.y[few]]
    assert choice[best]["loo_log_loss"] == pytest.approx(-np.log(right).mean())
    # And the fit, which the test images are asked of once.
    expected = errors(NETS[best], 120, 80)
    assert {quantity: cell(found, "pooled CNN GP", quantity)["ours"] for quantity in expected} == expected
    # Told before the first piece: 180 images with each other and with 80 test images.
    assert told[0].startswith("plan: ")
    assert f"{180 * 179 // 2 + 180 * 80:,} pairs" in told[0]
    again = Setting(tmp_path, device="cpu")
    assert beyond.run(again, PLAN, DATA)["rows"] == found["rows"]
    assert [(p.name, p.reused) for p in again.done] == [(p.name, True) for p in here.done]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    # A run that dies in its fits computes no kernel again.
    monkeypatch.setattr(beyond, "LONG", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(table1, "fits", killed)
        with pytest.raises(KeyboardInterrupt):
            beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert len(list((tmp_path / "killed" / "stores").iterdir())) == 2
    monkeypatch.setattr("cnngp.kernel.kernel.Kernel.__call__", killed)
    resumed = beyond.run(Setting(tmp_path / "killed", device="cpu"), PLAN, DATA)
    assert [r["ours"] for r in resumed["rows"]] == [r["ours"] for r in found["rows"]]


def test_every_candidate_is_cheap_enough_and_has_a_fast_path_on_cards() -> None:
    for name, net in beyond.candidates().items():
        assert net.shapes((1, 28, 28)).elements <= 70_000, name
        assert generate(lower(net, (1, 28, 28)), "float32").path == "sheets", name


def test_every_pool_has_a_row_beside_the_dense_layer(tmp_path: Path) -> None:
    here, told = telling(tmp_path)
    found = pooled.run(here, pooled.PooledPlan(depth=8, pools=(2,), train=40, validation=20, test=30), DATA)
    nets = {"dense layer": zoo.resnet(8), "pool of 2 × 2": zoo.resnet(8, pool=2)}
    for name, net in (nets | {"global pool": zoo.resnet(8, pool="global")}).items():
        expected = errors(net, 40, 30)
        assert {q: cell(found, f"ResNet-8 GP, {name}", q)["ours"] for q in expected} == expected
    assert told[0].startswith(f"plan: {60 * 59 // 2 + 60 * 30:,} pairs for each network, about: resnet ")
    assert all(r["published"] is None for r in found["rows"])
    # At full size the published errors stand beside ours.
    plain, *pools = pooled.FULL.cases()
    paper = table1.paper_cases()[-1]
    assert (plain.network, plain.validation, plain.test) == (paper.network, paper.validation, paper.test)
    assert plain.label == paper.label  # so that the piece of table1 is used
    assert [(case.network, case.test) for case in pools] == [(zoo.resnet(32, pool=p), None) for p in (2, 4, "global")]  # type: ignore[arg-type]


# ---- cifar10 ---------------------------------------------------------------------------------------------------------

NAMES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
COMMANDS = commands("cifar10", ("cifar10",))
CIFAR_PLAN = cifar10.CifarPlan(depth=5, train=12, test=6)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder above cifar10/: six batches of 12 images, one noisy colour a class, so that a few are enough."""
    monkeypatch.setattr(sets, "CIFAR_IMAGES", 12)
    folder = tmp_path / "data" / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 12)
        X = 40 * np.eye(3)[y][:, :, None, None] + rng.normal(120, 25, (12, 3, 32, 32))
        records = np.concatenate([y[:, None], X.clip(0, 255).reshape(12, -1)], axis=1).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return tmp_path / "data"


def test_batches_of_another_length_or_with_other_labels_are_refused(files: Path) -> None:
    batch = files / "cifar10" / "cifar-10-batches-bin" / "data_batch_1.bin"
    other_labels = b"\x0b" + bytes(12 * 3073 - 1)
    for content, message in ((bytes(99), "has 99 bytes; a batch of"), (other_labels, "labels up to 11")):
        batch.write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            sets.original("cifar10", files)


def test_the_command_from_files_to_the_table(files: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    # A Myrtle network's variances take half a second an image on a processor; the recipe is the same with another.
    net = Sequential(Conv(3), ReLU(), AvgPool(4), Dense())
    monkeypatch.setattr(cifar10, "myrtle", lambda depth: net)
    monkeypatch.setattr(cifar10, "QUICK", CIFAR_PLAN)
    monkeypatch.setattr(cifar10, "LONG", 0.0)  # with stores, as the whole set
    out = tmp_path / "out"
    words = ["--quick", "--device", "cpu", "--data", str(files), "--out", str(out), "--json"]
    assert run(words, COMMANDS) == 0
    printed = capsys.readouterr()
    pairs = 3 * (6 * 12 + 12 * 11 // 2)
    assert f"{'plan':<22} {pairs:,} pairs of Myrtle-5, about" in printed.err
    assert "GB of memory and" in printed.err
    rows = json.loads(printed.out)["rows"]
    doc = results.read(out / "cifar10.json")
    assert [r["ours"] for r in rows] == [r["ours"] for r in doc["rows"]]
    assert all(r["published"] is None for r in rows)  # of 50,000 images, not of these
    # The recipe written out.
    data = datasets.load("cifar10", data=files)
    white = preparation.as_preparation("zca").fit(data.X[:12])
    X, T = white.transform(data.X[:12]), white.transform(data.X_test[:6])
    kernel, symmetric = (Kernel(net, device="cpu", symmetry=symmetry) for symmetry in (None, "flip"))
    for name, K, K_test in (
        ("Myrtle-5 GP", kernel(X), kernel(T, X)),
        ("Myrtle-5 GP, flips", symmetric(X), symmetric(T, X)),
    ):
        clf = GPClassifier(noise="loo").fit(y=data.y[:12], K=K)
        error = 100 * float((clf.predict(K=K_test) != data.y_test[:6]).mean())
        of_it = {r["quantity"]: r["ours"] for r in rows if r["result"] == name}
        assert of_it == {"test": pytest.approx(error), "leave-one-out": pytest.approx(100 * clf.loo_error_)}
        assert error < 50.0
    # Run again, nothing is computed.
    assert run(words, COMMANDS) == 0
    assert capsys.readouterr().err.count("kept from an earlier run") == 2


def test_the_plan_for_the_whole_set_is_shown_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 images: 5.2 billion pairs, about five hours on the card that was measured, and 30 GB."""
    here, told = telling(tmp_path)
    monkeypatch.setattr(Setting, "actual_device", "cuda")
    monkeypatch.setattr("cnngp.common.memory.require", lambda *_: None)
    data = datasets.Dataset("cifar10", np.zeros((1, 3, 32, 32), np.float32), np.zeros(1, int), *(np.zeros((1, 1)),) * 2)
    cifar10._tell_plan(here, cifar10.FULL, data)
    assert told[0].startswith("plan: 5,249,925,000 pairs of Myrtle-10, about 5 h 6 min here, 30.0 GB of memory")
    assert 100 - cifar10.PUBLISHED["plain"] == pytest.approx(87.5)
    assert "flips" not in cifar10.PUBLISHED  # the published one is of another nonlinearity


def test_timings_from_the_files_to_the_errors(data_folder: Path, tmp_path: Path) -> None:
    setting = Setting(tmp_path, device="cpu", data=data_folder)
    case = table1.Case("resnet", "ResNet GP", zoo.resnet(8))
    sizes = table1.Table1Plan(100, 40, 60, (case,))
    data = setting.dataset("fashion_mnist", "paper")
    found = timings.run(setting, timings.TimingsPlan(sizes, "fashion_mnist", depth=8), data)
    whole, piece = found["details"]["whole_run"], found["details"]["networks"]["ResNet GP"]
    for key in ("validation_error", "test_error", "loo_error"):
        assert whole[key] == piece[key]
    assert whole["test_error"] < 40
    assert whole["pairs"] == 100 * 99 // 2 + 100 * 100
    timing = whole["timing"]
    parts = [seconds for part, seconds in timing.items() if part not in ("whole", "leave_one_out")]
    assert sum(parts) <= timing["whole"] < whole["seconds"]
    assert cell(found, "ResNet GP", "kernels")["ours"] == piece["kernel_seconds"]
    assert cell(found, "kernels", "seconds")["published"] == 13_200
    assert [p.name for p in timings.draw(found, tmp_path)] == ["timings.png", "timings.svg"]
    json.dumps(found["details"])


def test_a_whole_run_that_fails_says_why(tmp_path: Path) -> None:
    setting = Setting(tmp_path, device="cpu", data=tmp_path)
    told = r"the whole run failed: .*expected 'standard' or|which digits does not have"
    with pytest.raises(RuntimeError, match=told):
        timings._whole_run(setting, timings.TimingsPlan(table1.Table1Plan(10, 10, 10), "digits"))


@pytest.mark.gpu
def test_a_whole_run_on_a_card(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CNNGP_DATA", str(data_folder))
    request = {"data": "fashion_mnist", "depth": 8, "threads": None, "sizes": [100, 40, 60]}
    card, cpu = (whole_run.whole_run({**request, "device": device}) for device in ("cuda", "cpu"))
    assert card["test_error"] == pytest.approx(cpu["test_error"], abs=1.7)
