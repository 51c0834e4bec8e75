"""Altered copies of images: turned and wider ones. Shifted ones are tested with inducing images."""

import numpy as np
import pytest

from cnngp.common.arrays import DataError
from cnngp.datasets import augmentation
from cnngp.datasets.augmentation import Change

RNG = np.random.default_rng(0)
X = RNG.random((3, 2, 9, 9)).astype(np.float32)


def test_a_quarter_turn_is_exact_and_counterclockwise():
    np.testing.assert_allclose(Change(turn=90.0).of(X), np.rot90(X, axes=(2, 3)), atol=1e-6)


def test_twice_as_wide_keeps_every_second_column_of_the_middle():
    wide = Change(wider=2.0).of(X)
    np.testing.assert_allclose(wide[:, :, :, 0::2], X[:, :, :, 2:7], atol=1e-6)
    np.testing.assert_allclose(wide[:, :, :, 1:8:2], (X[:, :, :, 2:6] + X[:, :, :, 3:7]) / 2, atol=1e-6)


def test_wider_images_are_turned_and_not_turned_images_made_wider():
    bar = np.zeros((1, 1, 9, 9))
    bar[0, 0, 4, 3:6] = 1.0  # lies; wider it is longer, and upright after a quarter turn
    found = Change(turn=90.0, wider=2.0).of(bar)[0, 0]
    assert found[:, 4].sum() == pytest.approx(6.0) == found.sum()


def test_copies_that_are_mirrored():
    X2, y2 = augmentation.flipped(X, ["a", "b", "a"])
    np.testing.assert_array_equal(X2, np.concatenate([X, X[..., ::-1]]))
    assert list(y2) == ["a", "b", "a"] * 2


def test_images_and_channels_are_warped_alone():
    alone = np.stack(
        [[Change(turn=7.0, wider=1.1).of(X[i : i + 1, c : c + 1])[0, 0] for c in range(2)] for i in range(3)]
    )
    np.testing.assert_array_equal(Change(turn=7.0, wider=1.1).of(X), alone)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_copies_have_the_type_of_the_images(dtype):
    images = (X * 200).astype(dtype)
    X5, y5 = augmentation.warped(images, [0, 1, 2], turn=20.0)
    assert X5.shape == (15, 2, 9, 9)
    assert X5[:].dtype == dtype
    np.testing.assert_array_equal(X5[:3], images)
    np.testing.assert_array_equal(y5, np.tile([0, 1, 2], 5))
    exact = Change(turn=20.0).of(images.astype(np.float64))
    np.testing.assert_allclose(X5[3:6], exact, atol=0.5 if np.dtype(dtype).kind in "ui" else 1e-4)
    np.testing.assert_array_equal(X5[np.array([4, 14])], X5[:][[4, 14]])


def test_kinds_of_copies_are_left_out_by_their_neutral_value():
    assert len(augmentation.warped(X, [0, 1, 2], turn=0)[0]) == 9
    assert len(augmentation.warped(X, [0, 1, 2], wider=1)[0]) == 9
    assert len(augmentation.warped(X, [0, 1, 2], turn=0, wider=1)[0]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wider": 0.0}, r"wider=0.0; expected degrees, and a factor above 0"),
        ({"turn": float("nan")}, r"turn=nan"),
        ({"y": [0, 1]}, r"3 images but 2 labels"),
        ({"X": X[:, 0]}, r"expected images \(N, channels, height, width\)"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, message):
    with pytest.raises(DataError, match=message):
        augmentation.warped(**({"X": X, "y": [0, 1, 2]} | arguments))
