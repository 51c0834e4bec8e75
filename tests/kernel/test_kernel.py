"""What any engine promises of a kernel matrix, whatever the network: one body over devices and types.

K[i, j] depends on the two images alone, bit for bit; the matrix is exactly symmetric, its diagonal exact, its
eigenvalues those of a covariance. Then what may be given as images, what is refused, and life as a scikit-learn kernel.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnngp import (
    Conv,
    DataError,
    Dense,
    Elementwise,
    Erf,
    GPClassifier,
    Identity,
    Kernel,
    ReLU,
    Sequential,
    Sum,
    reference,
    zoo,
)
from cnngp.common.arrays import to_cupy
from cnngp.kernel.kernel import as_kernel
from helpers.networks import STEP, images, networks_with_shapes, relu_like, smooth

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = ["float32", "float64"]
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}

SMALL = Sequential(
    Conv(3, bias_var=0.1),
    ReLU(),
    Conv(4, stride=2),
    Sum(Identity(), Sequential(ReLU(), Conv(3))),
    ReLU(2.0**0.5),
    Dense(),
)

each_device = pytest.mark.parametrize("device", DEVICES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def random_images(n, shape=(2, 7, 6), seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def error(K, R):
    return float(np.abs(K - R).max() / np.abs(R).max())


# ---- what holds for every network ----------------------------------------------------------------------------------


@each_device
@each_dtype
@given(
    drawn=networks_with_shapes(st.one_of(relu_like, smooth, st.just(STEP)), max_pixels=150),
    n=st.sampled_from([1, 2, 7, 8, 9, 17, 33]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40)
def test_entries_depend_on_their_two_images_alone(device, dtype, drawn, n, seed):
    net, shape = drawn
    X = images(shape, n, seed)
    kernel = Kernel(net, device=device, dtype=dtype)
    K = kernel(X)
    off = ~np.eye(n, dtype=bool)
    assert K.shape == (n, n)
    assert K.dtype == dtype
    assert np.isfinite(K).all()
    assert np.array_equal(K, K.T)  # exactly symmetric
    assert np.array_equal(kernel.diag(X), K.diagonal())
    assert np.array_equal(kernel(X, X)[off], K[off])  # whole and in two sets
    order = np.random.default_rng(seed).permutation(n)
    assert np.array_equal(kernel(X[order]), K[np.ix_(order, order)])  # shuffled
    some = order[: n // 2 + 1]
    assert np.array_equal(kernel(X[some]), K[np.ix_(some, some)])  # a smaller batch
    Z = images(shape, 3, seed + 1)
    assert np.array_equal(kernel(X, Z), kernel(Z, X).T)  # the order of arguments
    assert np.array_equal(kernel(X, Z)[some], kernel(X[some], Z))


@each_device
@each_dtype
@pytest.mark.parametrize("fn", ["tanh", "silu", "elu", "gaussian"])
def test_series_of_elementwise_functions_do_not_depend_on_the_batch(device, dtype, fn):
    """How many terms a series needs depends on the variance, but an entry must not depend on its neighbours'."""
    net = Sequential(Conv(3, weight_var=2.0), Elementwise(fn), Conv(3), Elementwise(fn), Dense())
    X = random_images(10) * np.geomspace(0.05, 1.5, 10, dtype=np.float32)[:, None, None, None]
    kernel = Kernel(net, device=device, dtype=dtype)
    K = kernel(X)
    for n in (2, 3, 5, 9):
        assert np.array_equal(kernel(X[:n]), K[:n, :n])
        assert np.array_equal(kernel(X[:n], X[n:]), K[:n, n:])
        assert np.array_equal(Kernel(net, device=device, dtype=dtype)(X[n:], X[:n]), K[n:, :n])


@each_device
@given(drawn=networks_with_shapes(relu_like, max_pixels=150), seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_kernel_matrices_are_positive_semidefinite(device, drawn, seed):
    net, shape = drawn
    X = np.random.default_rng(seed).normal(size=(12, *shape))
    for dtype, slack in (("float32", 1e-6), ("float64", 1e-13)):
        eigenvalues = np.linalg.eigvalsh(Kernel(net, device=device, dtype=dtype)(X).astype(np.float64))
        assert eigenvalues.min() >= -slack * eigenvalues.max()


@each_device
@each_dtype
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65])
def test_any_number_of_images_agrees_with_the_reference(device, dtype, n):
    X = random_images(n)
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    R = reference.kernel(SMALL, X)
    assert error(kernel(X), R) < TOLERANCE[dtype]
    for m in (1, 5, 8, 16, 18):
        assert error(kernel(X, X[:m]), reference.kernel(SMALL, X, X[:m])) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_no_entry_differs_between_batches_of_any_size(device, dtype):
    X, Z = random_images(70), random_images(37, seed=1)
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    K, C = kernel(X), kernel(X, Z)
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 69):
        assert np.array_equal(kernel(X[:n]), K[:n, :n])
        assert np.array_equal(kernel(X[-n:]), K[-n:, -n:])
        assert np.array_equal(kernel(X[:n], Z), C[:n])
        assert np.array_equal(kernel(X, Z[:n]), C[:, :n])
    for i, j in ((0, 69), (35, 3), (16, 17)):
        assert kernel(X[i : i + 1], X[j : j + 1])[0, 0] == K[i, j]


@each_dtype
def test_threads_change_no_bit(dtype):
    X, Z = random_images(50), random_images(21, seed=1)
    one, *others = (Kernel(SMALL, device="cpu", dtype=dtype, threads=t) for t in (1, 2, 3))
    for kernel in others:
        assert np.array_equal(one(X), kernel(X))
        assert np.array_equal(one(X, Z), kernel(X, Z))
        assert np.array_equal(one.diag(X), kernel.diag(X))


@each_dtype
@pytest.mark.parametrize("strip", [1, 2, 7, 8, 16, 33])
def test_strips_of_rows_change_no_bit(dtype, strip, monkeypatch):
    for n in (strip - 1, strip, strip + 1, 2 * strip, 2 * strip + 1, 40):
        if n == 0:
            continue
        X, Z = random_images(n), random_images(19, seed=1)
        kernel = Kernel(SMALL, device="cpu", dtype=dtype, threads=2)
        K, C = kernel(X), kernel(X, Z)
        monkeypatch.setattr(kernel.engine_for((2, 7, 6))._run(None), "strip", strip)
        assert np.array_equal(kernel(X), K)
        assert np.array_equal(kernel(X, Z), C)


@each_dtype
def test_concurrent_calls_do_not_disturb_each_other(dtype):
    from concurrent.futures import ThreadPoolExecutor

    kernel = Kernel(SMALL, device="cpu", dtype=dtype, threads=2)
    batches = [random_images(n, seed=n) for n in (5, 9, 17, 20, 24, 33)]
    alone = [kernel(X) for X in batches]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(kernel, batches))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


# ---- what the mathematics says -------------------------------------------------------------------------------------


@each_device
@each_dtype
@pytest.mark.parametrize("scale", [2.0**-10, 2.0**7, 3.0])
def test_zero_bias_relu_networks_scale_with_the_square_of_the_images(device, dtype, scale):
    X = random_images(9, (1, 9, 9)).astype(dtype)
    kernel = Kernel(zoo.resnet(8), device=device, dtype=dtype)
    K, S = kernel(X), kernel(X * X.dtype.type(scale))
    if scale == 3.0:
        assert error(S, 9.0 * K) < TOLERANCE[dtype]
    else:
        assert np.array_equal(S, K * np.dtype(dtype).type(scale**2))  # powers of two: no rounding at all


@each_device
@each_dtype
def test_an_image_and_its_negative(device, dtype):
    """A ReLU network without biases sees −x as another image: A at θ = π is 0 for one layer."""
    X = random_images(1, (1, 6, 6))
    net = Sequential(Conv(3), ReLU(), Dense())
    K = Kernel(net, device=device, dtype=dtype)(np.concatenate([X, -X]))
    assert abs(K[0, 1]) <= TOLERANCE[dtype] * K[0, 0]
    assert K[0, 0] == K[1, 1]


@each_device
@each_dtype
@pytest.mark.parametrize("axis", [0, 1])
def test_a_one_by_k_convolution_is_the_one_dimensional_one(device, dtype, axis):
    def net(*kernels):
        return Sequential(
            Conv(kernels[0], stride=kernels[2]), ReLU(), Conv(kernels[1], padding_mode="replicate"), ReLU(), Dense()
        )

    X = random_images(10, (3, 12))
    flat = Kernel(net(5, 4, 2), device=device, dtype=dtype)(X)
    other = 1 - axis

    def one(k):
        return (k, 1) if axis == 0 else (1, k)

    high = Kernel(net(one(5), one(4), one(2)), device=device, dtype=dtype)(np.expand_dims(X, 2 + other))
    assert error(high, flat.astype(np.float64)) < TOLERANCE[dtype]
    assert error(flat, reference.kernel(net(5, 4, 2), X)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_a_dense_network_sees_a_map_of_one_location_and_features_alike(device, dtype):
    X = random_images(8, (20,))
    net = zoo.dense_nngp(2)
    kernel = Kernel(net, device=device, dtype=dtype)
    flat = kernel(X)
    assert error(flat, reference.kernel(net, X)) < TOLERANCE[dtype]
    for shape in ((20, 1), (20, 1, 1), (20, 1, 1, 1), (1, 4, 5)):  # dense layers mean over channels and locations
        assert error(kernel(X.reshape(8, *shape)), flat.astype(np.float64)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_permuting_channels_changes_rounding_only(device, dtype):
    X = random_images(9, (5, 6, 6))
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    assert error(kernel(X[:, ::-1]), kernel(X).astype(np.float64)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_repeating_channels_changes_rounding_only(device, dtype):
    X = random_images(9, (2, 6, 6))
    kernel = Kernel(SMALL, device=device, dtype=dtype)
    assert error(kernel(np.tile(X, (1, 3, 1, 1))), kernel(X).astype(np.float64)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_duplicate_images_correlate_fully(device, dtype):
    X = random_images(5)
    K = Kernel(SMALL, device=device, dtype=dtype)(np.concatenate([X, X]))
    assert np.array_equal(K[:5, :5], K[5:, 5:])
    # The pair formula at correlation one, against the exact variance recursion.
    np.testing.assert_allclose(np.diagonal(K[:5, 5:]), np.diagonal(K[:5, :5]), rtol=TOLERANCE[dtype])


@each_device
@each_dtype
def test_mirrored_images_have_the_same_kernel_under_mirrored_padding(device, dtype):
    X = random_images(6, (1, 8, 8))
    net = Sequential(Conv(3), ReLU(), Conv(5, dilation=2), ReLU(), Dense())
    kernel = Kernel(net, device=device, dtype=dtype)
    assert error(kernel(X[..., ::-1]), kernel(X).astype(np.float64)) < TOLERANCE[dtype]
    even = Kernel(Sequential(Conv(4), ReLU(), Dense()), device=device, dtype=dtype)  # one back, two forward
    assert error(even(X[..., ::-1]), even(X).astype(np.float64)) > 1e-3


# ---- real and large images -----------------------------------------------------------------------------------------


@each_device
@each_dtype
@pytest.mark.parametrize("name", ["resnet", "convnet", "residual_cnn"])
def test_the_papers_networks_on_mnist(device, dtype, name, mnist_images):
    net = getattr(zoo, name)()
    X, Z = mnist_images[:5], mnist_images[5:16]
    kernel = Kernel(net, device=device, dtype=dtype)
    # The images are k/255 and are rounded to float32 first: the reference sees what the engine sees.
    x, z = (a.astype(dtype).astype(np.float64) for a in (X, Z))
    assert error(kernel(X), reference.kernel(net, x)) < TOLERANCE[dtype]
    assert error(kernel(X, Z), reference.kernel(net, x, z)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_photographs_of_224_pixels(device, dtype):
    net = Sequential(Conv(7, stride=4, weight_var=2.0), ReLU(), Conv(3, stride=2), ReLU(), Dense())
    X = random_images(3, (3, 224, 224))
    kernel = Kernel(net, device=device, dtype=dtype)
    assert error(kernel(X), reference.kernel(net, X)) < TOLERANCE[dtype]
    full = Sequential(Conv(3), ReLU(), Dense())  # the whole map after a convolution without stride
    assert error(Kernel(full, device=device, dtype=dtype)(X), reference.kernel(full, X)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_volumes(device, dtype):
    net = Sequential(
        Conv((3, 3, 2), weight_var=2.0), ReLU(), Conv(3, stride=(2, 1, 2), padding_mode="circular"), ReLU(), Dense()
    )
    X = random_images(9, (2, 6, 7, 8))
    assert error(Kernel(net, device=device, dtype=dtype)(X), reference.kernel(net, X)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_signals(device, dtype):
    net = Sequential(Conv(9, stride=3), ReLU(), Conv(16, dilation=2, padding="valid"), ReLU(), Dense())
    X = random_images(9, (1, 400))
    assert error(Kernel(net, device=device, dtype=dtype)(X), reference.kernel(net, X)) < TOLERANCE[dtype]


@each_device
@each_dtype
def test_thousands_of_features(device, dtype):
    X = random_images(9, (3072,))
    net = zoo.dense_nngp(3)
    assert error(Kernel(net, device=device, dtype=dtype)(X), reference.kernel(net, X)) < TOLERANCE[dtype]


# ---- what may be given ---------------------------------------------------------------------------------------------


@each_device
@pytest.mark.parametrize(
    "given_as", ["uint8", "int64", "bool", "float16", "float32", "float64", "longdouble", ">f4", "<i2"]
)
def test_images_of_any_real_type(device, given_as):
    X = np.random.default_rng(0).integers(0, 2 if given_as == "bool" else 100, size=(6, 2, 7, 6)).astype(given_as)
    kernel = Kernel(SMALL, device=device)
    assert np.array_equal(kernel(X), kernel(X.astype(np.float64)))
    assert np.array_equal(kernel(X, X[:3]), kernel(X.astype(np.float32), X[:3].astype(np.float32)))


@each_device
def test_images_in_any_layout(device):
    X = random_images(6)
    kernel = Kernel(SMALL, device=device)
    K = kernel(X)
    wide = np.zeros((6, 2, 14, 12), np.float32)
    wide[:, :, ::2, ::2] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(X[::-1, :, ::-1, ::-1])
    for same in (
        X.tolist(),
        list(X),
        np.asfortranarray(X),
        wide[:, :, ::2, ::2],
        backwards[::-1, :, ::-1, ::-1],
        np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 1, -1)), -1, 1),
        frozen,
        X.astype(">f8"),
        np.broadcast_to(X, (1, *X.shape))[0],
    ):
        assert np.array_equal(kernel(same), K)
    assert np.array_equal(frozen, X)


@each_device
def test_the_images_are_left_as_they_were(device):
    X = random_images(6)
    before = X.copy()
    Kernel(SMALL, device=device)(X)
    assert np.array_equal(X, before)


@each_device
def test_torch_tensors_go_in_and_come_out(device):
    torch = pytest.importorskip("torch")
    X = random_images(6)
    kernel = Kernel(SMALL, device=device)
    K = kernel(X)
    T = torch.from_numpy(X)
    for tensor in (
        T,
        T.clone().requires_grad_(True),
        T.double(),
        T.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    ):
        result = kernel(tensor)
        assert isinstance(result, np.ndarray)
        assert np.array_equal(result, K)
    assert np.array_equal(kernel(T, X), kernel(X, T))
    half = T.to(torch.bfloat16)
    assert np.array_equal(kernel(half), kernel(half.float()))
    out = kernel(T, output="torch")
    assert isinstance(out, torch.Tensor)
    assert out.dtype == torch.float32
    assert np.array_equal(out.cpu().numpy(), K)
    with pytest.raises(DataError, match="X: this tensor cannot become an array"):
        kernel(T.to_sparse())


@each_device
def test_a_kernel_may_be_pickled_copied_and_used_on_several_shapes(device):
    kernel = Kernel(SMALL, device=device, dtype="float64", threads=2)
    X = random_images(4)
    K = kernel(X)
    again = pickle.loads(pickle.dumps(kernel))
    assert repr(again) == repr(kernel) == f"Kernel({SMALL!r}, device={device!r}, dtype='float64', threads=2)"
    assert (again.network, again.dtype, again.threads, again.device) == (SMALL, "float64", 2, device)
    assert np.array_equal(again(X), K)
    assert again(random_images(3, (1, 9, 9))).shape == (3, 3)
    assert np.array_equal(again(X), K)


def test_precision_may_be_named_by_type():
    for dtype in ("float32", "single", np.float32, np.dtype("float32"), "f4"):
        assert Kernel(SMALL, device="cpu", dtype=dtype).dtype == "float32"
    for dtype in ("float64", "double", float, np.float64):
        assert Kernel(SMALL, device="cpu", dtype=dtype).dtype == "float64"


# ---- what is refused -----------------------------------------------------------------------------------------------


def spoiled(value):
    X = random_images(5)
    X[3, 1, 2, 2] = value
    return X


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (spoiled(np.nan), r"^X\[3\] has NaN pixels; remove or replace them$"),
        (spoiled(np.inf), r"^X\[3\] has infinite .* pixels; remove or replace them$"),
        (spoiled(-np.inf), r"^X\[3\] has infinite"),
        (np.full((2, 1, 4, 4), 1e39), r"^X\[0\] has infinite \(or beyond the range of float32\) pixels"),
        (np.zeros(5), r"^X has shape \(5,\); expected \(N, channels, height, width\).*; for one image use X\[None\]$"),
        (np.zeros(()), r"^X has shape \(\); expected"),
        (3.0, r"^X has shape \(\); expected"),
        (
            np.zeros((1, 1, 2, 2, 2, 2)),
            r"^X has shape \(1, 1, 2, 2, 2, 2\); expected .*\(N, channels, depth, height, width\)",
        ),
        (
            np.zeros((0, 1, 4, 4)),
            r"^X has shape \(0, 1, 4, 4\), which is empty; expected at least one image with pixels$",
        ),
        (np.zeros((2, 0, 4, 4)), r"^X has shape \(2, 0, 4, 4\), which is empty"),
        (np.zeros((2, 1, 4, 0)), "which is empty"),
        ([], r"^X has shape \(0,\)"),
        ([[]], r"^X has shape \(1, 0\), which is empty"),
        (np.zeros((2, 1, 4, 4), complex), "^X has type complex128; expected real numbers$"),
        (np.zeros((2, 1, 4, 4), object), "^X has type object; expected real numbers$"),
        (np.full((2, 1, 4, 4), "1"), "^X has type <U1; expected real numbers$"),
        (np.zeros((2, 4), "datetime64[s]"), r"^X has type datetime64\[s\]; expected real numbers$"),
        ("images.npy", "^X has type <U10; expected real numbers$"),
        (None, "^X has type object; expected real numbers$"),
        ([[1.0, 2.0], [3.0]], "^X: rows of different lengths; expected one array$"),
        ({"a": 1}, "^X has type object; expected real numbers$"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_images_that_cannot_be_used_are_refused_by_name(X, message):
    kernel = Kernel(SMALL, device="cpu")
    with pytest.raises(DataError, match=message):
        kernel(X)
    with pytest.raises(DataError, match=message):
        kernel.diag(X)
    if X is not None:
        with pytest.raises(DataError, match=message.replace("X", "Z", 1)):
            kernel(random_images(2), X)


def test_two_sets_of_different_images_are_refused():
    kernel = Kernel(SMALL, device="cpu")
    with pytest.raises(
        DataError, match=r"X holds images of shape \(2, 7, 6\) and Z of shape \(1, 7, 6\); they must agree"
    ):
        kernel(random_images(2), random_images(2, (1, 7, 6)))
    with pytest.raises(DataError, match="they must agree"):
        kernel(random_images(2), random_images(2, (2, 6, 7)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "device='gpu' is not 'auto', 'cpu' or 'cuda'"),
        ({"device": None}, "device=None is not 'auto'"),
        ({"device": "cuda:0"}, "device='cuda:0' is not"),
        ({"dtype": "float16"}, "dtype='float16' is not 'float32' or 'float64'"),
        ({"dtype": "fast"}, "dtype='fast' is not 'float32' or 'float64'"),
        ({"dtype": int}, "dtype=<class 'int'> is not 'float32' or 'float64'"),
        ({"dtype": None}, "dtype=None is not 'float32' or 'float64'"),
        ({"dtype": 32}, "dtype=32 is not"),
        ({"threads": 0}, "threads=0 is not a positive integer or None"),
        ({"threads": -1}, "threads=-1 is not a positive integer"),
        ({"threads": 2.0}, "threads=2.0 is not a positive integer"),
        ({"threads": True}, "threads=True is not a positive integer"),
        ({"threads": "2"}, "threads='2' is not a positive integer"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"Kernel: {message}"):
        Kernel(SMALL, **{"device": "cpu"} | arguments)


def test_an_unknown_output_is_refused():
    with pytest.raises(ValueError, match="output='jax' is not one of 'numpy', 'cupy', 'torch'"):
        Kernel(SMALL, device="cpu")(random_images(2), output="jax")


@pytest.mark.parametrize(("output", "name"), [("cupy", "CuPy"), ("torch", "PyTorch")])
def test_an_output_that_cannot_be_made_is_refused_before_the_work(output, name, monkeypatch):
    kernel = Kernel(SMALL, device="cpu")
    monkeypatch.setitem(sys.modules, output, None)  # importing it fails
    monkeypatch.setattr(Kernel, "engine_for", lambda *_: pytest.fail("something was computed"))
    extra = {"cupy": "cuda"}.get(output, output)
    with pytest.raises(ImportError, match=rf"^output='{output}' needs {name}: pip install \"cnngp\[{extra}\]\"$"):
        kernel(random_images(2), output=output)


def test_an_array_for_the_card_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r'^Z on the card needs CuPy: pip install "cnngp\[cuda\]"$'):
        to_cupy(np.ones(3), "Z")


def test_integers_of_numpy_are_threads():
    kernel = Kernel(SMALL, device="cpu", threads=np.int64(2))
    assert type(kernel.threads) is int
    assert repr(kernel) == repr(Kernel(SMALL, device="cpu", threads=2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float64"}, "dtype='float64', but the Kernel that was given has dtype='float32'; make it with "),
        ({"dtype": np.float64}, "dtype='float64', but the Kernel that was given has dtype='float32'"),
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
    kernel = Kernel(SMALL, device="cpu", dtype="float64", threads=2)
    for given_settings in ({}, {"dtype": "float64"}, {"dtype": np.float64, "device": "cpu", "threads": np.int32(2)}):
        assert as_kernel(kernel, **given_settings) is kernel
    # the default asks for nothing, so the Kernel's own precision holds
    assert GPClassifier(kernel).fit(random_images(4), [0, 1, 0, 1]).kernel_.dtype == "float64"


def test_a_card_that_is_not_there_is_told_in_one_line():
    cuda = pytest.importorskip("cnngp.kernel.engines.cuda.engine")
    if cuda.available():
        pytest.skip("there is a card")
    with pytest.raises(cuda.EngineError, match=r"device='cuda'.*(pip install|use device='cpu')") as caught:
        Kernel(SMALL, device="cuda")
    assert "\n" not in str(caught.value)
    assert Kernel(SMALL, device="auto").device == "cpu"


# ---- scikit-learn --------------------------------------------------------------------------------------------------


def digits_like(n=40, seed=0):
    """Two kinds of 5 × 5 images, flat: a bright upper and a bright lower half, with noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    X = rng.random((n, 1, 5, 5)) * 0.5
    X[y == 0, :, :2] += 1.0
    X[y == 1, :, 3:] += 1.0
    return X.reshape(n, -1), y


NET = Sequential(Conv(3, weight_var=2.0, bias_var=0.1), ReLU(), Dense())


def as_sklearn(**arguments):
    return Kernel(NET, device="cpu", **arguments).as_sklearn((1, 5, 5))


def test_the_sklearn_kernel_is_the_kernel_on_flat_rows():
    X, _ = digits_like(8)
    kernel = as_sklearn()
    K = Kernel(NET, device="cpu")(X.reshape(-1, 1, 5, 5))
    assert np.array_equal(kernel(X), K)
    assert np.array_equal(kernel(X, X[:3]), Kernel(NET, device="cpu")(*(a.reshape(-1, 1, 5, 5) for a in (X, X[:3]))))
    assert np.array_equal(kernel.diag(X), K.diagonal())
    assert kernel(X).dtype == np.float64
    assert not kernel.is_stationary()
    value, gradient = kernel(X, eval_gradient=True)
    assert np.array_equal(value, K)
    assert gradient.shape == (8, 8, 0)
    with pytest.raises(ValueError, match="gradient"):
        kernel(X, X, eval_gradient=True)
    with pytest.raises(
        DataError, match=r"X has shape \(8, 24\); expected rows of 25 pixels, one image \(1, 5, 5\) each"
    ):
        kernel(X[:, :24])


def test_the_sklearn_kernel_is_cloned_compared_and_pickled_by_its_parameters():
    from sklearn.base import clone

    X, _ = digits_like(6)
    kernel = as_sklearn(dtype="float64", threads=1)
    before = pickle.dumps(kernel)
    K = kernel(X)
    for again in (clone(kernel), pickle.loads(pickle.dumps(kernel)), pickle.loads(before), clone(clone(kernel))):
        assert again == kernel
        assert again.get_params() == kernel.get_params()
        assert np.array_equal(again(X), K)
    assert kernel != as_sklearn(dtype="float32", threads=1)
    assert kernel != Kernel(Dense(), device="cpu", dtype="float64", threads=1).as_sklearn((1, 5, 5))
    assert kernel.n_dims == 0


def test_set_params_after_use_takes_effect():
    X, _ = digits_like(6)
    kernel = as_sklearn()
    kernel(X)
    other = Sequential(Conv(5), Erf(), Dense())
    kernel.set_params(network=other, dtype="float64")
    assert np.array_equal(kernel(X), Kernel(other, device="cpu", dtype="float64")(X.reshape(-1, 1, 5, 5)))


def test_gaussian_process_regressor_uses_it():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

    X, y = digits_like()
    model = GaussianProcessRegressor(as_sklearn(dtype="float64"), alpha=1e-6).fit(X[:30], y[:30])
    mean, std = model.predict(X[30:], return_std=True)
    K = as_sklearn(dtype="float64")
    by_hand = K(X[30:], X[:30]) @ np.linalg.solve(K(X[:30]) + 1e-6 * np.eye(30), y[:30])
    np.testing.assert_allclose(mean, by_hand, rtol=1e-6, atol=1e-8)
    assert (std >= 0).all()
    assert ((mean > 0.5) == y[30:]).all()
    # Together with kernels that do have hyperparameters, which are then fitted.
    both = ConstantKernel() * as_sklearn(dtype="float64") + WhiteKernel(0.1, (1e-4, 10.0))
    fitted = GaussianProcessRegressor(both, random_state=0).fit(X[:30], y[:30])
    assert fitted.kernel_.theta.shape == (2,)
    assert ((fitted.predict(X[30:]) > 0.5) == y[30:]).all()


def test_svc_and_kernel_ridge_use_it():
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.svm import SVC

    X, y = digits_like()
    kernel = as_sklearn()
    svc = SVC(kernel=kernel).fit(X[:30], y[:30])
    assert (svc.predict(X[30:]) == y[30:]).all()
    ridge = KernelRidge(alpha=1e-3, kernel=kernel).fit(X[:30], y[:30])
    K = kernel(X[:30])  # sklearn calls kernel(X, X), which is seen to be one set
    by_hand = kernel(X[30:], X[:30]) @ np.linalg.solve(K + 1e-3 * np.eye(30), y[:30])
    np.testing.assert_allclose(ridge.predict(X[30:]), by_hand, rtol=1e-6, atol=1e-8)


def test_grid_search_over_networks():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.model_selection import GridSearchCV

    X, y = digits_like(20)
    nets = [NET, Sequential(Dense(), Elementwise("tanh"), Dense())]
    model = GaussianProcessRegressor(as_sklearn(dtype="float64"), alpha=1e-3)
    search = GridSearchCV(model, {"kernel__network": nets}, cv=2).fit(X, y)
    assert search.best_params_["kernel__network"] in nets


# ---- compiling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_prepared_kernels_compile_nothing_more(dtype):
    """In a process of its own, where nothing is compiled or loaded yet."""
    script = f"""
import json, time
import numpy as np
from cnngp import Kernel, zoo
from cnngp.kernel.engines.cpu import calls as cpu_calls, interpreter as i

def known():
    functions = (i.image_tables, i.pair_block, i.spread_rows, i.spread_lanes)
    return [cpu_calls._compiled.cache_info().currsize, *(len(f.signatures) for f in functions)]

X = np.random.default_rng(0).uniform(size=(40, 1, 8, 8)).astype("{dtype}")
kernel = Kernel(zoo.small_cnn(), "cpu", "{dtype}")
begun = time.perf_counter()
seconds = kernel.prepare(X)
whole = time.perf_counter() - begun
prepared = known()
kernel(X), kernel(X[:10], X), kernel.diag(X)
print(json.dumps([seconds, whole, prepared, known()]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, whole, prepared, after = json.loads(done.stdout)
    assert 0.9 * whole < seconds < whole
    assert min(prepared) > 0
    assert prepared == after


@pytest.mark.parametrize("device", DEVICES)
def test_preparing_refuses_what_the_kernel_refuses(device):
    with pytest.raises(DataError, match="NaN"):
        Kernel(SMALL, device).prepare(np.full((3, 1, 6, 6), np.nan))


# ---- lightness -----------------------------------------------------------------------------------------------------


def imported_by(code):
    script = f"import sys\n{code}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numba", "llvmlite", "sklearn", "scipy", "torch", "zarr", "cupy", "dask", "matplotlib", "pandas", "typer"}


def test_importing_the_package_imports_nothing_heavy():
    assert not imported_by("import cnngp") & (HEAVY | {"numpy"})


def test_describing_a_network_imports_nothing_heavy():
    code = """
from cnngp import from_json, zoo
net = from_json(zoo.resnet(32).to_json())
print(net, net.fingerprint, net.shapes((1, 28, 28)))
"""
    assert not imported_by(code) & (HEAVY | {"numpy"})


def test_a_kernel_does_not_import_what_it_does_not_use():
    assert not imported_by("from cnngp import Kernel, zoo\nKernel(zoo.resnet(8), device='cpu')") & HEAVY
