"""check_limit passes what is right, with honest error rates, and catches what is wrong, of networks and of modules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cnngp import Conv, Dense, NetworkError, ReLU, Sequential, Sum, from_torch
from cnngp.common.arrays import DataError
from cnngp.torch import check_limit
from cnngp.torch_bridge.sampling import widen
from helpers.torch_modules import cnn, ending, flow, in_place, made, transposed_net

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.filterwarnings("ignore:from_torch measured")]


X = np.random.default_rng(0).normal(size=(3, 1, 4, 4))
NET = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())


def test_a_right_network_agrees_and_an_image_of_zeros_is_no_trouble(tmp_path: Path) -> None:
    report = check_limit(NET, np.concatenate([0 * X[:1], X]), np.array([64, 16]), samples=300)
    assert [w.channels for w in report.widths] == [16, 64]
    assert report.verdict == "agrees"
    assert report.ok
    assert report.worst < 1
    assert report.amplitude == pytest.approx(1, abs=4 * report.amplitude_error)
    lines = str(report).splitlines()
    assert lines[0].startswith("channels  deviation from the kernel")
    assert lines[-1].startswith("agrees: as channels grow")
    figure = report.plot(str(tmp_path / "limit.png"))
    assert (tmp_path / "limit.png").stat().st_size > 10_000
    assert len(figure.axes) == 2


@pytest.mark.parametrize(
    ("wrong", "amplitude"),
    [
        *((Sequential(Conv(3), ReLU(), Conv(3, weight_var=a), ReLU(), Dense()), 1 / a) for a in (0.8, 1.25)),
        (Sequential(Conv(3, padding=((2, 0), (1, 1))), ReLU(), Conv(3), ReLU(), Dense()), None),
        (Sequential(Conv(3, padding_mode="circular"), ReLU(), Conv(3), ReLU(), Dense()), None),
        (Sequential(Conv(3), ReLU(), Conv(5), ReLU(), Dense()), None),
        (Sequential(Conv(3), ReLU(), Sum(Conv(1), Conv(3)), Conv(1), ReLU(), Dense()), None),
        (Sequential(Conv(3, bias_var=0.2), ReLU(), Conv(3), ReLU(), Dense()), None),
    ],
    ids=repr,
)
def test_a_wrong_variance_or_geometry_differs(wrong: Sequential, amplitude: float | None) -> None:
    report = check_limit(NET, 2 * X, network=wrong, samples=300)
    assert report.verdict == "differs"
    assert not report.ok
    assert amplitude is None or report.amplitude == pytest.approx(amplitude, rel=0.1)


def test_false_alarms_are_as_rare_as_promised() -> None:
    """40 checks of a right network: at a level of 1e-3 each, three false alarms have a chance of 1e-5."""
    net = Sequential(Conv(3), ReLU(), Dense(), ReLU(), Dense())
    verdicts = [check_limit(net, X, (4, 16), samples=60, seed=s, outputs=32).verdict for s in range(40)]
    assert verdicts.count("differs") <= 2


# ---- modules: their own forward, redrawn and widened, against the kernel of what was imported ------------------------


def normed() -> nn.Module:
    """Batch norm, a projection, an in-place activation, dilation and a transposed convolution in one."""

    def forward(m, x):
        h = F.relu(m.norm(m.stem(x)))
        x = m.proj(h) + m.body(h)
        return m.head(torch.flatten(F.relu(m.up(F.relu(x))), 1))

    return made(
        forward,
        stem=nn.Conv2d(1, 4, 3, padding=1),
        norm=nn.BatchNorm2d(4, eps=0.5),
        proj=nn.Conv2d(4, 6, 1, stride=2),
        body=nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(True), nn.Conv2d(6, 6, 3, padding=1)),
        up=nn.ConvTranspose2d(6, 5, 3, stride=2, padding=1, output_padding=1),
        head=nn.Linear(5 * 16, 2),
    )


def aliased(m: Any, h: Any) -> Any:
    """Another name of h stands for h after it has been added to."""
    k = h.flatten(1)
    h += m.f(F.relu(h))
    return k


LINEAR, FILTERS = (nn.LayerNorm(8), nn.GroupNorm(1, 8), nn.RMSNorm(8)), (nn.LayerNorm((8, 3, 3)), nn.GroupNorm(1, 8))
MODULES: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    *((in_place, (1, 6, 6)), (transposed_net, (1, 6, 6)), (normed, (1, 4, 4)), (lambda: flow(aliased), (1, 4, 4))),
    (lambda: cnn(nn.AvgPool2d(3, 2, 1, count_include_pad=False), features=4 * 9), (1, 5, 5)),
    (lambda: cnn(nn.AdaptiveAvgPool2d(1), features=4), (1, 5, 5)),
    *((lambda n=n: ending(nn.Linear(5, 8), n, nn.ReLU(), left=8), (5,)) for n in LINEAR),  # type: ignore[misc]
    *((lambda n=n: ending(nn.Conv2d(2, 8, 2), n, nn.ReLU(), left=72), (2, 4, 4)) for n in FILTERS),  # type: ignore[misc]
]


@pytest.mark.parametrize(("make", "shape"), MODULES, ids=map(str, range(len(MODULES))))
def test_modules_agree_with_their_import(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    images = np.random.default_rng(0).normal(size=(2, *shape))
    report = check_limit(make().eval(), images, (8, 32), samples=500, outputs=32)
    assert report.ok, str(report)


def test_hidden_layers_are_widened_in_proportion_and_the_output_is_what_was_asked_for() -> None:
    layers = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 9), "head": nn.Linear(9, 3)}
    module = made(lambda m, x: 2.0 * m.head(F.relu(m.b(F.relu(m.a(x))))), **layers)
    widened = widen(module, (4,), 12, outputs=5)
    assert [tuple(p.shape) for p in widened.drawn.values()] == [(12, 4), (12,), (18, 12), (18,), (5, 18), (5,)]
    assert [p.out_features for p in module.children()] == [6, 9, 3]


def test_a_wrong_import_is_caught() -> None:
    torch.manual_seed(0)
    module = normed().eval()
    wrong = from_torch(module, (1, 4, 4), weight_var={"proj": 2.0})
    assert check_limit(module, X, network=wrong, samples=300).verdict == "differs"


def test_a_module_that_fixes_its_widths_gets_a_clear_error() -> None:
    layers = {"conv": nn.Conv2d(1, 4, 3), "head": nn.Linear(16, 1)}
    fixed = made(lambda m, x: m.head(F.relu(m.conv(x)).view(-1, 4 * 4)), **layers)
    with pytest.raises(NetworkError, match="it fixes its widths, so check the imported network"):
        check_limit(fixed, X, samples=20)
    assert check_limit(from_torch(fixed, (1, 4, 4)), X, samples=400).ok


def test_too_little_decides_nothing() -> None:
    assert check_limit(NET, X, samples=20, outputs=1).verdict == "undecided"
    deep = Sequential(*[layer for _ in range(12) for layer in (Conv(3, weight_var=2.0), ReLU())], Dense())
    assert check_limit(deep, X, (1, 2), samples=50).verdict != "agrees"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"channels": (16, 16)}, "give at least two different positive widths"),
        ({"channels": 16}, "channels=16: give at least two"),
        ({"seed": -1}, "seed=-1 is not a non-negative integer"),
        ({"device": "foo"}, r"device='foo' cannot be used by PyTorch .*; use 'cpu'"),
        ({"samples": 5}, "expected at least 20 samples"),
        ({"X": X[0, 0, 0]}, "expected"),
    ],
)
def test_bad_arguments(options: dict[str, Any], told: str) -> None:
    with pytest.raises((DataError, NetworkError), match=told):
        check_limit(NET, **{"X": X} | options)
