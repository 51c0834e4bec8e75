"""Arguments of `Kernel`, and what it refuses."""

import pickle
import re
import sys

import numpy as np
import pytest

from cnngp import DataError, GPClassifier, Kernel
from cnngp.common.arrays import to_cupy
from cnngp.common.devices import EngineError
from cnngp.kernel.kernel import as_kernel
from helpers.kernels import SMALL, each_device, random_images


@each_device
def test_a_kernel_is_pickled_with_its_settings_and_used_on_several_shapes(device):
    settings = {"device": device, "dtype": "float64", "threads": 2, "kind": "ntk", "check": False, "symmetry": "flip"}
    kernel = Kernel(SMALL, **settings)
    X = random_images(4)
    K = kernel(X)
    again = pickle.loads(pickle.dumps(kernel))
    told = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    assert repr(again) == repr(kernel) == f"Kernel({SMALL!r}, {told})"
    assert {name: getattr(again, name) for name in settings} == settings
    assert again.network == SMALL
    assert np.array_equal(again(X), K)
    assert again(random_images(3, (1, 9, 9))).shape == (3, 3)
    assert np.array_equal(again(X), K)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(5), r"^X has shape \(5,\); expected \(N, channels, height, width\).*; for one image use X\[None\]$"),
        (
            np.zeros((0, 1, 4, 4)),
            r"^X has shape \(0, 1, 4, 4\), which is empty; expected at least one image with",
        ),
        (np.zeros((2, 0, 4, 4)), r"^X has shape \(2, 0, 4, 4\), which is empty"),
        ([[]], r"^X has shape \(1, 0\), which is empty"),
        (None, r"^X has shape \(\); expected"),
        ([[1.0, 2.0], [3.0]], "^X: rows of different lengths; expected one array$"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_set_of_images_is_refused_by_name(X, message):
    """Bad numbers, and every other door: tests/test_bad_input.py."""
    kernel = Kernel(SMALL, device="cpu")
    for call in (kernel, kernel.diag):
        with pytest.raises(DataError, match=message):
            call(X)
    if X is not None:
        with pytest.raises(DataError, match=message.replace("X", "Z", 1)):
            kernel(random_images(2), X)


@pytest.mark.parametrize("shape", [(1, 7, 6), (2, 6, 7)])
def test_two_sets_of_different_images_are_refused(shape):
    told = f"X holds images of shape (2, 7, 6) and Z of shape {shape}; they must agree"
    with pytest.raises(DataError, match=re.escape(told)):
        Kernel(SMALL, device="cpu")(random_images(2), random_images(2, shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "device='gpu' is not 'auto', 'cpu' or 'cuda'"),
        ({"device": "cuda:0"}, "device='cuda:0' is not"),
        ({"dtype": "float16"}, "dtype='float16' is not 'float32' or 'float64'"),
        ({"dtype": int}, "dtype=<class 'int'> is not 'float32' or 'float64'"),
        ({"dtype": None}, "dtype=None is not 'float32' or 'float64'"),
        ({"kind": "NTK"}, "kind='NTK' is not 'nngp', the kernel of the Gaussian process, or 'ntk'"),
        ({"threads": 0}, "threads=0 is not a positive integer or None"),
        ({"threads": True}, "threads=True is not a positive integer"),
        ({"threads": "2"}, "threads='2' is not a positive integer"),
        ({"check": "no"}, "check='no' is not True or False"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"Kernel: {message}"):
        Kernel(SMALL, **{"device": "cpu"} | arguments)


@pytest.mark.parametrize(("output", "name", "extra"), [("cupy", "CuPy", "cuda"), ("torch", "PyTorch", "torch")])
def test_an_output_that_cannot_be_made_is_refused_before_the_work(output, name, extra, monkeypatch):
    kernel = Kernel(SMALL, device="cpu")
    monkeypatch.setitem(sys.modules, output, None)  # importing it fails
    monkeypatch.setattr(Kernel, "engine_for", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(ImportError, match=rf"^output='{output}' needs {name}: pip install \"cnngp\[{extra}\]\"$"):
        kernel(random_images(2), output=output)
    with pytest.raises(ValueError, match="output='jax' is not one of 'numpy', 'cupy', 'torch'"):
        kernel(random_images(2), output="jax")


def test_an_array_cannot_be_put_on_a_card_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r'^Z on the card needs CuPy: pip install "cnngp\[cuda\]"$'):
        to_cupy(np.ones(3), "Z")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float64"}, "dtype='float64', but the Kernel that was given has dtype='float32'; make it with "),
        ({"device": "cuda"}, "device='cuda', but the Kernel that was given has device='cpu'"),
        ({"threads": 2}, "threads=2, but the Kernel that was given has threads=1"),
        ({"dtype": "float16"}, "dtype='float16' is not 'float32' or 'float64'"),
    ],
)
def test_settings_beside_a_kernel_that_has_others_are_refused(settings, message):
    kernel = Kernel(SMALL, device="cpu", dtype="float32", threads=1)
    with pytest.raises(ValueError, match=message) as caught:
        as_kernel(kernel, **settings)
    assert "\n" not in str(caught.value)
    y = np.array([0, 1, 0, 1])
    with pytest.raises(ValueError, match=message):
        GPClassifier(kernel, **settings).fit(random_images(4), y)


def test_settings_beside_a_kernel_that_has_the_same():
    for name, same in (("float32", ("single", np.float32, "f4")), ("float64", ("double", float, np.float64))):
        kernel = Kernel(SMALL, device="cpu", dtype=name, threads=2)
        for dtype in same:
            assert as_kernel(kernel, "cpu", dtype, np.int32(2)) is kernel
    # the default asks for nothing, so the Kernel's own precision holds
    assert as_kernel(kernel) is kernel
    assert GPClassifier(kernel).fit(random_images(4), [0, 1, 0, 1]).kernel_.dtype == "float64"


def test_a_missing_card_is_told_when_the_kernel_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert Kernel(SMALL).device == "cpu"
    with pytest.raises(EngineError, match=r"^device='cuda' needs CuPy: pip install"):
        Kernel(SMALL, device="cuda")
