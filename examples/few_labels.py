"""Few labels: the exact GP and a small trained CNN on the same digits, and which images to label next."""

# region imports
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cnngp import GPClassifier, datasets, zoo

# endregion


# region cnn
def cnn_error(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int) -> float:
    """Test error of a small CNN after 150 steps of Adam; it makes no mistake on its training images from step 50 on."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 10)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    images, labels = torch.as_tensor(X), torch.as_tensor(y)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        found = net(torch.as_tensor(X_test)).argmax(1).numpy()
    return float((found != y_test).mean())


# endregion


def compare(seeds: int, sizes: Sequence[int]) -> dict[int, tuple[float, float]]:
    # region compare
    data = datasets.digits()
    errors = {}
    for n in sizes:
        gp, cnn = [], []
        for seed in range(seeds):  # other images each time
            rows = np.random.default_rng(seed).permutation(len(data.y))[:n]
            X, y = data.X[rows], data.y[rows]
            gp.append(1 - GPClassifier(zoo.small_cnn()).fit(X, y).score(data.X_test, data.y_test))
            cnn.append(cnn_error(X, y, data.X_test, data.y_test, seed))
        errors[n] = float(np.mean(gp)), float(np.mean(cnn))
        print(f"{n:4} labels: GP {errors[n][0]:6.1%}, CNN {errors[n][1]:6.1%}")
    # endregion
    return errors


def label_next(seeds: int, rounds: int, step: int = 20) -> dict[str, np.ndarray]:
    """Test errors as labels are added, `step` at a time: for the images that the GP is least certain of, or random."""
    data = datasets.digits()
    found: dict[str, list[list[float]]] = {"asked for": [], "at random": []}
    for seed in range(seeds):
        for way, errors in found.items():
            errors.append([])
            # region next
            rng = np.random.default_rng(seed)
            labelled = np.concatenate([rng.permutation(np.flatnonzero(data.y == c))[:2] for c in range(10)])
            clf = GPClassifier(zoo.small_cnn()).fit(data.X[labelled], data.y[labelled])
            for _ in range(rounds):
                rest = np.setdiff1d(np.arange(len(data.y)), labelled)
                if way == "asked for":
                    worth = clf.most_uncertain(step, data.X[rest])
                else:
                    worth = rng.permutation(len(rest))[:step]
                clf.add(data.X[rest[worth]], data.y[rest[worth]])  # the old part is not computed again
                labelled = np.concatenate([labelled, rest[worth]])
                errors[-1].append(1 - clf.score(data.X_test, data.y_test))
            # endregion
    means = {way: np.mean(errors, axis=0) for way, errors in found.items()}
    print("labels      ", *(f"{20 + step * (i + 1):6}" for i in range(rounds)))
    for way, errors in means.items():
        print(f"{way:12}", *(f"{e:6.1%}" for e in errors))
    return means


def draw(errors: dict[int, tuple[float, float]], next_: dict[str, np.ndarray], folder: Path) -> None:
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8, 3.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, line in zip(("exact GP", "trained CNN"), zip(*errors.values(), strict=True), strict=True):
        left.plot(list(errors), [100 * e for e in line], "o-", label=name)
    for name, line in next_.items():
        right.plot(40 + 20 * np.arange(len(line)), 100 * line, "o-", label=f"labels {name}")
    for axes in (left, right):
        axes.set_xlabel("labels")
        axes.set_ylabel("test error, %")
        axes.set_ylim(0)
        axes.legend(frameon=False)
    figure.savefig(folder / "few_labels.png")


def main(
    pictures: Path | None = None, seeds: int = 3, sizes: Sequence[int] = (20, 50, 100, 200), rounds: int = 12
) -> tuple[dict[int, tuple[float, float]], dict[str, np.ndarray]]:
    errors, next_ = compare(seeds, sizes), label_next(seeds, rounds)
    if pictures:
        draw(errors, next_, pictures)
    return errors, next_


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
