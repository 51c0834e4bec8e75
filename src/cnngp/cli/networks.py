"""`cnngp networks`: the zoo with what a pair of images costs, or one network layer by layer."""

from __future__ import annotations

from typing import Annotated

import typer

from cnngp.common.tables import aligned

from . import values
from .common import NETWORKS, network_by_name
from .output import Json, Quiet, last_line, tell


def networks(
    name: Annotated[str | None, typer.Argument(help="A network to show layer by layer: a name or a JSON file.")] = None,
    input_shape: Annotated[
        str, typer.Option(metavar="C,H,W", parser=values.shape(1), help="Shape of an image: channels, height, width.")
    ] = "1,28,28",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the built-in networks, or show one layer by layer."""
    size = values.shape_of(input_shape)
    if name is not None:
        net = network_by_name(name)
        if net is None:
            raise ValueError("networks auto: auto depends on the data; give a name")
        rows = net.shapes(size)
        tell(str(rows))
        tell(repr(net))
        last_line(as_json, {"command": "networks", "name": name, "shape": size, "operations_per_pair": rows.cost})
        return
    table_rows = [("name", "layers", "operations per pair", "")]
    listed = []
    for key, (make, text) in NETWORKS.items():
        rows = make().shapes(size)
        layers = sum(row.place != "(input)" and not row.layer.startswith("Sum") for row in rows)
        table_rows.append((key, str(layers), f"{rows.cost:,}", text))
        listed.append({"name": key, "layers": layers, "operations_per_pair": rows.cost})
    tell(aligned(table_rows, right=(1, 2)))
    last_line(as_json, {"command": "networks", "shape": size, "networks": listed})
