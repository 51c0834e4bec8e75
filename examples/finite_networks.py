"""Finite PyTorch modules of a network: one to train or inspect, and thousands at once for their distribution."""

import numpy as np
import torch

import cnngp
from cnngp import Kernel, zoo
from cnngp.torch import sample_outputs


def main() -> float:
    net = zoo.resnet(8)
    module = cnngp.sample_network(net, channels=8, input_shape=(1, 8, 8), seed=0)
    print(f"{sum(p.numel() for p in module.parameters()):,} weights; output", module(torch.zeros(1, 1, 8, 8)).shape)

    X = np.random.default_rng(0).normal(size=(2, 1, 8, 8))
    drawn = sample_outputs(net, X, channels=8, samples=2000, seed=0)  # (networks, images)
    empirical, exact = np.cov(drawn.T), Kernel(net, device="cpu")(X)
    print("covariance of 2,000 finite networks:", empirical.round(3), "kernel:", exact.round(3), sep="\n")
    return float(np.abs(empirical - exact).max() / exact.max())


if __name__ == "__main__":
    main()
