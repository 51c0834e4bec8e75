"""A Gaussian process on the features of a trained network: a new task with few labels."""

# region imports
import numpy as np
import torch
from torch import nn

from cnngp import GPClassifier, datasets

# endregion


# region network
def trained_network(X: np.ndarray, y: np.ndarray, steps: int, seed: int = 0) -> nn.Sequential:
    """A small CNN trained on digits. It stands in for a large pretrained network."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 16, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    images, labels = torch.as_tensor(X), torch.as_tensor(y)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net.eval()


def features(net: nn.Sequential, X: np.ndarray) -> np.ndarray:
    """Rows (N, 64): the inputs of the network's last layer."""
    with torch.no_grad():
        return net[:-1](torch.as_tensor(X)).numpy()


# endregion


def main(steps: int = 150, sizes: tuple[int, ...] = (20, 40, 80)) -> dict[str, float]:
    # region data
    data = datasets.digits()
    net = trained_network(data.X[:900], data.y[:900], steps)
    loops = np.array([1, 0, 0, 0, 0, 0, 1, 0, 2, 1])  # of the digits 0 to 9
    X, y = data.X[900:], loops[data.y[900:]]  # images and a task that the network was not trained on
    X_test, y_test = data.X_test, loops[data.y_test]
    F, F_test = features(net, X), features(net, X_test)
    # endregion

    # region head
    found = {}
    for labels in sizes:
        head = GPClassifier().fit(F[:labels], y[:labels])  # rows of numbers; a recipe for rows is chosen
        pixels = GPClassifier().fit(X[:labels], y[:labels])
        found[labels] = 1 - head.score(F_test, y_test), 1 - pixels.score(X_test, y_test)
        print(f"{labels} labels: features {found[labels][0]:.1%} (leave-one-out {head.loo_error_:.1%}), ", end="")
        print(f"pixels {found[labels][1]:.1%} wrong")
    # endregion

    # region suspects
    wrong = np.random.default_rng(0).choice(80, 5, replace=False)
    spoilt = y[:80].copy()
    spoilt[wrong] = (spoilt[wrong] + 1) % 3
    suspects = GPClassifier().fit(F[:80], spoilt).suspect_labels(5)
    right = len(np.intersect1d(suspects["row"], wrong))
    print(f"{right} of the 5 most suspect labels are wrong")
    # endregion

    # region novelty
    noise = np.random.default_rng(0).permuted(X_test.reshape(500, 64), axis=1).reshape(X_test.shape)
    for name, rows in (("digits", F_test), ("noise", features(net, noise))):
        print(f"novelty of {name}: {head.novelty(rows).mean():.3f}")
    # endregion
    return {"features": found[40][0], "pixels": found[40][1], "suspects": right}


if __name__ == "__main__":
    main()
