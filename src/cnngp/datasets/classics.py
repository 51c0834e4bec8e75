"""MNIST, Fashion-MNIST and CIFAR-10 from their original files: where they lie, what must be in them, how to get them.

A set is looked for in `<folder>/<name>/`, where the folder is the given one or `$CNNGP_DATA`, then in the cache, and is
downloaded otherwise. Files may be gzipped or not, so what is checked is the content: its SHA-256 where it is on record,
and in any case its header, its size and the range of its labels. Downloads of Fashion-MNIST and CIFAR-10 are checked
against their publishers' MD5 as well.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError, one_line
from cnngp.common.files import user_cache
from cnngp.common.optional import install_command

Arrays = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.uint8], NDArray[Any]]

_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_IMAGES = 10_000
"""In a batch."""
_CIFAR_ARCHIVE, _CIFAR_FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
# The publishers' hashes of archives.
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


def read(name: str, folder: Path | None = None) -> Arrays:
    """Training images (N, C, H, W), labels, test images, labels, as bytes and integers.

    `folder` is the one that holds the folder of the set; without it, `$CNNGP_DATA` is.
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
    """Where a set is looked for, in this order."""
    given = folder or os.environ.get("CNNGP_DATA")
    return ([Path(given) / name] if given else []) + [user_cache() / name]


def _idx(data: bytes, where: Path) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, the type (8: bytes), the number of axes, the sizes, the data."""
    axes = data[3] if len(data) > 4 else 0
    if data[:3] != b"\x00\x00\x08" or not 1 <= axes <= 3 or len(data) < 4 + 4 * axes:
        raise DatasetError(f"{where} is not an IDX file of bytes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    if len(data) != 4 + 4 * axes + int(np.prod(shape, dtype=np.int64)):
        raise DatasetError(f"{where} says {shape} but has {len(data):,} bytes: it is cut short or damaged")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _cifar_batch(data: bytes, where: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images (N, 3, 32, 32) and labels from records of a label byte and 3 × 32 × 32 pixel bytes."""
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
    """The unpacked and checked bytes of a file, and where they came from."""
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
    """Fetch a file (of CIFAR-10 the one archive) into the cache."""
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
    except Exception as error:  # requests, urllib3 and OS errors; all mean that it is not to be had from here
        reason = one_line(error)
        if isinstance(error, (requests.exceptions.ConnectionError, requests.exceptions.Timeout, ConnectionError)):
            reason = f"no connection to {urlsplit(url).hostname}"  # instead of a message that names objects
        raise DatasetError(f"{advice}; downloading it failed: {reason}") from None
