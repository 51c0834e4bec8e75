"""`load`: labelled images by name, path or object, as float32 (N, channels, height, width) in [0, 1]; classic sets.

MNIST, Fashion-MNIST and CIFAR-10 are read from their original files, in `<folder>/<name>/` with the given folder or
`$CNNGP_DATA`, then in the cache, and are downloaded otherwise. Files may be gzipped or not, so the content is checked:
the SHA-256 of MNIST, the header of IDX files, and for all sets the size and the range of the labels. Downloads of
Fashion-MNIST and CIFAR-10 are also checked against their publishers' MD5.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import inspect
import lzma
import os
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError, one_line
from cnngp.common.files import user_cache
from cnngp.common.optional import install_command

from .arrays import Shape, from_pairs, npz
from .dataset import Dataset, unit_scale
from .folders_and_tables import TABLES, folder, table
from .images import Aspect, Size

Split = Literal["standard", "paper"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")
_SOURCES = (
    f"one of {', '.join(NAMES)}, an .npz file, a folder with one sub-folder of images per class, or a table (.csv) of "
    "image files"
)
_READERS: dict[str, Callable[..., Dataset]] = {"folders": folder, "tables of image files": table, ".npz files": npz}
Arrays = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.uint8], NDArray[Any]]

_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_IMAGES = 10_000
"""Number of images in a batch."""
_CIFAR_ARCHIVE, _CIFAR_FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
# The publishers' hashes of their archives.
_MD5 = {
    ("fashion_mnist", "train-images-idx3-ubyte.gz"): "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ("fashion_mnist", "train-labels-idx1-ubyte.gz"): "md5:25c81989df183df01b3e8a0aad5dffbe",
    ("fashion_mnist", "t10k-images-idx3-ubyte.gz"): "md5:bef4ecab320f06d8554ea6380940ec79",
    ("fashion_mnist", "t10k-labels-idx1-ubyte.gz"): "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ("cifar10", _CIFAR_ARCHIVE): "md5:c32a1d4ab5d03f1284b67883e8d87530",
}
_URLS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "cifar10": "https://www.cs.toronto.edu/~kriz/",
}


def load(
    source: str | Path | Iterable[Any],
    *,
    split: Split = "standard",
    columns: str | Sequence[str] | None = None,
    features: Any = None,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int | None = None,
    input_shape: Shape | None = None,
    whole: bool = False,
    data: Path | None = None,
) -> Dataset:
    """Load a data set: "digits", "mnist", "fashion_mnist", "cifar10", an .npz file, or a folder or table of images.

    `size`, `aspect`, `skip_bad` and `max_pixels` are for image files, see `folder`; `columns` and `features` for
    tables, see `table`; `input_shape` for .npz files, see `npz`. Without a test set, a fifth of each class is kept for
    testing, unless `whole=True` uses all images for training. `data` is the folder of the files of named sets, instead
    of `$CNNGP_DATA`. An iterable of (image, label) pairs or a PyTorch dataset is read by `from_pairs`.

    >>> load("digits")
    <digits: 1,297 training, 500 test images of 1 × 8 × 8>
    """
    if split not in ("standard", "paper"):
        raise DatasetError(f"split={split!r}: expected 'standard' or 'paper'")
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and not str(source).strip():
        raise DatasetError(f"no data was named (''): expected {_SOURCES}; this folder itself is '.'")
    if path is not None and split == "paper" and str(source) not in ("mnist", "fashion_mnist"):
        raise DatasetError(
            f"the paper's split needs 60,000 training images (mnist, fashion_mnist), which {source} does not have"
        )
    read: Any  # a function that returns a data set
    if path is None:
        read = from_pairs
    elif str(source) in NAMES:
        read = functools.partial(_classic, split=split, data=data)
    elif path.is_dir():
        read = folder
    elif path.suffix.lower() in TABLES and path.exists():
        read = table
    elif path.suffix == ".npz" and path.exists():
        read = npz
    else:
        raise DatasetError(f"no data {str(source)!r}: expected {_SOURCES}")
    given: dict[str, Any] = {"size": size, "aspect": None if aspect == "squash" else aspect, "columns": columns}
    given |= {"features": features, "skip_bad": skip_bad or None, "max_pixels": max_pixels, "input_shape": input_shape}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if not _takes(read, name):
            kinds = " and ".join(kind for kind, reader in _READERS.items() if _takes(reader, name))
            what = type(source).__name__ if path is None else source
            raise DatasetError(f"{name} (--{name.replace('_', '-')}) is for {kinds}, and {what} is none")
    found: Dataset = read(source, whole=whole, **given)
    return found


def _takes(read: Callable[..., Dataset], option: str) -> bool:
    return option in inspect.signature(read).parameters


def digits() -> Dataset:
    """Load 1,797 handwritten digits of 8 × 8 pixels from scikit-learn, in a fixed random order; 500 are for testing.

    >>> digits().image_shape
    (1, 8, 8)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    X = (pixels.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)[order]
    y = labels[order]
    return Dataset("digits", X[:-500], y[:-500], X[-500:], y[-500:])


def mnist(split: Split = "standard") -> Dataset:
    """Load MNIST: 70,000 handwritten digits of 28 × 28 pixels.

    `split="paper"`: training rows 5,000 to 54,999 of the 60,000, validation 55,000 to 59,999 then 0 to 4,999.
    """
    return _classic("mnist", split)


def fashion_mnist(split: Split = "standard") -> Dataset:
    """Load Fashion-MNIST: 70,000 pictures of clothing of 28 × 28 pixels, with the splits of `mnist`."""
    return _classic("fashion_mnist", split)


def cifar10() -> Dataset:
    """Load CIFAR-10: 60,000 colour pictures of 32 × 32 pixels in ten classes."""
    return _classic("cifar10")


def _classic(name: str, split: Split = "standard", data: Path | None = None, whole: bool = False) -> Dataset:
    """Load a named set, which keeps its own test images whatever `whole` is."""
    if name == "digits":
        return digits()
    X, y, X_test, y_test = original(name, data)
    scaled, scaled_test = unit_scale(X), unit_scale(X_test)
    if split == "standard":
        return Dataset(name, scaled, y, scaled_test, y_test)
    validation = np.r_[55_000:60_000, 0:5_000]
    return Dataset(name, scaled[5_000:55_000], y[5_000:55_000], scaled_test, y_test, scaled[validation], y[validation])


# ---- original files ----


def original(name: str, folder: Path | None = None) -> Arrays:
    """Read training images (N, C, H, W), labels, test images and labels, as bytes and integers.

    `folder` contains the folder of the set; its default is `$CNNGP_DATA`.
    """
    looked = folders(name, folder)
    if name == "cifar10":
        batches = [_cifar_batch(*_content(name, file, looked)) for file in CIFAR_FILES]
        X, y = (np.concatenate(parts) for parts in zip(*batches[:-1], strict=True))
        return (X, y, *batches[-1])
    X, y, X_test, y_test = (_idx(*_content(name, file, looked)) for file in _MNIST_SHA256)
    for n, images, labels in ((60_000, X, y), (10_000, X_test, y_test)):
        if images.shape != (n, 28, 28) or labels.shape != (n,) or labels.max() > 9:
            raise DatasetError(
                f"{name}: images of shape {images.shape} and labels of shape {labels.shape}; expected ({n}, 28, 28) "
                f"and ({n},) with labels 0 to 9"
            )
    return X[:, None], y.astype(np.int64), X_test[:, None], y_test.astype(np.int64)


def folders(name: str, folder: Path | None = None) -> list[Path]:
    """Folders to search for a set, in this order."""
    given = folder or os.environ.get("CNNGP_DATA")
    return ([Path(given) / name] if given else []) + [user_cache() / name]


def _idx(data: bytes, where: Path) -> NDArray[np.uint8]:
    """Decode an IDX file: two zero bytes, the type (8: bytes), the number of axes, the sizes, the data."""
    axes = data[3] if len(data) > 4 else 0
    if data[:3] != b"\x00\x00\x08" or not 1 <= axes <= 3 or len(data) < 4 + 4 * axes:
        raise DatasetError(f"{where} is not an IDX file of bytes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    if len(data) != 4 + 4 * axes + int(np.prod(shape, dtype=np.int64)):
        raise DatasetError(f"{where} says {shape} but has {len(data):,} bytes: it is cut short or damaged")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _cifar_batch(data: bytes, where: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Decode images (N, 3, 32, 32) and labels from records of a label byte and 3 × 32 × 32 pixel bytes."""
    length = 1 + 3 * 32 * 32
    if len(data) != CIFAR_IMAGES * length:
        raise DatasetError(
            f"{where} has {len(data):,} bytes; a batch of the binary version has {CIFAR_IMAGES * length:,}"
        )
    records = np.frombuffer(data, np.uint8).reshape(CIFAR_IMAGES, length)
    if records[:, 0].max() > 9:
        raise DatasetError(f"{where}: labels up to {records[:, 0].max()}; those of CIFAR-10 are 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _content(name: str, file: str, looked: list[Path]) -> tuple[bytes, Path]:
    """Return the unpacked and checked bytes of a file, and the path that they were read from."""
    archive = _CIFAR_ARCHIVE if name == "cifar10" else f"{file}.gz"
    places = (folder / place for folder in looked for place in (file, f"{_CIFAR_FOLDER}/{file}", archive))
    path = next((place for place in places if place.is_file()), None) or _download(name, archive, looked)
    try:
        if path.name == _CIFAR_ARCHIVE:
            with tarfile.open(path) as packed:
                found = packed.extractfile(f"{_CIFAR_FOLDER}/{file}")
                return found.read() if found else b"", path
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, KeyError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise DatasetError(f"{path} cannot be unpacked ({error}); it is cut short or damaged, replace it") from None
    if name == "mnist" and hashlib.sha256(data).hexdigest() != _MNIST_SHA256[file]:
        raise DatasetError(f"{path} is not the original {file} of {name}: its content has another SHA-256; replace it")
    return data, path


def _download(name: str, archive: str, looked: list[Path]) -> Path:
    """Download a file (for CIFAR-10, the archive) into the cache."""
    url, known = _URLS[name], _MD5.get((name, archive))
    advice = (
        f"{name}: no {archive} in {' or '.join(map(str, looked))}; put the original files of {url} there (CNNGP_DATA "
        "names the folder above)"
    )
    try:
        import pooch
        import requests  # pooch needs it
    except ImportError:
        raise DatasetError(f"{advice}, or install the download helper: {install_command('pooch')}") from None
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(pooch.retrieve(url + archive, known_hash=known, path=user_cache() / name, fname=archive))
    except Exception as error:  # requests, urllib3 and OS errors: the download is not possible from here
        reason = one_line(error)
        if isinstance(error, (requests.exceptions.ConnectionError, requests.exceptions.Timeout, ConnectionError)):
            reason = f"no connection to {urlsplit(url).hostname}"  # instead of a message that names objects
        raise DatasetError(f"{advice}; downloading it failed: {reason}") from None
