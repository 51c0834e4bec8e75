"""Estimators of every kind are copied and pickled, fitted or not, by every library that does it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, Kernel, datasets
from cnngp.estimators import Learning, Recipe, Term
from cnngp.network.names import network_by_name

SMALL = network_by_name("small_cnn")
DATA = datasets.digits().take(60, 5)
X, Y, NEW = DATA.X, DATA.y, DATA.X_test
SEVERAL = np.stack([Y % 2, Y > 4], 1)


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
    "own inducing images": {"inducing": X[:15], "noise": "ml"},
    "cg": {"noise": 0.1, "solver": "cg"},
    "stored": {"noise": 0.1, "store": "K.zarr"},
    "stored, cg": {"noise": 0.1, "solver": "cg", "store": "K.zarr"},
    "learned": {"noise": 0.1, "learn": Learning(images=20, starts=1, steps=2)},
    "prepared": {"noise": 0.1, "preparation": "contrast"},
    "tangent": {"noise": 0.1, "kind": "ntk"},
    "kernel": {"network": Kernel(SMALL, device="cpu"), "noise": 0.1},
    "sum": {"network": Recipe([Term(SMALL, "zca", "flip"), Term("dense_nngp", weight=0.5)], noise=0.1)},
    "chosen": {"network": None, "effort": "quick"},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("estimator", "y"), [(GPClassifier, Y), (GPClassifier, SEVERAL), (GPRegressor, Y)])
def test_copies_of_a_fitted_estimator_predict_the_same(estimator: Any, y: Any, path: str, tmp_path: Path) -> None:
    options = {"network": "small_cnn"} | PATHS[path]
    if "store" in options:
        options["store"] = tmp_path / options["store"]
    unfitted = estimator(**options, device="cpu")
    model = copy.deepcopy(unfitted).fit(X, y, names=DATA.y.astype(str))
    predicted = model.predict(NEW)
    moments = (lambda m: m.predict_proba(NEW)) if estimator is GPClassifier else (lambda m: m.loo_std_)
    for name, copied in COPIES.items():
        assert repr(copied(unfitted)) == repr(unfitted)
        again = copied(model)
        np.testing.assert_array_equal(again.predict(NEW), predicted, name)
        np.testing.assert_array_equal(moments(again), moments(model), name)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_models_of_a_matrix_and_from_a_file(copied: Callable[[Any], Any], tmp_path: Path) -> None:
    K = Kernel(SMALL, device="cpu")(X)
    model = copied(GPRegressor(noise=0.1).fit(K=K, y=Y))
    np.testing.assert_array_equal(model.predict(K=K), GPRegressor(noise=0.1).fit(K=K, y=Y).predict(K=K))
    model = GPClassifier("small_cnn", inducing=20, device="cpu").fit(X, Y)
    model.save(tmp_path / "model.gp")
    loaded = copied(GPClassifier.load(tmp_path / "model.gp", device="cpu"))
    np.testing.assert_array_equal(loaded.predict_proba(NEW), model.predict_proba(NEW))
    assert len(copied(loaded).add(X[:2], Y[:2]).predict(NEW)) == 5
