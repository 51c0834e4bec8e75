"""In from PyTorch and out to PyTorch: a module as a network, a network as finite modules.

The functions here are the whole public surface. PyTorch is imported when one of them is called, not before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cnngp.common.optional import need
from cnngp.network.layers import Network, NetworkError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .importing.importer import Explanation

__all__ = ["empirical_kernel", "explain", "from_torch", "gpytorch_kernel", "sample_network", "sample_outputs"]


def need_torch(what: str) -> None:
    """One line that names the extra, where PyTorch is not installed."""
    need("torch", what)


def need_gpytorch(what: str) -> Any:
    """GPyTorch, or one line that names the extra."""
    with warnings.catch_warnings():  # its dependency still compiles with torch.jit, which torch deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        return need("gpytorch", what)


def from_torch(
    module: Any,
    input_shape: Sequence[int],
    *,
    variances: str = "measured",
    weight_var: float | Mapping[str, float] | None = None,
    bias_var: float | Mapping[str, float] | None = None,
    allow_non_gaussian: bool = False,
) -> Network:
    """The infinite-width network of a PyTorch module whose inputs have shape (batch, *input_shape).

    Each layer's variances are measured from its present weights (weight_var = E[w²]·fan-in), unless `weight_var` or
    `bias_var` give them: a number for all layers, or numbers by the names of sub-modules. `variances="initial"` takes
    the law that PyTorch initialises with instead (1/3 for weights) wherever the present weights are from it, so that
    two fresh modules of one class are one network; `"drawn"` takes those that `sample_network` drew. What has no exact
    kernel is refused by name; `explain` shows all of it.

    >>> from torch import nn
    >>> module = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 28 * 28, 10))
    >>> from_torch(module, (1, 28, 28), weight_var=2.0, bias_var=0.0)
    Sequential(Conv(3, weight_var=2.0), ReLU(), Dense(weight_var=2.0))
    """
    need_torch("from_torch")
    from .importing.importer import import_module
    from .importing.modules import Variances

    return import_module(module, input_shape, Variances(variances, weight_var, bias_var), allow_non_gaussian)


def explain(
    module: Any, input_shape: Sequence[int], *, allow_non_gaussian: bool = False, show: bool = True
) -> Explanation:
    """Prints and returns a table of every sub-module and call of `forward`: what it becomes, or why it cannot.

    >>> from torch import nn
    >>> module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(16 * 36, 10))
    >>> explanation = explain(module, (1, 8, 8), show=False)
    >>> explanation.ok, [f"{row.name}: {row.kind}" for row in explanation.refused]
    (False, ['2: Dropout'])
    >>> [row.told for row in explain(module.eval(), (1, 8, 8), show=False)][1:4]
    ['ReLU()', 'Identity()', 'flattened for the next layer']
    """
    need_torch("explain")
    from .importing.importer import explain_module
    from .importing.modules import Variances

    explanation = explain_module(module, input_shape, Variances(), allow_non_gaussian)
    if show:
        print(explanation)
    return explanation


def sample_network(
    net: Network,
    channels: int | Sequence[int] | Mapping[str, int] = 64,
    input_shape: Sequence[int] = (1, 28, 28),
    seed: int | tuple[int, ...] = 0,
    *,
    outputs: int = 1,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """A finite PyTorch module of a network, with random weights: as `channels` grows its output becomes the process.

    Weights are N(0, weight_var · s / channels in), biases N(0, bias_var). `channels` is the width of the first stage,
    doubled where the network downsamples; or one number for each layer with weights but those that make the output; or
    numbers by place, such as {"layers[2]": 32, "*": 64}. Where a skip adds the input, its channels are repeated.
    `seed=(s, i)` is network i of `sample_outputs(seed=s)`.

    >>> import torch
    >>> from cnngp import zoo
    >>> module = sample_network(zoo.small_cnn(), channels=16, input_shape=(1, 8, 8), seed=0)
    >>> tuple(module(torch.zeros(5, 1, 8, 8)).shape)
    (5, 1)
    """
    need_torch("sample_network")
    import torch

    from .finite import build_finite
    from .sampling import seed_key, torch_device

    key = seed_key(seed)
    finite = build_finite(net, channels, input_shape, outputs, dtype or torch.float32, torch_device(device))
    finite.fill(key)
    return finite.module


def sample_outputs(
    net: Network,
    X: Any,
    channels: int | Sequence[int] | Mapping[str, int] = 64,
    samples: int = 1000,
    seed: int = 0,
    *,
    outputs: int | None = None,
    dtype: Any = None,
    device: Any = None,
    batch: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """What `samples` random finite networks give on the images X: a NumPy array (samples, N).

    With `outputs=` each network has that many outputs and the array is (samples, N, outputs). Networks are run `batch`
    at a time (by default as many as fit some hundred megabytes, 4 GB on a card); the batch does not change the weights.
    `progress` is called with the number of networks just done. On a card, torch's own TF32 setting applies.

    >>> import numpy as np
    >>> from cnngp import zoo
    >>> X = np.ones((3, 1, 8, 8), dtype=np.float32)
    >>> sample_outputs(zoo.small_cnn(), X, channels=8, samples=5).shape
    (5, 3)
    """
    need_torch("sample_outputs")
    import torch

    from .finite import build_finite
    from .sampling import image_tensor, outputs_of_many, seed_key, torch_device

    key, device, dtype = seed_key(seed), torch_device(device), dtype or torch.float32
    images = image_tensor(X, "X", dtype, device)
    if samples < 1:
        raise NetworkError(f"samples={samples}: expected at least one")
    finite = build_finite(net, channels, tuple(images.shape[1:]), outputs or 1, dtype, device)
    drawn = outputs_of_many(finite, images, samples, key, batch, progress).numpy()
    return drawn if outputs else drawn[:, :, 0]


def empirical_kernel(
    module: Any,
    X: Any,
    Z: Any = None,
    *,
    kind: Literal["ntk", "nngp"] = "ntk",
    parametrization: Literal["standard", "ntk"] = "standard",
    tile: int | None = None,
) -> NDArray[np.float64]:
    """The kernel of one finite PyTorch module as it is now, with anything in it: (N, M), or (N, N) without Z.

    `kind="ntk"` is the tangent kernel Σ_θ ∂f(x)/∂θ · ∂f(z)/∂θ over the parameters that require a gradient, averaged
    over the module's outputs: that of the module trained a little further. `kind="nngp"` is f(x)·f(z) / outputs.
    `parametrization="ntk"` scales each tensor's gradients by the root mean square of its weights, which is what the
    infinite kernels here do, so that a wide random network comes near them. `tile` is how many images' gradients are
    held at once, by default as many as fit half a gigabyte (8 GB on a card).

    >>> from torch import nn
    >>> K = empirical_kernel(nn.Linear(3, 2), [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])  # x·z + 1 for the bias, by hand
    >>> K.round(6)
    array([[6., 3.],
           [3., 3.]])
    """
    need_torch("empirical_kernel")
    from .empirical import kernel_of

    return kernel_of(module, X, Z, kind, parametrization, tile)


def gpytorch_kernel(
    network: Any,
    input_shape: Sequence[int] | None = None,
    *,
    dtype: str | None = None,
    threads: int | None = None,
    learn: bool = True,
) -> Any:
    """A network as a `gpytorch.kernels.Kernel`, for exact and variational models on CPU or CUDA tensors.

    GPyTorch's models pass flat rows (N, C·H·W), so give `input_shape`; called by hand it takes (N, C, H, W) too.

    Its parameters are the logarithms of the network's positive variances. `backward` reaches them and the images, such
    as inducing points that are learned. The kernel's `network` is the plain network with the variances that it has
    now. With `learn=False` it has no parameters, and a matrix is computed once however long the model is trained.

    >>> import torch
    >>> from cnngp import zoo
    >>> kernel = gpytorch_kernel(zoo.small_cnn(), (1, 8, 8))
    >>> tuple(kernel(torch.rand(3, 64)).to_dense().shape)
    (3, 3)
    >>> [name for name, _ in kernel.named_parameters()][:2]
    ['raw_layers_0_weight_var', 'raw_layers_0_bias_var']
    """
    need_torch("gpytorch_kernel")
    from .gpytorch_adapter import NetworkKernel

    return NetworkKernel(network, input_shape, dtype, threads, learn)
