"""Recipes: values that print, compare and travel in JSON; sums of terms; how images are prepared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import cnngp
from cnngp import Dense, Elementwise, GPClassifier, GPRegressor, Kernel, Sequential, datasets, gram, zoo
from cnngp.common.arrays import DataError
from cnngp.common.errors import StoreError
from cnngp.datasets.preparation import PatchWhitening, Preparation, Zca, as_preparation
from cnngp.estimators import Recipe, Term
from cnngp.estimators.candidates import Candidate
from cnngp.estimators.kernels import kernel_of
from cnngp.estimators.training_images import Images
from cnngp.gp.exact import ExactGP
from helpers.estimators import classifier

DATA = datasets.digits().take(80, 40)
RECIPES = [
    Recipe([Term("small_cnn")]),
    Recipe([Term(zoo.dense_nngp(), preparation="contrast")], noise=0.1),
    Recipe([Term("small_cnn", symmetry="flip"), Term("dense_nngp", preparation="zca", weight=0.5)], noise="loo"),
    Recipe([Term("small_cnn", preparation=("normalised", PatchWhitening(5)), symmetry="d4")], noise="ml"),
]


def test_recipes_print_as_the_code_that_makes_them_and_have_json_and_equal_ones_are_written_alike() -> None:
    """Also with numbers of NumPy, preparations that have a name, and several preparations."""
    names = {name: getattr(cnngp, name) for name in cnngp.__all__}
    names |= {kind.__name__: kind for kind in (Recipe, Term, PatchWhitening, Zca)}
    for recipe in RECIPES:
        assert eval(repr(recipe), names) == Recipe.from_json(recipe.to_json()) == recipe
        assert hash(recipe) == hash(Recipe.from_json(recipe.to_json()))
    assert len({repr(other) for other in RECIPES}) == len(RECIPES)
    preparation = (Zca(np.float32(0.5)), PatchWhitening(np.int64(3)))
    recipe = Recipe([Term("small_cnn", preparation, weight=np.float32(2.0))], noise=np.float32(0.25))
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe == Recipe([Term("small_cnn", (Zca(0.5), PatchWhitening(3)), weight=2)], noise=0.25)
    assert Term("small_cnn", preparation=as_preparation("contrast")).preparation == "contrast"
    assert Term("small_cnn", preparation=("normalised", Zca())).preparation == "zca"
    assert Term("small_cnn", preparation=["normalised", Zca(0.1)]).preparation == ("normalised", Zca(0.1))
    term = Term("myrtle5", ("contrast", "patches"), "flip")
    assert term.name == str(Candidate("myrtle5", term, 1)) == "myrtle5, contrast then patches, flip"


class Doubled(Preparation):
    def _prepared(self, images: NDArray[Any]) -> NDArray[Any]:
        return 2.0 * images


def test_a_store_has_a_matrix_for_every_term_also_of_what_has_no_json(tmp_path: Path) -> None:
    """Which another weight uses again; no model file is written that cannot be read."""
    cubed = Sequential(Dense(), Elementwise(lambda z: z**3), Dense())
    for weight in (0.5, 0.25):
        recipe = Recipe([Term("dense_nngp", Doubled()), Term(cubed, "zca", weight=weight)], noise=0.01)
        plain, stored = (classifier(recipe, store=store).fit(DATA.X, DATA.y) for store in (None, tmp_path / "K"))
        np.testing.assert_allclose(stored.predict_proba(DATA.X_test), plain.predict_proba(DATA.X_test), atol=1e-6)
        assert len(list((tmp_path / "K").glob("term-*"))) == 2
    with pytest.raises((DataError, ValueError), match="cannot be written to a file"):
        stored.save(tmp_path / "model.gp")
    assert not (tmp_path / "model.gp").exists()


def test_what_is_no_recipe_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    for make, told in (
        (lambda: Recipe([]), "expected one Term or several"),
        (lambda: Recipe([zoo.small_cnn()]), "expected one Term or several"),
        (lambda: Recipe([Term("small_cnn")], noise=-1), "noise=-1"),
        (lambda: Term("small_cnn", weight=0), "weight=0: expected a positive number"),
        (lambda: Term("small_cnn", symmetry="left"), "symmetry='left' is not None"),
        (lambda: Term("small_cnn", preparation="white"), "preparation='white' is not one of 'plain'"),
        (lambda: Term("auto"), "is no network"),
        (lambda: Recipe.from_json("{}"), "not the JSON of a recipe"),
        (
            lambda: Recipe.from_json(RECIPES[3].to_json().replace("PatchWhitening", "Other")),
            "of a recipe: .*no preparation",
        ),
        (lambda: Recipe.from_json('{"cnngp_recipe": 1, "terms": [{"network": 3}], "noise": 0}'), "a term has network"),
        (lambda: Recipe.read(tmp_path / "none.json"), "none.json cannot be read: No such file or directory$"),
        (lambda: Recipe.read(other), "other.json: not the JSON of a recipe"),
        (lambda: GPClassifier(RECIPES[1], noise=0.2).fit(DATA.X, DATA.y), "noise= beside a recipe that has one"),
        (lambda: GPClassifier(RECIPES[0], preparation="edges").fit(DATA.X, DATA.y), "preparation= beside a recipe"),
        (lambda: GPClassifier(RECIPES[0], learn="loo").fit(DATA.X, DATA.y), "give the network and not a recipe"),
    ):
        with pytest.raises(ValueError, match=told):
            make()  # type: ignore[no-untyped-call]


def test_the_kernel_is_the_sum_of_terms_of_mean_diagonal_1() -> None:
    recipe = RECIPES[2]
    images = Images(DATA.X.astype(np.float32), np.dtype(np.float32))
    kernel = kernel_of(recipe, images, lambda network, symmetry: Kernel(network, device="cpu", symmetry=symmetry))
    white = as_preparation("zca").fit(images.pixels)
    A = Kernel(zoo.small_cnn(), device="cpu", symmetry="flip")(images.pixels).astype(float)
    B = Kernel(zoo.dense_nngp(), device="cpu")(white.transform(images.pixels)).astype(float)
    expected = A / A.diagonal().mean() + 0.5 * B / B.diagonal().mean()
    np.testing.assert_allclose(kernel(images.pixels), expected, rtol=1e-6)
    np.testing.assert_allclose(kernel.diag(images.pixels), expected.diagonal(), rtol=1e-6)
    np.testing.assert_allclose(kernel(images.pixels[:3], images.pixels), expected[:3], rtol=1e-5)
    reg = GPRegressor(Recipe(recipe.terms, noise=0.1), amplitude=1.0, device="cpu").fit(DATA.X, DATA.y.astype(float))
    gp = ExactGP(expected, DATA.y[:, None].astype(float), noise=0.1, amplitude=1.0)
    np.testing.assert_allclose(reg.loo_predictions_, gp.leave_one_out().mean[:, 0], rtol=1e-4, atol=1e-4)


def test_images_are_prepared_inside_and_kept_as_they_were() -> None:
    edges, own = as_preparation("edges"), DATA.X_test[:20].astype(np.float32)
    options: dict[str, Any] = {"preparation": "edges", "noise": 0.1}
    for inducing, prepared, kept in ((own, edges.transform(own), own), (None, None, DATA.X)):
        inside = classifier("small_cnn", inducing=inducing, **options).fit(DATA.X, DATA.y)
        outside = classifier("small_cnn", inducing=prepared, noise=0.1).fit(edges.transform(DATA.X), DATA.y)
        means = inside.predict_latent(DATA.X_test)[0], outside.predict_latent(edges.transform(DATA.X_test))[0]
        np.testing.assert_allclose(*means, atol=1e-5)
        np.testing.assert_array_equal(inside.X_, kept.astype(np.float32))
    grown = classifier("small_cnn", **options).fit(DATA.X[:60], DATA.y[:60]).add(DATA.X[60:], DATA.y[60:])
    np.testing.assert_allclose(grown.predict_latent(DATA.X_test)[0], means[0], atol=1e-6)
    chosen = classifier("small_cnn", inducing=20, **options).fit(DATA.X, DATA.y)
    np.testing.assert_array_equal(chosen.X_, DATA.X[chosen.inducing_rows_].astype(np.float32))


def test_a_whitening_is_learned_from_training_images_and_their_mirror_images() -> None:
    term = Term("small_cnn", preparation="zca", symmetry="flip")
    clf = GPClassifier(Recipe(term, noise=0.1), device="cpu").fit(DATA.X, DATA.y)
    mirrored = np.ascontiguousarray(DATA.X_test[..., ::-1])
    np.testing.assert_allclose(clf.predict_proba(mirrored), clf.predict_proba(DATA.X_test), atol=1e-4)


def test_a_store_of_plain_images_is_refused_with_the_reason_where_the_fit_prepares_them(tmp_path: Path) -> None:
    gram(Kernel(zoo.small_cnn(), device="cpu"), DATA.X, store=tmp_path / "K.zarr")
    options: dict[str, Any] = {"device": "cpu", "store": tmp_path / "K.zarr"}
    with pytest.raises(StoreError, match=r"the pixels of its 80 images.*prepares its images, by 'edges'"):
        GPClassifier("small_cnn", preparation="edges", **options).fit(DATA.X, DATA.y)
    with pytest.raises(StoreError, match=r"the network \(.*Give another store$"):
        GPClassifier("dense_nngp", **options).fit(DATA.X, DATA.y)
