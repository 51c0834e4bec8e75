"""The float64 reference against explicit loops; test_finite_networks.py compares it with random networks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, ConvTranspose, Dense, NetworkError, ReLU, Sequential, Step, zoo
from cnngp.network import reference
from helpers.examples import examples
from helpers.loop_oracle import as_map, conv_loop, oracle, transposed_loop
from helpers.networks import convolutions, images, networks_with_shapes, relu_like, smooth, transposed


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


STEPS = Sequential(Conv(3, weight_var=2.0), Step(), Conv(2, bias_var=0.1), Step(), Dense())


@pytest.mark.parametrize(
    "net", [zoo.resnet(8), zoo.residual_cnn(), zoo.convnet(), STEPS], ids=lambda net: repr(net)[:25]
)
def test_known_networks_agree_with_the_loop_oracle_on_small_images(net):
    X = images((1, 6, 5), 2, 3)
    K, variance = oracle(net, X[0], X[1])
    R = reference.kernel(net, X)
    assert R[0, 1] == pytest.approx(K, rel=1e-10)
    assert R[0, 0] == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("layer", [Conv(5, padding="valid"), ConvTranspose(1, padding=3), AvgPool(5), AvgPool((1, 5))])
def test_layers_that_do_not_fit_the_images_are_refused(layer):
    with pytest.raises(NetworkError, match=r"does not fit .* locations; use larger images"):
        reference.kernel(Sequential(Conv(1), ReLU(), layer, Dense()), np.ones((2, 1, 4, 3)))
