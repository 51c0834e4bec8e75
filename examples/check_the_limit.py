"""Check that a kernel is the limit of a network: sample finite networks at growing width."""

import numpy as np
import torch
from torch import nn

import cnngp
from cnngp import Conv, Dense, Identity, ReLU, Sequential, Sum


def main() -> list[str]:
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(3, 1, 4, 4))

    # region check
    module = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 16, 10)),
    )
    print("a PyTorch module, its own forward pass against the kernel of what was imported:")
    right = cnngp.torch.check_limit(module, X, samples=300)
    print(right)
    # endregion

    print("\na block that adds after its ReLU: adding the kernels is not exact, and finite networks disagree:")
    block = Sum(Identity(), Sequential(Conv(3), ReLU()), allow_non_gaussian=True)
    wrong = cnngp.torch.check_limit(Sequential(block, block, block, Conv(3), ReLU(), Dense()), X, samples=300)
    print(wrong)
    return [right.verdict, wrong.verdict]


if __name__ == "__main__":
    main()
