"""Models in files, copies and pickles: they come back as they were, and files that were tampered with are refused."""

import copy
import io
import os
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
from cnngp.datasets.preparation import PatchWhitening
from cnngp.estimators import Learning, Recipe, Term
from cnngp.network.layers import Elementwise
from cnngp.network.names import network_by_name
from helpers.estimators import DATA, classifier, fitted, reloaded

SMALL = network_by_name("small_cnn")
FEW = datasets.digits().take(60, 5)
X, Y, NEW = FEW.X, FEW.y, FEW.X_test
SEVERAL = np.stack([Y % 2, Y > 4], 1)
WORDS = np.array([f"class {c}" for c in Y])
QUICK = Learning("likelihood", images=20, starts=1, steps=4)
PATCHES = Recipe(Term(SMALL, ("normalised", PatchWhitening(5)), "d4"), noise=0.1)


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
    "learned": {"noise": 0.1, "learn": QUICK},
    "learned, inducing": {"noise": 0.1, "inducing": 20, "learn": QUICK},
    "learned, cg": {"noise": 0.1, "solver": "cg", "learn": QUICK},
    "prepared": {"noise": 0.1, "preparation": "contrast"},
    "tangent": {"noise": np.float32(0.1), "kind": "ntk"},
    "tangent, inducing": {"inducing": 20, "noise": 0.1, "kind": "ntk"},
    "kernel": {"network": Kernel(SMALL, device="cpu", dtype="float64", kind="ntk"), "noise": "ml"},
    "sum": {"network": Recipe([Term(SMALL, "zca", "flip"), Term("dense_nngp", weight=0.5)], noise=0.1)},
    "prepared, inducing": {"network": PATCHES, "inducing": 20},
    "sum, inducing": {"network": Recipe([Term(SMALL), Term("dense_nngp", "contrast")], noise="loo"), "inducing": 20},
    "chosen": {"network": None, "effort": "quick"},
    "groups": {"noise": 0.1},
    "groups that share an image": {"noise": 0.1},
    "groups, inducing": {"inducing": 20},
    "groups, cg": {"noise": 0.1, "solver": "cg"},
    "weights": {"noise": 0.1},
}
GROUPS = np.arange(60) // 3
SAID: dict[str, dict[str, Any]] = {
    **{path: {"groups": GROUPS} for path in PATHS if path.startswith("groups")},
    "weights": {"sample_weight": np.arange(60) % 4, "image_noise": np.arange(60) / 600},
}
SHARED = np.where(np.arange(60)[:, None, None, None] % 20, X, X[:1])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("estimator", "y"), [(GPClassifier, WORDS), (GPClassifier, SEVERAL), (GPRegressor, Y)])
def test_a_fitted_model_is_the_same_from_copies_files_and_a_fit_by_its_recipe(
    estimator: Any, y: Any, path: str, tmp_path: Path
) -> None:
    options = {"network": "small_cnn"} | PATHS[path]
    if "store" in options:
        options["store"] = tmp_path / options["store"]
    unfitted = estimator(**options, device="cpu")
    images = SHARED if path == "groups that share an image" else X

    def fit(model: Any) -> Any:
        return model.fit(images, y, names=Y.astype(str), **SAID.get(path, {}))

    def seen(model: Any) -> tuple[Any, ...]:
        uncertain = model.predict_proba(NEW) if estimator is GPClassifier else model.loo_std_
        left_out = model.loo_predictions_, getattr(model, "loo_probabilities_", None), model.loo_rows_
        return uncertain, model.predict(NEW), *left_out, model.X_, model.y_, model.names_

    model = fit(copy.deepcopy(unfitted))
    assert "learned" not in path or model.kernel_.network == model.learned_.network != SMALL
    expected = seen(model)
    files: dict[str, Callable[[Any], Any]] = {
        "file": lambda model: reloaded(model, tmp_path),
        "copy of a file": lambda model: pickle.loads(pickle.dumps(reloaded(model, tmp_path))),
    }
    for name, copied in (COPIES | files).items():
        assert name in files or repr(copied(unfitted)) == repr(unfitted)
        again = copied(model)
        for ours, theirs in zip(seen(again), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, name)
        assert (again.fit_report_, again.recipe_, again.learned_) == (model.fit_report_, model.recipe_, model.learned_)
        assert (again.kernel_.kind, again.kernel_.dtype) == (model.kernel_.kind, model.kernel_.dtype)
        likelihoods = [m.log_marginal_likelihood_ or 0.0 for m in (again, model)]
        np.testing.assert_allclose(*likelihoods, rtol=1e-9)
    by_word = path == "chosen" or isinstance(model.network.noise if path == "sum, inducing" else model.noise, str)
    assert isinstance(again.get_params()["noise"], str) == by_word
    assert again.learn is None  # its network is the learned one
    if "solver" not in options and estimator is GPRegressor:
        assert len(again.add(X[:2], y[:2]).predict(NEW)) == 5
    if path != "own inducing images":
        np.testing.assert_allclose(seen(fit(again))[0], expected[0], atol=1e-6)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_models_of_a_matrix(copied: Callable[[Any], Any]) -> None:
    K = Kernel(SMALL, device="cpu")(X)
    model = GPRegressor(noise=0.1).fit(K=K, y=Y)
    np.testing.assert_array_equal(copied(model).predict(K=K), model.predict(K=K))


def test_names_of_features_are_kept_and_a_regressor_is_no_classifier(tmp_path: Path) -> None:
    frame, test = (pandas.DataFrame(A.reshape(len(A), -1)).add_prefix("pixel ") for A in (DATA.X, DATA.X_test))
    reg = GPRegressor(Sequential(Dense(), ReLU(), Dense()), noise=0.01, normalize_y=True).fit(frame, DATA.y)
    again = reloaded(reg, tmp_path)
    np.testing.assert_array_equal(again.feature_names_in_, reg.feature_names_in_)
    np.testing.assert_array_equal(again.predict(test), reg.predict(test))
    with pytest.raises(ModelFileError, match=r"holds a GPRegressor; load it with GPRegressor\.load"):
        GPClassifier.load(tmp_path / "m.gp")


# ---- what is refused -------------------------------------------------------------------------------------------------


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("trap-was-run"),)


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle in a model's place, a pickled array inside a well-formed model, and half of a model."""
    monkeypatch.chdir(tmp_path)
    fitted().save("m.gp")
    Path("half.gp").write_bytes(Path("m.gp").read_bytes()[:10_000])
    Path("pickle.gp").write_bytes(pickle.dumps(_Trap()))
    np.save("trap.npy", np.array([_Trap()], dtype=object), allow_pickle=True)
    members = {"header.json": b'{"cnngp_model": 1}', "X.npy": Path("trap.npy").read_bytes()}
    with zipfile.ZipFile("inside.gp", "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
        file.writestr("sha256", persistence._digest(members))
    for path, message in (
        ("half.gp", "is not a whole model file"),
        ("pickle.gp", "a file of another kind"),
        ("inside.gp", "cannot be read"),
        ("none.gp", "no such model file"),
    ):
        with pytest.raises(ModelFileError, match=message):
            GPClassifier.load(path)
    assert not Path("trap-was-run").exists()


@pytest.mark.parametrize(
    ("inducing", "names"), [(None, ("Y", "K", "point_noise", "X")), (20, ("rhs", "inducing_rows", "B", "X"))]
)
def test_a_model_file_whose_parts_contradict_each_other_is_refused(
    inducing: int | None, names: tuple[str, ...], tmp_path: Path
) -> None:
    recipe = Recipe([Term("dense_nngp", preparation="contrast")], noise=0.1)
    classifier(recipe, inducing=inducing).fit(X, Y).save(tmp_path / "m.gp")
    header, arrays = persistence.read(tmp_path / "m.gp")
    calibrations = [{"temperature": 0.0}, {"temperature": [0.3] * 10}, {"label_noise": 1.0}, {"label_noise": -0.1}]
    headers = [{"recipe": "x" * 10**6}, *({"calibration": header["calibration"] | wrong} for wrong in calibrations)]
    changed: list[tuple[dict[str, Any], dict[str, Any]]] = [(of_header, {}) for of_header in headers]
    for name in names:
        wrong_arrays = (np.zeros((10**7, 0)), arrays[name][:-1], np.full(arrays[name].shape, np.nan))
        changed += [({}, {name: wrong}) for wrong in wrong_arrays]
    for of_header, of_arrays in changed:
        persistence.write(tmp_path / "wrong.gp", header | of_header, arrays | of_arrays)
        with pytest.raises(ModelFileError) as error:
            GPClassifier.load(tmp_path / "wrong.gp", device="cpu")
        assert len(str(error.value)) < 600


def test_what_is_not_saved_and_files_that_are_not_replaced(tmp_path: Path) -> None:
    net = Sequential(Dense(), Elementwise(lambda z: np.tanh(2 * z)), Dense())
    with pytest.raises(ValueError, match="cannot be written to a file"):
        classifier(net, noise=0.1).fit(X, Y).save(tmp_path / "m.gp")
    assert not (tmp_path / "m.gp").exists()
    with pytest.raises(ModelFileError, match="classes holds Python objects"):
        persistence.write(tmp_path / "m.gp", {}, {"classes": np.array([1, "a"], dtype=object)})
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("folder", "folder exists and is not a file"),
        ("pipe", "pipe exists and is not a file"),
        ("nowhere/m.gp", r"nowhere: no such folder to save m\.gp in"),
    ):
        with pytest.raises(ModelFileError, match=message):
            fitted().save(tmp_path / name)
    (tmp_path / "link.gp").symlink_to(tmp_path / "target.gp")
    fitted().save(tmp_path / "link.gp")
    assert (tmp_path / "link.gp").is_symlink()
    assert GPClassifier.load(tmp_path / "target.gp", device="cpu").fit_report_.images == 150
    with pytest.raises(ValueError, match="device='abacus'"):
        GPClassifier.load(tmp_path / "target.gp", device="abacus")  # type: ignore[arg-type]
