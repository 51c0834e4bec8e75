"""Kernels that check themselves: what is wrong is found, what is only rounded is not, and nobody pays twice."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    GPClassifier,
    Kernel,
    ReLU,
    Sequential,
    Sin,
    Step,
    datasets,
    gram,
    zoo,
)
from cnngp.kernel import check, verdicts
from cnngp.kernel.check import WrongKernelError
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.network.layers import Network
from helpers.examples import examples
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
X = np.random.default_rng(0).standard_normal((5, 1, 6, 6))


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verdicts, "_known", {})
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


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]) -> None:
    """Break the CPU engine: its matrices of one set are changed in place."""
    honest = CpuEngine.symmetric

    def wrong(self: CpuEngine, X: Any, *rest: Any) -> Any:
        K = honest(self, X, *rest)
        spoil(K)
        return K

    monkeypatch.setattr(CpuEngine, "symmetric", wrong)


def off_diagonal(K: Any) -> None:
    K[0, 1] *= 1.005
    K[1, 0] *= 1.005


def diagonal(K: Any) -> None:
    K[1, 1] *= 1.01


def nan(K: Any) -> None:
    K[0, 1] = K[1, 0] = np.nan


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoil", [off_diagonal, diagonal, nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wrong_engine_is_found_before_the_first_matrix(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None], dtype: str
) -> None:
    spoiled(monkeypatch, spoil)
    kernel = Kernel(NET, device="cpu", dtype=dtype)
    told = (
        rf"the engine cpu-\d+-{dtype} computes this network wrongly on images of shape \(1, 6, 6\): it gives .* where "
    )
    told += (
        r"the float64 reference gives .*, Sequential\(Conv\(3, bias_var=0.1\), ReLU\(\), Dense\(\)\)\. Another device"
    )
    for call in (
        lambda: kernel(X),
        lambda: kernel(X, X[:2]),
        lambda: kernel.prepare(X),
        lambda: gram(kernel, X, tile=2),
    ):
        with pytest.raises(WrongKernelError, match=told):
            call()
    assert np.shape(Kernel(NET, device="cpu", dtype=dtype, check=False)(X)) == (5, 5)


def test_a_wrong_engine_writes_no_tile_and_fits_no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spoiled(monkeypatch, off_diagonal)
    with pytest.raises(WrongKernelError):
        gram(Kernel(NET, device="cpu"), X, store=tmp_path / "K.zarr")
    assert not list((tmp_path / "K.zarr").rglob("c/*/*"))
    with pytest.raises(WrongKernelError):
        GPClassifier(NET, device="cpu").fit(X, [0, 1, 0, 1, 0])


# ---- what is only rounded --------------------------------------------------------------------------------------------

BADLY_CONDITIONED = {
    "three steps": Sequential(*[layer for _ in range(3) for layer in (Conv(3), Step())], Dense()),
    "a step behind many layers": Sequential(
        *[x for _ in range(12) for x in (Conv(3), ReLU())], Conv(3), Step(), Dense()
    ),
    "steep erf": Sequential(*[layer for _ in range(4) for layer in (Conv(3, weight_var=1e5), Erf())], Dense()),
    "erf of a large bias": Sequential(Conv(3, bias_var=1e9), Erf(), Dense()),
    "sine of a large bias": Sequential(Conv(3, bias_var=1e5), Sin(), Dense()),
    "sines": Sequential(Conv(3, weight_var=1e3), Sin(), Conv(3, weight_var=1e3), Cos(), Dense()),
    "tanh": Sequential(Conv(3, weight_var=50.0), Elementwise("tanh"), Dense(bias_var=0.1)),
    "a kink": Sequential(Conv(3), Elementwise("relu6"), Dense()),
    "a kink that nobody knows of": Sequential(Conv(1), Elementwise(lambda x: np.maximum(x, 0.1 * x)), Dense()),
}


@pytest.mark.parametrize("name", BADLY_CONDITIONED)
def test_conditioning_raises_no_alarm(name: str) -> None:
    net = BADLY_CONDITIONED[name]
    scale = 0.2 if "kink" in name else 1.0
    first = np.random.default_rng(1).standard_normal((1, 1, 6, 6)) * scale
    near = first * (1.0 + 1e-7 * np.random.default_rng(2).standard_normal(first.shape))
    for second in (first, near, first[..., ::-1], -first, 255.0 * first if "kink" not in name else first):
        verdicts._known.clear()
        try:
            verdict = Kernel(net, device="cpu").verify(np.concatenate([first, second]))
        except RangeError:
            continue
        if verdict is not None and verdict.error is not None:
            assert verdict.error <= 10.0 * verdict.bound  # far from an alarm, too


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_places_of_one_image_raise_no_alarm_under_a_pool(dtype: str) -> None:
    """They have correlation one, where a Step has the slope of a root, and the pool adds their covariances."""
    flat = np.ones((2, 1, 26)) * np.array([4.0, 5.0]).reshape(2, 1, 1)
    first, second = Conv(2, padding=1, weight_var=1.078, bias_var=0.699), Conv(3, weight_var=2.049, bias_var=0.955)
    net = Sequential(first, Step(), second, ReLU(), AvgPool(3, 1, 1), Conv(5), ReLU(), Dense())
    verdict = Kernel(net, device="cpu", dtype=dtype).verify(flat)
    assert verdict is not None
    assert verdict.error is not None
    assert verdict.error <= 10.0 * verdict.bound


@pytest.mark.parametrize("net", [Sequential(GlobalAvgPool(), Dense()), Sequential(Conv(1), GlobalAvgPool())], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_means_of_nearly_nothing_raise_no_alarm(net: Network, dtype: str) -> None:
    """Of standardised images little is left, beside the covariances of two pixels that add up to it."""
    images = np.random.default_rng(0).standard_normal((2, 1, 12, 12))
    images -= images.mean(axis=(2, 3), keepdims=True) - 1e-4
    verdict = Kernel(net, device="cpu", dtype=dtype).verify(images)
    assert verdict is not None
    assert verdict.error is not None
    assert verdict.error <= verdict.bound


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth, st.just(STEP))), seed=st.integers(0, 2**32 - 1))
@examples(15)
def test_generated_networks_raise_no_alarm(drawn: Any, seed: int) -> None:
    net, shape = drawn
    for dtype in ("float32", "float64"):
        verdict = Kernel(net, device="cpu", dtype=dtype).verify(images(shape, 4, seed))
        if verdict is not None and verdict.error is not None:
            assert verdict.error <= 10.0 * verdict.bound


def test_the_bound_of_plain_networks_is_the_documented_one() -> None:
    for dtype, bound in (("float32", 1e-6), ("float64", 1e-12)):
        assert check.documented_bound(zoo.resnet(32), np.dtype(dtype)) == bound
        verdict = Kernel(NET, device="cpu", dtype=dtype).verify(X)
        assert verdict is not None
        assert verdict.bound == bound
        assert verdict.error is not None
        assert verdict.error <= bound
    deep = Sequential(*[layer for _ in range(300) for layer in (Dense(), ReLU())], Dense())
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


# ---- what it costs ---------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(verdicts, "_known", {})  # another process
    Kernel(NET, device="cpu")(X)
    assert compared == [NET]
    for other in (Kernel(NET, device="cpu", dtype="float64"), Kernel(Sequential(NET, ReLU(), Dense()), device="cpu")):
        before = len(compared)
        other(X)
        assert len(compared) == before + 1
    kernel(X[..., :5])
    assert len(compared) == 4


def test_a_verdict_is_of_one_network_shape_engine_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(net: Network = NET, shape: tuple[int, ...] = (1, 6, 6), engine: str = "cpu-1") -> str:
        return verdicts.key(net, shape, engine)

    first = key()
    assert len({first, key(Dense()), key(shape=(1, 6, 7)), key(engine="cpu-2")}) == 4
    assert key() == first
    monkeypatch.setattr(verdicts, "_code", lambda: "another version")
    assert key() != first


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        "null",
        "\0",
        "[" * 100_000,
    ],
)
def test_a_damaged_verdict_is_made_again(
    compared: list[Network], monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    Kernel(NET, device="cpu")(X)
    (file,) = verdicts.folder().iterdir()
    file.write_text(content)
    monkeypatch.setattr(verdicts, "_known", {})
    Kernel(NET, device="cpu")(X)
    assert compared == [NET, NET]
    assert json.loads(file.read_text())["bound"] == 1e-6


def test_a_user_without_a_home(compared: list[Network], monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("CNNGP_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    Kernel(NET, device="cpu")(X)
    assert compared == [NET]


def test_a_cache_that_cannot_be_written(
    compared: list[Network], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / "file"))
    kernel = Kernel(NET, device="cpu")
    kernel(X), Kernel(NET, device="cpu")(X)
    assert compared == [NET]


def test_where_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert verdicts.folder() == Path(os.environ["CNNGP_CACHE"], "checks")
    monkeypatch.delenv("CNNGP_CACHE")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert verdicts.folder() == tmp_path / "cnngp-checks"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert verdicts.folder() == tmp_path / "cnngp" / "checks"


def test_it_can_be_turned_off(compared: list[Network], tmp_path: Path) -> None:
    kernel = Kernel(NET, device="cpu", check=False)
    kernel(X)
    kernel.prepare(X)
    gram(kernel, X, store=tmp_path / "K.zarr")
    pickle.loads(pickle.dumps(kernel))(X)
    kernel.as_sklearn((1, 6, 6))(X.reshape(5, -1))
    assert compared == []
    assert repr(kernel).endswith(", check=False)")
    with pytest.raises(ValueError, match="Kernel: check='no' is not True or False"):
        Kernel(NET, device="cpu", check="no")  # type: ignore[arg-type]


# ---- where it is written down ----------------------------------------------------------------------------------------


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


def test_the_certificate_names_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times further off than rounding explains: no alarm, and not hidden either."""

    def spoil(K: Any) -> None:
        K *= 1.00002

    spoiled(monkeypatch, spoil)
    data = datasets.digits().take(30, 5)
    report = GPClassifier(NET, device="cpu").fit(data.X, data.y).fit_report_
    assert report.kernel_error == pytest.approx(2e-5, rel=0.1)
    assert report.verdict.endswith(" Entries are off by 2e-05 of the largest, where rounding explains 1e-06.")
