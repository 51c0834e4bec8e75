"""What several commands are given: images, networks, and places to write to, checked before long work."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from cnngp.network.names import network_by_name, zoo_name

from .options import Asked
from .output import say

MODEL = "model.gp"
"""What `cnngp classify` and `cnngp regress` call the model in their folder."""


def read_data(asked: Asked, whole: bool = False, split: Any = "standard") -> Any:
    """The images that the options ask for, and a line for each note about how they were read."""
    from cnngp.datasets import load

    options = ("size", "aspect", "skip_bad", "max_pixels", "columns", "features", "input_shape")
    given: dict[str, Any] = {name: getattr(asked, name, None) for name in options}
    found = load(asked.data, split=getattr(asked, "split", split), whole=whole, **given)
    for note in found.notes:
        say("note", note)
    return found


def chosen_network(given: Any, X: Any, asked: str) -> tuple[Any, str]:
    """The network that was asked for, or the usual one for such images, and its name."""
    from cnngp.network.names import default_network

    if given is not None:
        return given, asked
    network = default_network(X.shape[1:], len(X))
    return network, f"{zoo_name(network)} (chosen)"


def given_network(asked: Asked) -> Any:
    """The network or the recipe of the options; None is auto."""
    from cnngp.estimators.recipe import Recipe

    network = network_by_name(asked.network)
    if asked.recipe is None:
        return network
    if network is not None:
        raise ValueError("--recipe names the networks and preparations; leave out --network")
    return Recipe.read(asked.recipe)


def check_engine(network: Any, asked: Asked) -> None:
    """Refuse a device that is not there, or a network without such a kernel, before images are read."""
    from cnngp.common.devices import actual_device
    from cnngp.kernel.kernel import Kernel

    actual_device(asked.device)
    if network is not None:
        Kernel(network, asked.device, asked.dtype, asked.threads, asked.kind)


def check_writable(option: str, path: Path, *, folder: bool = True) -> None:
    """Refuse a folder (or a file) that cannot be written, before the work that would be lost. Makes nothing."""
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
