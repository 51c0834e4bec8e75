"""Models in files, copies and pickles: they come back as they were, and files that were tampered with are refused."""

import copy
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pandas
import pytest

from cnngp import Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets
from cnngp.common import files as persistence
from cnngp.common.errors import ModelFileError
from cnngp.estimators import Learning, Recipe, Term
from cnngp.network.layers import Elementwise
from cnngp.network.names import network_by_name
from helpers.estimators import DATA


def test_a_regressor_comes_back_and_is_no_classifier(tmp_path: Path) -> None:
    reg = GPRegressor(Sequential(Dense(), ReLU(), Dense()), noise=0.01, normalize_y=True)
    reg.fit(pandas.DataFrame(DATA.X.reshape(150, -1)).add_prefix("pixel "), DATA.y).save(tmp_path / "reg.gp")
    again = GPRegressor.load(tmp_path / "reg.gp")
    np.testing.assert_array_equal(again.feature_names_in_, reg.feature_names_in_)
    test = pandas.DataFrame(DATA.X_test.reshape(80, -1)).add_prefix("pixel ")
    np.testing.assert_array_equal(again.predict(test), reg.predict(test))
    with pytest.raises(ModelFileError, match=r"holds a GPRegressor; load it with GPRegressor\.load"):
        GPClassifier.load(tmp_path / "reg.gp")


def test_damaged_model_files_are_refused(fitted: GPClassifier, tmp_path: Path) -> None:
    path = tmp_path / "m.gp"
    fitted.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="is not a whole model file"):
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
    path.write_bytes(whole)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["Y.npy"] = members["Y.npy"][:-8] + np.float64(3.0).tobytes()
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    with pytest.raises(ModelFileError, match="has been altered: its checksum does not match"):
        GPClassifier.load(path)
    with pytest.raises(ModelFileError, match="no such model file"):
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
    np.save("trap.npy", np.array([_Trap()], dtype=object), allow_pickle=True)
    members = {"header.json": b'{"cnngp_model": 1}', "X.npy": Path("trap.npy").read_bytes()}
    with zipfile.ZipFile("m.gp", "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
        file.writestr("sha256", persistence._digest(members))
    with pytest.raises(ModelFileError, match="cannot be read"):
        GPClassifier.load("m.gp")
    assert not Path("trap-was-run").exists()


def test_python_functions_and_objects_are_not_saved(tmp_path: Path) -> None:
    net = Sequential(Dense(), Elementwise(lambda z: np.tanh(2 * z)), Dense())
    clf = GPClassifier(net).fit(DATA.X[:20].reshape(20, -1), DATA.y[:20], K=np.eye(20))
    with pytest.raises(ValueError, match="cannot be written to a file"):
        clf.save(tmp_path / "m.gp")
    with pytest.raises(ModelFileError, match="classes holds Python objects"):
        persistence.write(tmp_path / "m.gp", {}, {"classes": np.array([1, "a"], dtype=object)})


# ---- copies and pickles ----------------------------------------------------------------------------------------------

SMALL = network_by_name("small_cnn")
FEW = datasets.digits().take(60, 5)
FEW_X, FEW_Y, FEW_NEW = FEW.X, FEW.y, FEW.X_test
SEVERAL = np.stack([FEW_Y % 2, FEW_Y > 4], 1)
WORDS = np.array([f"class {c}" for c in FEW_Y])


def by_joblib(model: Any) -> Any:
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    return joblib.load(file)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "joblib": by_joblib,
    "cloudpickle": lambda model: pickle.loads(cloudpickle.dumps(model)),
    "deepcopy": copy.deepcopy,
}
PATHS: dict[str, dict[str, Any]] = {
    "exact": {"noise": 0.1},
    "noise by leave-one-out": {"noise": "loo", "amplitude": "loo"},
    "inducing": {"inducing": 20},
    "own inducing images": {"inducing": FEW_X[:15], "noise": "ml"},
    "cg": {"noise": 0.1, "solver": "cg"},
    "stored": {"noise": 0.1, "store": "K.zarr"},
    "stored, cg": {"noise": 0.1, "solver": "cg", "store": "K.zarr"},
    "learned": {"noise": 0.1, "learn": Learning(images=20, starts=1, steps=2)},
    "prepared": {"noise": 0.1, "preparation": "contrast"},
    "tangent": {"noise": np.float32(0.1), "kind": "ntk"},
    "tangent, inducing": {"inducing": 20, "noise": 0.1, "kind": "ntk"},
    "kernel": {"network": Kernel(SMALL, device="cpu", dtype="float64", kind="ntk"), "noise": "ml"},
    "sum": {"network": Recipe([Term(SMALL, "zca", "flip"), Term("dense_nngp", weight=0.5)], noise=0.1)},
    "chosen": {"network": None, "effort": "quick"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("estimator", "y"), [(GPClassifier, WORDS), (GPClassifier, SEVERAL), (GPRegressor, FEW_Y)])
def test_copies_and_files_of_a_fitted_estimator_are_the_same(estimator: Any, y: Any, path: str, tmp_path: Path) -> None:
    options = {"network": "small_cnn"} | PATHS[path]
    if "store" in options:
        options["store"] = tmp_path / options["store"]
    unfitted = estimator(**options, device="cpu")
    model = copy.deepcopy(unfitted).fit(FEW_X, y, names=FEW.y.astype(str))

    def seen(model: Any) -> tuple[Any, ...]:
        spread = model.predict_proba(FEW_NEW) if estimator is GPClassifier else model.loo_std_
        return model.predict(FEW_NEW), spread, model.loo_predictions_, model.loo_rows_, model.X_, model.y_, model.names_

    def read(model: Any) -> Any:
        model.save(tmp_path / "m.gp")
        return estimator.load(tmp_path / "m.gp", device="cpu")

    expected = seen(model)
    for name, copied in (COPIES | {"file": read}).items():
        assert name == "file" or repr(copied(unfitted)) == repr(unfitted)
        again = copied(model)
        for ours, theirs in zip(seen(again), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, name)
        assert (again.fit_report_, again.recipe_) == (model.fit_report_, model.recipe_)
        assert (again.kernel_.kind, again.kernel_.dtype) == (model.kernel_.kind, model.kernel_.dtype)
        likelihoods = [m.log_marginal_likelihood_ or 0.0 for m in (again, model)]
        np.testing.assert_allclose(*likelihoods, rtol=1e-9)
    chosen = path == "chosen" or isinstance(options.get("noise"), str)
    assert isinstance(again.get_params()["noise"], str) == chosen
    if "solver" not in options and estimator is GPRegressor:
        assert len(again.add(FEW_X[:2], y[:2]).predict(FEW_NEW)) == 5


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_models_of_a_matrix_and_from_a_file(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    K = Kernel(SMALL, device="cpu")(FEW_X)
    model = copied(GPRegressor(noise=0.1).fit(K=K, y=FEW_Y))
    np.testing.assert_array_equal(model.predict(K=K), GPRegressor(noise=0.1).fit(K=K, y=FEW_Y).predict(K=K))
    model = GPClassifier("small_cnn", inducing=20, device="cpu").fit(FEW_X, FEW_Y)
    model.save(tmp_path / "model.gp")
    loaded = copied(GPClassifier.load(tmp_path / "model.gp", device="cpu"))
    np.testing.assert_array_equal(loaded.predict_proba(FEW_NEW), model.predict_proba(FEW_NEW))
