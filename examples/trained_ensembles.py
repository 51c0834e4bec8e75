"""Mean and spread of an ensemble of wide networks during gradient descent, without training any of them."""

import numpy as np

from cnngp import Conv, Dense, Kernel, ReLU, Sequential, datasets
from cnngp.gp import trained_ensemble


def main(train: int = 100, test: int = 100) -> dict[str, np.ndarray]:
    net = Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense())
    data = datasets.digits()
    X, y, X_test, y_test = data.X[:train], data.y[:train], data.X_test[:test], data.y_test[:test]
    images = np.concatenate([X, X_test])
    K, Theta = Kernel(net, device="cpu", dtype="float64").both(images)

    # region train
    targets = np.where(y[:, None] == np.arange(10), 1.0, -1.0)
    ensemble = trained_ensemble(K[:train, :train], Theta[:train, :train], targets)
    times = [0.0, 1.0, 10.0, 100.0, 1000.0, None]  # None: to convergence
    found = ensemble.predict(K[train:, :train], Theta[train:, :train], K.diagonal()[train:], t=times)
    errors = (found.mean.argmax(2) != y_test).mean(1)
    for t, error, variance in zip(times, errors, found.variance, strict=True):
        print(f"t = {t!s:>7}: error {error:6.1%}, networks differ by {np.sqrt(variance.mean()):.3f}")
    # endregion
    return {"errors": errors, "spread": np.sqrt(found.variance.mean(1)), "start": np.sqrt(K.diagonal()[train:].mean())}


if __name__ == "__main__":
    main()
