"""Modules that have no exact kernel are refused by name and reason, and `explain` tells of every part."""

import copy
import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import cnngp
from cnngp import NetworkError, from_torch
from helpers.torch_modules import PreActivationBlock, cnn, made

pytestmark = pytest.mark.filterwarnings("ignore:from_torch measured")  # small layers
IMAGE, ROW = (1, 6, 6), (4,)
R = torch.relu
COIN = itertools.cycle((True, False))


def refused(module: Any, shape: tuple[int, ...], why: str) -> None:
    with pytest.raises(NetworkError, match=why) as error:
        from_torch(module, shape)
    assert "\n" not in str(error.value)


def changed(module: nn.Module, **numbers: Any) -> nn.Module:
    for name, value in numbers.items():
        getattr(module, name).data[:] = torch.as_tensor(value)
    return module


@pytest.mark.parametrize(
    ("middle", "why"),
    [
        (nn.AvgPool2d(4, ceil_mode=True), r"^2 \(AvgPool2d\): ceil_mode=True makes windows at the end that"),
        (nn.AvgPool2d(2, divisor_override=3), r"divisor_override=3 is not the number of locations .*, 4; leave"),
        (nn.AdaptiveAvgPool2d(4), r"windows differ in size where 6 × 6 locations become 4 × 4"),
        (nn.BatchNorm2d(4), r"^2 \(BatchNorm2d\): in training mode it divides by statistics of"),
        (changed(nn.BatchNorm2d(4).eval(), running_var=[1.0, 2.0, 3.0, 4.0]), r"^2 \(BatchNorm2d\): its fixed fac"),
        (changed(nn.BatchNorm2d(4).eval(), running_mean=1.0), r"^2 \(BatchNorm2d\): its fixed shift is not zero"),
        (nn.LayerNorm((6, 6)), r"^2 \(LayerNorm\): it divides by statistics of its own input"),
        *((n, r"^2 .*Norm.* whose mean over channels is not 0") for n in (nn.LayerNorm((4, 6, 6)), nn.GroupNorm(1, 4))),
        (nn.InstanceNorm2d(4), r"^2 \(InstanceNorm2d\): it divides by statistics"),
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), r"^2 \(Conv2d\): groups=2: a filter that"),
        (nn.PReLU(4), r"^2 \(PReLU\): .* applied to the output of a nonlinearity, which is not Gaussian"),
        (nn.ZeroPad2d(-1), r"^2 \(ZeroPad2d\): cropping other than right after a transposed convolution"),
    ],
)
def test_modules_are_refused_by_name(middle: nn.Module, why: str) -> None:
    features = copy.deepcopy(cnn(middle)[:-1]).eval()(torch.zeros(1, *IMAGE)).shape[1]
    refused(cnn(middle, features=features), IMAGE, why)


TO_IMAGES = r".* do (that|it) to the images,? and import the module without it$"
OF_INPUT: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda m, x: (x - 0.5) / 0.25, r"^sub .*: it shifts the input by a constant \(0.5\), which no"),
    (lambda m, x: x / 255 - 0.5, r"^sub .*: it shifts the input by a constant \(0.5\), which no"),
    (lambda m, x: 1 - x, r"^rsub .*: it shifts the input by a constant \(1\), which no"),
    (lambda m, x: x - m.norm.running_mean, r"^sub .*: it uses .* norm.running_mean on the input, which no"),
]


def dense(forward: Callable[[Any, Any], Any]) -> nn.Module:
    return made(forward, **{name: nn.Linear(4, 4) for name in "abcd"}, norm=nn.BatchNorm1d(4), act=nn.ReLU(True))


def bridge(m: Any, x: Any) -> Any:
    """As in a Wheatstone circuit: h feeds both arms in the middle."""
    h = m.a(x)
    return m.d(R(m.b(x) + m.c(R(h)))) + h


@pytest.mark.parametrize(
    ("module", "shape", "why"),
    [
        (nn.GRU(4, 4), (3, 4), r"^the module \(GRU\): a recurrent layer uses the same weights"),
        (nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8)), (3, 4), r"^0 .*: it multiplies activations"),
        (nn.Sequential(nn.ReLU(), nn.Linear(4, 1)), ROW, r"^0 \(ReLU\): ReLU\(\) is applied to the input itself"),
        (nn.Sequential(nn.Linear(4, 1), nn.ReLU()), ROW, r"^1 \(ReLU\): the network ends in a nonlinearity"),
        (nn.Conv2d(1, 4, 3), IMAGE, r"^the module \(Conv2d\): the module's output has 4 × 4 locations"),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2)), IMAGE, r"^1 \(Linear\): it acts on"),
        # torch reads (batch, channels, length) in AvgPool2d as one image without channels, and would mix the batch
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.AvgPool2d(2)), (1, 6), "its input has 1 spatial axes, not 2"),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8)), ROW, "whose mean over channels is not 0"),
        (nn.Sequential(nn.Linear(4, 8), changed(nn.LayerNorm(8), weight=2.0)), ROW, "weights are not all 1"),
        (nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8)), ROW, "it divides by statistics .* all locations of an"),
        # all channels of all locations together, laid out flat: not the channels of each
        (nn.Sequential(nn.Conv2d(1, 8, 5), nn.Flatten(), nn.LayerNorm(32)), IMAGE, r"^2 .* of an image has one"),
        (cnn(), (1, 5, 5), r"^3: running it on an input of shape \(1, 5, 5\) failed"),
        (nn.Sequential(nn.LazyLinear(3)), ROW, r"^0.weight has no shape yet \(a lazy layer\)"),
        (lambda x: x, ROW, r"expected a torch.nn.Module, got function"),
        (dense(bridge), ROW, r"^add in forward .*: a feeds several of its terms"),
        # an activation in place reaches what skips it
        (dense(lambda m, x: m.c((h := m.a(x)) + m.b(m.act(h)))), ROW, r"the branch Identity\(\) gives the output of a"),
        *((dense(lambda m, x, f=f: m.b(R(m.a(f(m, x))))), ROW, why + TO_IMAGES) for f, why in OF_INPUT),
        (nn.Identity(), ROW, "^forward .output.: the images reach"),
        *(
            (nn.Sequential(nn.Linear(4, 3), m, nn.Linear(3, 1)), ROW, r"ha(ve|s) a name here")
            for m in (nn.Softplus(beta=2.0), nn.ELU(alpha=0.5), nn.Hardtanh(-2, 2), nn.Threshold(0.1, 0.0))
        ),
    ],
)
def test_networks_are_refused_by_name(module: Any, shape: tuple[int, ...], why: str) -> None:
    refused(module, shape, why)


# ---- what forward does: m.a, m.f and m.head are layers ---------------------------------------------------------------


def _write(h: Any) -> Any:
    h[:, :2] = 0.0
    return h


FORWARD: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda m, h: h * R(h), r"^mul in forward \(mul\): it multiplies activations"),
    (lambda m, h: h * m.scale, r"^mul in forward \(mul\): it uses the parameter or buffer scale outside of a layer"),
    (lambda m, h: h + 1, r"^add .*: it shifts by a constant \(1\), so what follows is not zero-mean$"),
    (lambda m, h: h + h.mean((2, 3), keepdim=True), r"^add .*: it adds shapes \(4, 4, 4\) and \(4, 1, 1\)"),
    (lambda m, h: h.mean(1), r"^mean in forward \(mean\): it averages over images or channels"),
    (lambda m, h: h.mean(3), r"^mean in forward \(mean\): it averages over some of the axes only and drops them"),
    (lambda m, h: h.sum((2, 3)), "use their mean, times a constant"),
    (lambda m, h: torch.cat([h, h], 1), r"^cat in forward \(cat\): there is"),
    (lambda m, h: F.conv2d(h, m.f.weight), r"conv2d in .* handed to"),
    (lambda m, h: h.permute(0, 2, 3, 1), r"^permute in forward \(permute\): it trades"),
    (lambda m, h: F.pad(h, (1, 1), value=1.0), r"pads with 1.0"),
    (lambda m, h: h + h, r"^add in forward \(add\): 2 paths without weights lead into"),
    (lambda m, h: 0.5 * h + m.f(R(h)), r"^mul in forward \(mul\): the factor 0.5 stands neither right after a layer"),
    (lambda m, h: R(h) + m.f(R(h)), r"^add in forward \(add\): the branch ReLU\(\) gives the output of a nonlinearity"),
    (lambda m, h: R(m.f(m.f(h))), r"^f \(Conv2d\): it is used more than once with the same weights"),
    (lambda m, h: h if h.sum() > 0 else -h, r"forward decides by the values of a tensor"),
    # indices
    (lambda m, h: h[:, :, [1, 0, 3, 2]], "getitem .*: it takes, moves or writes single"),
    (lambda m, h: h[:, torch.arange(4)], "getitem .*: it uses a tensor that is not made from the input"),
    (lambda m, h: next(iter(h))[None].repeat(2, 1, 1, 1), "unbind"),
    (lambda m, h: _write(h.clone()), "setitem .*: it takes, moves or writes"),
    (lambda m, h: h.index_copy_(0, torch.tensor([0]), h[:1]), "it takes, moves or writes"),
    # types and roundings
    (lambda m, h: h.to(torch.int32), r"to .*: it makes torch.int32 of real numbers"),
    (lambda m, h: h.view(torch.int32), r"view .*: it reads the bits of torch.float32 as torch.int32"),
    (lambda m, h: h.half().view(torch.bfloat16), "half"),
    (lambda m, h: torch.div(h, 2, rounding_mode="floor"), r"div .*: what its argument rounding_mode='floor' does"),
    (lambda m, h: F.softplus(h, threshold=1.0), r"softplus .*: only with threshold=20 it has"),
    (lambda m, h: h.clamp(max=0), "limits -inf and 0; only 0 and inf"),
    (lambda m, h: h.clamp_max(3), "no exact kernel is known here for clamp_max"),
    (lambda m, h: h.clamp(min=h), "its limits are tensors"),
    # chance, and other constants
    (lambda m, h: h + torch.randn_like(h), r"randn_like .*: it is random anew"),
    (lambda m, h: h + torch.randn(h.shape), r"add .*: it uses a tensor that is not made from the input"),
    (lambda m, h: m.f(R(h)) if next(COIN) else h, r": it depends on the number of images, or changes from one call"),
    (lambda m, h: h / len(h), r"^div in forward: it depends on the number of images"),
    (lambda m, h: h.reshape(2, -1, 4, 4).relu(), r"reshape in forward .*: it turns \(4, 4, 4\) into"),
    # weights
    (lambda m, h: m.f(h + 0 * m.f.weight.data.abs_().sum()), r"abs in forward: .* into its own weights, f.weight"),
    (lambda m, h: m.f.weight.mul_(2.0) is None or m.f(h), r"mul in forward: .* into its own weights, f.weight"),
    (lambda m, h: setattr(m.f, "weight", nn.Parameter(m.f.weight.abs())) or m.f(h), "replaces its own .* f.weight"),
    (
        lambda m, h: torch.func.functional_call(m.f, {"weight": m.f.weight * 2}, (R(h),)),
        r"^f \(Conv2d\): other weights than its own are given to the call",
    ),
]


@pytest.mark.parametrize(("middle", "why"), FORWARD)
def test_forwards_are_refused_by_name(middle: Callable[[Any, Any], Any], why: str) -> None:
    def forward(m: Any, x: Any) -> Any:
        h = R(middle(m, m.a(x))).flatten(1)
        return m.head(h) if h.shape[1] == 64 else h

    layers = {"a": nn.Conv2d(1, 4, 3, padding=1), "f": nn.Conv2d(4, 4, 3, padding=1), "head": nn.Linear(64, 1)}
    refused(made(forward, **layers, scale=nn.Parameter(torch.ones(4, 1, 1))), (1, 4, 4), why)


class Inference(nn.Linear):
    forward = torch.inference_mode()(lambda self, x: nn.Linear.forward(self, x.relu()))


class Absolute(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.abs())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m[1].register_forward_hook(lambda *given: None), r"^1 \(ReLU\): it has a forward hook, which may"),
        (lambda m: m.register_forward_hook(lambda *given: None), r"^the module \(Sequential\): it has a forward hook"),
        (lambda m: setattr(m[1], "forward", torch.sin), r"^1 \(ReLU\): its forward was replaced on this instance"),
        (lambda m: vars(m[0]).update(_check_input_dim=abs, extra_repr=str), r"^0 .*: its extra_repr was replaced"),
        (lambda m: m.append(Absolute(4, 1)), r"linear in 3 \(linear\): the weights are handed to a function"),
        (lambda m: m.append(parametrizations.weight_norm(Absolute(4, 1))), r"linear in 3 .*: the weights are handed"),
        (lambda m: m.append(Inference(4, 1)), r"Inference tensors do not track version"),
        (lambda m: setattr(m[2], "weight", m[0].weight), r"^2 \(Linear\): it shares its weights with 0.weight; the"),
        (lambda m: setattr(m[2].weight, "data", m[0].weight.data), r"^2 \(Linear\): it shares its weights with 0.w"),
        (lambda m: setattr(m[2], "weight", nn.Parameter(m[0].weight.detach().T)), r"^2 .*: it shares its weights"),
        (lambda m: (delattr(m[2], "weight"), setattr(m[2], "weight", m[0].weight.detach())), r"^2 .*: it shares its"),
    ],
)
def test_altered_parts_are_refused_by_name(change: Callable[[Any], object], why: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    from_torch(module, ROW)
    change(module)
    refused(module, ROW, why)


def test_weights_side_by_side_in_one_memory_are_taken() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    module[0].weight.data, module[2].weight.data = torch.randn(2, 4, 4).unbind()
    net = from_torch(module, ROW)
    assert net.parameters()["layers[0].weight_var"] == pytest.approx(4.0 * module[0].weight.square().mean().item())


def test_explain_tells_of_every_part_and_why_what_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    explanation = cnngp.torch.explain(cnn(nn.MaxPool2d(2), nn.Dropout(0.5), features=36), IMAGE)
    assert explanation.network is None
    assert [row.name for row in explanation.refused] == ["2", "3"]
    printed = capsys.readouterr().out
    assert printed.strip() == str(explanation).strip()
    assert "MaxPool2d   4 × 3 × 3  NO: the maximum" in printed
    assert "no Gaussian process: 2 (MaxPool2d): the maximum" in printed
    layers = {"stem": nn.Conv2d(1, 1, 1), "block": PreActivationBlock(1, 4, 1), "spare": nn.Conv2d(4, 4, 3)}
    module = made(lambda m, x: m.head(m.block(m.stem(x)).mean((2, 3))), **layers, head=nn.Linear(4, 1))
    taken = cnngp.torch.explain(module, IMAGE, show=False)
    told = {row.name: row.told for row in taken}
    parts = {"add in block": "Sum(…)", "mean in forward": "GlobalAvgPool()", "spare": "never called by forward"}
    assert told == told | parts
    assert taken.network == from_torch(module, IMAGE)


def test_torch_is_needed_only_when_used() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import cnngp\n"
        "names = [cnngp.from_torch, cnngp.sample_network, cnngp.gpytorch_kernel]\n"
        "for f in [*names, cnngp.torch.explain, cnngp.torch.check_limit]:\n"
        "    try: f(None, (1,))\n"
        "    except ImportError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [
        f'{name} needs PyTorch: pip install "cnngp[torch]"'
        for name in ("from_torch", "sample_network", "gpytorch_kernel", "explain", "check_limit")
    ]
