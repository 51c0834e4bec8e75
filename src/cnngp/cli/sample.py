"""`cnngp sample`: draw finite networks at growing width, check that they converge to the kernel, and plot this."""

from __future__ import annotations

from cnngp.network.names import network_by_name

from .inputs import check_writable, chosen_network, read_data
from .options import Asked
from .output import last_line, say, tell

_FACTS = ("verdict", "sentence", "samples", "amplitude", "amplitude_error")


def sample(asked: Asked) -> None:
    """Compare finite random networks with their kernel."""
    from cnngp.common.progress import progress_bar
    from cnngp.torch_bridge import need_torch
    from cnngp.torch_bridge.limits import check_limit
    from cnngp.torch_bridge.sampling import torch_device

    if asked.output.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--output {asked.output}: expected a .png, .pdf or .svg file")
    check_writable("--output", asked.output, folder=False)
    need_torch("cnngp sample")
    torch_device(asked.device)
    given = network_by_name(asked.network)
    X = read_data(asked, whole=True).take(asked.images).X
    network, name = chosen_network(given, X, asked.network)
    say("data", f"{len(X)} images of {asked.data}")
    say("network", name)
    say("engine", f"finite networks: torch on {asked.device}; kernel: float64 on cpu")
    with progress_bar(len(set(asked.channels)) * asked.samples, "sampling", "network", keep=True) as bar:
        same = {name: getattr(asked, name) for name in ("outputs", "device")}
        report = check_limit(network, X, asked.channels, asked.samples, asked.seed, progress=bar.update, **same)
    tell(f"\n{report}\n")
    files = {}
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        report.plot(str(asked.output))
        say("picture", str(asked.output))
        files["picture"] = str(asked.output)
    except ImportError as error:
        say("picture", f"not drawn: {error}")
    found = {name: getattr(report, name) for name in _FACTS}
    widths = []
    for w in report.widths:
        deviation, chance = report.deviation(w)
        row = {"channels": w.channels, "deviation": deviation, "by_chance": chance}
        widths.append(row | {"amplitude": w.amplitude, "amplitude_error": w.amplitude_error})
    last_line({"command": "sample", "network": asked.network, "files": files, **found, "widths": widths})
