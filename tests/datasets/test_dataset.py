"""Parts of a data set: the first images, mixed ones, and those that are held out."""

import numpy as np
import pytest

from cnngp import datasets
from cnngp.common.errors import DatasetError


def numbered(y: np.ndarray, y_test: np.ndarray | None = None) -> datasets.Dataset:
    """Every image holds its row number."""

    def images_of(labels: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.arange(len(labels), dtype=np.float32)[:, None, None, None], (len(labels), 1, 2, 2))

    y_test = y[:0] if y_test is None else y_test
    return datasets.Dataset("numbered", images_of(y), y, images_of(y_test), y_test)


def numbers(X: np.ndarray) -> np.ndarray:
    return X[:, 0, 0, 0].astype(int)


def test_the_first_images() -> None:
    digits = datasets.digits()
    small = digits.take(10, 20)
    np.testing.assert_array_equal(small.X, digits.X[:10])
    assert len(small.y_test) == 20
    assert repr(digits.take(10, 0)) == "<digits: 10 training images of 1 × 8 × 8>"
    for asked, message in (
        ({"train": 2000}, "digits has 1,297 training images, but 2,000 were asked for"),
        ({"test": 501}, "digits has 500 test images, but 501 were asked for"),
        ({"train": 0}, "train=0: expected how many training images to take, 1 or more"),
        ({"test": -1}, "test=-1: expected how many test images to take, 0 or more"),
    ):
        with pytest.raises(DatasetError, match=message):
            digits.take(**asked)


@pytest.mark.parametrize(
    "y",
    [
        np.repeat([0, 1, 2], 20),
        np.repeat(["b", "a"], [50, 5]),
        np.tile(np.repeat([0, 1], 10), 4),  # by class, again and again
    ],
)
def test_images_in_class_order_are_mixed(y: np.ndarray) -> None:
    mixed = numbered(y, y[::-1]).mixed()
    for X, labels, given in ((mixed.X, mixed.y, y), (mixed.X_test, mixed.y_test, y[::-1])):
        assert sorted(numbers(X)) == list(range(len(y)))
        np.testing.assert_array_equal(labels, given[numbers(X)])
        assert set(labels[:4]) == set(y)


def test_images_in_another_order_stay_in_it() -> None:
    """What is published of the first images of a data set must not move."""
    y = np.random.default_rng(1).integers(0, 3, 40)
    for labels in (y, np.tile([0, 1], 10), np.array([0, 1]), np.array([3]), np.zeros(5, int), y[:0]):
        for data in (numbered(labels, labels).mixed(), numbered(labels, labels).take(len(labels) or None)):
            np.testing.assert_array_equal(numbers(data.X), np.arange(len(labels)))


def test_the_first_of_images_in_class_order_are_of_all_classes() -> None:
    """All of them stay where they are, so that a matrix of `cnngp gram` fits `cnngp classify`."""
    data = numbered(np.repeat(np.arange(5), 40), np.repeat(np.arange(5), 40))
    for whole in (data.take().X, data.take(None, 20).X, data.take(20).X_test):
        np.testing.assert_array_equal(numbers(whole), np.arange(200))
    for part in (data.take(20).y, data.take(None, 20).y_test):
        assert np.bincount(part).tolist() == [4] * 5
    np.testing.assert_array_equal(data.take(20).X, data.take(20, 30).X)


def test_held_out_images_are_of_all_classes_in_proportion() -> None:
    y = np.repeat(["a", "b", "c", "d"], [100, 50, 9, 1])
    data = numbered(y).hold_out(40)
    assert data.X_validation is not None
    assert data.y_validation is not None
    rows = numbers(np.concatenate([data.X, data.X_validation]))
    assert sorted(rows) == list(range(160))
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_validation]), y[rows])
    for label, share in (("a", 25.0), ("b", 12.5), ("c", 2.25), ("d", 0.25)):
        assert abs(np.count_nonzero(data.y_validation == label) - share) <= 1
    assert set(data.y[:4]) == set("abcd")
    np.testing.assert_array_equal(numbered(y).hold_out(40).X, data.X)
    assert set(numbered(y).hold_out(156).y) == set("abcd")  # every class keeps one for training
    for n in (0, 160):
        with pytest.raises(DatasetError, match=f"160 training images, of which {n} cannot be held out"):
            numbered(y).hold_out(n)
    with pytest.raises(DatasetError, match="has validation images of its own"):
        data.hold_out(10)


def test_small_classes_are_held_out_in_proportion_too() -> None:
    y = np.concatenate([np.zeros(300, int), np.repeat(np.arange(1, 21), 3)])
    held = numbered(y).hold_out(90)
    assert held.y_validation is not None
    assert 10 <= np.count_nonzero(held.y_validation) <= 20  # 15 of the 60
    assert set(held.y) == set(range(21))
