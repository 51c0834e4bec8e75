"""Reading images and labels from .npz files, without unpickling, and from iterables of (image, label) pairs."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cnngp.common.arrays import in_shape, to_numpy
from cnngp.common.errors import DatasetError, is_whole
from cnngp.common.files import check_regular
from cnngp.common.progress import progress_bar

from .dataset import Dataset, Part, assembled, unit_scale
from .images import as_shown

Shape = Sequence[int]
"""Shape of one image, signal or volume, channels first: (C, H, W), (C, length) or (C, depth, H, W)."""
# An array (N, n, length) with n ≤ 4 and a length of at least this many times n may hold signals in n channels.
_SIGNAL = 4
# Usual names of arrays, by role, and of parts.
_ROLES = {
    "images": ("x", "images", "image", "imgs", "img", "data"),
    "features": ("features", "feature", "embeddings", "embedding"),
    "labels": ("y", "labels", "label", "targets", "target"),
    "names": ("names", "files", "filenames"),
    "groups": ("groups", "group"),
    "noise": ("noise",),
}
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words}
_PART_OF = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_PART_OF |= {"val": "validation", "valid": "validation", "validation": "validation"}
_Parts = dict[str, dict[str, NDArray[Any]]]


def npz(path: str | Path, *, input_shape: Shape | None = None, whole: bool = False) -> Dataset:
    """Load an .npz file with images and labels, optionally split into training, validation and test parts.

    Images are called X, images or data, labels y, labels or targets, each alone or with train, val or test before or
    after it, as in x_train or test_labels. Without test images, a random fifth is kept for testing; otherwise rows keep
    their order. Images are (N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels; uint8 is divided by 255.
    Arrays `names`, `groups` and `noise` of the images are read too, and `features` (N, F), for example of a pretrained
    network: the model is then fitted to the features, and the images, if any, are only shown.

    Parameters
    ----------
    input_shape : shape of one image, channels first, if the array leaves it open: (1, 128) for signals of 128 samples,
        (1, 8, 8) for rows of 64 pixels.
    whole : keep no images for testing: all are training images, in the order of the file.
    """
    path = Path(path)
    return _of_parts(path.stem, _by_role(path, _read_npz(path)), input_shape, str(path), whole)


def from_pairs(
    train: Iterable[Any], test: Iterable[Any] | None = None, *, input_shape: Shape | None = None, whole: bool = False
) -> Dataset:
    """Collect the (image, label) pairs of an iterable, such as a PyTorch `Dataset`, and of an optional test set.

    Images are arrays of any library, (H, W), (C, H, W) or (H, W, C), or Pillow images; uint8 is divided by 255.
    `input_shape` and `whole` are those of `npz`.

    >>> from_pairs([(np.zeros((8, 8)), "dark"), (np.ones((8, 8)), "light")], whole=True)
    <pairs: 2 training images of 1 × 8 × 8>
    """
    held = {"train": _stacked(train, "train")} | ({} if test is None else {"test": _stacked(test, "test")})
    return _of_parts("pairs", held, input_shape, "pairs", whole)


def _stacked(pairs: Any, part: str) -> dict[str, NDArray[Any]]:
    """Stack the images and the labels of all pairs."""
    count = len(pairs) if hasattr(pairs, "__len__") else None
    if count is not None and hasattr(pairs, "__getitem__"):  # iterating over a PyTorch Dataset may never end
        pairs = map(pairs.__getitem__, range(count))
    if not isinstance(pairs, Iterable):
        raise DatasetError(f"{part} is a {type(pairs).__name__}; expected pairs (image, label)")
    held: dict[str, list[NDArray[Any]]] = {"images": [], "labels": []}
    with progress_bar(count, "reading", "image") as bar:
        for i, pair in enumerate(pairs):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise DatasetError(f"{part}[{i}] is a {type(pair).__name__}; expected pairs (image, label)")
            image, label = pair
            image = as_shown(image) if isinstance(image, Image.Image) else to_numpy(image, f"image {i} of {part}")
            label = to_numpy(label, f"label {i} of {part}")
            if image.ndim == 4 and label.shape[:1] == image.shape[:1]:
                raise DatasetError(f"{part}[{i}] is a batch of {len(image):,} images; give the loader's dataset itself")
            for (what, before), array in zip(held.items(), (image, label), strict=True):
                if before and array.shape != before[0].shape:
                    raise DatasetError(
                        f"{what[:-1]} {i} of {part} has shape {array.shape}, and those before it {before[0].shape}; "
                        "bring all to one shape"
                    )
                before.append(array)
            bar.update()
    if not held["images"]:
        raise DatasetError(f"{part} holds no pairs (image, label)")
    return {what: np.stack(arrays) for what, arrays in held.items()}


def _of_parts(name: str, held: _Parts, shape: Shape | None, where: str, whole: bool) -> Dataset:
    given = None if shape is None else check_shape(shape)
    parts = {part: _part(arrays, given, where) for part, arrays in held.items()}
    kinds = {part: arrays["features" if "features" in arrays else "images"].dtype for part, arrays in held.items()}
    for part, found in parts.items():
        if found.X.shape[1:] != parts["train"].X.shape[1:]:
            raise DatasetError(
                f"{where}: training images are {parts['train'].X.shape[1:]}, {part} images {found.X.shape[1:]}"
            )
        if (kinds[part] == np.uint8) != (kinds["train"] == np.uint8):
            raise DatasetError(
                f"{where}: training images are {kinds['train']} and {part} images {kinds[part]}, of which uint8 alone "
                "is divided by 255; save both as one type"
            )
    return assembled(name, parts, whole)


def _by_role(path: Path, arrays: dict[str, NDArray[Any]]) -> _Parts:
    """Sort the arrays by part and role, from their names; other names are ignored."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in arrays:
        words = re.findall(r"train(?:ing)?|test(?:ing)?|valid(?:ation)?|val|[a-z]+", name.lower())
        roles, parts = [w for w in words if w in _ROLE_OF], [w for w in words if w in _PART_OF]
        if len(roles) == 1 and len(parts) <= 1 and len(words) == len(roles) + len(parts):
            part = _PART_OF[parts[0]] if parts else "train"
            found.setdefault((part, _ROLE_OF[roles[0]]), []).append(name)
    seen = ", ".join(f"{name} {array.shape}" for name, array in sorted(arrays.items())) or "nothing"
    held: _Parts = {}
    for (part, role), names in found.items():
        if len(names) > 1:
            raise DatasetError(
                f"{path} holds {seen}, of which {' and '.join(sorted(names))} could be the {role} for {part}; keep one "
                "of them, or give the others another name"
            )
        held.setdefault(part, {})[role] = arrays[names[0]]
    if "train" not in held or any(
        "labels" not in part or not {"images", "features"} & {*part} for part in held.values()
    ):
        raise DatasetError(
            f"{path} holds {seen}; expected X and y (or images and labels, data and targets, features and labels), "
            "alone or with train, val or test in their names, and both for each part"
        )
    return held


def _part(arrays: dict[str, NDArray[Any]], shape: tuple[int, ...] | None, where: str) -> Part:
    """Check the arrays of one part: images (N, C, …) or features (N, F), labels, and data of single images."""
    X, y = arrays["features" if "features" in arrays else "images"], arrays["labels"]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim not in (1, 2) or X.ndim == 0 or len(X) != len(y) or len(y) == 0:
        raise DatasetError(
            f"{where}: images of shape {X.shape} and labels of shape {y.shape}; expected a label for each image, as in "
            "(N, H, W) and (N,), or several, (N, labels)"
        )
    numbers = {"label": y}
    if (pictures := arrays.get("images")) is not None:
        numbers["image"] = unit_scale(_images(pictures, shape, where))
    if "features" in arrays:
        if X.ndim != 2:
            raise DatasetError(f"{where}: features of shape {X.shape}; expected rows of numbers, (N, features)")
        numbers["row"] = unit_scale(X)
    for what, array in numbers.items():
        if array.dtype.kind == "f" and not (finite := np.isfinite(array).reshape(len(array), -1).all(1)).all():
            at = int(finite.argmin())
            bad = "is NaN" if what == "label" and np.isnan(array[at]).any() else "holds NaN or infinity"
            advice = "every image needs a label" if what == "label" else "replace or remove it"
            raise DatasetError(f"{where}: {what} {at} {bad}; {advice}")
    for role, column in arrays.items():
        if (column.shape[:1] if role in ("images", "features", "labels") else column.shape) != (len(y),):
            raise DatasetError(f"{where}: {role} of shape {column.shape} for {len(y):,} images; expected one for each")
    names, groups, noise = (arrays.get(role) for role in ("names", "groups", "noise"))
    if "row" in numbers:
        return Part(numbers["row"], y, names, groups, noise, numbers.get("image"))
    return Part(numbers["image"], y, names, groups, noise)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Check the `shape=` of a user and return it as a tuple.

    >>> check_shape([1, 128])
    (1, 128)
    """
    if not isinstance(shape, (tuple, list)) or not 2 <= len(shape) <= 4 or not all(is_whole(n, 1) for n in shape):
        raise DatasetError(
            f"shape={shape!r}: expected the channels first, then the sizes, such as (1, 128) for signals or "
            "(3, 32, 32) for images"
        )
    return tuple(int(n) for n in shape)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays by name. Other files raise here, because NumPy's own error recommends unpickling them."""
    check_regular(path)
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is not an .npz file, or is cut short; write it with numpy.savez or copy it again")
    arrays, key = {}, ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                arrays[key] = np.asarray(file[key])
    except Exception as error:  # zip, zlib and header errors have different types
        if "pickle" in str(error):
            said = f"{path}: {key} holds Python objects, which are never unpickled; save it as numbers or text"
            raise DatasetError(said) from None
        raise DatasetError(f"{path} is damaged ({error}); write or copy it again") from None
    return arrays


def _images(X: NDArray[Any], shape: tuple[int, ...] | None, where: str) -> NDArray[Any]:
    """Bring images to (N, channels, …), by `shape` (channels first, last, or flat rows) or by the array's own shape."""
    told = f"{where}: X has shape {X.shape}"
    if shape is not None:
        images: NDArray[Any] | None = in_shape(X, shape)
        if images is not None:
            return images
        if X.shape[1:] == (*shape[1:], shape[0]):
            return np.moveaxis(X, -1, 1)
        raise DatasetError(
            f"{told}, which does not hold images of {shape}, {math.prod(shape):,} numbers each; give another shape "
            "(--input-shape)"
        )
    if X.ndim == 4:
        return np.moveaxis(X, 3, 1) if X.shape[1] not in (1, 3, 4) and X.shape[3] in (1, 3, 4) else X
    if X.ndim == 3 and not (X.shape[1] <= 4 and X.shape[2] >= _SIGNAL * X.shape[1]):
        return X[:, None]
    if X.ndim == 3:
        c, length = X.shape[1:]
        samples = f"{length:,} samples in {c} channel{'' if c == 1 else 's'}"
        raise DatasetError(
            f"{told}, which could be signals or images; say which: {_option(c, length)} for signals of {samples}, "
            f"{_option(1, c, length)} for grey images of {c} × {length}"
        )
    if X.ndim == 2:
        n, side = X.shape[1], math.isqrt(X.shape[1])
        square = f", or {_option(1, side, side)} for images" if side * side == n > 1 else ""
        raise DatasetError(
            f"{told}: rows of {n:,} numbers; say what they are, such as {_option(1, n)} for signals{square}"
        )
    raise DatasetError(
        f"{told}; expected (N, H, W), (N, C, H, W) or (N, H, W, C), or the shape of one, channels first (--input-shape)"
    )


def _option(*shape: int) -> str:
    """Spelling of a shape as a Python argument and as a command-line option."""
    return f"input_shape={shape} (--input-shape {','.join(map(str, shape))})"
