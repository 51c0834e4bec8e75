"""A kernel matrix of a million images: computed in tiles into a store, resumable and on any number of machines.

Here 1,200 small images stand for the million; every step is the same, and the last one computes the cost of a million.
"""

# region imports
import tempfile
from pathlib import Path

import numpy as np
import zarr

from cnngp import GPClassifier, Kernel, datasets, gram, zoo
from cnngp.gp import solve

# endregion


def main() -> dict[str, float]:
    data = datasets.digits().take(train=1200, test=300)
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder, "images.npy"), Path(folder, "K.zarr")
        # region images
        np.save(path, data.X)
        images = np.load(path, mmap_mode="r")  # a memory map: only the rows of a tile are read at a time
        # endregion
        begin_and_lose_a_tile(images, store)
        whole = go_on(images, store)
        exact = classify(data, images, store)
        few = through_inducing_images(data, images)
    return {"tiles that were kept": whole, "exact": exact, "inducing": few, "hours": hours(1_000_000)}


def begin_and_lose_a_tile(images: np.ndarray, store: Path) -> None:
    # region begin
    kernel = Kernel(zoo.small_cnn())
    gram(kernel, images[:800], store=store, tile=200)  # the first 800 images: 10 tiles of 200 × 200
    # endregion
    chunks = sorted(path for path in store.glob("K/c/*/*"))
    chunks[3].unlink()  # one tile is lost


def go_on(images: np.ndarray, store: Path) -> int:
    before = {path: path.stat().st_mtime_ns for path in store.glob("K/c/*/*")}
    # region again
    K = gram(Kernel(zoo.small_cnn()), images, store=store, tile=200)  # all 1,200: existing tiles are kept
    print(K)
    # endregion
    kept = sum(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    print(f"{kept} of {len(list(store.glob('K/c/*/*')))} files were there already")
    # region check
    assert np.array_equal(K[:], Kernel(zoo.small_cnn())(images))  # to the last bit
    reader = zarr.open_array(store, path="K", mode="r")  # any Zarr reader opens it
    # endregion
    assert reader.shape == (1200, 1200)
    return kept


def classify(data: datasets.Dataset, images: np.ndarray, store: Path) -> float:
    # region solve
    Y = 2.0 * np.eye(10)[data.y] - 1.0
    found = solve(store, Y, noise=1e-3, method="cg")  # reads the matrix tile by tile, never holds it
    print(found.message)
    cross = Kernel(zoo.small_cnn())(data.X_test, images)
    error = float(((cross @ found.weights).argmax(1) != data.y_test).mean())
    # endregion
    print(f"test error by conjugate gradients {error:.1%}")
    return error


def through_inducing_images(data: datasets.Dataset, images: np.ndarray) -> float:
    # region inducing
    clf = GPClassifier(zoo.small_cnn(), inducing=300).fit(images, data.y)  # N × 300 kernels instead of N × N
    error = 1 - clf.score(data.X_test, data.y_test)
    # endregion
    print(f"test error through 300 inducing images {error:.1%}")
    return float(error)


def hours(n: int, pairs_per_second: float = 74.9e6) -> float:
    """Hours on one GPU for n images, at the rate measured on one H200 with a store (docs/gram.md)."""
    # region cost
    pairs = n * (n + 1) / 2
    took = pairs / pairs_per_second / 3600
    print(f"{n:,} images: {pairs:.1e} pairs, {4 * n**2 / 1e12:.1f} TB, {took:.1f} hours on one GPU")
    # endregion
    return took


if __name__ == "__main__":
    main()
