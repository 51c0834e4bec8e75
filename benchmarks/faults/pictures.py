"""Faults in image files, file names of arbitrary bytes, and several writers of one file of decisions."""

from __future__ import annotations

import io
import os
import random
import struct
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from cnngp.common.errors import DatasetError
from cnngp.datasets.images import read_image
from cnngp.report.suspects import Decisions, apply_decisions

from .campaign import REFUSED, SAME, expect, refused

_KINDS = ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "PPM", "TGA")
_SECONDS = 5.0
_NAME = b"abc=+-@'\",;\\x0d\r\n\t\x1b\x00\xff\xe9/"


class Pictures:
    name = "an image file altered, cut short, of another kind, or with another size in its header"
    promise = "one line"

    def __call__(self, rng: random.Random, folder: Path) -> str:
        pixels = np.random.default_rng(rng.randrange(2**32)).integers(1, 255, (40, 30, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, rng.choice(_KINDS))
        path = folder / "photo.png"
        path.write_bytes(rng.choice((self._flip, self._cut, self._page, self._header))(rng, out.getvalue()))
        if rng.random() < 0.05:
            path.unlink()
            os.mkfifo(path)
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Pillow, about files that it reads nevertheless
            found = refused(lambda: read_image(path, (3, 16, 16)), DatasetError)
        expect(time.monotonic() - began < _SECONDS, "it took too long")
        expect(found is None or (found.shape == (3, 16, 16) and found.dtype == np.uint8), "not an image")
        expect([p.name for p in folder.iterdir()] == ["photo.png"], "reading an image made a file")
        return REFUSED if found is None else SAME

    def _flip(self, rng: random.Random, data: bytes) -> bytes:
        altered = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(altered)

    def _cut(self, rng: random.Random, data: bytes) -> bytes:
        return data[: rng.randrange(len(data))] + rng.choice((b"", b"\xff\xd9", b"\0;"))

    def _page(self, rng: random.Random, data: bytes) -> bytes:
        head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
        return head + b"(made) (w) file closefile showpage\n%%EOF\n" + data[: rng.randrange(len(data))]

    def _header(self, rng: random.Random, data: bytes) -> bytes:
        """A PNG with an arbitrary size in its header and only a few rows of data."""

        def chunk(name: bytes, content: bytes) -> bytes:
            return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

        width, height = (rng.choice((1, 8, 6_000, 7_000, 170_000_000)) for _ in range(2))
        header = struct.pack(">IIBBBBB", width, height, rng.choice((8, 16)), 0, 0, 0, 0)
        rows = zlib.compress(bytes(rng.randrange(10**5)))
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class Sharing:
    name = "two viewers and a spreadsheet on one file of decisions, names of any bytes"
    promise = "no decision"

    def __call__(self, rng: random.Random, folder: Path) -> str:
        n, path = 8, folder / "labels.csv"
        X = np.random.default_rng(rng.randrange(2**32)).random((n, 1, 2, 2))
        names = np.array([f"{i}" + os.fsdecode(bytes(rng.choices(_NAME, k=6))).rstrip("\0") for i in range(n)])
        labels = np.array(["=a", "b\r"])[np.arange(n) % 2]
        viewers = [Decisions(path, X, labels, names) for _ in range(2)]
        wanted: dict[int, str] = {}
        for _ in range(rng.randint(1, 12)):
            row, action = rng.randrange(n), rng.choice(("keep", "drop", "relabel", None))
            other = labels[(row + 1) % 2]
            rng.choice(viewers).decide(row, action, proposed=str(other), label=str(other))
            wanted.pop(row, None)
            if action:
                wanted[row] = action
            if rng.random() < 0.3:
                text = path.read_text(encoding="utf-8-sig")
                path.write_bytes(("\ufeff" + text).replace("\n", "\r\n").encode())
        kept_lines = Decisions(path, X, labels, names).lines
        expect({row: line["decision"] for row, line in kept_lines.items()} == wanted, "a decision was lost")
        kept, _ = apply_decisions(path, X, labels, names)
        expect(len(kept) == n - list(wanted.values()).count("drop"), "decisions were not applied")
        return SAME
