"""Networks by name: the zoo, JSON files, and the default network.

The default is the most accurate network that is not too expensive, chosen without labels. The cost is counted in
covariances (`ShapeTable.elements`), so the same images get the same network on a laptop and on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from . import zoo
from .layers import Dense, Network, NetworkError
from .placed import elements_of
from .serialize import from_json

AN_IMAGE = 3 * 10**8
"""Budget of the default network in covariances per image, about a tenth of a second on two CPU cores, …"""
IN_ALL = 21 * 10**11
"""… and in total, about a quarter of an hour."""

NETWORKS: dict[str, tuple[Callable[[], Network], str]] = {
    "resnet32": (partial(zoo.resnet, 32), "the paper's ResNet GP; also resnet8, 14, 20, 26, 44, 56, 110, …"),
    "convnet": (zoo.convnet, "the paper's ConvNet GP"),
    "residual_cnn": (zoo.residual_cnn, "the paper's Residual CNN GP"),
    "small_cnn": (zoo.small_cnn, "three 3 × 3 convolutions, for small images"),
    "pooled_cnn-small": (
        partial(zoo.pooled_cnn, "small"),
        "a stride, then a 3 × 3 pool at the end, for 28 × 28 images",
    ),
    "pooled_cnn": (zoo.pooled_cnn, "the same, deeper and with a 5 × 5 pool"),
    "pooled_cnn-large": (partial(zoo.pooled_cnn, "large"), "a 2 × 2 pool in the middle, a 5 × 5 pool at the end"),
    "pooled_cnn-halved0": (
        partial(zoo.pooled_cnn, halvings=0),
        "pooled_cnn for 8 × 8 images; also -small-halved0, -halved2-pool7, -global, -even, -exp, …",
    ),
    "pooled_cnn-bias0.1": (
        lambda: _biased(zoo.pooled_cnn(), 0.1),
        "pooled_cnn with biases of variance 0.1 in all layers; any network and number",
    ),
    "lenet": (zoo.lenet, "LeNet: two 5 × 5 convolutions with average pools"),
    "myrtle5": (zoo.myrtle, "Myrtle networks with pools, the last one global; also myrtle4, 7, 10, -exp"),
    "resnet8-pool4": (partial(zoo.resnet, 8, pool=4), "a ResNet that ends in a 4 × 4 pool; any depth and size"),
    "resnet8-global": (partial(zoo.resnet, 8, pool="global"), "a ResNet that ends in its global pool; any depth"),
    "conv_gp": (partial(zoo.conv_gp, pool=5), "an RBF kernel over pairs of 5 × 5 patches that are close to each other"),
    "rbf": (zoo.rbf, "the RBF kernel on the pixels; also rbf-gamma0.3, …"),
    "linear": (partial(Dense, bias_var=1.0), "linear functions, for features"),
    "dense_nngp": (zoo.dense_nngp, "three fully connected layers"),
    "dense_even": (zoo.dense_even, "one fully connected layer, for inputs whose sign does not matter"),
}
"""For each name, a function that makes the network, and a description."""


def network_by_name(name: str) -> Network | None:
    """Return a network of the zoo or of a JSON file; None for "auto", a choice by the size and number of images.

    >>> network_by_name("dense_nngp") == zoo.dense_nngp()
    True
    """
    if name == "auto":
        return None
    if name in NETWORKS:
        return NETWORKS[name][0]()
    biases = re.fullmatch(r"([^.]+)-bias(\d+(?:\.\d+)?(?:e[+-]\d+)?)", name)
    if biases and (network := network_by_name(biases[1])) is not None:
        return _biased(network, float(biases[2]))
    pooled = re.fullmatch(r"pooled_cnn(-small|-large)?(?:-halved(\d+))?(?:-(global)|-pool(\d+))?(-even)?(-exp)?", name)
    if pooled:
        size: Any = (pooled[1] or "-medium").removeprefix("-")
        pool: Any = int(pooled[4]) if pooled[4] else pooled[3]
        acts: Any = "exp" if pooled[6] else "relu"
        return zoo.pooled_cnn(size, int(pooled[2] or 1), pool=pool, even=bool(pooled[5]), nonlinearity=acts)
    myrtle = re.fullmatch(r"myrtle(\d+)(-exp)?", name)
    if myrtle:
        return zoo.myrtle(int(myrtle[1]), "exp" if myrtle[2] else "relu")
    resnet = re.fullmatch(r"resnet(\d+)(?:-(global)|-pool(\d+))?", name)
    if resnet:
        return zoo.resnet(int(resnet[1]), "global" if resnet[2] else int(resnet[3]) if resnet[3] else None)
    stationary = re.fullmatch(r"rbf-gamma(\d+(?:\.\d+)?)", name)
    if stationary:
        return zoo.rbf(float(stationary[1]))
    path = Path(name)
    if path.suffix == ".json":
        if not path.is_file():
            raise NetworkError(f"{path}: no such file; write it with network.to_json()")
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:  # an invalid network, or bytes that are not UTF-8
            raise NetworkError(f"{path}: {error}") from None
    raise NetworkError(
        f"no network {name!r}: expected auto, {', '.join(NETWORKS)}, or a file made by network.to_json()"
    )


def zoo_name(network: Network) -> str:
    """Name under which `network_by_name` finds a network, or else the code that makes it."""
    named, without_biases = _known()
    biases = {value for place, value in network.parameters().items() if _is_bias(place)}
    name = named.get(network)
    if name is None and len(biases) == 1 and (plain := without_biases.get(_biased(network, 0.0))):
        name = biased_name(plain, *biases)
        name = name if network_by_name(name) == network else None
    return name or repr(network)


@cache
def _known() -> tuple[dict[Network, str], dict[Network, str]]:
    """Names of the zoo's networks, keyed by the network and by the network with its biases set to zero."""
    names = list(NETWORKS)
    ends = product(("", "-global", "-pool7"), ("", "-even"), ("", "-exp"))
    names += [pooled_name(size, h) + "".join(end) for end in ends for h in range(8) for size in zoo.POOLED_SIZES]
    names += [f"myrtle{depth}{end}" for depth in (4, 5, 7, 10) for end in ("", "-exp")]
    names += [f"rbf-gamma{gamma}" for gamma in ("0.1", "0.3", "1")]
    named: dict[Network, str] = {}
    without_biases: dict[Network, str] = {}
    for name in names:
        network = network_by_name(name)
        assert network is not None
        named.setdefault(network, name)
        if "-bias" not in name:
            without_biases.setdefault(_biased(network, 0.0), name)
    return named, without_biases


def biased_name(name: str, bias_var: float) -> str:
    """Name of a network whose layers all have the same bias variance."""
    return f"{name}-bias{bias_var:g}"


def _biased(network: Network, bias_var: float) -> Network:
    return network.with_parameters({place: bias_var for place in network.parameters() if _is_bias(place)})


def _is_bias(place: str) -> bool:
    return place.rpartition(".")[2] == "bias_var"


def pooled_name(size: str, halvings: int) -> str:
    """Name of a `zoo.pooled_cnn`, to which "-global" or a pool such as "-pool7", "-even" and "-exp" may be appended."""
    return f"pooled_cnn{'' if size == 'medium' else f'-{size}'}{'' if halvings == 1 else f'-halved{halvings}'}"


def default_names(input_shape: Sequence[int]) -> list[str]:
    """Candidate networks for images of a shape (channels, …), the most accurate first.

    Pooled networks that fit the image, then the paper's ResNet for images of 16 × 16 and more, or three convolutions
    for smaller ones and for 1-D and 3-D inputs; a fully connected network for plain features.

    >>> default_names((1, 28, 28))
    ['pooled_cnn-large-exp', 'pooled_cnn-exp', 'pooled_cnn-small-exp', 'resnet32']
    """
    spatial = tuple(input_shape)[1:]
    if not spatial:
        return ["dense_nngp"]
    side = min(spatial)
    halvings = zoo.halvings_for(side)
    sizes = [size for size in reversed(zoo.POOLED_SIZES) if side >> halvings >= zoo.pool_of(size, halvings)]
    plain = "resnet32" if len(spatial) == 2 and side >= 16 else "small_cnn"
    return [*(f"{pooled_name(size, halvings)}-exp" for size in sizes), plain]


def default_network(input_shape: Sequence[int], images: int) -> Network:
    """Default network for the kernel matrix of `images` images of a shape.

    >>> zoo_name(default_network((1, 28, 28), 500)), zoo_name(default_network((1, 28, 28), 20_000))
    ('pooled_cnn-large-exp', 'resnet32')
    """
    limit = min(AN_IMAGE * max(1, images), IN_ALL)
    among = [network for name in default_names(input_shape) if (network := network_by_name(name)) is not None]
    pairs = images * (images - 1) // 2
    return next((network for network in among if elements_of(network, input_shape) * pairs <= limit), among[-1])
