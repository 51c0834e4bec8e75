"""Altered copies of images: turned and wider ones. Shifted ones are tested with inducing images."""

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from cnngp.common.arrays import DataError
from cnngp.datasets import augmentation
from cnngp.datasets.augmentation import Change

RNG = np.random.default_rng(0)
X = RNG.random((3, 2, 9, 9)).astype(np.float32)


@pytest.mark.parametrize(("turn", "wider"), [(-30.0, 1.0), (0.0, 2.0), (80.0, 2.0), (7.0, 1.1)])
def test_a_copy_reads_its_image_turned_back_and_made_narrower(turn: float, wider: float) -> None:
    """Bilinear about the centre, zeros where nothing was: wider images are turned, not turned ones made wider."""
    down, right = np.mgrid[-4:5, -4:5]
    angle = np.deg2rad(turn)
    places = (
        4 + np.cos(angle) * down + np.sin(angle) * right,
        4 + (np.cos(angle) * right - np.sin(angle) * down) / wider,
    )
    expected = [[map_coordinates(channel, places, order=1) for channel in image] for image in X]
    np.testing.assert_allclose(Change(turn=turn, wider=wider).of(X), expected, atol=1e-5)


def test_a_quarter_turn_is_counterclockwise() -> None:
    np.testing.assert_allclose(Change(turn=90.0).of(X), np.rot90(X, axes=(2, 3)), atol=1e-6)


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
