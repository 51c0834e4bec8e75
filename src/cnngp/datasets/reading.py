"""Many image files as one array: bad files, one size for all, and an account of what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.errors import DatasetError
from cnngp.common.progress import progress_bar

from . import images
from .dataset import Dataset, Part, Pixels, assembled, mixed
from .images import Aspect, Head, Size

_LARGEST = 64
# Of 16: with this many bits or fewer, the brightest pixel of all is at most a sixteenth of white.
_DARK_BITS = 12
# Names of files, and labels, that one message lists.
_LISTED, _LABELS_LISTED = 50, 5
# In float32: an image in the order of its file and again in a mixed order.
_BYTES_PER_PIXEL = 8


class Reader:
    """Reads the image files of one set, and keeps account of what it leaves out.

    `root` is the folder to which the names of the images are relative.
    """

    def __init__(self, root: Path, size: Size | None, aspect: Aspect, skip_bad: bool, max_pixels: int) -> None:
        images.check_aspect(aspect)
        images.check_max_pixels(max_pixels)
        self.unused: list[str] = []
        """Folders that no image came from."""
        self.root, self._aspect, self._skip_bad, self._max_pixels = root, aspect, skip_bad, max_pixels
        self._shape = None if size is None else (0, *images.check_size(size))  # channels as the files have them
        self._said: list[str] = []
        self._skipped: Counter[str] = Counter()
        self._outside = self._bad = 0

    def dataset(self, name: str, parts: dict[str, Part], where: Path, whole: bool) -> Dataset:
        """The set of parts whose images, or pictures of features, are files, in a mixed order."""
        read: dict[str, Part] = {}
        for part, listed in parts.items():
            files = listed.X if listed.pictures is None else listed.pictures
            pixels, kept = self._read(files, where)
            found = listed.at(kept)._replace(names=self._names(files[kept]))
            if found.in_classes and len(gone := np.setdiff1d(listed.y, found.y)):
                raise DatasetError(f"{where}: no image of these classes can be read: {', '.join(map(str, gone))}")
            found = found._replace(X=pixels) if listed.pictures is None else found._replace(pictures=pixels)
            read[part] = found
            # Whole numbers may be classes, or measured.
            if found.y.dtype.kind == "U" and len(unknown := np.setdiff1d(found.y, parts["train"].y)):
                listing = ", ".join(map(str, unknown[:_LABELS_LISTED]))
                raise DatasetError(f"{name}: {part} images have labels that no training image has: {listing}")
        stays = {"train"} if not whole and "test" not in read else set()  # what is kept for testing mixes it too
        read = {part: found if part in stays else mixed(found) for part, found in read.items()}
        notes = (*self._said, *filter(None, [self.account()]))
        return assembled(name, read, whole, notes, aspect=self._aspect)

    def skip(self, file: Path, outside: bool = False) -> None:
        """Count a file that is not read, by its kind; `outside` of the folders of classes an image is one too."""
        if file.name.startswith("."):
            self._skipped["hidden"] += 1
        elif not is_regular(file):
            self._skipped["not regular files"] += 1
        elif outside and images.is_image(file):
            self._outside += 1
        else:
            self._skipped[file.suffix.lower() or "without a suffix"] += 1

    def account(self) -> str:
        """What was left out; empty where nothing was."""
        told, total = [], self._skipped.total()
        if total:
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(self._skipped.items()))
            told.append(f"left out {total:,} {'file' if total == 1 else 'files'} of other kinds: {kinds}")
        for n, why in ((self._outside, "outside of the class folders"), (self._bad, "that cannot be read")):
            if n:
                told.append(f"left out {_images(n)} {why}")
        if self.unused:
            told.append(f"folders without images, or not used: {', '.join(self.unused)}")
        return "; ".join(told)

    def _names(self, files: Sequence[Path]) -> NDArray[np.str_]:
        """Relative to the root, and as they are where they lie elsewhere."""
        root = self.root
        return np.array([str(f.relative_to(root) if f.is_relative_to(root) else f) for f in files], dtype=str)

    def _read(self, files: Sequence[Path], where: Path) -> tuple[Pixels, NDArray[np.intp]]:
        """The pixels of the files that can be read, (N, C, H, W) in [0, 1], and which files these are.

        The first files choose the number of channels, and a size where none was asked for.
        """
        first, why = self._shape is None or not self._shape[0], ""
        if self._shape is not None:
            self._check_memory(len(files))
        bad: list[DatasetError] = []
        heads: dict[int, Head] = {}
        for i, file in enumerate(files):
            try:
                heads[i] = images.read_head(file, self._max_pixels)
            except DatasetError as error:
                bad.append(error)
        if self._shape is None:
            size, why = _usual_size([(h.height, h.width) for h in heads.values()])
            self._shape = (0, *size)
        if first:
            self._shape = (1 if all(head.grey for head in heads.values()) else 3, *self._shape[1:])
        self._check_memory(len(heads))
        X = np.empty((len(heads), *self._shape), np.float32)
        kept: list[int] = []
        deepest: list[int] = []
        with progress_bar(len(heads), "reading", "image") as bar:
            for i in heads:
                try:
                    X[len(kept)], largest = images.read_deep_image(
                        files[i], self._shape, self._aspect, self._max_pixels
                    )
                    kept.append(i)
                    deepest += [] if largest is None else [largest]
                except DatasetError as error:
                    bad.append(error)
                bar.update()
        X = X[: len(kept)]  # the rest, of files that cannot be read, was never written
        X /= np.float32(255.0)
        self._refuse(bad, len(files), where)
        if first:
            self._say_size([heads[i] for i in kept], why)
            self._say_depth(deepest)
        return X, np.array(kept, dtype=np.intp)

    def _check_memory(self, count: int) -> None:
        """Refuse more pixels than fit, before the first of them is read."""
        assert self._shape is not None
        channels, height, width = self._shape
        memory.require(
            count * max(channels, 1) * height * width * _BYTES_PER_PIXEL,
            f"a set of {count:,} images of {height:,} × {width:,} pixels (size=, --size)",
        )

    def _refuse(self, bad: list[DatasetError], count: int, where: Path) -> None:
        """All files that cannot be read at once, unless they are to be left out."""
        self._bad += len(bad)
        if not bad or self._skip_bad:
            return
        if len(bad) == 1:
            joined = ", or" if str(bad[0]).endswith("replace or remove it") else ";"
            raise DatasetError(f"{bad[0]}{joined} leave it out with skip_bad=True (--skip-bad)")
        listed = "; ".join(str(error).removesuffix("; replace or remove it") for error in bad[:_LISTED])
        more = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        raise DatasetError(
            f"{len(bad)} of {count:,} files in {where} cannot be read: {listed}{more}. Replace or "
            "remove them, or leave them out with skip_bad=True (--skip-bad)"
        )

    def _say_size(self, heads: list[Head], why: str) -> None:
        """How images of other sizes were brought to this one."""
        assert self._shape is not None
        _, height, width = self._shape
        others = [h for h in heads if (h.height, h.width) != (height, width)]
        if not others:
            return
        told = f"{_images(len(others))} of {len(heads):,} brought to {height} × {width}{why}"
        # A rounding of one pixel is no other shape.
        bent = sum(abs(h.height * width - h.width * height) > max(h.height, h.width) for h in others)
        if bent:
            how = "padded with black" if self._aspect == "pad" else "squashed; aspect='pad' (--aspect pad) keeps theirs"
            told += f"; {bent:,} of another aspect ratio {how}"
        self._said.append(told)

    def _say_depth(self, largest: list[int]) -> None:
        """Cameras of 12 bits write files of 16, which a viewer and this program show as nearly black."""
        bits = max(largest, default=0).bit_length()
        if 0 < bits <= _DARK_BITS:
            self._said.append(
                f"the largest value of {_images(len(largest))} with 16 bits is {max(largest):,} of 65,535, as of "
                f"{bits}-bit data, so that they come out nearly black; multiply their values by {2 ** (16 - bits):,} "
                "and save them again, also those that are predicted later"
            )


def is_regular(file: Path) -> bool:
    """Whether it is a file, or a link to one, and no pipe or device; one that may not be looked at is not."""
    try:
        return file.is_file()
    except OSError:
        return False


def _images(n: int) -> str:
    return f"{n:,} {'image' if n == 1 else 'images'}"


def _usual_size(sizes: list[tuple[int, int]]) -> tuple[tuple[int, int], str]:
    """A size for all, and why: the one that half of them have, else one of their median proportions and longer side.

    Cost grows with the number of pixels, so photographs are brought down to at most 64 on their longer side.
    """
    if not sizes:
        return (1, 1), ""
    (height, width), count = Counter(sizes).most_common(1)[0]
    if 2 * count >= len(sizes):
        scale, why = min(1.0, _LARGEST / max(height, width)), "the commonest size"
        shape = height * scale, width * scale
    else:
        sides = np.array(sizes, np.float64)
        longer = min(float(_LARGEST), float(np.median(sides.max(1))))
        ratio = float(np.exp(np.median(np.log(sides[:, 0] / sides[:, 1]))))
        shape, why = (longer * min(1.0, ratio), longer * min(1.0, 1.0 / ratio)), "their median proportions"
    return (max(1, round(shape[0])), max(1, round(shape[1]))), f" ({why}, at most {_LARGEST} a side)"
