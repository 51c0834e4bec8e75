"""Contrast normalisation and whitening, on small made colour images."""

from typing import Any

import numpy as np
import pytest
from scipy import fft, linalg
from scipy.ndimage import gaussian_filter

from cnngp.common.arrays import DataError
from cnngp.datasets.preparation import (
    NAMED,
    Chain,
    Normalised,
    PatchWhitening,
    SpectralWhitening,
    Standardised,
    Zca,
    as_preparation,
)
from cnngp.kernel.symmetry import maps_of

RNG = np.random.default_rng(0)
WHITENINGS = (Zca, PatchWhitening, SpectralWhitening)


def normalised(X: np.ndarray) -> np.ndarray:
    return Normalised().fit_transform(X)


def prepare(X: np.ndarray, name: str) -> np.ndarray:
    return as_preparation(name).fit_transform(X)


def colour_images(n: int, side: int = 4) -> np.ndarray:
    """Smooth noise in three channels that go together, as in photographs: strongly correlated pixels."""
    grey = gaussian_filter(RNG.standard_normal((n, 1, side, side)), (0, 0, 1, 1))
    return 0.5 + grey + 0.1 * RNG.standard_normal((n, 3, side, side))


# What is taken away from an image (channels, …) before it is scaled, and the sum of its squares then.
OF_EACH_IMAGE: dict[str, tuple[Any, Any]] = {
    "contrast": (lambda x: x.mean((1, 2), keepdims=True), np.size),
    "detail": (lambda x: gaussian_filter(x, (0, 9 / 8, 9 / 8), mode="nearest"), np.size),
    "edges": (lambda x: gaussian_filter(x, (0, 9 / 16, 9 / 16), mode="nearest"), np.size),
    "normalised": (lambda x: x.mean(keepdims=True), lambda x: 1.0),
}


@pytest.mark.parametrize("name", OF_EACH_IMAGE)
def test_images_are_prepared_one_by_one_by_their_equation(name: str) -> None:
    """Flat images become zeros, whatever rounding leaves of them, and faint ones do not; the type stays."""
    taken_away, size = OF_EACH_IMAGE[name]
    X = np.random.default_rng(0).random((1100, 3, 9, 11))
    X[2], X[1050] = 1e-12 * X[2], 100.0 * X[1050] + 7.0
    expected = X - np.array([taken_away(x) for x in X])
    expected *= np.sqrt([size(x) / (x**2).sum() for x in expected])[:, None, None, None]
    np.testing.assert_allclose(prepare(X, name), expected, rtol=0, atol=1e-9)
    assert not prepare(np.full((1, 3, 9, 11), 1e9 / 3), name).any()
    single = X[3:9].astype(np.float32)
    for images in (single, (255 * single).astype(np.uint8), (255 * single).astype(int).astype(object)):
        seen = prepare(images, name)
        assert seen.dtype == (np.float64 if images.dtype == object else np.float32)
        np.testing.assert_allclose(seen, prepare(images.astype(np.float64), name), rtol=0, atol=1e-5)
    assert np.array_equal(prepare(X, "plain"), X)


@pytest.mark.parametrize("n", [30, 50])  # fewer images than the 48 pixels, and more
def test_whitening_is_its_equation_written_out(n: int) -> None:
    X, other = normalised(colour_images(n)), normalised(colour_images(5))
    rows, maps = X.reshape(n, -1).astype(np.float64), maps_of("flip")
    values, V = np.linalg.eigh(rows.T @ rows / n)
    expected = other.reshape(5, -1) @ (V @ np.diag((np.maximum(values, 0) + 1e-4) ** -0.5) @ V.T)
    for given in ((), maps[:1]):
        found = Zca().fit(X, maps=given).transform(other)
        np.testing.assert_allclose(found.reshape(5, -1), expected, rtol=1e-3, atol=1e-3)
    few = Zca().fit(X[:20], maps=maps).transform(other)  # 40 of 48
    many = Zca().fit(np.concatenate([g(X[:20]) for g in maps])).transform(other)
    np.testing.assert_allclose(few, many, rtol=1e-4, atol=1e-4)


def test_bad_images_are_refused() -> None:
    X = normalised(colour_images(5))
    for make, message in (
        (lambda: Zca().fit(X).transform(X[:, :, :2]), r"this Zca was fitted to \(3, 4, 4\)"),
        (lambda: Standardised().fit(X).transform(X[:, :1]), r"this Standardised was fitted to \(3, 4, 4\)"),
        (lambda: PatchWhitening().transform(X), "has learned from no images yet; call fit"),
        (lambda: PatchWhitening(2).fit(X), "size=2: expected an odd number"),
        (lambda: normalised(np.zeros((5, 7))), "expected images"),
        (lambda: normalised(np.full((1, 3, 2, 2), np.nan)), "NaN or infinity"),
        *(
            (lambda w=w: w(regularisation=0).fit(X), f"{w.__name__}: regularisation=0: expected a pos")
            for w in WHITENINGS
        ),
        (lambda: normalised(X.astype(str)), "X has type <U32; expected real numbers"),
        (lambda: prepare(X, "white"), "preparation='white' is not one of 'plain'"),
        (lambda: Zca().set_output(transform="pandas"), "Zca: transform='pandas': images have several axes and cannot"),
    ):
        with pytest.raises(DataError, match=message):
            make()
    assert Zca().set_output(transform="default") == Zca()


def test_patches_are_whitened_by_their_equation() -> None:
    X = colour_images(40, side=6).astype(np.float64)
    found = PatchWhitening(3, regularisation=0.1).fit_transform(X)
    assert found.shape == (40, 27, 6, 6)
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    patches = np.array(
        [[padded[n, :, i : i + 3, j : j + 3].ravel() for i in range(6) for j in range(6)] for n in range(40)]
    )
    moments = np.einsum("npa,npb->ab", patches, patches) / (40 * 36)
    values, V = np.linalg.eigh(moments)
    root = V @ np.diag((values + 0.1 * values.mean()) ** -0.5) @ V.T
    expected = (patches @ root).transpose(0, 2, 1).reshape(40, 27, 6, 6)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("places", [(7,), (6, 5), (3, 4, 2)], ids=str)
def test_frequencies_are_whitened_by_their_equation(places: tuple[int, ...]) -> None:
    X = np.random.default_rng(5).random((30, 2, *places)) + 0.3
    axes = tuple(range(2, X.ndim))
    waves = fft.dctn(X, axes=axes, norm="ortho").reshape(30, 2, -1)
    moments = np.einsum("ncf,ndf->fcd", waves, waves) / 30
    added = 0.5 * np.trace(moments.mean(0)) / 2
    roots = np.array([np.real(linalg.inv(linalg.sqrtm(S + added * np.eye(2)))) for S in moments])
    expected = fft.idctn(np.einsum("fcd,ndf->ncf", roots, waves).reshape(X.shape), axes=axes, norm="ortho")
    found = SpectralWhitening(0.5).fit_transform(X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    flipped = SpectralWhitening(0.5).fit(X).transform(X[..., ::-1])
    np.testing.assert_allclose(flipped, expected[..., ::-1], rtol=0, atol=1e-6 * np.abs(expected).max())
    assert not SpectralWhitening().fit_transform(np.zeros((3, 2, *places))).any()


@pytest.mark.parametrize("name", ["zca", "patches", "spectral", "standardised"])
def test_what_is_learned_of_images_and_their_turns_does_the_same_to_both(name: str) -> None:
    X = colour_images(30, side=5)
    maps = maps_of("d4")
    learned = as_preparation(name).fit(X, maps=maps)
    whole = np.concatenate([np.ascontiguousarray(g(X)) for g in maps])
    same = as_preparation(name).fit(whole)
    np.testing.assert_allclose(learned.transform(X), same.transform(X), rtol=1e-3, atol=1e-4)
    size = [np.linalg.norm(learned.transform(np.ascontiguousarray(g(X)))) for g in maps]
    np.testing.assert_allclose(size, size[0], rtol=1e-5)


@pytest.mark.parametrize("name", list(NAMED))
def test_a_preparation_is_a_transformer_whose_state_can_be_kept(name: str) -> None:
    from sklearn.base import clone
    from sklearn.pipeline import make_pipeline

    X = colour_images(12)
    fitted = as_preparation(name).fit(X)
    assert fitted == as_preparation(name) == clone(fitted)
    seen = fitted.transform(X)
    assert seen.shape[1:] == fitted.output_shape(X.shape[1:])
    np.testing.assert_array_equal(make_pipeline(as_preparation(name)).fit(X).transform(X), seen)
    again = as_preparation(name).restored(fitted.state(), X.shape[1:])
    np.testing.assert_array_equal(again.transform(X), seen)
    for key, array in fitted.state().items():
        with pytest.raises(ValueError, match="for images of"):
            as_preparation(name).restored({key: array[:-1]}, X.shape[1:])
    assert isinstance(as_preparation((name, "plain")), Chain)
