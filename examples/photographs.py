"""My photographs, start to finish: a folder of pictures becomes a classifier that knows how sure it is.

The pictures are small pieces of two photographs that come with scikit-learn, so this runs anywhere. With pictures of
your own, skip `cut_up` and give the folder that holds one sub-folder for each class.
"""

# region imports
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from cnngp import Conv, Dense, GlobalAvgPool, GPClassifier, ReLU, Sequential, datasets

# endregion

# region cut
# Where each class is to be seen: photograph, then top, left, bottom, right for training, and another part for testing.
PARTS = {
    "sky": (0, (0, 330, 180, 480), (0, 480, 130, 640)),
    "temple": (0, (100, 90, 380, 230), (100, 230, 380, 330)),
    "trees": (0, (300, 330, 427, 480), (300, 480, 427, 640)),
    "flower": (1, (90, 180, 360, 310), (90, 310, 360, 440)),
    "leaves": (1, (0, 0, 427, 120), (0, 470, 300, 640)),
}


def cut_up(folder: Path, size: int = 48, train: int = 40, test: int = 20) -> None:
    """Square pieces as JPEG files: folder/train/sky/00.jpg, folder/test/sky/00.jpg, …"""
    photographs = load_sample_images().images
    rng = np.random.default_rng(0)
    for name, (which, *areas) in PARTS.items():
        for part, area, count in zip(("train", "test"), areas, (train, test), strict=True):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                top = rng.integers(area[0], area[2] - size)
                left = rng.integers(area[1], area[3] - size)
                piece = photographs[which][top : top + size, left : left + size]
                Image.fromarray(piece).save(folder / part / name / f"{i:02}.jpg", quality=92)


# endregion


def learn(folder: Path) -> tuple[GPClassifier, datasets.Dataset]:
    # region fit
    data = datasets.load(folder, size=16)  # every picture is brought to 16 × 16
    print(data)
    clf = GPClassifier("resnet32", noise=1e-3)
    clf.fit(data.X, data.y, names=data.names)
    print(f"error on test pictures       {1 - clf.score(data.X_test, data.y_test):.1%}")
    print(f"error by leaving one out     {clf.loo_error_:.1%}")  # needs no test pictures
    # endregion
    return clf, data


def use(clf: GPClassifier, data: datasets.Dataset, model: Path) -> float:
    # region use
    clf.save(model)
    clf = GPClassifier.load(model)  # on another day

    P = clf.predict_proba(data.X_test)
    sure = P.max(1) > 0.9
    right = clf.classes_[P.argmax(1)] == data.y_test
    print(f"sure of {sure.mean():.0%} of the pictures, and right in {right[sure].mean():.0%} of them")
    print(f"not sure of the others, and right in {right[~sure].mean():.0%} of them")

    for row in clf.most_uncertain(3, data.X_test):  # what to look at first
        chances = sorted(zip(P[row], clf.classes_, strict=True), reverse=True)[:2]
        print(f"{data.names_test[row]}:", ", ".join(f"{name} {p:.0%}" for p, name in chances))

    print(clf.explain(data.X_test[:1])[0])  # why: the training pictures that speak for and against a class
    # endregion
    return float(right[sure].mean())


def pool(data: datasets.Dataset) -> float:
    """A minute of work on one core: every location of a picture is compared with every location of the other."""
    # region pool
    net = Sequential(Conv(3, weight_var=2.0), ReLU(), Conv(3, weight_var=2.0), ReLU(), GlobalAvgPool(), Dense())
    clf = GPClassifier(net, noise=1e-3).fit(data.X, data.y)
    error = 1 - clf.score(data.X_test, data.y_test)
    print(f"with a global pool: error on test pictures {error:.1%}, by leaving one out {clf.loo_error_:.1%}")
    # endregion
    return float(error)


def draw(clf: GPClassifier, data: datasets.Dataset, folder: Path) -> None:
    """The pictures of the tutorial: some of each class, and the least certain test pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = np.concatenate([np.flatnonzero(data.y == name)[:10] for name in clf.classes_])
    sheet(data.X[chosen], 10).save(folder / "photographs.png")
    sheet(data.X_test[clf.most_uncertain(10, data.X_test)], 10).save(folder / "uncertain.png")


def sheet(X: np.ndarray, columns: int, scale: int = 4, gap: int = 6) -> Image.Image:
    """Images (N, C, H, W) in [0, 1] side by side, each pixel `scale` wide."""
    rows = -(-len(X) // columns)
    height, width = X.shape[2] * scale, X.shape[3] * scale
    page = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for i, x in enumerate(X):
        bytes_ = (255 * np.moveaxis(x if len(x) == 3 else np.repeat(x, 3, 0), 0, 2)).astype(np.uint8)
        tile = Image.fromarray(bytes_).resize((width, height), Image.Resampling.NEAREST)
        page.paste(tile, (i % columns * (width + gap), i // columns * (height + gap)))
    return page


def main(pictures: Path | None = None, pooling: bool = False) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        cut_up(Path(folder, "photos"))
        clf, data = learn(Path(folder, "photos"))
        right = use(clf, data, Path(folder, "photos.gp"))
    if pictures:
        draw(clf, data, pictures)
    found = {"error": 1 - clf.score(data.X_test, data.y_test), "loo": clf.loo_error_, "right when sure": right}
    return found | ({"pooled": pool(data)} if pooling else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, pooling=True)
