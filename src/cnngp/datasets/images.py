"""Reading image files into arrays with Pillow, one or many, with an account of the files that are left out."""

from __future__ import annotations

import functools
import io
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from cnngp.common import memory
from cnngp.common.errors import DatasetError, is_whole
from cnngp.common.files import check_regular
from cnngp.common.progress import progress_bar

from .dataset import Dataset, Part, Pixels, assembled, mixed

Size = int | tuple[int, int]
"""Height and width, or one number for both."""
Aspect = Literal["squash", "pad"]
"""Treatment of an image of other proportions: squash it, or pad it with black on two sides."""

# Formats that Pillow may try; it identifies a file by its content. Of the others, EPS starts another program
# (Ghostscript), and some hold films, pages or several images of different sizes.
_FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO"),
    *("PCX", "PNG", "PPM", "SGI", "TGA", "TIFF", "WEBP"),
)
MAX_PIXELS = 40_000_000
"""Limit of one image file, checked before decoding: a small file may claim any size and use the memory for it."""
_TURNED = (5, 6, 7, 8)  # orientations rotated by 90°, in which height and width are exchanged
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")
_PILLOWS_LIMIT = threading.Lock()
_LARGEST = 64
_STEP, _FROM = 4, 16  # computed sides are multiples of the first if the longer one is at least the second
# If 16-bit files use this many bits or fewer, the brightest pixel of all is at most a sixteenth of white.
_DARK_BITS = 12
# Number of file names, and of labels, that one message lists.
_LISTED, _LABELS_LISTED = 50, 5
# Two float32 copies: one in the order of the files and one in a mixed order.
_BYTES_PER_PIXEL = 8


class Head(NamedTuple):
    """Size and kind of an image file by its header, in the orientation that a viewer shows."""

    height: int
    width: int
    grey: bool


@functools.cache
def _formats() -> tuple[str, ...]:
    """Formats that this build of Pillow supports."""
    Image.init()
    return tuple(kind for kind in _FORMATS if kind in Image.OPEN)


def is_image(path: Path) -> bool:
    """True if the suffix of a file is that of a supported image format."""
    return Image.registered_extensions().get(path.suffix.lower()) in _formats()


def read_head(path: Path, max_pixels: int = MAX_PIXELS) -> Head:
    with _opened(path, max_pixels) as image:
        height, width = image.height, image.width
        if image.getexif().get(ExifTags.Base.Orientation) in _TURNED:
            height, width = width, height
        return Head(height, width, image.mode in _GREY)


def read_image(
    source: str | Path | bytes, shape: Sequence[int], aspect: Aspect = "squash", max_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """Read one image file, or its content, as (C, H, W) bytes of the given shape; C is 1 (grey) or 3 (colour)."""
    return read_deep_image(source, shape, aspect, max_pixels)[0]


def read_deep_image(
    source: str | Path | bytes, shape: Sequence[int], aspect: Aspect = "squash", max_pixels: int = MAX_PIXELS
) -> tuple[NDArray[np.uint8], int | None]:
    """Read like `read_image`, and also return the largest value of a 16-bit file; None for other files."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DatasetError(f"{_name(source)}: image files have 1 or 3 channels, but the model takes {channels}")
    with _opened(source, max_pixels) as image:
        image.load()
        _check_whole(image, source)
        largest = int(np.asarray(image).max(initial=0)) if image.mode.startswith("I") else None
        shown = _eight_bits(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
        if shown.size != (width, height) and aspect == "pad":
            shown = ImageOps.pad(shown, (width, height), Image.Resampling.BILINEAR)
        elif shown.size != (width, height):
            shown = shown.resize((width, height), Image.Resampling.BILINEAR)
        return as_shown(shown), largest


def as_shown(image: Image.Image) -> NDArray[np.uint8]:
    """Convert an opened Pillow image to (C, H, W) bytes; C is 1 (grey) or 3 (colour)."""
    pixels = np.asarray(_eight_bits(image).convert("L" if image.mode in _GREY else "RGB"), dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)


def check_size(size: Any) -> tuple[int, int]:
    """Check the `size=` of a user and return (height, width).

    >>> check_size(32), check_size((48, 64))
    ((32, 32), (48, 64))
    """
    pair = list(size) if isinstance(size, tuple | list) else [size]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(is_whole(n, least=1) for n in pair):
        raise DatasetError(f"size={size!r}: expected a height and a width such as (48, 64), or one number for both")
    return int(pair[0]), int(pair[1])


def check_aspect(aspect: object) -> None:
    if aspect not in get_args(Aspect):
        raise DatasetError(f"aspect={aspect!r}: expected 'squash' or 'pad'")


@contextmanager
def _opened(source: str | Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image without decoding its pixels: a regular file in a known format, with at most `max_pixels` pixels.

    Errors here or in the body, of which Pillow's decoders have many types, become one `DatasetError`.
    """
    if not isinstance(source, bytes):
        check_regular(Path(source))
    try:
        with _open(source) as image:
            if image.width * image.height > max_pixels:
                raise ValueError(
                    f"it has {image.width:,} × {image.height:,} pixels, more than {max_pixels:,}: "
                    "max_pixels= (--max-pixels) allows more"
                )
            yield image
    except DatasetError:
        raise
    except Exception as error:
        reason = " ".join(str(error).replace(repr(str(source)), "").split()) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "its content is of no kind of image that is read"
        raise DatasetError(f"{_name(source)} is not a readable image ({reason}); replace or remove it") from None


def _name(source: str | Path | bytes) -> str:
    return "the file" if isinstance(source, bytes) else str(source)


def _open(source: str | Path | bytes) -> Image.Image:
    """Open an image without Pillow's own limit, which only warns at first and cannot be set for one file."""
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    with _PILLOWS_LIMIT:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _check_whole(image: Image.Image, source: str | Path | bytes) -> None:
    """Raise for a truncated JPEG that still has an end marker, which Pillow fills with grey: bytes inserted before the
    marker then change the pixels. Few files are decoded twice: only those whose last pixels are constant."""
    width, height = image.size
    last = image.crop((max(width - 4, 0), height - 1, width, height))
    if image.format != "JPEG" or any(low != high for low, high in np.reshape(last.getextrema(), (-1, 2))):
        return
    jpeg = source if isinstance(source, bytes) else Path(source).read_bytes()
    end = jpeg.rfind(b"\xff\xd9")  # the end marker
    with _open(jpeg[:end] + 64 * b"\x5a\xa5\x33\xcc" + jpeg[end:]) as longer:
        if longer.tobytes() != image.tobytes():
            raise ValueError("it is cut short: its last rows are missing")


def _eight_bits(image: Any) -> Any:
    """Convert to what a viewer shows: transparency over white; 16 bits and fractions scaled to 8, not clipped."""
    if image.mode.startswith("I"):
        deep = np.asarray(image).clip(0, 65_535).astype(np.uint32)
        return Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        pixels = np.asarray(image, dtype=np.float64)
        if not np.isfinite(pixels).all():
            raise ValueError("it holds NaN or infinity")
        scale = 255.0 if float(pixels.max(initial=0.0)) <= 1.0 else 1.0
        return Image.fromarray((scale * pixels).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image


# ---- many files ----


class Reader:
    """Reader of the image files of one data set, with an account of what it leaves out.

    Names of images are relative to the folder `root`.
    """

    def __init__(self, root: Path, size: Size | None, aspect: Aspect, skip_bad: bool, max_pixels: int) -> None:
        check_aspect(aspect)
        if not is_whole(max_pixels, least=1):
            raise DatasetError(f"max_pixels={max_pixels!r}: expected the most pixels that an image file may have")
        self.unused: list[str] = []
        """Folders from which no image was read."""
        self.root, self._aspect, self._skip_bad, self._max_pixels = root, aspect, skip_bad, max_pixels
        self._shape = None if size is None else (0, *check_size(size))  # 0: the files decide the channels
        self._said: list[str] = []
        self._left: Counter[str] = Counter()

    def dataset(self, name: str, parts: dict[str, Part], where: Path, whole: bool) -> Dataset:
        """Read the files of all parts, images or pictures of features, and build the data set in a mixed order."""
        read: dict[str, Part] = {}
        for part, listed in parts.items():
            files = listed.X if listed.pictures is None else listed.pictures
            pixels, kept = self._read(files, where)
            # Relative to the root if inside it, else unchanged.
            names = [str(f.relative_to(self.root) if f.is_relative_to(self.root) else f) for f in files[kept]]
            found = listed.at(kept)._replace(names=np.array(names, dtype=str))
            if found.in_classes and len(gone := np.setdiff1d(listed.y, found.y)):
                raise DatasetError(f"{where}: no image of these classes can be read: {', '.join(map(str, gone))}")
            found = found._replace(X=pixels) if listed.pictures is None else found._replace(pictures=pixels)
            read[part] = found
            # Only text labels are checked: integers may be classes or measured.
            if found.y.dtype.kind == "U" and len(unknown := np.setdiff1d(found.y, parts["train"].y)):
                listing = ", ".join(map(str, unknown[:_LABELS_LISTED]))
                raise DatasetError(f"{name}: {part} images have labels that no training image has: {listing}")
        stays = {"train"} if not whole and "test" not in read else set()  # splitting off a test set mixes it too
        read = {part: found if part in stays else mixed(found) for part, found in read.items()}
        notes = (*self._said, *filter(None, [self.account()]))
        return assembled(name, read, whole, notes, aspect=self._aspect)

    def skip(self, file: Path, outside: bool = False) -> None:
        """Count a skipped file by its kind; `outside` the class folders, images are skipped too."""
        kind = file.suffix.lower() or "without a suffix"
        if file.name.startswith("."):
            kind = "hidden"
        elif not is_regular(file):
            kind = "not regular"
        elif outside and is_image(file):
            kind = "outside of the class folders"
        self._left[kind] += 1

    def account(self) -> str:
        """Describe what was left out; empty if nothing was."""
        told, total = [], self._left.total()
        if total:
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(self._left.items()))
            told.append(f"left out {total:,} {'file' if total == 1 else 'files'}: {kinds}")
        if self.unused:
            told.append(f"folders without images, or not used: {', '.join(self.unused)}")
        return "; ".join(told)

    def _read(self, files: Sequence[Path], where: Path) -> tuple[Pixels, NDArray[np.intp]]:
        """Return the pixels of the readable files, (N, C, H, W) in [0, 1], and the positions of these files.

        The first part that is read decides the number of channels, and the size if none was given.
        """
        first, why, count = self._shape is None or not self._shape[0], "", len(files)
        if self._shape is not None:  # before any file is opened
            _check_memory(count, self._shape)
        bad: list[DatasetError] = []
        heads: dict[int, Head] = {}
        for i, file in enumerate(files):
            try:
                heads[i] = read_head(file, self._max_pixels)
            except DatasetError as error:
                bad.append(error)
        if self._shape is None:
            size, why = _usual_size([(h.height, h.width) for h in heads.values()])
            self._shape = (0, *size)
        if first:
            self._shape = (1 if all(head.grey for head in heads.values()) else 3, *self._shape[1:])
        _check_memory(len(heads), self._shape)
        X = np.empty((len(heads), *self._shape), np.float32)
        kept: list[int] = []
        deepest: list[int] = []
        with progress_bar(len(heads), "reading", "image") as bar:
            for i in heads:
                try:
                    X[len(kept)], largest = read_deep_image(files[i], self._shape, self._aspect, self._max_pixels)
                    kept.append(i)
                    deepest += [] if largest is None else [largest]
                except DatasetError as error:
                    bad.append(error)
                bar.update()
        X = X[: len(kept)]  # unreadable files left the rest unwritten
        X /= np.float32(255.0)
        if bad:
            self._left["not readable"] += len(bad)
        if bad and not self._skip_bad:
            raise DatasetError(_told_at_once(bad, count, where))
        if first:
            self._say_how([heads[i] for i in kept], why, deepest)
        return X, np.array(kept, dtype=np.intp)

    def _say_how(self, heads: list[Head], why: str, deepest: list[int]) -> None:
        """Note how images of other sizes were resized, and that 12-bit data in 16-bit files, as from cameras, come out
        nearly black, here as in viewers."""
        assert self._shape is not None
        _, height, width = self._shape
        others = [h for h in heads if (h.height, h.width) != (height, width)]
        if others:
            told = f"{_images(len(others))} of {len(heads):,} brought to {height} × {width}{why}"
            # A difference by rounding of one pixel does not count.
            bent = sum(abs(h.height * width - h.width * height) > max(h.height, h.width) for h in others)
            pad = self._aspect == "pad"
            how = "padded with black" if pad else "squashed; aspect='pad' (--aspect pad) keeps theirs"
            self._said.append(f"{told}; {bent:,} of another aspect ratio {how}" if bent else told)
        bits = max(deepest, default=0).bit_length()
        if 0 < bits <= _DARK_BITS:
            self._said.append(
                f"the largest value of {_images(len(deepest))} with 16 bits is {max(deepest):,} of 65,535, as of "
                f"{bits}-bit data, so that they come out nearly black; multiply their values by {2 ** (16 - bits):,} "
                "and save them again, also those that are predicted later"
            )


def _check_memory(count: int, shape: tuple[int, ...]) -> None:
    """Raise for more pixels than fit into memory, before any is read."""
    channels, height, width = shape
    what = f"a set of {count:,} images of {height:,} × {width:,} pixels (size=, --size)"
    memory.require(count * max(channels, 1) * height * width * _BYTES_PER_PIXEL, what)


def _told_at_once(bad: list[DatasetError], count: int, where: Path) -> str:
    """Message that lists the files that cannot be read."""
    if len(bad) == 1:
        joined = ", or" if str(bad[0]).endswith("replace or remove it") else ";"
        return f"{bad[0]}{joined} leave it out with skip_bad=True (--skip-bad)"
    listed = "; ".join(str(error).removesuffix("; replace or remove it") for error in bad[:_LISTED])
    more = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
    return (
        f"{len(bad)} of {count:,} files in {where} cannot be read: {listed}{more}. Replace or remove them, or leave "
        "them out with skip_bad=True (--skip-bad)"
    )


def is_regular(file: Path) -> bool:
    """True for a file or a link to one, not a pipe or device; False also if access is denied."""
    try:
        return file.is_file()
    except OSError:
        return False


def _images(n: int) -> str:
    return f"{n:,} {'image' if n == 1 else 'images'}"


def _usual_size(sizes: list[tuple[int, int]]) -> tuple[tuple[int, int], str]:
    """Choose one size, with the reason: the one that half of them have, else their median proportions and longer side.

    Cost grows with the number of pixels, so photographs are reduced to at most 64 on their longer side. From 16 on,
    computed sides are multiples of four: networks that halve them treat mirror images alike then, at half the cost.
    """
    if not sizes:
        return (1, 1), ""
    (height, width), count = Counter(sizes).most_common(1)[0]
    why = f" (the commonest size, at most {_LARGEST} a side)"
    if 2 * count >= len(sizes) and max(height, width) <= _LARGEST:
        return (height, width), why
    sides = np.array([(height, width)] if 2 * count >= len(sizes) else sizes, np.float64)
    if len(sides) > 1:
        why = f" (their median proportions, at most {_LARGEST} a side)"
    step = _STEP if (longer := min(float(_LARGEST), float(np.median(sides.max(1))))) >= _FROM else 1
    ratio = float(np.exp(np.median(np.log(sides[:, 0] / sides[:, 1]))))
    long = int(longer // step * step)
    short = min(long, max(1, round(longer * min(ratio, 1.0 / ratio) / step) * step))
    return ((long, short) if ratio >= 1.0 else (short, long)), why
