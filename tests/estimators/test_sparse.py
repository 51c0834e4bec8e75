"""`SparseGPClassifier` as a user meets it."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from cnngp import Conv, Dense, GPClassifier, Kernel, ReLU, Sequential, SparseGPClassifier, datasets, zoo
from cnngp.common import files as persistence
from cnngp.common.arrays import DataError
from cnngp.common.errors import ModelFileError
from cnngp.estimators.sparse.model import Whitening
from cnngp.estimators.sparse.robustmax import gpytorch
from helpers.sparse_problems import DIGITS, NET

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def fitted(network: object = NET, n: int = 300, **parameters: object) -> SparseGPClassifier:
    settings = {"inducing": 60, "epochs": 5, "batch_size": 100, "device": "cpu"} | parameters
    return SparseGPClassifier(network, **settings).fit(DIGITS.X[:n], DIGITS.y[:n])


def test_probabilities_labels_and_repetition() -> None:
    names = np.array(["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    X, X_test = DIGITS.X[:300], DIGITS.X_test
    clf = SparseGPClassifier(NET, inducing=60, epochs=5, batch_size=100, device="cpu").fit(X, names[DIGITS.y[:300]])
    P = clf.predict_proba(X_test)
    np.testing.assert_allclose(P.sum(1), 1.0, rtol=0, atol=1e-12)
    assert P.min() > 0
    assert set(clf.classes_) == set(names)
    np.testing.assert_array_equal(clf.predict(X_test), clf.classes_[P.argmax(1)])
    assert clf.score(X_test, names[DIGITS.y_test]) > 0.88
    assert len(clf.elbo_) == 5
    assert clf.elbo_[-1] > clf.elbo_[0]
    assert len(np.unique(clf.inducing_)) == 60
    again = clone(clf).fit(X, names[DIGITS.y[:300]])
    np.testing.assert_array_equal(again.predict_proba(X_test), P)
    kept = pickle.loads(pickle.dumps(clf))
    np.testing.assert_array_equal(kept.predict_proba(X_test), P)
    other = clone(clf).set_params(random_state=1).fit(X, names[DIGITS.y[:300]])
    assert not np.array_equal(other.inducing_, clf.inducing_)
    mean, variance = clf.predict_latent(X_test[:7])
    assert mean.shape == variance.shape == (7, 10)
    assert variance.min() > 0


@pytest.mark.parametrize(("network", "dtype"), [(NET, "float32"), ("small_cnn", "float64"), ("rbf", "float32")])
def test_save_and_load(network: object, dtype: str, tmp_path: Path) -> None:
    clf = fitted(network, dtype=dtype, inducing=40, epochs=2)
    clf.save(tmp_path / "m.gp")
    again = SparseGPClassifier.load(tmp_path / "m.gp", device="cpu")
    np.testing.assert_array_equal(again.predict_proba(DIGITS.X_test), clf.predict_proba(DIGITS.X_test))
    np.testing.assert_array_equal(again.elbo_, clf.elbo_)
    np.testing.assert_array_equal(again.inducing_, clf.inducing_)
    assert again.lengthscale_ == clf.lengthscale_
    again.save(tmp_path / "again.gp")
    (ours, ours_arrays), (theirs, arrays) = (persistence.read(tmp_path / name) for name in ("m.gp", "again.gp"))
    assert ours == theirs
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, ours_arrays[name])
    assert again.fit(DIGITS.X[:100], DIGITS.y[:100]).score(DIGITS.X_test, DIGITS.y_test) > 0.5
    np.testing.assert_array_equal(np.exp(clf.predict_log_proba(DIGITS.X_test)).argmax(1), clf.predict(DIGITS.X_test))


def test_files_that_hold_no_sparse_model(tmp_path: Path) -> None:
    GPClassifier(NET, device="cpu").fit(DIGITS.X[:60], DIGITS.y[:60]).save(tmp_path / "exact.gp")
    with pytest.raises(ModelFileError, match=r"holds a GPClassifier; load it with GPClassifier\.load"):
        SparseGPClassifier.load(tmp_path / "exact.gp")
    clf = fitted(inducing=20, epochs=1)
    clf.save(tmp_path / "m.gp")
    header, arrays = persistence.read(tmp_path / "m.gp")
    header.pop("cnngp_model")
    name = next(n for n in arrays if n.endswith("variational_mean"))
    for spoilt in (
        {name: arrays[name][:, :3]},
        {"L": arrays["L"][:3, :3]},
        {"classes": arrays["classes"][:4]},
        {"X": arrays["X"] * np.nan},
        {"inducing": arrays["inducing"][:4]},
    ):
        persistence.write(tmp_path / "bad.gp", header, arrays | spoilt)
        with pytest.raises(ModelFileError, match="is not a model that this version can read"):
            SparseGPClassifier.load(tmp_path / "bad.gp", device="cpu")
    for missing in ("X", "L", "elbo", name):
        persistence.write(tmp_path / "bad.gp", header, {n: a for n, a in arrays.items() if n != missing})
        with pytest.raises(ModelFileError, match="is not a model that this version can read"):
            SparseGPClassifier.load(tmp_path / "bad.gp", device="cpu")
    own = fitted(gpytorch.kernels.MaternKernel(), inducing=20, epochs=1)
    with pytest.raises(ModelFileError, match="a model with a MaternKernel cannot be saved"):
        own.save(tmp_path / "own.gp")
    with pytest.raises(NotFittedError):
        SparseGPClassifier(NET).save(tmp_path / "none.gp")


def test_a_fit_leaves_nothing_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a pickle opens without one. The card itself is in the gpu tests."""
    moved = []
    original = Whitening.to
    monkeypatch.setattr(Whitening, "to", lambda self, device: (moved.append(str(device)), original(self, device))[1])
    fitted(epochs=1)
    assert moved == ["cpu"]


def test_the_kernel_is_asked_once_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = Kernel.__call__

    def counting(self: Kernel, X: np.ndarray, Z: np.ndarray | None = None, **options: object) -> object:
        asked.append((len(X), len(X if Z is None else Z)))
        return original(self, X, Z, **options)

    monkeypatch.setattr(Kernel, "__call__", counting)
    fitted(epochs=4)
    assert sum(a * b for a, b in asked) == 60 * 60 + 300 * 60


def test_the_scale_of_the_kernel_has_no_effect() -> None:
    def net(scale: float) -> Sequential:
        return Sequential(Conv(3, bias_var=0.1), ReLU(), Dense(weight_var=scale))

    a, b = (fitted(net(scale), dtype="float64", epochs=2).predict_proba(DIGITS.X_test[:50]) for scale in (1.0, 64.0))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_precisions_agree() -> None:
    single, double = (fitted(dtype=dtype).predict_proba(DIGITS.X_test[:100]) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(single, double, rtol=0, atol=0.02)


def test_rows_given_as_inducing_points_and_flat_images() -> None:
    rows = np.arange(0, 300, 6)
    clf = fitted(inducing=rows)
    np.testing.assert_array_equal(clf.inducing_, rows)
    flat = SparseGPClassifier(NET, inducing=rows, epochs=5, batch_size=100, device="cpu", input_shape=(1, 8, 8))
    flat.fit(DIGITS.X[:300].reshape(300, 64), DIGITS.y[:300])
    P = flat.predict_proba(DIGITS.X_test[:20].reshape(20, 64))
    np.testing.assert_array_equal(P, clf.predict_proba(DIGITS.X_test[:20]))
    few = SparseGPClassifier(NET, epochs=1, device="cpu").fit(DIGITS.X[:40], DIGITS.y[:40])
    assert len(few.inducing_) == 40  # None: all of them where there are fewer than 1,000


def test_the_learned_kernels() -> None:
    clf = fitted("rbf", epochs=12, inducing=80)
    distances = torch.pdist(torch.tensor(DIGITS.X[clf.inducing_].reshape(80, -1))).median().item()
    assert clf.lengthscale_ is not None
    assert 0.3 * distances < clf.lengthscale_ < 3 * distances
    assert abs(clf.lengthscale_ / distances - 1) > 0.01  # it was learned, not left where it began
    assert clf.score(DIGITS.X_test, DIGITS.y_test) > 0.88
    given = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5))
    given.base_kernel.lengthscale = 2.0
    before = given.base_kernel.lengthscale.item()
    matern = fitted(given, epochs=12, inducing=80)
    assert matern.score(DIGITS.X_test, DIGITS.y_test) > 0.88
    assert given.base_kernel.lengthscale.item() == before  # the parameter is the user's
    assert matern.kernel_.base_kernel.lengthscale.item() != before
    assert matern.lengthscale_ is None


def test_all_images_as_inducing_points_come_near_the_exact_gp() -> None:
    X, y = DIGITS.X[:300], DIGITS.y[:300]
    exact = 1 - GPClassifier(NET, device="cpu").fit(X, y).score(DIGITS.X_test, DIGITS.y_test)
    clf = SparseGPClassifier(NET, inducing=300, epochs=25, batch_size=100, learning_rate=0.03, device="cpu")
    clf.fit(X, y)
    sparse = 1 - clf.score(DIGITS.X_test, DIGITS.y_test)
    # Of 500 test images: two standard errors of a difference of two shares around 5 %.
    assert abs(sparse - exact) < 2 * math.sqrt(2 * 0.05 * 0.95 / 500)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"inducing": 301}, r"inducing=301, but there are 300 training images; use 1 to 300"),
        ({"inducing": 0}, "inducing=0, but there are 300"),
        ({"inducing": [3, 300]}, "rows from 0 to 299"),
        ({"inducing": [3, 3]}, "given twice"),
        ({"epochs": 0}, "epochs=0; expected a whole number"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"epsilon": 1.5}, "epsilon=1.5"),
        ({"jitter": 0.0}, "jitter=0.0"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"network": "rfb"}, "no network 'rfb': expected auto, .*, or 'rbf'"),
        ({"input_shape": (1, 9, 9)}, "does not hold images of input_shape"),
        ({"random_state": -1}, "random_state=-1; expected a whole number of 0 or more, None, or a generator"),
        ({"random_state": True}, "random_state=True; expected a whole number"),
        ({"random_state": "0"}, "random_state='0'; expected a whole number"),
        ({"epochs": True}, "epochs=True; expected a whole number"),
        ({"network": Kernel(NET, "cpu", threads=1), "threads": 2}, "threads=2, but the Kernel that was given has"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        SparseGPClassifier(**({"network": NET, "device": "cpu"} | parameters)).fit(DIGITS.X[:300], DIGITS.y[:300])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [None, 3, np.int64(3), np.random.default_rng(3), np.random.RandomState(3)])
def test_random_states(state: Any) -> None:
    """A number gives the same fit again; anything else draws anew."""
    made = [fitted(n=60, epochs=2, inducing=12, random_state=state) for _ in range(2)]
    same = isinstance(state, Integral)
    assert np.array_equal(made[0].inducing_, made[1].inducing_) == same
    assert np.array_equal(made[0].elbo_, made[1].elbo_) == same
    again = np.random.RandomState(3) if isinstance(state, np.random.RandomState) else np.random.default_rng(3)
    if state is not None and not same:  # a generator in the same state gives the same fit
        assert np.array_equal(fitted(n=60, epochs=2, inducing=12, random_state=again).elbo_, made[0].elbo_)


def test_random_states_decide_on_the_minibatches_too() -> None:
    seeds = (1, 1, 2, None, None, np.random.default_rng(3))
    made = [
        fitted(n=60, epochs=2, inducing=range(12), batch_size=20, random_state=seed).elbo_.tolist() for seed in seeds
    ]
    assert made[0] == made[1]
    assert len(set(map(tuple, made))) == 5


def test_training_in_another_precision_than_the_kernel() -> None:
    clf = fitted(Kernel(NET, "cpu", "float32"), n=60, epochs=2, inducing=12, dtype="float64")
    assert clf.kernel_.dtype == "float32"
    assert {p.dtype for p in clf.model_.parameters()} == {torch.float64}


def test_numbers_of_numpy_are_parameters() -> None:
    given = {
        "inducing": np.int64(12),
        "epochs": np.int32(2),
        "batch_size": np.int64(30),
        "learning_rate": np.float32(1),
    }
    plain = {name: value.item() for name, value in given.items()}
    assert np.array_equal(fitted(n=60, **given).elbo_, fitted(n=60, **plain).elbo_)


def test_bad_data_is_refused() -> None:
    clf = SparseGPClassifier(NET, inducing=10, epochs=1, device="cpu")
    X, y = DIGITS.X[:20], DIGITS.y[:20]
    trained = clone(clf).fit(X, y)
    for given, message in (
        (X * 1j, "^X has type complex64; expected real numbers$"),
        (X.astype("U9"), "^X has type <U9; expected real numbers$"),
        (X.reshape(20, -1).astype("S9"), r"^X has type \|S9; expected real numbers$"),
        (X.reshape(20, -1).astype("datetime64[s]"), r"^X has type datetime64\[s\]; expected real numbers$"),
        (X.reshape(20, -1) * 1j, r"^X has type complex64; .* Complex data not supported$"),
    ):
        with pytest.raises(ValueError, match=message):
            clf.fit(given, y)
        with pytest.raises(ValueError, match=message):
            trained.predict(given)
    with pytest.raises(DataError, match="one class only"):
        clf.fit(DIGITS.X[:20], np.zeros(20, dtype=int))
    with pytest.raises(DataError, match="20 images but 19 labels"):
        clf.fit(DIGITS.X[:20], DIGITS.y[:19])
    with pytest.raises(ValueError, match="y is None"):
        clf.fit(DIGITS.X[:20], None)
    with pytest.raises(DataError, match="give their shape, such as input_shape=\\(1, 8, 8\\)"):
        clf.fit(DIGITS.X[:20].reshape(20, 64), DIGITS.y[:20])
    broken = DIGITS.X[:20].copy()
    broken[3, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"X\[3\] has NaN pixels"):
        clf.fit(broken, DIGITS.y[:20])
    with pytest.raises(ValueError, match="not fitted"):
        SparseGPClassifier(NET).predict(DIGITS.X[:3])
    clf.fit(DIGITS.X[:20], DIGITS.y[:20])
    with pytest.raises(DataError, match="the model was fitted on"):
        clf.predict(np.zeros((2, 1, 9, 9)))


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"inducing": 10_000}, "inducing=10000"),
        ({"epochs": 0}, "epochs=0"),
        ({"network": "rbg"}, "no network 'rbg'"),
        ({"learning_rate": 1e25}, "use a learning_rate below"),  # after the kernels, in training
    ],
)
def test_a_fit_that_fails_leaves_no_model(spoilt: dict[str, Any], message: str) -> None:
    """Else the first model's functions would be told by the second one's labels."""
    data = DIGITS.take(60, 10)
    clf = SparseGPClassifier(NET, inducing=20, epochs=2, device="cpu").fit(data.X, data.y)
    with pytest.raises((ValueError, FloatingPointError), match=message):
        clf.set_params(**spoilt).fit(data.X, np.array(list("abcdefghij"))[data.y])
    for method in (clf.predict, clf.predict_proba, clf.predict_latent):
        with pytest.raises(NotFittedError):
            method(data.X_test)


def test_a_rate_that_diverges_is_a_clear_error() -> None:
    with pytest.raises(FloatingPointError, match="use a learning_rate below 1e"):
        fitted(learning_rate=1e25)


@pytest.mark.parametrize("missing", ["torch", "gpytorch"])
def test_a_missing_library_is_one_line(missing: str) -> None:
    code = (
        "import sys, importlib.abc\nclass Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import numpy as np\nfrom cnngp import SparseGPClassifier\n"
        "try:\n    SparseGPClassifier().fit(np.zeros((4, 2)), [0, 1, 0, 1])\n"
        "except ImportError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith("SparseGPClassifier needs ")
    assert 'pip install "cnngp[torch]"' in out
    assert out.count("\n") == 1


@pytest.mark.slow
def test_a_convolutional_kernel_beats_pixels_on_mnist() -> None:
    data = datasets.mnist().take(2000, 2000)
    errors = {}
    for name, network in (("conv", zoo.small_cnn()), ("pixels", "rbf")):
        clf = SparseGPClassifier(network, inducing=300, epochs=40, batch_size=200, device="cpu")
        errors[name] = 1 - clf.fit(data.X, data.y).score(data.X_test, data.y_test)
    assert errors["conv"] < errors["pixels"]


@pytest.mark.gpu
@pytest.mark.parametrize("network", [NET, "rbf"], ids=["network", "rbf"])
def test_on_a_card(network: object) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no card")
    on_card, on_cpu = (
        fitted(network, device=device, dtype="float64").predict_proba(DIGITS.X_test[:100]) for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(on_card, on_cpu, rtol=0, atol=1e-6)
    single = fitted(network, device="cuda")
    assert single.score(DIGITS.X_test, DIGITS.y_test) > 0.88
    assert next(single.model_.parameters()).device.type == "cpu"  # so that a saved model opens anywhere
    if isinstance(single.kernel_, Kernel):
        assert single._whitening.L.device.type == single._whitening.scale.device.type == "cpu"
