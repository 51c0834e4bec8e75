"""Modules that have no exact kernel are refused by name and reason, and `explain` tells of every part."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cnngp
from cnngp import (
    Dense,
    Identity,
    NetworkError,
    ReLU,
    Sequential,
    Sum,
    from_torch,
)
from helpers.torch_modules import InPlace, PreActivationBlock, cnn

pytestmark = pytest.mark.filterwarnings("ignore:from_torch measured")  # small layers


class Functional(nn.Module):
    """conv, then `f`, then a dense layer."""

    def __init__(self, f, features: int = 4 * 36) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.head = nn.Linear(features, 1)
        self.f = f

    def forward(self, x):
        return self.head(self.f(self, self.conv(x)).flatten(1))


class NotSeriesParallel(nn.Module):
    """The bridge of a Wheatstone circuit: h feeds both arms in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        h = self.a(x)
        k = self.b(x) + self.c(torch.relu(h))
        return self.d(torch.relu(k)) + h


class PostActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.c(torch.relu(x + self.b(x)))


class Shared(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.tied = tied
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.b(x) if self.tied else self.a(x)


class ByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.a(-x)


def _trained_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_var[:] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return norm


def _shifted_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean[:] = 1.0
    return norm


image, row = (1, 6, 6), (4,)


REFUSED = {
    "max pooling": (
        cnn(nn.MaxPool2d(2), features=36),
        image,
        r"^2 \(MaxPool2d\): the maximum of .* becomes AvgPool",
    ),
    "batch norm": (cnn(nn.BatchNorm2d(4)), image, r"^2 \(BatchNorm2d\): in training mode it divides by statistics of"),
    "trained batch norm": (
        cnn(_trained_norm()),
        image,
        r"^2 \(BatchNorm2d\): its fixed factors differ",
    ),
    "shifted batch norm": (cnn(_shifted_norm()), image, r"^2 \(BatchNorm2d\): its fixed shift is not zero"),
    "layer norm": (
        cnn(nn.LayerNorm((4, 6, 6))),
        image,
        r"^2 \(LayerNorm\): it divides by statistics of its",
    ),
    "group norm": (cnn(nn.GroupNorm(2, 4)), image, r"^2 \(GroupNorm\): it divides by statistics"),
    "dropout": (cnn(nn.Dropout(0.5)), image, r"^2 \(Dropout\): dropout in training mode"),
    "grouped": (
        cnn(nn.Conv2d(4, 4, 3, padding=1, groups=2)),
        image,
        r"^2 \(Conv2d\): groups=2: a filter that",
    ),
    "upsampling": (
        cnn(nn.Upsample(scale_factor=2), features=4 * 144),
        image,
        r"^2 \(Upsample\): no layer here",
    ),
    "softmax": (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), row, r"^1 \(Softmax\): it mixes all outputs"),
    "recurrent": (nn.GRU(4, 4), (3, 4), r"^the module \(GRU\): a recurrent layer uses the same weights"),
    "attention": (
        nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)),
        (3, 4),
        r"^0 \(TransformerEncoderLayer\): attention multiplies activations",
    ),
    "unknown": (cnn(nn.Softshrink()), image, r"^2 \(Softshrink\): no exact kernel is known here"),
    "prelu": (cnn(nn.PReLU(4)), image, r"applied to the output of a nonlinearity, which is not Gaussian"),
    "activation of the input": (
        nn.Sequential(nn.ReLU(), nn.Linear(4, 1)),
        row,
        r"^0 \(ReLU\): ReLU\(\) is applied to the input itself",
    ),
    "two activations": (cnn(nn.Tanh()), image, r"^2 \(Tanh\): .* is applied to the output of a nonlinearity"),
    "ends in an activation": (
        nn.Sequential(nn.Linear(4, 1), nn.ReLU()),
        row,
        r"^1: the network ends in a nonlinearity",
    ),
    "many locations": (nn.Conv2d(1, 4, 3), image, r"^the module: the module's output has 4 × 4 locations"),
    "linear on locations": (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2)),
        image,
        r"^1 \(Linear\): it acts on",
    ),
    "wrong shape": (cnn(), (1, 5, 5), r"^3: running it on an input of shape \(1, 5, 5\) failed"),
    "product": (
        Functional(lambda m, x: x * torch.relu(x)),
        image,
        r"^mul in forward \(mul\): it multiplies activations",
    ),
    "gate": (Functional(lambda m, x: m.other(x).sigmoid() * x), image, r"^mul in forward \(mul\): it multiplies activ"),
    "parameter": (
        Functional(lambda m, x: x * m.scale),
        image,
        r"^mul in forward \(mul\): it uses the parameter or",
    ),
    "constant": (Functional(lambda m, x: x + 1), image, r"^add in forward \(add\): it shifts by a constant \(1\)"),
    "broadcast": (Functional(lambda m, x: x + x[:, :, :1, :1]), image, r"getitem in forward"),
    "mean": (Functional(lambda m, x: x.mean(1), 36), image, r"^mean in forward \(mean\): it averages over images or"),
    "concatenation": (
        Functional(lambda m, x: torch.cat([x, x], 1), 8 * 36),
        image,
        r"^cat in forward \(cat\): there is",
    ),
    "functional conv": (
        Functional(lambda m, x: F.conv2d(x, m.other.weight), 64),
        image,
        r"conv2d in .* handed to",
    ),
    "permute": (Functional(lambda m, x: x.permute(0, 2, 3, 1)), image, r"^permute in forward \(permute\): it trades"),
    "padding with ones": (Functional(lambda m, x: F.pad(x, (1, 1), value=1.0), 4 * 48), image, r"pads with 1.0"),
    "twice the same": (Functional(lambda m, x: x + x), image, r"^add in forward: 2 paths without weights lead into"),
    "not series-parallel": (NotSeriesParallel(), row, r"^add in forward: a feeds several of its terms"),
    "post-activation": (
        PostActivation(),
        row,
        r"^add in forward \(add\): adds the output of the nonlinearity relu in forward",
    ),
    "used twice": (Shared(False), row, r"^a \(Linear\): it is used more than once with the same weights"),
    "tied weights": (Shared(True), row, r"^b \(Linear\): it shares its weights with a.weight"),
    "by value": (ByValue(), row, r"forward decides by the values of a tensor"),
    "lazy": (nn.Sequential(nn.LazyLinear(3)), row, r"^0.weight has no shape yet \(a lazy layer\)"),
    "no module": (lambda x: x, row, r"expected a torch.nn.Module, got function"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_name_and_reason(what: str) -> None:
    module, shape, message = REFUSED[what]
    with pytest.raises(NetworkError, match=message):
        from_torch(module, shape)


def test_kernels_of_branches_that_are_not_gaussian_are_added_where_asked() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            x = torch.relu(self.a(x))
            return self.c(x + torch.relu(self.b(x)))

    with pytest.raises(NetworkError, match="adds the output of the nonlinearity"):
        from_torch(Module(), (4,))
    net = from_torch(Module(), (4,), weight_var=1.0, bias_var=0.0, allow_non_gaussian=True)
    skip = Sum(Identity(), Sequential(Dense(), ReLU()), allow_non_gaussian=True)
    assert net == Sequential(Dense(), ReLU(), skip, Dense())


def test_explain_covers_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    module = cnn(nn.MaxPool2d(2), nn.Dropout(0.5), features=36)
    explanation = cnngp.torch.explain(module, (1, 6, 6))
    assert not explanation.ok
    assert explanation.network is None
    assert [row.name for row in explanation] == ["0", "1", "2", "3", "4", "5"]
    assert [row.name for row in explanation.refused] == ["2", "3"]
    printed = capsys.readouterr().out
    assert printed.strip() == str(explanation).strip()
    assert "MaxPool2d   4 × 3 × 3  NO: the maximum" in printed
    assert "no Gaussian process: 2 (MaxPool2d): the maximum" in printed
    assert repr(explanation) == "Explanation(6 calls, 2 refused, ok=False)"


def test_explain_of_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    class Module(PreActivationBlock):
        def __init__(self) -> None:
            super().__init__(1, 4, 1)
            self.stem, self.head, self.spare = nn.Conv2d(1, 1, 1), nn.Linear(4 * 36, 1), nn.Conv2d(4, 4, 3)

        def forward(self, x):
            return self.head(super().forward(self.stem(x)).flatten(1))

    module = Module()
    explanation = cnngp.torch.explain(module, (1, 6, 6), show=False)
    assert capsys.readouterr().out == ""
    assert explanation.ok
    told = {row.name: row.told for row in explanation}
    assert told["add in forward"] == "Sum(…)"
    assert told["spare"] == "never called by forward"
    assert told["head"].startswith("Dense(")
    assert "Sum(Conv(1" in str(explanation)
    assert explanation.network == from_torch(module, (1, 6, 6))


def test_torch_is_needed_only_when_used() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import cnngp\n"
        "names = [cnngp.from_torch, cnngp.sample_network, cnngp.gpytorch_kernel]\n"
        "names += [cnngp.torch.explain, cnngp.torch.check_limit]\n"
        "for f in names:\n"
        "    try: f(None, (1,))\n"
        "    except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    expected = [
        f'{name} needs PyTorch: pip install "cnngp[torch]"'
        for name in ("from_torch", "sample_network", "gpytorch_kernel", "explain", "check_limit")
    ]
    assert out.splitlines() == expected


def test_in_place_example_really_computes_what_was_imported() -> None:
    """The importer's reading of InPlace against what PyTorch does, with weights that make it easy to see."""
    module = InPlace()
    with torch.no_grad():
        for name in "abc":
            layer = getattr(module, name)
            layer.weight.zero_()
            layer.bias.zero_()
        module.a.bias.fill_(-1.0)
        module.b.bias.fill_(3.0)
        module.head.weight.fill_(1.0)
        module.head.bias.zero_()
        # y = b + x = 2, z = c + y = 2: x was not overwritten by the ReLU of the first branch.
        assert float(module(torch.zeros(1, 1, 6, 6))) == 2.0 * 4 * 36
