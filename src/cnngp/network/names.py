"""Networks by name: those of the zoo, and those in JSON files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from . import zoo
from .layers import Network, NetworkError
from .parameters import parameters, with_parameters
from .serialize import from_json

NETWORKS: dict[str, tuple[Callable[[], Network], str]] = {
    "resnet32": (lambda: zoo.resnet(32), "the paper's ResNet GP; also resnet8, 14, 20, 26, 44, 56, 110, …"),
    "convnet": (zoo.convnet, "the paper's ConvNet GP"),
    "residual_cnn": (zoo.residual_cnn, "the paper's Residual CNN GP"),
    "small_cnn": (zoo.small_cnn, "three 3 × 3 convolutions, for small images"),
    "pooled_cnn-small": (lambda: zoo.pooled_cnn("small"), "a stride, then a 3 × 3 pool at the end, for 28 × 28 images"),
    "pooled_cnn": (zoo.pooled_cnn, "the same, deeper and with a 5 × 5 pool"),
    "pooled_cnn-large": (lambda: zoo.pooled_cnn("large"), "a 2 × 2 pool in the middle, a 5 × 5 pool at the end"),
    "pooled_cnn-halved0": (
        lambda: zoo.pooled_cnn(halvings=0),
        "pooled_cnn for 8 × 8 images; also -small-halved0, -halved2, …",
    ),
    "pooled_cnn-bias0.1": (
        lambda: _biased(zoo.pooled_cnn(), 0.1),
        "pooled_cnn with biases of variance 0.1 in all layers; any network and number",
    ),
    "lenet": (zoo.lenet, "LeNet: two 5 × 5 convolutions with average pools"),
    "myrtle5": (lambda: zoo.myrtle(5), "Myrtle networks with pools, the last one global; also myrtle4, 7, 10, -exp"),
    "resnet8-pool4": (lambda: zoo.resnet(8, pool=4), "a ResNet that ends in a 4 × 4 pool; any depth and size"),
    "resnet8-global": (lambda: zoo.resnet(8, pool="global"), "a ResNet that ends in its global pool; any depth"),
    "conv_gp": (lambda: zoo.conv_gp(pool=5), "an RBF kernel over pairs of 5 × 5 patches that are close to each other"),
    "rbf": (zoo.rbf, "the RBF kernel on the pixels"),
    "dense_nngp": (zoo.dense_nngp, "three fully connected layers"),
    "dense_even": (zoo.dense_even, "one fully connected layer, for inputs whose sign does not matter"),
}
"""A maker for each name, and what it makes."""


def network_by_name(name: str) -> Network | None:
    """A network of the zoo, one from a JSON file, or None for "auto": chosen by the size and number of images.

    >>> network_by_name("dense_nngp") == zoo.dense_nngp()
    True
    """
    if name == "auto":
        return None
    if name in NETWORKS:
        return NETWORKS[name][0]()
    biases = re.fullmatch(r"([^.]+)-bias(\d+(?:\.\d+)?(?:e[+-]\d+)?)", name)
    if biases and biases[1] != "auto":
        network = network_by_name(biases[1])
        assert network is not None
        return _biased(network, float(biases[2]))
    pooled = re.fullmatch(r"pooled_cnn(-small|-large)?(?:-halved(\d+))?(-global)?(-even)?", name)
    if pooled:
        size: Any = (pooled[1] or "-medium").removeprefix("-")
        pool: Any = "global" if pooled[3] else None
        return zoo.pooled_cnn(size, int(pooled[2] or 1), pool=pool, even=bool(pooled[4]))
    gaussian = re.fullmatch(r"myrtle(\d+)-exp", name)
    if gaussian:
        return zoo.myrtle(int(gaussian[1]), "exp")
    found = re.fullmatch(r"(resnet|myrtle)(\d+)(-global|-pool\d+)?", name)
    if found and found[1] == "resnet":
        last = (found[3] or "").removeprefix("-").removeprefix("pool")
        return zoo.resnet(int(found[2]), None if not last else "global" if last == "global" else int(last))
    if found and not found[3]:
        return zoo.myrtle(int(found[2]))
    path = Path(name)
    if path.suffix == ".json":
        if not path.is_file():
            raise NetworkError(f"{path}: no such file; write it with network.to_json()")
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:  # of the network, or of bytes that are no text
            raise NetworkError(f"{path}: {error}") from None
    raise NetworkError(
        f"no network {name!r}: expected auto, {', '.join(NETWORKS)}, or a file made by network.to_json()"
    )


def zoo_name(network: Network) -> str:
    """The name that `network_by_name` knows a network by, else the code that makes it."""
    plain = next((name for name in _listed() if network_by_name(name) == network), None)
    if plain is not None:
        return plain
    biases = {value for place, value in parameters(network).items() if _is_bias(place)}
    if len(biases) != 1:
        return repr(network)
    names = (biased_name(name, *biases) for name in _listed() if "-bias" not in name)
    return next((name for name in names if network_by_name(name) == network), repr(network))


def biased_name(name: str, bias_var: float) -> str:
    """The name of a network whose layers all have biases of one variance."""
    return f"{name}-bias{bias_var:g}"


def _biased(network: Network, bias_var: float) -> Network:
    return with_parameters(network, {place: bias_var for place in parameters(network) if _is_bias(place)})


def _is_bias(place: str) -> bool:
    return place.rpartition(".")[2] == "bias_var"


def _listed() -> Iterator[str]:
    return chain(NETWORKS, _POOLED, _MYRTLE)


def pooled_name(size: str, halvings: int, pool: str | None = None, even: bool = False) -> str:
    """The name of `zoo.pooled_cnn` with these arguments."""
    sized = f"pooled_cnn{'' if size == 'medium' else f'-{size}'}{'' if halvings == 1 else f'-halved{halvings}'}"
    return f"{sized}{'' if pool is None else f'-{pool}'}{'-even' if even else ''}"


_MYRTLE = [f"myrtle{depth}{end}" for depth in (4, 5, 7, 10) for end in ("", "-exp")]
_POOLED = [
    pooled_name(size, halvings, pool, even)
    for halvings in range(16)
    for pool in (None, "global")
    for even in (False, True)
    for size in zoo.POOLED_SIZES
]
