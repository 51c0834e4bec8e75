"""Thirteen synthetic image sets, modelled on kinds of images that people classify, drawn reproducibly with NumPy.

The default networks were found without the first ten, so these show whether a choice generalises; the last three are
kinds on which those networks did badly. Each function takes the number of images and a random generator, and returns
images (n, channels, …), pictures in [0, 1], with their classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp import datasets

from .glyphs import DIGITS, LETTERS, nearness
from .pictures import CLOTHES, OBJECTS, Canvas

Array = NDArray[Any]
Made = tuple[Array, Array]


def grid(size: int) -> tuple[Array, Array]:
    """Coordinates x and y of the pixels, from −1 to 1."""
    at = (np.arange(size) + 0.5) / size * 2.0 - 1.0
    y, x = np.meshgrid(at, at, indexing="ij")
    return x, y


def placed(
    rng: np.random.Generator, size: int, turn: float, scale: tuple[float, float], shift: float, warp: float = 0.0
) -> tuple[Array, Array]:
    """Coordinates of each pixel in an object that is randomly rotated, scaled, shifted and, by `warp`, deformed."""
    x, y = grid(size)
    if warp:
        x, y = x + warp * clouds(rng, size, 3.0), y + warp * clouds(rng, size, 3.0)
    angle, factor = rng.uniform(-turn, turn), rng.uniform(*scale)
    x, y = (x - rng.uniform(-shift, shift)) / factor, (y - rng.uniform(-shift, shift)) / factor
    return np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x


def clouds(rng: np.random.Generator, size: int, slope: float, stretch: float = 1.0, angle: float = 0.0) -> Array:
    """Random field of mean 0 and variance 1 whose amplitudes fall as 1/frequency^slope, as in photographs."""
    fy, fx = np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size), indexing="ij")
    u, v = np.cos(angle) * fx + np.sin(angle) * fy, np.cos(angle) * fy - np.sin(angle) * fx
    f = np.hypot(u * stretch, v / stretch)
    f[0, 0] = np.inf
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((size, size))) * f**-slope).real
    return np.asarray(field / field.std())


def colours(rng: np.random.Generator, size: int, slope: float, contrast: float) -> Array:
    """Background (3, size, size) of clouds, mostly shared by the channels."""
    shared = clouds(rng, size, slope)
    own = np.stack([clouds(rng, size, slope) for _ in range(3)])
    return np.asarray(rng.uniform(0.25, 0.75, (3, 1, 1)) + contrast * (0.8 * shared + 0.4 * own))


def clothing(n: int, rng: np.random.Generator) -> Made:
    """Clothes, shoes and bags in grey on black, 28 × 28, centred and about as large as the image."""
    y = rng.integers(len(CLOTHES), size=n)
    X = np.zeros((n, 1, 28, 28))
    for i, kind in enumerate(y):
        u, v = placed(rng, 28, 0.08, (0.85, 1.0), 0.06, 0.03)
        covered = CLOTHES[kind](Canvas(u, v, rng))
        tone = rng.uniform(0.35, 0.95) * (1.0 + 0.15 * clouds(rng, 28, 2.0))
        pattern = rng.integers(4)
        if pattern == 0:
            tone = tone * (1.0 + 0.4 * np.sign(np.sin(rng.uniform(8, 25) * (u if rng.random() < 0.3 else v))))
        elif pattern == 1:
            tone = tone * (1.0 + 0.3 * clouds(rng, 28, 0.5))
        X[i, 0] = covered * tone + 0.02 * rng.standard_normal((28, 28))
    return X, y


def objects(n: int, rng: np.random.Generator) -> Made:
    """Ten composite objects in colour anywhere in 32 × 32, on clouds whose colour sometimes depends on the class."""
    y = rng.integers(len(OBJECTS), size=n)
    X = np.empty((n, 3, 32, 32))
    usual = np.array([[0.5, 0.7, 0.9], [0.3, 0.5, 0.7], [0.4, 0.6, 0.3], [0.6, 0.55, 0.5]])
    for i, kind in enumerate(y):
        u, v = placed(rng, 32, 0.25, (0.65, 1.1), 0.25)
        u = u if rng.random() < 0.5 else -u
        covered, detail = OBJECTS[kind](Canvas(u, v, rng))
        back = colours(rng, 32, 1.5, 0.12)
        if rng.random() < 0.5:
            back += (usual[kind % 4] - back.mean((1, 2)))[:, None, None]
        front = rng.uniform(0.0, 1.0, 3)[:, None, None] * (1.0 + 0.2 * clouds(rng, 32, 1.5))
        second = rng.uniform(0.0, 1.0, 3)[:, None, None]
        thing = front * (1.0 - detail) + second * detail
        X[i] = (back * (1.0 - covered) + thing * covered) * rng.uniform(0.6, 1.1)
    return X + 0.02 * rng.standard_normal(X.shape), y


def numbers(n: int, rng: np.random.Generator) -> Made:
    """House numbers: a coloured digit on a wall, 32 × 32, with neighbouring digits, varying light and some blur."""
    from scipy.ndimage import gaussian_filter

    y = rng.integers(10, size=n)
    X = np.empty((n, 3, 32, 32))
    for i, digit in enumerate(y):
        u, v = placed(rng, 32, 0.2, (0.65, 0.95), 0.12)
        u = u / rng.uniform(0.5, 0.8)
        width = rng.uniform(0.12, 0.3)
        covered = nearness(DIGITS[digit], u, v, width)
        for side in (-1.0, 1.0):
            if rng.random() < 0.6:
                covered = np.maximum(covered, nearness(DIGITS[rng.integers(10)], u + side * 2.6, v, width))
        wall, paint = rng.uniform(0.0, 1.0, (2, 3))
        if abs(wall - paint).max() < 0.2:
            paint = wall + rng.choice([-0.25, 0.25])
        picture = wall[:, None, None] + (paint - wall)[:, None, None] * covered
        light = rng.uniform(0.3, 1.0) + 0.1 * clouds(rng, 32, 2.5)
        picture = picture * light + 0.04 * clouds(rng, 32, 1.0)
        X[i] = gaussian_filter(picture, (0, *[rng.uniform(0.0, 1.2)] * 2))
    return X + 0.02 * rng.standard_normal(X.shape), y


def letters(n: int, rng: np.random.Generator) -> Made:
    """The 26 capital letters with bent strokes, white on black, 28 × 28."""
    y = rng.integers(26, size=n)
    X = np.empty((n, 1, 28, 28))
    for i, letter in enumerate(y):
        u, v = placed(rng, 28, 0.3, (0.6, 0.85), 0.1, 0.1)
        u = u + rng.uniform(-0.3, 0.3) * v
        X[i, 0] = nearness(LETTERS[letter], u / rng.uniform(0.7, 1.0), v, rng.uniform(0.08, 0.2))
    return X, y


def textures(n: int, rng: np.random.Generator) -> Made:
    """Ten grey textures of random direction, scale and phase, 32 × 32."""
    y = rng.integers(10, size=n)
    X = np.empty((n, 1, 32, 32))
    for i, kind in enumerate(y):
        u, v = placed(rng, 32, np.pi, (0.7, 1.4), 1.0)
        picture = _texture(int(kind), u, v, rng)
        picture = (picture - picture.mean()) / picture.std()
        X[i, 0] = rng.uniform(0.35, 0.65) + rng.uniform(0.05, 0.2) * picture
    return X + 0.02 * rng.standard_normal(X.shape), y


def _texture(kind: int, u: Array, v: Array, rng: np.random.Generator) -> Array:
    size = len(u)
    match kind:
        case 0:
            return np.sin(16 * u)
        case 1:
            return np.sign(np.sin(12 * u) * np.sin(12 * v))
        case 2:
            return np.exp(-8 * (np.sin(6 * u) ** 2 + np.sin(6 * v) ** 2))
        case 3:
            return np.sin(14 * u + 2.0 * np.sin(6 * v))
        case 4:
            return clouds(rng, size, 0.7)
        case 5:
            return clouds(rng, size, 1.6)
        case 6:
            seeds = rng.uniform(-1.5, 1.5, (40, 2))
            far = np.sort(np.hypot(u[..., None] - seeds[:, 0], v[..., None] - seeds[:, 1]), axis=-1)
            return np.minimum(far[..., 1] - far[..., 0], 0.1)
        case 7:
            row = np.floor(4 * v)
            return np.minimum(1.0, 8 * np.minimum(abs(np.sin(4 * np.pi * v)), abs(np.sin(np.pi * (2 * u + row / 2)))))
        case 8:
            return clouds(rng, size, 1.0, 3.0, rng.uniform(0, np.pi))
        case _:
            return np.sign(clouds(rng, size, 1.8))


def tissue(n: int, rng: np.random.Generator) -> Made:
    """Stained tissue in colour, 28 × 28: six classes by size, number and arrangement of nuclei; some are rare."""
    y = rng.choice(6, size=n, p=[0.35, 0.25, 0.15, 0.12, 0.08, 0.05])
    X = np.empty((n, 3, 28, 28))
    x, down = grid(28)
    # for each class: number of nuclei, their radius, their elongation
    of_kind = [(5, 0.12, 1.2), (28, 0.1, 1.1), (11, 0.22, 1.3), (9, 0.12, 3.0), (14, 0.12, 1.2), (4, 0.1, 1.2)]
    for i, kind in enumerate(y):
        stain = rng.uniform(0.7, 1.3, (3, 1, 1))
        layer = 0.35 + 0.12 * clouds(rng, 28, 1.5, 2.5 if kind == 3 else 1.0, angle := rng.uniform(0, np.pi))
        number, radius, length = of_kind[kind]
        nuclei = np.zeros((28, 28))
        centre, ring = rng.uniform(-0.4, 0.4, 2), rng.uniform(0.45, 0.7)
        for k in range(rng.poisson(number) + 1):
            at = rng.uniform(-1.0, 1.0, 2)
            if kind == 4:  # a gland: nuclei around a hole
                turn = 2 * np.pi * k / number
                at = centre + ring * np.array([np.cos(turn), np.sin(turn)])
            direction = angle + np.pi / 2 if kind == 3 else rng.uniform(0, np.pi)
            a, b = x - at[0], down - at[1]
            along, across = np.cos(direction) * a + np.sin(direction) * b, np.cos(direction) * b - np.sin(direction) * a
            r = radius * rng.uniform(0.7, 1.3)
            nuclei = np.maximum(nuclei, 1 / (1 + np.exp(20 * (np.hypot(along / length, across) - r))))
        if kind == 5:  # fat: round holes with thin walls
            for at in rng.uniform(-1.0, 1.0, (4, 2)):
                layer *= np.hypot(x - at[0], down - at[1]) > rng.uniform(0.4, 0.6)
        absorbed = np.array([0.25, 0.8, 0.35])[:, None, None] * np.maximum(layer, 0.0)
        absorbed = absorbed + np.array([1.0, 1.3, 0.5])[:, None, None] * nuclei * rng.uniform(0.6, 1.0)
        X[i] = np.exp(-stain * absorbed) * rng.uniform(0.85, 1.0)
    return X + 0.02 * rng.standard_normal(X.shape), y


def small_digits(n: int, rng: np.random.Generator) -> Made:
    """Handwritten 8 × 8 digits enlarged to 16 × 16, rotated and shifted, dark or light, with random contrast."""
    from scipy.ndimage import map_coordinates, zoom
    from sklearn.datasets import load_digits

    held: Any = load_digits()
    rows = rng.integers(len(held.target), size=n)
    X = np.empty((n, 1, 16, 16))
    for i, row in enumerate(rows):
        u, v = placed(rng, 16, 0.25, (0.85, 1.1), 0.12)
        digit = map_coordinates(zoom(held.images[row] / 16.0, 2, order=1), ((v + 1) * 7.5, (u + 1) * 7.5), order=1)
        contrast = rng.uniform(0.15, 0.5) * rng.choice([-1.0, 1.0])
        X[i, 0] = rng.uniform(0.35, 0.65) + contrast * (digit - 0.5) + 0.05 * clouds(rng, 16, 1.5)
    return X + 0.03 * rng.standard_normal(X.shape), held.target[rows]


def scenes(n: int, rng: np.random.Generator) -> Made:
    """Six kinds of scenes in colour, 64 × 64: sea, forest, hills, street, house front, field."""
    y = rng.integers(6, size=n)
    X = np.empty((n, 3, 64, 64))
    x, v = grid(64)
    for i, kind in enumerate(y):
        horizon = rng.uniform(-0.3, 0.3)
        sky = rng.uniform(0.4, 0.9, (3, 1, 1)) + 0.1 * (1 - v) + 0.06 * clouds(rng, 64, 1.8)
        ground = rng.uniform(0.2, 0.7, (3, 1, 1)) + 0.1 * clouds(rng, 64, 1.2)
        below = (v > horizon + 0.03 * clouds(rng, 64, 2.0)[0]).astype(float)
        if kind == 0:
            ground = ground + 0.08 * clouds(rng, 64, 1.2, 4.0, np.pi / 2)
        elif kind == 1:
            trunks = np.sin(rng.uniform(8, 20) * x + 2 * clouds(rng, 64, 2.5)[0]) > rng.uniform(0.2, 0.7)
            sky = sky * np.where(trunks, 0.4, 1.0) + 0.1 * clouds(rng, 64, 0.8)
        elif kind == 2:
            ridge = horizon - 0.3 * abs(clouds(rng, 64, 2.2)[0])
            below = (v > ridge).astype(float)
        elif kind == 3:
            away = (x - rng.uniform(-0.3, 0.3)) / np.maximum(v - horizon, 0.05)
            ground = ground * np.where(abs(away) < rng.uniform(0.8, 1.5), 0.6, 1.0) + 0.3 * (abs(away) < 0.06)
        elif kind == 4:
            step = rng.uniform(7, 14)
            windows = (np.sin(step * x + rng.uniform(0, 6)) > 0.2) & (np.sin(step * v + rng.uniform(0, 6)) > 0.2)
            ground, below = ground * np.where(windows, rng.uniform(0.3, 0.6), 1.0), (v > -0.8).astype(float)
        picture = sky * (1 - below) + ground * below
        X[i] = picture * rng.uniform(0.6, 1.1)
    return X + 0.02 * rng.standard_normal(X.shape), y


def signals(n: int, rng: np.random.Generator) -> Made:
    """Seven waveforms with random start and strength in 128 samples, on a drifting baseline, with noise."""
    t = np.arange(128) / 128.0
    y = rng.integers(7, size=n)
    X = np.empty((n, 1, 128))
    for i, kind in enumerate(y):
        start, rate = rng.uniform(0.1, 0.5), rng.uniform(6.0, 12.0)
        s = (t - start) / rng.uniform(0.3, 0.45)
        on = (s > 0) & (s < 1)
        phase = 2 * np.pi * rate * 0.4 * s
        wave = _wave(int(kind), s, phase) * on
        drift = np.cumsum(rng.standard_normal(128)) * 0.03
        X[i, 0] = rng.uniform(0.5, 1.5) * wave + drift + 0.25 * rng.standard_normal(128)
    return X, y


def _wave(kind: int, s: Array, phase: Array) -> Array:
    first, second = 2 * np.exp(-300 * (s - 0.3) ** 2), 2 * np.exp(-300 * (s - 0.6) ** 2)
    waves = [
        np.sin(phase),
        np.sign(np.sin(phase)),
        2 * np.mod(phase / (2 * np.pi), 1.0) - 1,
        np.sin(phase * (0.4 + s)),
        np.sin(phase * (1.4 - s)),
        first + second,
        first - second,
    ]
    return np.asarray(waves[kind])


def doubtful(n: int, rng: np.random.Generator) -> Made:
    """`clothing` with about every sixth label redrawn at random; its test images are those of `clothing`."""
    X, y = clothing(n, rng)
    wrong = rng.random(n) < 1 / 6
    return X, np.where(wrong, rng.integers(len(CLOTHES), size=n), y)


def brightness(n: int, rng: np.random.Generator) -> Made:
    """Clouds of 12 × 12 in three overlapping classes of brightness; their shape is uninformative."""
    y = rng.integers(3, size=n)
    X = np.stack([clouds(rng, 12, 1.0) for _ in range(n)])[:, None]
    light = 0.35 + 0.12 * y + 0.03 * rng.standard_normal(n)
    return light[:, None, None, None] + 0.15 * X, y


def weighted(n: int, rng: np.random.Generator) -> Made:
    """64 independent measurements on a grid of 8 × 8; two classes by the sign of a weighted sum."""
    weights = np.random.default_rng(9).standard_normal(64)  # the same for training and test images
    X = rng.standard_normal((n, 1, 8, 8))
    return X, (X.reshape(n, 64) @ weights > 0.0).astype(int)


def signed(n: int, rng: np.random.Generator) -> Made:
    """Six patterns of 12 × 12 with strong noise, each image with random strength and sign."""
    shared = np.random.default_rng(9)  # the same patterns for training and test images
    patterns = np.stack([clouds(shared, 12, 1.0) for _ in range(6)])
    y = rng.integers(6, size=n)
    strength = rng.choice([-1.0, 1.0], n) * rng.uniform(0.5, 1.5, n)
    return (strength[:, None, None] * patterns[y] + 1.6 * rng.standard_normal((n, 12, 12)))[:, None], y


SETS: dict[str, Callable[[int, np.random.Generator], Made]] = {
    "clothing": clothing,
    "doubtful": doubtful,
    "objects": objects,
    "numbers": numbers,
    "letters": letters,
    "textures": textures,
    "tissue": tissue,
    "small_digits": small_digits,
    "scenes": scenes,
    "signals": signals,
    "brightness": brightness,
    "weighted": weighted,
    "signed": signed,
}
_UNBOUNDED = ("signals", "weighted", "signed")  # all others are pictures with pixels from 0 to 1


def _images(name: str, n: int, seed: int) -> Made:
    X, y = SETS[name](n, np.random.default_rng([seed, list(SETS).index(name)]))
    return (X if name in _UNBOUNDED else np.clip(X, 0.0, 1.0)).astype(np.float32), y


def drawn(name: str, train: int, test: int) -> datasets.Dataset:
    """Data set with training and test images; only training labels are ever wrong."""
    X, y = _images(name, train, 0)
    X_test, y_test = _images("clothing" if name == "doubtful" else name, test, 1)
    return datasets.Dataset(name, X, y, X_test, y_test)
