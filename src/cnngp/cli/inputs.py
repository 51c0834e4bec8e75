"""Inputs that several commands share: images, networks and output paths, checked before long work."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from cnngp.network.names import network_by_name, zoo_name

from .options import Asked
from .output import say

MODEL = "model.gp"
"""File name of the model in the output folder of `cnngp classify` and `cnngp regress`."""


def read_data(asked: Asked, whole: bool = False, split: Any = "standard") -> Any:
    """Load the images that the options name, and print each note about how they were read."""
    from cnngp.datasets import load

    options = ("size", "aspect", "skip_bad", "max_pixels", "columns", "features", "input_shape")
    given: dict[str, Any] = {name: getattr(asked, name, None) for name in options}
    found = load(asked.data, split=getattr(asked, "split", split), whole=whole, **given)
    for note in found.notes:
        say("note", note)
    return found


def chosen_network(given: Any, X: Any, asked: str) -> tuple[Any, str]:
    """Return the given network, or the default one for these images, and its name."""
    from cnngp.network.names import default_network

    if given is not None:
        return given, asked
    network = default_network(X.shape[1:], len(X))
    return network, f"{zoo_name(network)} (chosen)"


def given_network(asked: Asked) -> Any:
    """Return the network or recipe that the options name; None means auto."""
    from cnngp.estimators.recipe import Recipe

    network = network_by_name(asked.network)
    if asked.recipe is None:
        return network
    if network is not None:
        raise ValueError("--recipe names the networks and preparations; leave out --network")
    return Recipe.read(asked.recipe)


def check_engine(network: Any, asked: Asked) -> None:
    """Raise, before images are read, if the device is missing or the network has no kernel with these options."""
    from cnngp.common.devices import actual_device
    from cnngp.kernel.kernel import Kernel

    actual_device(asked.device)
    if network is not None:
        Kernel(network, asked.device, asked.dtype, asked.threads, asked.kind)


def check_writable(option: str, path: Path, *, folder: bool = True) -> None:
    """Raise if a folder (or file) cannot be written, before work that would be lost. Creates nothing."""
    try:
        if not folder and path.is_dir():
            raise OSError(None, "it is a folder, not a file")
        if not folder and path.exists() and not os.access(path, os.W_OK):
            raise OSError(None, "you have no permission to change this file")
        target = path if folder else path.parent
        with tempfile.TemporaryFile(dir=next(p for p in (target, *target.absolute().parents) if p.exists())):
            pass
    except OSError as error:
        raise OSError(f"{option} {path} cannot be written: {error.strerror}; choose another") from None
