"""The float64 reference by independent routes: explicit loops, the transposed matrix, PyTorch, and finite networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special

from cnngp import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Erf,
    Identity,
    LeakyReLU,
    NetworkError,
    ReLU,
    Sequential,
    Step,
    Sum,
    zoo,
)
from cnngp.network import reference
from helpers.examples import examples
from helpers.loop_oracle import (
    as_map,
    conv_loop,
    conv_size,
    each,
    fan_in_scale,
    locations,
    oracle,
    pads,
    transposed_loop,
    transposed_size,
)
from helpers.networks import convolutions, images, networks_with_shapes, relu_like, smooth, transposed

# ---- against the loops ---------------------------------------------------------------------------------------------


@given(data=st.data(), axes=st.integers(1, 3), seed=st.integers(0, 1000))
@examples(150)
def test_a_convolution_sums_over_the_patch_of_each_location(data, axes, seed):
    layer = data.draw(convolutions(axes))
    size = tuple(data.draw(st.integers(2, (12, 7, 4)[axes - 1])) for _ in range(axes))
    try:
        layer.shapes((1, *size))
    except NetworkError:
        assume(False)
    V = np.random.default_rng(seed).normal(size=size)
    K, out = conv_loop(layer, as_map(V), size)
    result = reference.convolution(layer, V[None, None], V[None, None].ndim - 2)[0, 0]
    assert result.shape == out
    np.testing.assert_allclose(result.ravel(), list(K.values()), rtol=1e-12, atol=1e-12)


@given(data=st.data(), axes=st.integers(1, 3))
@examples(80)
def test_a_transposed_convolution_is_the_transposed_matrix_of_the_convolution(data, axes):
    drawn = data.draw(transposed(axes))
    padding = data.draw(st.sampled_from(["same", "valid", 1, ((0, 1),) * axes]))
    extra = 0 if padding == "same" else drawn.output_padding
    layer = ConvTranspose(
        drawn.kernel_size,
        drawn.stride,
        padding,
        drawn.dilation,
        drawn.weight_var,
        drawn.bias_var,
        drawn.fan_in,
        output_padding=extra,
    )
    size = tuple(data.draw(st.integers(1, (7, 3, 2)[axes - 1])) for _ in range(axes))
    try:
        layer.shapes((1, *size))
    except NetworkError:
        assume(False)
    V = np.random.default_rng(0).normal(size=size)
    K, out = transposed_loop(layer, as_map(V), size)
    result = reference.transposed_convolution(layer, V[None, None], V[None, None].ndim - 2)[0, 0]
    assert result.shape == out
    np.testing.assert_allclose(result.ravel(), list(K.values()), rtol=1e-12, atol=1e-12)


@given(data=st.data(), axes=st.integers(1, 2), seed=st.integers(0, 1000))
@examples(60)
def test_conv_and_its_transpose_are_adjoint(data, axes, seed):
    """⟨Conv V, W⟩ = ⟨V, ConvTranspose W⟩ where the transpose comes back to the size it started from."""
    kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    padding = data.draw(st.integers(0, 1))
    size = tuple(data.draw(st.integers(max(2, kernel), 9)) for _ in range(axes))
    conv = Conv(kernel, stride, padding, weight_var=1.7)
    rng = np.random.default_rng(seed)
    V = rng.normal(size=size)
    CV = reference.convolution(conv, V[None, None], V[None, None].ndim - 2)[0, 0]
    short = tuple(n + 2 * padding - kernel - (m - 1) * stride for n, m in zip(size, CV.shape, strict=True))
    back = ConvTranspose(kernel, stride, padding, weight_var=1.7, output_padding=short)
    W = rng.normal(size=CV.shape)
    CtW = reference.transposed_convolution(back, W[None, None], W[None, None].ndim - 2)[0, 0]
    assert CtW.shape == size
    assert np.sum(CV * W) == pytest.approx(np.sum(V * CtW), rel=1e-12, abs=1e-12)


@given(drawn=networks_with_shapes(st.one_of(relu_like, smooth), max_pixels=50), seed=st.integers(0, 10**6))
@examples(60)
def test_whole_networks_agree_with_the_loop_oracle(drawn, seed):
    net, shape = drawn
    X = images(shape, 4, seed)  # the first is blank
    R = reference.kernel(net, X)
    diagonal = reference.diagonal(net, X)
    scale = np.abs(R).max()
    for i, j in ((0, 1), (1, 2), (3, 1)):
        K, variance = oracle(net, X[i], X[j])
        # math.acos loses half the digits near correlation 1 where images nearly agree; elsewhere this is rounding.
        assert R[i, j] == pytest.approx(K, rel=1e-9, abs=1e-9 * scale)
        assert R[i, i] == diagonal[i] == pytest.approx(variance, rel=1e-12, abs=1e-12 * scale)
    assert np.array_equal(reference.kernel(net, X[:2], X[2:]), R[:2, 2:])


def test_step_networks_agree_with_the_loop_oracle():
    net = Sequential(Conv(3, weight_var=2.0), Step(), Conv(2, bias_var=0.1), Step(), Dense())
    X = images((2, 4, 5), 4, 1)
    R = reference.kernel(net, X)
    for i, j in ((0, 1), (1, 2), (3, 1)):
        K, variance = oracle(net, X[i], X[j])
        assert R[i, j] == pytest.approx(K, rel=1e-12)
        assert R[i, i] == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet()], ids=["resnet", "resid", "convnet"])
def test_the_papers_networks_agree_with_the_loop_oracle_on_small_images(net):
    X = images((1, 6, 5), 2, 3)
    K, variance = oracle(net, X[0], X[1])
    R = reference.kernel(net, X)
    assert R[0, 1] == pytest.approx(K, rel=1e-10)
    assert R[0, 0] == pytest.approx(variance, rel=1e-12)


# ---- against PyTorch -----------------------------------------------------------------------------------------------


@given(data=st.data(), axes=st.integers(1, 3))
@examples(40)
def test_linear_layers_agree_with_pytorch_filters_of_ones(data, axes):
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    layer = data.draw(st.one_of(convolutions(axes), transposed(axes)))
    size = tuple(data.draw(st.integers(3, 6)) for _ in range(axes))
    try:
        layer.shapes((1, *size))
    except NetworkError:
        assume(False)
    V = torch.from_numpy(np.random.default_rng(1).normal(size=(1, 1, *size)))
    ones = torch.ones(1, 1, *each(layer.kernel_size, axes), dtype=V.dtype)
    stride, dilation = each(layer.stride, axes), each(layer.dilation, axes)
    if isinstance(layer, ConvTranspose):
        assume(layer.padding != "same")
        f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
        total = f(V, ones, None, stride, 0, each(layer.output_padding, axes), 1, dilation)
        # PyTorch's padding is the same on both sides, so it is cut off here.
        total = total[(..., *(slice(a, n - b) for (a, b), n in zip(pads(layer, axes), total.shape[2:], strict=True)))]
        ours = reference.transposed_convolution(layer, V.numpy(), V.ndim - 2)
    else:
        flat = [p for pair in reversed(pads(layer, axes)) for p in pair]
        mode = {"zeros": "constant"}.get(layer.padding_mode, layer.padding_mode)
        total = (F.conv1d, F.conv2d, F.conv3d)[axes - 1](F.pad(V, flat, mode), ones, None, stride, 0, dilation)
        ours = reference.convolution(layer, V.numpy(), V.ndim - 2)
    expected = layer.bias_var + layer.weight_var * fan_in_scale(layer, axes) * total.numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


# ---- against finite networks ---------------------------------------------------------------------------------------

WIDTH = 256


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def conv_forward(layer, h, rng):
    """A random finite convolution of activations (N, C, …) to WIDTH channels."""
    axes, (N, C, *size) = h.ndim - 2, h.shape
    k, s, d = (each(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation))
    taps = list(locations(k))
    W = normal(rng, WIDTH, C, len(taps)) * math.sqrt(layer.weight_var * fan_in_scale(layer, axes) / C)
    border = pads(layer, axes)
    out = (conv_size if isinstance(layer, Conv) else transposed_size)(layer, tuple(size))
    rows = out if isinstance(layer, Conv) else size  # locations that hold a filter
    at = [(..., *(slice(t[a] * d[a], t[a] * d[a] + s[a] * (rows[a] - 1) + 1, s[a]) for a in range(axes))) for t in taps]
    if isinstance(layer, Conv):
        mode = {"zeros": "constant", "circular": "wrap", "replicate": "edge", "reflect": "reflect"}[layer.padding_mode]
        padded = np.pad(h, [(0, 0), (0, 0), *border], mode)
        columns = np.stack([padded[a] for a in at], axis=2)  # (N, C, taps, …)
        y = np.tensordot(W, columns, axes=([1, 2], [1, 2])).swapaxes(0, 1)
    else:  # each input location adds its filter to the padded output, whose border is then cut off
        y = np.zeros((N, WIDTH, *(n + sum(b) for n, b in zip(out, border, strict=True))), np.float32)
        for t, a in enumerate(at):
            y[a] += np.tensordot(W[:, :, t], h, axes=([1], [1])).swapaxes(0, 1)
        y = y[(..., *(slice(b, b + n) for n, (b, _) in zip(out, border, strict=True)))]
    return y + normal(rng, WIDTH, *[1] * axes) * math.sqrt(layer.bias_var)


def forward(net, h, rng):
    match net:
        case Conv() | ConvTranspose():
            return conv_forward(net, h, rng)
        case Dense():
            flat = h.reshape(len(h), -1)
            W = normal(rng, flat.shape[1], WIDTH) * math.sqrt(net.weight_var / flat.shape[1])
            return flat @ W + normal(rng, WIDTH) * math.sqrt(net.bias_var)
        case ReLU(gain):
            return gain * np.maximum(h, 0.0)
        case LeakyReLU(slope):
            return np.where(h > 0, h, slope * h)
        case Erf():
            return special.erf(h)
        case Identity():
            return h
        case Sequential():
            for layer in net.layers:
                h = forward(layer, h, rng)
            return h
        case Sum():
            return sum(forward(branch, h, rng) for branch in net.branches)
    raise AssertionError(net)


def monte_carlo(net, X, samples, seed):
    """The second moments of the outputs of finite networks, averaged over networks; and their standard error.

    The outputs of one network share its hidden layers, so the networks are the independent samples.
    """
    rng = np.random.default_rng(seed)
    outputs = [forward(net, X.astype(np.float32), rng).reshape(len(X), -1) for _ in range(samples)]
    moments = np.array([y @ y.T / y.shape[1] for y in outputs])
    return moments.mean(axis=0), moments.std(axis=0, ddof=1) / math.sqrt(samples)


def agrees(net, sampled, error, X):
    """Within five standard errors, and the 1/width by which a finite network is off: a few widths at this depth."""
    R = reference.kernel(net, X)
    return bool((np.abs(sampled - R) <= 5.0 * error + 2.0 / WIDTH * np.abs(R).max()).all())


FINITE = {
    "a plain CNN": (
        Sequential(
            Conv(3, stride=2, weight_var=1.8, bias_var=0.1),
            ReLU(),
            Conv((2, 3), padding=((0, 1), 1), dilation=(2, 1), weight_var=1.5),
            LeakyReLU(0.2),
            Dense(1.2, 0.3),
        ),
        (2, 6, 5),
    ),
    "a residual network": (
        Sequential(
            Conv(3, fan_in="channels", weight_var=0.3),
            Sum(Identity(), Sequential(ReLU(), Conv(3, padding_mode="replicate", weight_var=2.0), ReLU(), Conv(1))),
            ReLU(2.0**0.5),
            Sum(Conv(1, stride=2), Conv(3, stride=2, weight_var=0.5)),
            ReLU(),
            Dense(),
        ),
        (1, 5, 4),
    ),
    "a dense network with erf": (
        Sequential(Dense(3.0, 0.2), Erf(), Dense(2.0, 0.1), Erf(), Dense(1.5)),
        (7,),
    ),
    "a transposed convolution": (
        Sequential(
            Conv(3, stride=2, padding=1, weight_var=2.0),
            ReLU(),
            ConvTranspose(3, stride=2, padding=1, output_padding=1, weight_var=2.0, bias_var=0.05),
            ReLU(),
            Dense(),
        ),
        (1, 4, 4),
    ),
}


@pytest.mark.parametrize("name", FINITE)
def test_finite_networks_have_the_kernel_as_their_covariance(name):
    net, shape = FINITE[name]
    X = np.random.default_rng(5).normal(size=(3, *shape))
    X[1] = 0.6 * X[0] + 0.4 * X[1]
    sampled, error = monte_carlo(net, X, 800 if len(shape) == 1 else 24, seed=11)
    R = reference.kernel(net, X)
    assert error.max() < 0.04 * np.abs(R).max()
    assert agrees(net, sampled, error, X)
    for wrong in wrong_networks(net):
        assert not agrees(wrong, sampled, error, X), wrong


def wrong_networks(net):
    """One weight_var off by a third; the test must tell each from the true one."""
    for i, layer in enumerate(net.layers):
        if isinstance(layer, Conv | ConvTranspose | Dense):
            fields = {f: getattr(layer, f) for f in layer.__dataclass_fields__}
            changed = type(layer)(**fields | {"weight_var": layer.weight_var * 4 / 3})
            yield Sequential(*net.layers[:i], changed, *net.layers[i + 1 :])


@pytest.mark.parametrize("layer", [Conv(5, padding="valid"), ConvTranspose(1, padding=3), AvgPool(5), AvgPool((1, 5))])
def test_layers_that_do_not_fit_the_images_are_refused(layer):
    with pytest.raises(NetworkError, match=r"does not fit .* locations; use larger images"):
        reference.kernel(Sequential(Conv(1), ReLU(), layer, Dense()), np.ones((2, 1, 4, 3)))
