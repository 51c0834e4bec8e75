"""Kernels that check themselves: what is wrong is found, what is only rounded is not, and nobody pays twice."""

import contextlib
import json
import os
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, ConvTranspose, Dense, GlobalAvgPool, GPClassifier, Kernel, Sequential, datasets, gram, zoo
from cnngp.kernel import check
from cnngp.kernel.check import WrongKernelError
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.network.layers import AvgPool, Cos, Elementwise, Erf, Network, ReLU, Sin, Step
from helpers.kernels import each_dtype

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
TANH = Sequential(Conv(3), Elementwise("tanh"), Conv(3), Elementwise("tanh"), Dense())
X = np.random.default_rng(0).standard_normal((5, 1, 6, 6))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Network]:
    """The networks that were compared with the reference."""
    found: list[Network] = []
    honest = check.compare

    def counted(network: Network, *rest: Any) -> Any:
        found.append(network)
        return honest(network, *rest)

    monkeypatch.setattr(check, "compare", counted)
    return found


def spoil(monkeypatch: pytest.MonkeyPatch, factor: float, entries: Any = slice(None)) -> None:
    """Break the CPU engine: some entries of its matrices of one set are multiplied."""
    honest = CpuEngine.symmetric

    def wrong(self: CpuEngine, X: Any, *rest: Any) -> Any:
        K = honest(self, X, *rest)
        K[entries] *= factor
        return K

    monkeypatch.setattr(CpuEngine, "symmetric", wrong)


BOTH = [0, 1], [1, 0]


@pytest.mark.parametrize(("factor", "entries"), [(1.005, BOTH), (1.01, (1, 1)), (np.nan, BOTH)])
@each_dtype
def test_a_wrong_engine_is_found_before_the_first_matrix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, factor: float, entries: Any, dtype: str
) -> None:
    spoil(monkeypatch, factor, entries)
    kernel = Kernel(NET, device="cpu", dtype=dtype)
    told = rf"the engine cpu-\d+-{dtype} computes this network wrongly on images of shape \(1, 6, 6\): it gives .* "
    told += r"where the float64 reference gives .*, Sequential\(Conv\(3, bias_var=0.1\), ReLU\(\), Dense\(\)\)\. "
    for call in (
        lambda: kernel(X),
        lambda: kernel(X, X[:2]),
        lambda: kernel.prepare(X),
        lambda: gram(kernel, X, tile=2),
        lambda: gram(kernel, X, store=tmp_path / "K.zarr"),
        lambda: GPClassifier(kernel).fit(X, [0, 1, 0, 1, 0]),
    ):
        with pytest.raises(WrongKernelError, match=told):
            call()
    assert not list((tmp_path / "K.zarr").rglob("c/*/*")), "tiles of a wrong engine"
    assert np.shape(Kernel(NET, device="cpu", dtype=dtype, check=False)(X)) == (5, 5)


# Networks that make more of rounding than others, with the scale of their images.
BADLY_CONDITIONED = {
    "three steps": Sequential(*[layer for _ in range(3) for layer in (Conv(3), Step())], Dense()),
    "a step behind many layers": Sequential(*[Conv(3), ReLU()] * 12, Conv(3), Step(), Dense()),
    "steep erf": Sequential(*[Conv(3, weight_var=1e5), Erf()] * 4, Dense()),
    "erf of a large bias": Sequential(Conv(3, bias_var=1e9), Erf(), Dense()),
    "sine of a large bias": Sequential(Conv(3, bias_var=1e5), Sin(), Dense()),
    "sines": Sequential(Conv(3, weight_var=1e3), Sin(), Conv(3, weight_var=1e3), Cos(), Dense()),
    "tanh": Sequential(Conv(3, weight_var=50.0), Elementwise("tanh"), Dense(bias_var=0.1)),
    "a kink": Sequential(Conv(3), Elementwise("relu6"), Dense()),
    "a kink that nobody knows of": Sequential(Conv(1), Elementwise(lambda x: np.maximum(x, 0.1 * x)), Dense()),
}


def stays_calm(kernel: Kernel, X: Any, times: float = 10.0) -> bool:
    """No alarm, and far from one, too; whether the images told anything."""
    verdict = kernel.verify(X)
    if verdict is None or verdict.error is None:
        return False
    assert verdict.error <= times * verdict.bound
    return True


@pytest.mark.parametrize("name", BADLY_CONDITIONED)
def test_conditioning_raises_no_alarm(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scale = 0.2 if "kink" in name else 1.0
    first = np.random.default_rng(1).standard_normal((1, 1, 6, 6)) * scale
    near = first * (1.0 + 1e-7 * np.random.default_rng(2).standard_normal(first.shape))
    seconds = (first, near, first[..., ::-1], -first, 255.0 * first if "kink" not in name else first)
    for i, second in enumerate(seconds):
        monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / str(i)))
        with contextlib.suppress(RangeError):
            stays_calm(Kernel(BADLY_CONDITIONED[name], device="cpu"), np.concatenate([first, second]))


CENTRED = np.random.default_rng(0).standard_normal((2, 1, 12, 12))
CENTRED -= CENTRED.mean(axis=(2, 3), keepdims=True) - 1e-4
FIRST, SECOND = Conv(2, padding=1, weight_var=1.078, bias_var=0.699), Conv(3, weight_var=2.049, bias_var=0.955)


@each_dtype
def test_sums_under_pools_raise_no_alarm(dtype: str) -> None:
    # Equal places of one image have correlation one, where a Step has the slope of a root.
    equal = Sequential(FIRST, Step(), SECOND, ReLU(), AvgPool(3, 1, 1), Conv(5), ReLU(), Dense())
    flat = np.ones((2, 1, 26)) * np.array([4.0, 5.0]).reshape(2, 1, 1)
    assert stays_calm(Kernel(equal, device="cpu", dtype=dtype), flat)
    # Of standardised images little is left, beside the covariances of two pixels that add up to it.
    for nothing in (Sequential(GlobalAvgPool(), Dense()), Sequential(Conv(1), GlobalAvgPool())):
        assert stays_calm(Kernel(nothing, device="cpu", dtype=dtype), CENTRED, times=1.0)


def test_the_bound_of_plain_networks_is_the_documented_one() -> None:
    for dtype, bound in (("float32", 1e-6), ("float64", 1e-12)):
        assert check.documented_bound(zoo.resnet(32), np.dtype(dtype)) == bound
        verdict = Kernel(NET, device="cpu", dtype=dtype).verify(X)
        assert verdict is not None
        assert verdict.error is not None
        assert verdict.error <= bound == verdict.bound
    deep = Sequential(*[Dense(), ReLU()] * 300, Dense())
    assert check.documented_bound(deep, np.dtype("float32")) == 2e-6


def test_images_that_tell_nothing_leave_the_question_open(compared: list[Network]) -> None:
    kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu")
    kernel(np.zeros((3, 1, 6, 6)))
    assert kernel.verdict((1, 6, 6)) is None
    kernel(np.concatenate([np.zeros((3, 1, 6, 6)), X]))
    assert kernel.verdict((1, 6, 6)) is not None
    assert len(compared) == 2
    bad = X.copy()
    bad[1] *= 1e-20
    with pytest.raises(RangeError, match="image 1 has variance"):
        Kernel(Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense()), device="cpu")(bad)


def test_nobody_pays_twice(compared: list[Network], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = Kernel(NET, device="cpu")
    for _ in range(3):
        kernel(X)
    kernel(X, X[:2])
    kernel.diag(X)
    Kernel(NET, device="cpu")(X[2:])
    gram(pickle.loads(pickle.dumps(kernel)), X, tile=2)
    gram(kernel, X, store=tmp_path / "K.zarr", tile=2)
    kernel.as_sklearn((1, 6, 6))(X.reshape(5, -1))
    assert compared == [NET]
    others = Kernel(NET, device="cpu", dtype="float64"), Kernel(Sequential(NET, ReLU(), Dense()), device="cpu")
    for count, (other, of) in enumerate(((others[0], X), (others[1], X), (kernel, X[..., :5])), start=2):
        other(of)
        assert len(compared) == count
    monkeypatch.setattr(check, "_code", lambda: "another version")
    Kernel(NET, device="cpu")(X)
    assert len(compared) == 5
    unchecked = Kernel(TANH, device="cpu", check=False)
    unchecked(X), unchecked.prepare(X), gram(unchecked, X, store=tmp_path / "L.zarr")
    unchecked.as_sklearn((1, 6, 6))(X.reshape(5, -1))
    assert len(compared) == 5


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", "\0", "[" * 100_000])
def test_a_damaged_verdict_is_made_again(compared: list[Network], content: str) -> None:
    Kernel(NET, device="cpu")(X)
    (file,) = Path(os.environ["CNNGP_CACHE"], "checks").iterdir()
    file.write_text(content)
    Kernel(NET, device="cpu")(X)
    assert compared == [NET, NET]
    assert json.loads(file.read_text())["bound"] == 1e-6


def test_without_a_place_for_verdicts_each_kernel_compares_once(
    compared: list[Network], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / "file"))
    kernel = Kernel(NET, device="cpu")
    kernel(X), kernel(X)
    assert compared == [NET]
    monkeypatch.setattr(Path, "home", home)
    for name in ("CNNGP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    Kernel(NET, device="cpu")(X)
    assert compared == [NET, NET]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert check.folder() == tmp_path / "cnngp" / "checks"


def test_stores_and_models_say_that_it_was_done(tmp_path: Path) -> None:
    import zarr

    gram(Kernel(NET, device="cpu"), X, store=tmp_path / "K.zarr")
    note: Any = zarr.open_group(tmp_path / "K.zarr", mode="r").attrs["check"]
    assert note["by"] == "this process"
    assert 0.0 < note["error"] <= note["bound"] == 1e-6
    gram(Kernel(NET, device="cpu", check=False), X, store=tmp_path / "L.zarr")
    assert zarr.open_group(tmp_path / "L.zarr", mode="r").attrs["check"] == {"by": "nobody: check=False"}
    data = datasets.digits().take(30, 5)
    clf = GPClassifier(NET, device="cpu").fit(data.X, data.y)
    assert clf.fit_report_.check is not None
    assert "from the float64 reference on two images, where rounding explains 1e-06" in clf.fit_report_.check
    clf.save(tmp_path / "model.gp")
    assert GPClassifier.load(tmp_path / "model.gp", device="cpu").fit_report_.check == clf.fit_report_.check
    unchecked = GPClassifier(Kernel(NET, device="cpu", check=False)).fit(data.X, data.y)
    assert unchecked.fit_report_.check == "none: Kernel(…, check=False)"


def test_a_fit_reports_entries_that_are_off_by_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times further off: no alarm, and not hidden either; what the report says: test_certificate.py."""
    spoil(monkeypatch, 1.00002)
    data = datasets.digits().take(30, 5)
    report = GPClassifier(NET, device="cpu").fit(data.X, data.y).fit_report_
    assert report.kernel_error == pytest.approx(2e-5, rel=0.1)
    assert report.worrying
    inducing = replace(report, method="inducing", excess=0.2, excess_uncertainty=0.0).verdict
    assert "Warning: its error may be up to 20.0 points above" in inducing  # beside what is said of the entries
    assert inducing.endswith("where rounding explains 1e-06.")


# ---- whole images where the reference is quick, otherwise a part of them ---------------------------------------------

EXACT_SIZE = Sequential(Conv(3), Elementwise("tanh"), Conv(28, padding="valid"))
STRIDED = Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense())
WIDER = Sequential(Conv(3), ReLU(), ConvTranspose(3, stride=2), ReLU(), Dense())
PARTS: list[tuple[Network, tuple[int, ...], tuple[int, ...]]] = [
    *((net, (1, 28, 28), (1, 28, 28)) for net in (zoo.resnet(32), zoo.convnet(), zoo.residual_cnn())),
    *((net, (3, 224, 224), (3, 224, 224)) for net in (STRIDED, Sequential(Conv(3), ReLU(), Dense()))),
    *((zoo.dense_nngp(), (784,), (784,)), (WIDER, (1, 64, 64), (1, 64, 64))),
    *((TANH, (1, 28, 28), (1, 4, 4)), (TANH, (1, 3, 400), (1, 3, 4))),  # of the longer side alone
    # As small a part as the network allows, which is not always a half or a quarter.
    *((zoo.pooled_cnn("small"), (1, 28, 28), (1, 16, 16)), (zoo.pooled_cnn("large"), (3, 30, 40), (3, 16, 16))),
    (zoo.pooled_cnn("medium", 2), (3, 48, 64), (3, 32, 32)),
    # The reference begins with the covariance of every two pixels: 20 GB of them, whatever the stride makes of it.
    (Sequential(Conv(16, stride=16), ReLU(), GlobalAvgPool(), Dense()), (3, 224, 224), (3, 16, 16)),
    # Zeros around an image need no memory, though there would be 24³ · 24³ of them here.
    (Sequential(Conv(11, stride=5, padding=9), ReLU(), GlobalAvgPool(), Dense()), (1, 6, 6, 6), (1, 6, 6, 6)),
    (Sequential(ConvTranspose(15, padding=9), ReLU(), GlobalAvgPool(), Dense()), (1, 6, 6, 6), (1, 6, 6, 6)),
]


@pytest.mark.parametrize(("net", "shape", "part"), PARTS, ids=lambda value: repr(value)[:50])
def test_the_reference_takes_little_time_and_memory(net: Network, shape: Any, part: Any) -> None:
    assert check._affordable(net, shape) == part
    pair = check._cropped(np.random.default_rng(0).random((2, *shape)), part)
    assert pair.shape[1:] == part
    tracemalloc.start()
    try:
        check.compare(net, pair, np.zeros((2, 2)), np.dtype("float32"))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_what_was_compared_is_told() -> None:
    images = np.random.default_rng(0).random((3, 1, 28, 28))
    told = str(Kernel(TANH, device="cpu").verify(images))
    assert "on two images, cropped to 4 × 4, where rounding explains 1e-06" in told
    verdict = Kernel(EXACT_SIZE, device="cpu").verify(images)
    assert verdict == check.Verdict(None, 1e-6)
    assert str(verdict) == "not compared: the float64 reference would take too long on this network"
