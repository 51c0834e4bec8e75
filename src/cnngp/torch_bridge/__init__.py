"""Import from and export to PyTorch: a module as a network, a network as finite modules.

The functions here are the whole public interface. PyTorch is imported only when one of them is called.
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
    """Raise an error that names the extra if PyTorch is not installed."""
    need("torch", what)


def need_gpytorch(what: str) -> Any:
    """Import GPyTorch, or raise an error that names the extra."""
    with warnings.catch_warnings():  # a dependency of GPyTorch uses torch.jit, which PyTorch deprecates
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

    Each layer's variances are measured from its current weights (weight_var = E[w²]·fan-in), unless `weight_var` or
    `bias_var` gives them: one number for all layers, or a mapping from sub-module names to numbers. With
    `variances="initial"`, layers whose weights still look freshly initialised get the variance of PyTorch's
    initialisation instead (1/3 for weights), so that two fresh modules of one class give the same network; `"drawn"`
    takes the variances that `sample_network` used. A call without an exact kernel raises; `explain` lists all of them.

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
    """Print and return a table of every sub-module and call of `forward`: the layer it becomes, or why it has none.

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
    """A finite PyTorch module of a network, with random weights; as `channels` grows, its output converges to the GP.

    Weights are N(0, weight_var · s / channels in), biases N(0, bias_var). `channels` is the width of the first stage,
    doubled where the network downsamples; or one number for each layer with weights, except the output layers; or a
    mapping from places to numbers, such as {"layers[2]": 32, "*": 64}. Where a skip adds the input, its channels are
    repeated. `seed=(s, i)` gives network i of `sample_outputs(seed=s)`.

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
    """Outputs of `samples` random finite networks on the images X: a NumPy array (samples, N).

    With `outputs=`, each network has that many outputs and the array is (samples, N, outputs). Networks run `batch` at
    a time (by default as many as fit in some hundred megabytes, 4 GB on a GPU); the batch does not change the weights.
    `progress` is called with the number of networks just done. On a GPU, PyTorch's TF32 setting applies.

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
    """Empirical kernel of one finite PyTorch module with its current weights: (N, M), or (N, N) without Z.

    `kind="ntk"` is the tangent kernel Σ_θ ∂f(x)/∂θ · ∂f(z)/∂θ over the parameters that require a gradient, averaged
    over the module's outputs; it describes further training of the module. `kind="nngp"` is f(x)·f(z) / outputs.
    `parametrization="ntk"` scales each tensor's gradients by the root mean square of its weights, as the infinite-width
    kernels here do, so that a wide random network comes close to them. `tile` is the number of images whose gradients
    are held at once, by default as many as fit in half a gigabyte (8 GB on a GPU). The module may contain any layers.

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

    GPyTorch's models pass flat rows (N, C·H·W), so give `input_shape`; a direct call also accepts (N, C, H, W).

    The parameters are the logarithms of the network's positive variances. Gradients reach them and the images, such
    as learned inducing points. The attribute `network` is the plain network with the current variances. With
    `learn=False` there are no parameters, and each matrix is computed only once during training.

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
