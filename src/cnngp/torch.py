"""PyTorch interface: importing modules, sampling finite networks, checking their limit, kernels of finite modules.

>>> import cnngp.torch
>>> cnngp.torch.__all__
['check_limit', 'empirical_kernel', 'explain', 'from_torch', 'gpytorch_kernel', 'sample_network', 'sample_outputs']

`from_torch`, `sample_network` and `gpytorch_kernel` are also in `cnngp`.
"""

from __future__ import annotations

from .torch_bridge import empirical_kernel, explain, from_torch, gpytorch_kernel, sample_network, sample_outputs
from .torch_bridge.limits import check_limit

__all__ = [
    "check_limit",
    "empirical_kernel",
    "explain",
    "from_torch",
    "gpytorch_kernel",
    "sample_network",
    "sample_outputs",
]
