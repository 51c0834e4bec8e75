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


def normalised(X: np.ndarray) -> np.ndarray:
    return Normalised().fit_transform(X)


def prepare(X: np.ndarray, name: str) -> np.ndarray:
    return as_preparation(name).fit_transform(X)


def colour_images(n: int, side: int = 4) -> np.ndarray:
    """Smooth noise in three channels that go together, as in photographs: strongly correlated pixels."""
    grey = gaussian_filter(RNG.standard_normal((n, 1, side, side)), (0, 0, 1, 1))
    return 0.5 + grey + 0.1 * RNG.standard_normal((n, 3, side, side))


def test_every_image_has_mean_0_and_norm_1() -> None:
    X = normalised(colour_images(20) * 100 + 7)
    np.testing.assert_allclose(X.mean((1, 2, 3)), 0.0, atol=1e-6)
    np.testing.assert_allclose((X.astype(np.float64) ** 2).sum((1, 2, 3)), 1.0, rtol=1e-6)
    flat = normalised(np.full((1, 3, 4, 4), 0.3))  # no contrast: zeros, not NaN
    np.testing.assert_array_equal(flat, 0.0)
    np.testing.assert_array_equal(normalised(np.full((1, 3, 5, 5), 1e9 / 3)), 0.0)  # whatever rounding leaves of it
    some = colour_images(2)
    np.testing.assert_allclose(normalised(1e-12 * some), normalised(some), atol=1e-6)
    np.testing.assert_allclose(normalised(np.arange(12, dtype=np.uint8).reshape(1, 3, 2, 2)).sum(), 0.0, atol=1e-6)


def test_whitened_training_images_are_uncorrelated() -> None:
    X = normalised(colour_images(2000))
    white = Zca(1e-8).fit_transform(X).reshape(2000, -1).astype(np.float64)
    moments = white.T @ white / 2000
    # All directions but one, the mean that normalising took away, have variance 1.
    values = np.linalg.eigvalsh(moments)
    np.testing.assert_allclose(values[1:], 1.0, rtol=1e-3)
    assert values[0] < 1e-3
    # Of all whitenings it is the one nearest to the images: its matrix is symmetric with positive eigenvalues.
    matrix = Zca().fit(X).learned_
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-4 * np.abs(matrix).max())
    assert np.linalg.eigvalsh(matrix.astype(np.float64)).min() > 0.0


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
        (lambda: PatchWhitening().transform(X), "has learned from no images yet; call fit"),
        (lambda: PatchWhitening(2).fit(X), "size=2: expected an odd number"),
        (lambda: normalised(np.zeros((5, 7))), "expected images"),
        (lambda: normalised(np.full((1, 3, 2, 2), np.nan)), "NaN or infinity"),
        (lambda: normalised(X.astype(str)), "X has type <U32; expected real numbers"),
        (lambda: prepare(X, "white"), "preparation='white' is not one of 'plain'"),
        (lambda: Zca().set_output(transform="pandas"), "Zca: transform='pandas': images have several axes and cannot"),
    ):
        with pytest.raises(DataError, match=message):
            make()
    assert Zca().set_output(transform="default") == Zca()


def test_python_numbers_are_taken() -> None:
    X = RNG.integers(0, 9, (3, 1, 4, 4))
    np.testing.assert_array_equal(prepare(X.astype(object), "contrast"), prepare(X.astype(np.float64), "contrast"))


def test_neither_light_nor_colour_of_the_whole_nor_contrast_is_left() -> None:
    X = np.random.default_rng(0).random((4, 3, 9, 11))
    changed = X * np.array([0.3, 2.0, 7.0, 1.0])[:, None, None, None] + np.arange(12.0).reshape(4, 3, 1, 1)
    for preparation in ("contrast", "detail", "edges"):
        seen = prepare(X, preparation)
        np.testing.assert_allclose(seen, prepare(changed, preparation), atol=1e-9)
        np.testing.assert_allclose((seen**2).mean((1, 2, 3)), 1.0)
    np.testing.assert_allclose(prepare(X, "contrast").mean((2, 3)), 0.0, atol=1e-12)
    assert np.array_equal(prepare(X, "plain"), X)


def test_fine_lines_outlast_what_changes_slowly() -> None:
    x = np.arange(32)
    X = (np.sin(2 * np.pi * x / 64) + 0.1 * np.cos(np.pi * x))[None, None]

    def lines(preparation: Any) -> float:
        power = abs(np.fft.rfft(prepare(X, preparation)[0, 0])) ** 2
        return float(power[-1] / power.sum())

    assert lines("contrast") < lines("detail") < lines("edges")


def test_flat_images_become_zeros_bytes_become_floats_and_others_do_not_matter() -> None:
    X = np.random.default_rng(0).integers(0, 256, (1100, 1, 6, 6)).astype(np.uint8)
    X[3] = 77
    for preparation in ("contrast", "detail", "edges"):
        seen = prepare(X, preparation)
        assert seen.dtype == np.float32
        assert not seen[3].any()
        assert np.array_equal(seen[1050:], prepare(X[1050:], preparation))


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


@pytest.mark.parametrize("whitening", [Zca, PatchWhitening, SpectralWhitening])
def test_a_regularisation_that_is_no_positive_number_is_refused(whitening: Any) -> None:
    with pytest.raises(DataError, match=f"{whitening.__name__}: regularisation=0: expected a positive number"):
        whitening(regularisation=0).fit(colour_images(5))


@pytest.mark.parametrize("name", ["zca", "patches", "spectral"])
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


def test_features_are_standardised_by_training_images() -> None:
    X, other = colour_images(40) * 7 + 3, colour_images(5)
    X[:, 0, 0, 0] = 4.0  # does not differ: becomes 0
    seen = Standardised().fit(X)
    expected = (X - X.mean(0)) / np.where(X.std(0) > 1e-9, X.std(0), np.inf)
    np.testing.assert_allclose(seen.transform(X), expected, atol=1e-12)
    np.testing.assert_allclose(
        seen.transform(other)[:, 1], ((other - X.mean(0)) / X.std(0).clip(1e-9))[:, 1], atol=1e-9
    )
    with pytest.raises(DataError, match=r"this Standardised was fitted to \(3, 4, 4\)"):
        seen.transform(X[:, :1])
