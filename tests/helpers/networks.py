"""Hypothesis strategies for networks that compose, with images that fit them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cnngp import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Erf,
    Identity,
    LeakyReLU,
    Network,
    NetworkError,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
)

variances = st.floats(0.1, 3.0).map(lambda v: round(v, 3))
biases = st.one_of(st.just(0.0), st.floats(0.0, 2.0).map(lambda v: round(v, 3)))
MODES = ("zeros", "circular", "reflect", "replicate")

relu_like = st.one_of(
    st.just(ReLU()),
    st.builds(ReLU, st.sampled_from([0.5, 1.0, 2.0**0.5])),
    st.builds(LeakyReLU, st.sampled_from([-0.5, 0.1, 0.3])),
    st.just(Abs()),
)
smooth = st.sampled_from([Erf(), Sin(), Cos(), GELU()])


def _per_axis(axes: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[object]:
    return st.one_of(values, st.tuples(*[values] * axes))


@st.composite
def convolutions(draw: st.DrawFn, axes: int, stride: st.SearchStrategy[int] | None = None) -> Conv:
    padding = draw(
        st.one_of(
            st.just("same"),
            st.just("valid"),
            st.integers(0, 3),
            st.tuples(*[st.one_of(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2)))] * axes),
        )
    )
    return Conv(
        draw(_per_axis(axes, st.integers(1, 7))),
        stride=draw(_per_axis(axes, stride or st.integers(1, 3))),
        padding=padding,
        dilation=draw(_per_axis(axes, st.sampled_from([1, 1, 1, 2, 3]))),
        weight_var=draw(variances),
        bias_var=draw(biases),
        fan_in=draw(st.sampled_from(["patch", "channels"])),
        padding_mode=draw(st.sampled_from(MODES)),
    )


@st.composite
def transposed(draw: st.DrawFn, axes: int) -> ConvTranspose:
    stride = draw(st.integers(1, 3))
    padding = draw(st.sampled_from(["same", "valid", 1]))
    return ConvTranspose(
        draw(_per_axis(axes, st.integers(1, 4))),
        stride=stride,
        padding=padding,
        dilation=draw(st.sampled_from([1, 1, 2])),
        weight_var=draw(variances),
        bias_var=draw(biases),
        fan_in=draw(st.sampled_from(["patch", "channels"])),
        output_padding=0 if padding == "same" else draw(st.integers(0, stride - 1)),
    )


def same_conv(axes: int) -> st.SearchStrategy[Conv]:
    """Keeps the shape, so it fits beside a skip."""
    return st.builds(
        Conv,
        _per_axis(axes, st.integers(1, 5)),
        weight_var=variances,
        bias_var=biases,
        padding_mode=st.sampled_from(["zeros", "zeros", "replicate"]),
    )


@st.composite
def blocks(draw: st.DrawFn, axes: int, act: st.SearchStrategy[Network]) -> list[Network]:
    """A piece that starts from a Gaussian map and ends in one."""
    kind = draw(st.sampled_from(["conv", "conv", "transpose", "residual", "projection", "nested", "decree"]))
    if kind == "conv":
        return [draw(act), draw(convolutions(axes))]
    if kind == "transpose":
        return [draw(act), draw(transposed(axes))]
    same = same_conv(axes)
    if kind == "residual":
        return [Sum(Identity(), Sequential(draw(act), draw(same), draw(act), draw(same)))]
    if kind == "projection":
        stride = draw(st.integers(1, 2))
        head = Conv(3, stride=stride, weight_var=draw(variances))
        return [draw(act), Sum(Conv(1, stride=stride), Sequential(head, draw(act), draw(same)), head)]
    if kind == "nested":
        inner = Sum(Identity(), Sequential(draw(act), draw(same)))
        return [Sum(Sequential(draw(act), draw(same)), Sequential(inner, draw(act), draw(same)), Identity())]
    return [
        Sum(Identity(), Sequential(draw(same), draw(act)), allow_non_gaussian=True),
        draw(same),
    ]


@st.composite
def networks_with_shapes(
    draw: st.DrawFn, act: st.SearchStrategy[Network] = relu_like, max_pixels: int = 400
) -> tuple[Network, tuple[int, ...]]:
    """A network and the shape of an image it takes; draws that do not fit are drawn again."""
    for _ in range(20):
        axes = draw(st.sampled_from([0, 1, 2, 2, 2, 2, 3]))
        top = {0: 0, 1: 40, 2: 12, 3: 6}[axes]
        channels = draw(st.integers(1, 70 if axes == 0 else 3))
        shape = (channels, *(draw(st.integers(2, top)) for _ in range(axes)))
        if axes == 0:
            layers: list[Network] = []
            for _ in range(draw(st.integers(0, 3))):
                layers += [Dense(draw(variances), draw(biases)), draw(act)]
            return Sequential(*layers, Dense(draw(variances), draw(biases))), shape
        layers = [draw(convolutions(axes))]
        for _ in range(draw(st.integers(0, 3))):
            layers += draw(blocks(axes, act))
        layers += [draw(act), Dense(draw(variances), draw(biases))]
        if draw(st.booleans()):
            layers += [draw(act), Dense()]
        net = Sequential(*layers)
        try:
            table = net.shapes(shape)
        except NetworkError:
            continue
        if max(int(np.prod(row.output)) for row in table) <= max_pixels:
            return net, shape
    return Sequential(Conv(1), draw(act), Dense()), (1, 4, 4)


def images(shape: tuple[int, ...], n: int, seed: int) -> np.ndarray:
    """Random images with blank regions, so that zero variances occur."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, *shape))
    blank = rng.random((n, 1, *shape[1:])) < 0.4
    X = np.where(blank, 0.0, X)
    X[0] = 0.0 if n > 3 else X[0]
    return X.astype(np.float32).astype(np.float64)


STEP = Step()
