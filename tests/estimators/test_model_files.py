"""Models in files: they come back as they were, and files that were tampered with are refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from cnngp import Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential
from cnngp.common import files as persistence
from cnngp.common.errors import ModelFileError
from cnngp.gp.linalg import JitterWarning
from cnngp.network.layers import Elementwise
from helpers.estimators import DATA, NET


def test_a_regressor_comes_back_and_is_no_classifier(tmp_path: Path) -> None:
    reg = GPRegressor(Sequential(Dense(), ReLU(), Dense()), noise=0.01, normalize_y=True)
    reg.fit(pandas.DataFrame(DATA.X.reshape(150, -1)).add_prefix("pixel "), DATA.y).save(tmp_path / "reg.gp")
    again = GPRegressor.load(tmp_path / "reg.gp")
    np.testing.assert_array_equal(again.feature_names_in_, reg.feature_names_in_)
    test = pandas.DataFrame(DATA.X_test.reshape(80, -1)).add_prefix("pixel ")
    np.testing.assert_array_equal(again.predict(test), reg.predict(test))
    with pytest.raises(ModelFileError, match=r"holds a GPRegressor; load it with GPRegressor\.load"):
        GPClassifier.load(tmp_path / "reg.gp")


@pytest.mark.parametrize("noise", [0.0, "ml"])
def test_save_and_load(tmp_path: Path, noise: Any) -> None:
    clf = GPClassifier(NET, noise=noise).fit(DATA.X, np.array([f"class {c}" for c in DATA.y]))
    clf.save(tmp_path / "digits.gp")
    again = GPClassifier.load(tmp_path / "digits.gp")
    np.testing.assert_array_equal(again.predict_proba(DATA.X_test), clf.predict_proba(DATA.X_test))
    assert again.loo_error_ == clf.loo_error_
    assert again.get_params()["noise"] == (noise or clf.recipe_.noise)
    assert again.fit_report_ == clf.fit_report_
    again.add(DATA.X_test[:5], [f"class {c}" for c in DATA.y_test[:5]])
    assert list(tmp_path.iterdir()) == [tmp_path / "digits.gp"]


def test_a_model_saved_without_its_time_of_compiling_loads(fitted: GPClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "digits.gp")
    header, arrays = persistence.read(tmp_path / "digits.gp")
    del header["report"]["compile_seconds"]
    persistence.write(tmp_path / "older.gp", header, arrays)
    older = GPClassifier.load(tmp_path / "older.gp")
    assert older.fit_report_ == replace(fitted.fit_report_, compile_seconds=0.0)


def test_a_given_kernel_and_numpy_numbers_are_saved(tmp_path: Path) -> None:
    clf = GPClassifier(Kernel(NET, dtype="float64"), noise=np.float32(0.5)).fit(DATA.X, DATA.y)
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp")
    assert again.kernel_.dtype == "float64"
    np.testing.assert_array_equal(again.predict_proba(DATA.X_test), clf.predict_proba(DATA.X_test))


def test_a_jittered_model_loads_without_a_new_warning(tmp_path: Path) -> None:
    with pytest.warns(JitterWarning):
        clf = GPClassifier(NET).fit(np.concatenate([DATA.X[:20]] * 2), np.concatenate([DATA.y[:20]] * 2))
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp")
    np.testing.assert_array_equal(again.predict_proba(DATA.X_test), clf.predict_proba(DATA.X_test))


def test_damaged_model_files_are_refused(fitted: GPClassifier, tmp_path: Path) -> None:
    path = tmp_path / "m.gp"
    fitted.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="is not a model saved by cnngp, or is cut short"):
        GPClassifier.load(path)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            again = GPClassifier.load(path)
        except ModelFileError:
            continue
        # A flip in the zip's own bookkeeping (dates, attributes) changes nothing that is read.
        np.testing.assert_array_equal(again.predict_proba(DATA.X_test), fitted.predict_proba(DATA.X_test))
    with pytest.raises(ModelFileError, match="no such file"):
        GPClassifier.load(tmp_path / "none.gp")


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("trap-was-run"),)


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in a model's place, and a pickled array inside a well-formed model."""

    monkeypatch.chdir(tmp_path)
    Path("m.gp").write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(ModelFileError):
        GPClassifier.load("m.gp")
    with Path("m.gp").open("wb") as file:
        np.savez(file, X=np.array([_Trap()], dtype=object))
    with pytest.raises(ModelFileError, match="never unpickled"):
        GPClassifier.load("m.gp")
    assert not Path("trap-was-run").exists()


def test_networks_with_python_functions_are_not_saved(tmp_path: Path) -> None:
    net = Sequential(Dense(), Elementwise(lambda z: np.tanh(2 * z)), Dense())
    clf = GPClassifier(net).fit(DATA.X[:20].reshape(20, -1), DATA.y[:20], K=np.eye(20))
    with pytest.raises(ValueError, match="cannot be written to a file"):
        clf.save(tmp_path / "m.gp")


def test_python_objects_are_not_saved(tmp_path: Path) -> None:

    with pytest.raises(ModelFileError, match="classes holds Python objects"):
        persistence.write(tmp_path / "m.gp", {}, {"classes": np.array([1, "a"], dtype=object)})
