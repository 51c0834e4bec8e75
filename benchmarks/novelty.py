"""Out-of-distribution detection for digits: compare novelty, relative variance and largest probability by AUROC.

python -m benchmarks.novelty: resnet32 on 1,000 images of MNIST, two minutes on two cores. The other images need no data
files: patches of scikit-learn's two photographs, letters in matplotlib's fonts, distorted digits, and noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images
from sklearn.metrics import roc_auc_score

from cnngp import GPClassifier, datasets

Images = NDArray[np.float32]
SIDE = 28


def photographs(rng: np.random.Generator, each: int = 150) -> Images:
    """Square patches of photographs, of random size and position, as grey images."""
    patches = []
    for photograph in load_sample_images().images:
        grey = Image.fromarray(photograph).convert("L")
        for _ in range(each):
            side = int(rng.integers(SIDE, 200))
            left, top = int(rng.integers(0, grey.width - side)), int(rng.integers(0, grey.height - side))
            patches.append(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side)))
    return _stacked(patches)


def letters() -> Images:
    """Capital letters that cannot be read as digits, white on black."""
    folder = Path(matplotlib.__file__).parent / "mpl-data" / "fonts" / "ttf"
    drawn = []
    for font in sorted(folder.glob("DejaVuS*.ttf")):
        if "Display" not in font.name:
            for letter in "ABCDEFGHJKMNPQRTUVWXY":
                image = Image.new("L", (SIDE, SIDE))
                ImageDraw.Draw(image).text((14, 14), letter, 255, ImageFont.truetype(str(font), 20), anchor="mm")
                drawn.append(image)
    return _stacked(drawn)


def _stacked(images: list[Any]) -> Images:
    return np.stack([np.asarray(image, np.float32) / 255 for image in images])[:, None]


def main() -> None:
    data = datasets.mnist().take(1000, 1000)
    clf = GPClassifier("resnet32").fit(data.X, data.y)
    rng = np.random.default_rng(0)
    digits = data.X_test[:300]
    others = {
        "patches of photographs": photographs(rng),
        "printed letters": letters(),
        "upside down": digits[:, :, ::-1, ::-1].copy(),
        "turned by 90°": np.rot90(digits, axes=(2, 3)).copy(),
        "negatives": 1 - digits,
        "noise": rng.random((300, 1, SIDE, SIDE)).astype(np.float32),
        "shuffled pixels": digits.reshape(300, -1)[:, rng.permutation(SIDE * SIDE)].reshape(digits.shape),
    }
    of_digits = scores(clf, data.X_test)
    found = {name: scores(clf, X) for name, X in others.items()}
    found["all"] = {score: np.concatenate([f[score] for f in found.values()]) for score in of_digits}
    print(f"{'AUROC':<24}" + "".join(f"{score:>26}" for score in of_digits))
    for name, by_score in found.items():
        print(f"{name:<24}" + "".join(f"{auroc(of_digits[s], v):>26.3f}" for s, v in by_score.items()))


def scores(clf: GPClassifier, X: Images) -> dict[str, NDArray[np.float64]]:
    """Scores by name; each is higher for images less like the training images."""
    _, variance = clf.predict_latent(X)
    return {
        "novelty": clf.novelty(X),
        "variance/k(x, x)": variance / clf.kernel_.diag(X),
        "1 − largest probability": 1.0 - clf.predict_proba(X).max(1),
    }


def auroc(digits: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    truth = np.r_[np.zeros(len(digits)), np.ones(len(others))]
    return float(roc_auc_score(truth, np.r_[digits, others]))


if __name__ == "__main__":
    main()
