"""Trained networks for comparison with the Gaussian process: usual choices for few labelled images.

- `cnn`: two 3 × 3 convolutions (32 and 64 filters), max pooling, a dense layer of 128 with dropout 0.5; AdamW with a
  cosine schedule for 1,500 steps of 64 images; the mean of two seeds. If `moved`, its training images are shifted at
  random by up to a fourteenth of their side: two pixels at 28 × 28, one at 8 × 8.
- `residual`: a residual network with batch normalisation (stages of 32, 64 and 128 filters, a global pool) on randomly
  shifted, rotated and scaled images. A fifth of the training images is held out to choose the learning rate, the amount
  of rotation, and the number of steps; then it is trained on all of them with these; the mean of two seeds.
- `resnet18`: a ResNet-18 on standardised images with random crops, mirrored if they have colour; SGD with one cycle.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cnngp import datasets
from cnngp.gp import calibration

Result = dict[str, Any]


def cnn(data: datasets.Dataset, device: str, moved: bool = False, steps: int = 1500, seeds: int = 2) -> Result:
    images = _Images(data, device)
    channels, height, width = data.image_shape
    shifts = _shift(height) if moved else 0

    def train(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(128, images.classes),
        ).to(device)
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        padded = F.pad(images.X, (shifts, shifts, shifts, shifts))
        for _ in range(steps):
            rows = torch.randint(len(images.X), (min(64, len(images.X)),)).to(device)
            top, left = torch.randint(2 * shifts + 1, (2,)).tolist()
            seen = padded[rows, :, top : top + height, left : left + width]
            _step(net, optimiser, schedule, seen, images.y[rows])
        return net

    return images.judged(train, seeds)


def residual(data: datasets.Dataset, device: str, steps: int = 1500, seeds: int = 2) -> Result:
    images = _Images(data, device)
    held, kept = _fifth(images.codes)
    best: tuple[float, float, float, int] | None = None
    start = time.perf_counter()
    for rate, turn in ((1e-3, 0.0), (3e-3, 0.0), (3e-3, 0.2)):
        for at, net in _trained(images, kept, rate, turn, steps, seed=0):
            net.eval()
            with torch.no_grad():
                loss = F.cross_entropy(net(images.X[held]), images.y[held]).item()
            net.train()
            if best is None or loss < best[0]:
                best = (loss, rate, turn, at)
    assert best is not None
    tuning = time.perf_counter() - start
    _, rate, turn, stop = best

    def train(seed: int) -> nn.Module:
        everything = np.arange(len(images.codes))
        return next(net for at, net in _trained(images, everything, rate, turn, steps, seed) if at == stop)

    found = images.judged(train, seeds)
    return found | {"train_s": found["train_s"] + tuning, "chosen": f"rate {rate:g}, turn {turn:g}, {stop} steps"}


def resnet18(data: datasets.Dataset, device: str, steps: int | None = None, seeds: int = 1) -> Result:
    images = _Images(data, device)
    n, channels, height, width = images.X.shape
    mean, spread = images.X.mean((0, 2, 3), keepdim=True), images.X.std((0, 2, 3), keepdim=True) + 1e-6
    images.X, images.X_test = (images.X - mean) / spread, (images.X_test - mean) / spread
    count = steps or max(1500, 100 * n // 128)
    border = max(1, height // 8)
    padded = F.pad(images.X, (border,) * 4)

    def train(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net = _residual_network(channels, images.classes, (64, 128, 256, 512), blocks=2, dropout=0.0).to(device)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.1, total_steps=count)
        down, across = torch.arange(height, device=device), torch.arange(width, device=device)
        for _ in range(count):
            rows = torch.randint(n, (min(128, n),), device=device)
            top, left = torch.randint(2 * border + 1, (2, len(rows), 1), device=device)
            mirrored = (torch.rand(len(rows), 1, device=device) < 0.5) & (channels >= 3)
            columns = left + torch.where(mirrored, width - 1 - across, across)
            crops = padded[rows[:, None, None], :, (top + down)[:, :, None], columns[:, None, :]].movedim(3, 1)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                _step(net, optimiser, schedule, crops, images.y[rows])
        return net

    return images.judged(train, seeds)


def _trained(images: _Images, rows: Any, rate: float, turn: float, steps: int, seed: int) -> Any:
    """Train, and yield (steps, network) after every hundred steps."""
    torch.manual_seed(seed)
    device = images.X.device
    net = _residual_network(images.X.shape[1], images.classes).to(device)
    optimiser = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=5e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    of = torch.as_tensor(rows)
    for at in range(1, steps + 1):
        batch = of[torch.randint(len(of), (min(64, len(of)),))].to(device)
        _step(net, optimiser, schedule, _moved(images.X[batch], turn), images.y[batch])
        if at % 100 == 0:
            yield at, net


def _shift(side: int) -> int:
    return max(1, side // 14)


def _moved(X: Any, turn: float) -> Any:
    """Each image shifted by up to `_shift` pixels and, with a `turn` in radians, rotated and scaled as well."""
    n, _, height, width = X.shape
    most = 2.0 * _shift(height)  # in the coordinates of `affine_grid` an image is 2 wide
    angle = turn * (2.0 * torch.rand(n) - 1.0)
    scale = 1.0 + 0.5 * turn * (2.0 * torch.rand(n) - 1.0)
    across, down = (most * (2.0 * torch.rand(n) - 1.0) / size for size in (width, height))
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    maps = torch.stack([torch.stack([cos, -sin, across], 1), torch.stack([sin, cos, down], 1)], 1).to(X.device)
    return F.grid_sample(X, F.affine_grid(maps, list(X.shape), align_corners=False), align_corners=False)


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Any) -> Any:
        return F.relu(self.main(x) + self.skip(x))


def _residual_network(
    channels: int, classes: int, widths: tuple[int, ...] = (32, 64, 128), blocks: int = 1, dropout: float = 0.2
) -> nn.Module:
    """Residual network with `blocks` per stage and the given widths; all stages but the first begin with stride 2."""
    before = (widths[0], *widths)
    stages = [
        _Block(before[i] if b == 0 else w, w, 2 if b == 0 and i > 0 else 1)
        for i, w in enumerate(widths)
        for b in range(blocks)
    ]
    return nn.Sequential(
        *(nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()),
        *stages,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(widths[-1], classes)),
    )


def _step(net: nn.Module, optimiser: Any, schedule: Any, X: Any, y: Any) -> None:
    loss = F.cross_entropy(net(X), y)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    schedule.step()


def _fifth(codes: Any) -> tuple[Any, Any]:
    """Rows of a random but fixed fifth of each class, and the other rows."""
    rng = np.random.default_rng(0)
    held = np.concatenate([rng.permutation(np.flatnonzero(codes == c))[: max(1, n // 5)] for c, n in _counts(codes)])
    return np.sort(held), np.setdiff1d(np.arange(len(codes)), held)


def _counts(codes: Any) -> Any:
    return zip(*np.unique(codes, return_counts=True), strict=True)


class _Images:
    """A data set as tensors on the network's device, and the scores of trained networks on its test images."""

    def __init__(self, data: datasets.Dataset, device: str) -> None:
        names, self.codes = np.unique(data.y, return_inverse=True)
        self.classes = len(names)
        self.X, self.X_test = (torch.from_numpy(X).to(device) for X in (data.X, data.X_test))
        self.y = torch.from_numpy(self.codes).to(device)
        self.y_test = np.searchsorted(names, data.y_test)

    def judged(self, train: Any, seeds: int) -> Result:
        rows = []
        for seed in range(seeds):
            start = time.perf_counter()
            net = copy.deepcopy(train(seed)).eval()
            self.X[:1].cpu()  # waits for the GPU
            fitted = time.perf_counter()
            with torch.no_grad():
                logits = torch.cat([net(part) for part in self.X_test.split(1000)])
            P = torch.softmax(logits.double(), 1).cpu().numpy()
            scores = calibration.scores(P, self.y_test)
            rows.append((scores.error, scores.nll, scores.ece, fitted - start, time.perf_counter() - fitted))
        names = ("error", "nll", "ece", "train_s", "test_s")
        return dict(zip(names, np.mean(rows, 0).tolist(), strict=True))
