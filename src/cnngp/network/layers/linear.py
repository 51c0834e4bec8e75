"""Linear layers: convolutions and dense layers, which have weights, and average pools, which have none."""

from __future__ import annotations

from dataclasses import dataclass

from ..geometry import PaddingMode
from .base import (
    FanIn,
    Network,
    Padding,
    PerAxis,
    axes_of,
    check_axes_agree,
    check_convolution,
    check_flag,
    set_per_axis,
    set_variances,
    wrong,
)


@dataclass(frozen=True, repr=False)
class Linear(Network):
    """Base class of the linear layers: each output location is a sum over input locations."""


@dataclass(frozen=True, repr=False)
class Conv(Linear):
    """A convolution with infinitely many filters: K_μ = bias_var + weight_var · s · Σ_{ν ∈ patch(μ)} V_ν.

    `fan_in="patch"` divides by the number of filter elements (s = 1/k²), `"channels"` does not (s = 1, the paper).

    >>> from cnngp import Conv, Dense, Sequential
    >>> print(Sequential(Conv((3, 5), stride=2, weight_var=2.0), Dense()).shapes((3, 32, 32)))
    place      layer                                    output  operations per pair
    (input)    3 channels                              32 × 32                3,072
    layers[0]  Conv((3, 5), stride=2, weight_var=2.0)  16 × 16                2,992
    layers[1]  Dense()                                       1                  273
    all                                                                       6,337
    """

    kernel_size: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    dilation: PerAxis = 1
    weight_var: float = 1.0
    bias_var: float = 0.0
    fan_in: FanIn = "patch"
    padding_mode: PaddingMode = "zeros"

    def __post_init__(self) -> None:
        check_convolution(self)


@dataclass(frozen=True, repr=False)
class ConvTranspose(Linear):
    """The adjoint of the `Conv` with the same arguments: a sum over all input locations whose patch contains μ.

    >>> from cnngp import Conv, ConvTranspose, ReLU, Sequential
    >>> Sequential(Conv(3, stride=2), ReLU(), ConvTranspose(3, stride=2)).shapes((1, 8, 8)).output
    (8, 8)
    """

    kernel_size: PerAxis
    stride: PerAxis = 1
    padding: Padding = "same"
    dilation: PerAxis = 1
    weight_var: float = 1.0
    bias_var: float = 0.0
    fan_in: FanIn = "patch"
    padding_mode: PaddingMode = "zeros"
    output_padding: PerAxis = 0

    def __post_init__(self) -> None:
        check_convolution(self)
        if self.padding_mode != "zeros":
            raise wrong(
                self,
                f"padding_mode={self.padding_mode!r} has no exact kernel: one filter element then reaches an output "
                "from two inputs; use 'zeros'",
            )
        set_per_axis(self, "output_padding", least=0)
        if self.padding == "same" and self.output_padding not in (0, (0,) * axes_of(self.output_padding)):
            raise wrong(
                self,
                f"output_padding={self.output_padding!r} with padding='same', which already gives size·stride; use an "
                "integer padding to choose the size",
            )
        check_axes_agree(self, "kernel_size", "stride", "dilation", "padding", "output_padding")


@dataclass(frozen=True, repr=False)
class Dense(Linear):
    """A fully connected layer: K = bias_var + weight_var · mean of V over all locations. One output location.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> Sequential(Conv(3), ReLU(), Dense(weight_var=2.0, bias_var=0.1))
    Sequential(Conv(3), ReLU(), Dense(weight_var=2.0, bias_var=0.1))
    """

    weight_var: float = 1.0
    bias_var: float = 0.0

    def __post_init__(self) -> None:
        set_variances(self)


@dataclass(frozen=True, repr=False)
class AvgPool(Linear):
    """The mean over windows: K'(P, Q) = 1/(n_P n_Q) Σ_{p ∈ P} Σ_{q ∈ Q} V(p, q). A linear map without weights.

    `stride=None` means the window's size. Padding zeros count as members of a window, as in PyTorch;
    `count_include_pad=False` divides by the number of locations inside the image instead.

    >>> from cnngp import AvgPool, Conv, Dense, ReLU, Sequential
    >>> Sequential(Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), Dense()).shapes((1, 28, 28)).rows[3].output
    (14, 14)
    """

    size: PerAxis
    stride: PerAxis | None = None
    padding: PerAxis = 0
    count_include_pad: bool = True

    def __post_init__(self) -> None:
        set_per_axis(self, "size", least=1)
        if self.stride is not None:
            set_per_axis(self, "stride", least=1)
        set_per_axis(self, "padding", least=0)
        check_flag(self, "count_include_pad")
        check_axes_agree(self, "size", "stride", "padding")
        axes = max(axes_of(self.size), axes_of(self.padding), 1)
        sizes, pads = (v if isinstance(v, tuple) else (v,) * axes for v in (self.size, self.padding))
        if any(2 * pad > size for size, pad in zip(sizes, pads, strict=True)):
            raise wrong(
                self,
                f"padding={self.padding!r} is more than half of size={self.size!r}; a window would hold nothing but "
                "padding: use a padding of at most half the size",
            )


@dataclass(frozen=True, repr=False)
class GlobalAvgPool(Linear):
    """The mean over all pairs of locations: one output location for any image size.

    >>> from cnngp import Conv, Dense, GlobalAvgPool, ReLU, Sequential
    >>> Sequential(Conv(3), ReLU(), GlobalAvgPool(), Dense()).shapes((1, 28, 28)).output
    ()
    """
