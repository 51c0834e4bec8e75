"""Smoke test of an installed cnngp: `make dist` runs it in a fresh environment, away from the sources."""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

import cnngp
from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets, gram
from cnngp.network import reference


def main() -> None:
    assert "site-packages" in Path(cnngp.__file__).parts, f"{cnngp.__file__} is not the installed package"
    assert version("cnngp") == cnngp.__version__

    net = Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense())
    data = datasets.digits().take(train=300, test=200)
    K, R = Kernel(net, device="cpu")(data.X[:40]), reference.kernel(net, data.X[:40])
    assert np.abs(K - R).max() <= 1e-6 * np.abs(R).max()

    clf = GPClassifier(net, device="cpu").fit(data.X, data.y)
    assert clf.score(data.X_test, data.y_test) > 0.95
    with tempfile.TemporaryDirectory() as folder:
        clf.save(Path(folder, "digits.gp"))
        again = GPClassifier.load(Path(folder, "digits.gp"))
        assert np.array_equal(again.predict_proba(data.X_test), clf.predict_proba(data.X_test))
        stored = gram(Kernel(net, device="cpu"), data.X[:100], store=Path(folder, "K.zarr"), tile=64)
        assert np.array_equal(stored[:], Kernel(net, device="cpu")(data.X[:100]))

        command = [sys.executable, "-m", "cnngp", "classify", "--train", "200", "--test", "100", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout.strip().splitlines()[-1])

    reg = GPRegressor(net, noise=1e-2, device="cpu").fit(data.X, data.y.astype(float))
    mean, std = reg.predict(data.X_test, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    print(f"cnngp {cnngp.__version__} works on Python {sys.version.split()[0]} in {sys.prefix}")


if __name__ == "__main__":
    main()
