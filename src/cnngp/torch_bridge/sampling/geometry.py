"""A layer's padding in torch's words: what its convolution takes, and what has to be padded or cropped beside it."""

from __future__ import annotations

from dataclasses import dataclass

from cnngp.network.layers import Conv, ConvTranspose, NetworkError

from ..importing.fold import explicit_pads
from .plan import Weights

TORCH_MODES = {"zeros": "constant", "circular": "circular", "reflect": "reflect", "replicate": "replicate"}


@dataclass(frozen=True)
class ConvArguments:
    """torch's arguments. `pad` goes to `F.pad` before (last axis first) and `crop` off the ends after, where needed."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    pad: tuple[int, ...]
    pad_mode: str
    crop: tuple[int, ...]


def conv_arguments(w: Weights) -> ConvArguments:
    layer = w.layer
    assert isinstance(layer, Conv | ConvTranspose)
    axes = len(w.spatial)
    kernel, stride, dilation = (
        v if isinstance(v, tuple) else (v,) * axes for v in (layer.kernel_size, layer.stride, layer.dilation)
    )
    pads = explicit_pads(layer, axes)
    zero = (0,) * axes
    if isinstance(layer, Conv):
        if layer.padding_mode == "zeros" and all(before == after for before, after in pads):
            return ConvArguments(kernel, stride, dilation, tuple(b for b, _ in pads), zero, (), "constant", zero)
        flat = tuple(p for pair in reversed(pads) for p in pair)
        return ConvArguments(kernel, stride, dilation, zero, zero, flat, TORCH_MODES[layer.padding_mode], zero)
    # torch pads both ends by `before`; what is then missing at the end is output_padding, what is too much is cropped.
    extra = [
        w.out[a] - ((w.spatial[a] - 1) * stride[a] - 2 * pads[a][0] + dilation[a] * (kernel[a] - 1) + 1)
        for a in range(axes)
    ]
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise NetworkError(f"{w.place}: {layer!r}: torch's output_padding must be smaller than the stride or dilation")
    return ConvArguments(
        kernel,
        stride,
        dilation,
        tuple(before for before, _ in pads),
        tuple(max(e, 0) for e in extra),
        (),
        "constant",
        tuple(max(-e, 0) for e in extra),
    )
