"""A store or a model from somebody else touches nothing: no link is followed, no place that a file names is used."""

import io
import json
import random
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, gram
from cnngp.cli import run
from cnngp.common import files
from cnngp.common.errors import ModelFileError, StoreError

X = np.random.default_rng(0).random((60, 4))
KERNEL = Kernel(Dense(), device="cpu", threads=1)

# ---- stores ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder of ours that a store from somebody else points into."""
    folder = tmp_path / "private"
    (folder / "deep").mkdir(parents=True)
    for name in ("thesis.tex", "0", "1", "5.0a.partial", "deep/0", "zarr.json"):
        (folder / name).write_text("chapter 1")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("K/.lock", "thesis.tex"),
        ("K/.lock", "new.txt"),
        ("zarr.json", "thesis.tex"),
        ("K/zarr.json", "zarr.json"),
        ("K/c/0", ""),
        ("K/c/1", "deep"),
        ("K/c", "deep"),
        ("K/seals", "deep"),
        ("K/seals/0", ""),
        ("K", "deep"),
        ("images", "deep"),
    ],
)
def test_a_link_in_a_store_is_not_followed(name: str, target: str, theirs: Path, tmp_path: Path) -> None:
    store = tmp_path / "K.zarr"
    gram(KERNEL, X, store=store, tile=16)
    path = store / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(theirs / target)
    before = content(theirs)
    with pytest.raises(StoreError, match=r"makes no links in a store and follows none|cannot be read") as caught:
        gram(KERNEL, X + 1, store=store, tile=16)
    assert "\n" not in str(caught.value)
    with pytest.raises(StoreError):
        gram(KERNEL, np.concatenate([X, X]), store=store)
    assert content(theirs) == before


@pytest.mark.parametrize("name", ["K.zarr", "cross-validation.zarr"])
def test_a_store_behind_a_link_is_the_users_own_choice(name: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "disk")
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / name, tile=16)[:], KERNEL(X))


def test_a_link_in_the_place_of_a_prediction_is_not_followed(theirs: Path, tmp_path: Path) -> None:
    model = GPRegressor(Dense(), noise=0.1, device="cpu", store=tmp_path / "fit").fit(X, X[:, 0])
    model.predict(X[:5])
    (cross,) = (tmp_path / "fit").glob("cross-*")
    shutil.rmtree(cross)
    shutil.rmtree(theirs / "deep")
    cross.symlink_to(theirs / "deep")
    (theirs / "deep").mkdir()
    with pytest.raises(StoreError, match="follows none"):
        model.predict(X[:5])
    assert not list((theirs / "deep").iterdir())


# ---- models ---------------------------------------------------------------------------------------------------------


def parts(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if name != "sha256"}


def craft(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in parts.items():
            file.writestr(name, data)
        file.writestr("sha256", files._digest(parts))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gp"
    GPClassifier(Dense(), noise=0.1, device="cpu").fit(X, np.arange(60) % 3).save(path)
    return path


def test_a_model_can_name_no_store(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = parts(model)
    header = json.loads(whole["header.json"])
    for place in (str(tmp_path / "chosen"), "memory://chosen", "../chosen"):
        header["parameters"]["store"] = place
        crafted = craft(tmp_path / "m.gp", whole | {"header.json": json.dumps(header).encode()})
        loaded = GPClassifier.load(crafted, device="cpu")
        assert loaded.store is None
        np.testing.assert_array_equal(loaded.predict(X), GPClassifier.load(model, device="cpu").predict(X))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gp"]


def as_npy(a: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, a)
    return buffer.getvalue()


def crafted_parts(whole: dict[str, bytes]) -> list[dict[str, bytes]]:
    """A model without each of its parts, and with each of them changed for something else."""
    made = [{k: v for k, v in whole.items() if k != name} for name in whole if name != "header.json"]
    for name in [name for name in whole if name.endswith(".npy")]:
        one_nan = np.load(io.BytesIO(whole[name]))
        if one_nan.dtype.kind == "f" and one_nan.size:
            one_nan.flat[-1] = np.nan
        others = (np.zeros(0), np.zeros(8), np.array(3), np.zeros((0, 4)), np.full((60, 4), np.nan), np.array(["a"]))
        made += [whole | {name: as_npy(a)} for a in (*others, one_nan)]
    header = json.loads(whole["header.json"])
    strange: list[Any] = [None, [], {}, "x", -1, 1e308, [[1]], float("nan"), "a\nb"]
    headers = [{k: v for k, v in header.items() if k != key} for key in header]
    for key, value in header.items():
        if key != "cnngp_model":
            headers += [header | {key: other} for other in strange]
            inner = value if isinstance(value, dict) else {}
            headers += [header | {key: value | {k: other}} for k in inner for other in strange]
    return made + [whole | {"header.json": json.dumps(h).encode()} for h in random.Random(0).sample(headers, 60)]


def fitted(kind: str) -> Any:
    if kind in ("classifier", "regressor"):
        model = GPClassifier if kind == "classifier" else GPRegressor
        y: Any = np.arange(24) % 3 if kind == "classifier" else X[:24, :2]
        return model(Dense(), noise=0.1, device="cpu").fit(X[:24], y)
    options: dict[str, Any] = {
        "prepared": {"noise": 0.1, "preparation": "contrast", "kind": "ntk"},
        "inducing": {"noise": 0.1, "inducing": 8},
        "learned": {"learn": "loo"},
    }
    images = np.random.default_rng(0).random((24, 1, 4, 4)).astype(np.float32)
    net = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
    return GPClassifier(net, device="cpu", **options[kind]).fit(images, np.arange(24) % 3)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")  # of numbers that make a poor model
@pytest.mark.parametrize(
    "kind",
    [
        "classifier",
        "regressor",
        "inducing",
        pytest.param("prepared", marks=pytest.mark.slow),
        pytest.param("learned", marks=pytest.mark.slow),
    ],
)
def test_a_crafted_model_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    """Never with a KeyError, an IndexError or a MemoryError, and never later, when it predicts or is shown."""
    model = fitted(kind)
    model.save(tmp_path / "whole.gp")
    whole = parts(tmp_path / "whole.gp")
    images = model.X_[:3]
    refused, every = 0, crafted_parts(whole)
    type(model).load(craft(tmp_path / "m.gp", whole), device="cpu")
    for made in every:
        path = craft(tmp_path / "m.gp", made)
        try:
            again = type(model).load(path, device="cpu")
            found = again.predict(images) if kind == "regressor" else again.predict_proba(images)
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)  # noqa: PT017
            continue
        assert np.isfinite(found).all()
        if kind in ("prepared", "inducing", "learned"):
            again.explain(images)
        assert again.fit_report_.verdict
        assert again.fit_report_.rows()
    assert refused > len(every) // 3


def test_a_network_of_absurd_size_in_a_model_takes_no_time(tmp_path: Path) -> None:
    fitted("inducing").save(tmp_path / "whole.gp")
    whole = parts(tmp_path / "whole.gp")
    header = json.loads(whole["header.json"])
    recipe = json.loads(header["recipe"])
    began = time.monotonic()
    for field in ("kernel_size", "padding", "dilation", "stride"):
        network = json.loads(recipe["terms"][0]["network"])
        network["network"]["layers"][0][field] = 10**9
        term = recipe["terms"][0] | {"network": json.dumps(network)}
        absurd = header | {"recipe": json.dumps(recipe | {"terms": [term]})}
        craft(tmp_path / "m.gp", whole | {"header.json": json.dumps(absurd).encode()})
        try:
            GPClassifier.load(tmp_path / "m.gp", device="cpu").predict(np.zeros((1, 1, 4, 4)))
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert time.monotonic() - began < 40


def test_the_command_line_says_what_is_wrong_with_a_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = parts(model)
    craft(tmp_path / "m.gp", {k: v for k, v in whole.items() if k != "classes.npy"})
    assert run(["predict", str(tmp_path / "m.gp"), "none.png"]) == 1
    shown = capsys.readouterr().err
    assert "m.gp is not a model that this version can read: it has no 'classes'" in shown
    assert shown.count("\n") == 1
    fewer = np.load(io.BytesIO(whole["X.npy"]))[:-1]
    craft(tmp_path / "m.gp", whole | {"X.npy": as_npy(fewer)})
    with pytest.raises(ModelFileError, match=r"can read: .*59"):
        GPClassifier.load(tmp_path / "m.gp", device="cpu")
