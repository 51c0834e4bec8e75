"""Training of the rivals: one loop over minibatches, early stopping by validation error, and scores.

A rival is a module with two methods: `loss(x, y, n)`, the mean loss of a minibatch out of n training images, and
`probabilities(x)`, (batch, classes).
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cnngp.common.devices import ActualDevice
from cnngp.common.progress import progress_bar
from cnngp.gp.calibration import negative_log_likelihood
from cnngp.paper.results import percent
from cnngp.paper.table1 import SplitImages

from .scores import measured

_AT_ONCE = 500
"""Images predicted at a time."""


@dataclass(frozen=True)
class Recipe:
    """Training options: passes over the data, size of a minibatch, and peak learning rate of one cycle of AdamW."""

    epochs: int
    batch: int
    rate: float
    weight_decay: float = 0.0
    half: bool = False
    """True to use bfloat16 autocast on a GPU."""


def train(rival: Any, images: SplitImages, recipe: Recipe, kind: ActualDevice, seed: int, what: str) -> dict[str, Any]:
    """Train by minibatches, keep the weights of the pass with the best validation error, and score those."""
    began = time.perf_counter()
    classes = np.unique(images.y)
    device = torch.device(kind)
    rival = rival.to(device)
    X, X_test = (torch.as_tensor(x).to(device) for x in (images.X, images.X_test))
    codes, codes_test = (np.searchsorted(classes, y) for y in (images.y, images.y_test))
    y = torch.as_tensor(codes).to(device)
    n = images.train
    generator = torch.Generator().manual_seed(seed)
    steps = recipe.epochs * math.ceil(n / recipe.batch)
    optimizer = torch.optim.AdamW(rival.parameters(), lr=recipe.rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.rate, total_steps=steps, pct_start=0.2)
    best: tuple[float, float, int] = (math.inf, math.inf, -1)
    kept: Any = None
    trace = []
    with progress_bar(recipe.epochs, what, "pass") as bar:
        for epoch in range(recipe.epochs):
            rival.train()
            total = torch.zeros((), device=device)
            for rows in torch.randperm(n, generator=generator).to(device).split(recipe.batch):
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(kind, torch.bfloat16, enabled=recipe.half and kind == "cuda"):
                    loss = rival.loss(X[rows], y[rows], n)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(rival.parameters(), 10.0)
                optimizer.step()
                schedule.step()
                total += loss.detach() * len(rows)
            trace.append(total.item() / n)
            if not math.isfinite(trace[-1]):
                raise FloatingPointError(f"{what}: the loss became {trace[-1]} in pass {epoch + 1}; use a lower rate")
            P = predicted(rival, X[n:])
            score = (percent(P.argmax(1) != codes[n:]), negative_log_likelihood(P, codes[n:]), epoch)
            if score < best:
                best, kept = score, copy.deepcopy(rival.state_dict())
            bar.set_postfix_str(f"loss {trace[-1]:.4f}, validation error {score[0]:.2f} %")
            bar.update(1)
    seconds = time.perf_counter() - began
    rival.load_state_dict(kept)
    return {
        **measured(predicted(rival, X[n:]), codes[n:], "validation"),
        **measured(predicted(rival, X_test), codes_test, "test"),
        "parameters": learned_parameters(rival),
        "train": n,
        "passes": recipe.epochs,
        "best_pass": best[2] + 1,
        "loss": trace,
        "training_seconds": seconds,
    }


def predicted(rival: Any, X: Any) -> NDArray[np.float64]:
    """Class probabilities of all images, (N, classes)."""
    rival.eval()
    with torch.no_grad():
        parts = [rival.probabilities(x).double().cpu().numpy() for x in X.split(_AT_ONCE)]
    return np.concatenate(parts)


def learned_parameters(module: Any) -> int:
    """Number of trainable parameters; a Cholesky factor stored as a square matrix counts its lower triangle."""
    total = 0
    for name, p in module.named_parameters():
        if p.requires_grad:
            square = name.endswith("chol_variational_covar")
            total += p.numel() * (p.shape[-1] + 1) // (2 * p.shape[-1]) if square else p.numel()
    return total


def sampled_softmax(mean: Any, variance: Any, samples: int) -> Any:
    """Samples of log P(class) for independent Gaussian functions and a softmax: (samples, batch, classes)."""
    noise = torch.randn(samples, *mean.shape, device=mean.device, dtype=mean.dtype)
    return (mean + variance.sqrt() * noise).log_softmax(-1)
