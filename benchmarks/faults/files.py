"""Model files altered by accident or on purpose."""

from __future__ import annotations

import io
import json
import random
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Dense, GPClassifier
from cnngp.common import files

from .campaign import REFUSED, SAME, expect, refused
from .victim import images

X = images(50)


class Models:
    name = "one bit flipped in a model file"
    promise = "no number"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.gp"
        model = GPClassifier(Dense(), noise=0.1, device="cpu").fit(X, np.arange(len(X)) % 3)
        model.save(self.path)
        self.wanted = model.predict_proba(X)

    def __call__(self, rng: random.Random, folder: Path) -> str:
        data = bytearray(self.path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        (folder / "m.gp").write_bytes(data)
        found = refused(lambda: GPClassifier.load(folder / "m.gp", device="cpu").predict_proba(X))
        expect(found is None or bool((found == self.wanted).all()), "a wrong probability")
        return REFUSED if found is None else SAME


class CraftedModels:
    name = "a model file with anything in it and the right checksum"
    promise = "no foreign file"

    def __init__(self, models: Models) -> None:
        with zipfile.ZipFile(models.path) as file:
            self.parts = {name: file.read(name) for name in file.namelist() if name != "sha256"}

    def __call__(self, rng: random.Random, folder: Path) -> str:
        parts = dict(self.parts)
        for _ in range(rng.randint(1, 3)):
            name = rng.choice(sorted(parts))
            parts[name] = self._header(rng, folder, parts[name]) if name == "header.json" else self._array(rng)
        path = folder / "in" / "m.gp"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as file:
            for name, data in parts.items():
                file.writestr(name, data)
            file.writestr("sha256", files._digest(parts))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = refused(lambda: GPClassifier.load(path, device="cpu").predict_proba(X[:3]), ValueError)
        made = [p for p in folder.rglob("*") if p.is_file()]
        expect(made == [path], f"a model made files: {made}")
        return REFUSED if found is None else SAME

    def _header(self, rng: random.Random, folder: Path, data: bytes) -> bytes:
        header = json.loads(data)
        spots: list[tuple[Any, Any]] = []

        def collect(node: Any) -> None:
            for key in node if isinstance(node, dict) else range(len(node)):
                spots.append((node, key))
                if isinstance(node[key], (dict, list)):
                    collect(node[key])

        collect(header)
        node, key = rng.choice(spots)
        node[key] = rng.choice([None, -1, 0, 10**6, 1e308, "x", "ml", [], {}, [[1]], True, str(folder / "chosen")])
        if rng.random() < 0.3 and isinstance(header.get("parameters"), dict):
            header["parameters"]["store"] = str(folder / "chosen")
        return json.dumps(header).encode()

    def _array(self, rng: random.Random) -> bytes:
        shape = tuple(rng.choice((0, 1, 3, 5, 50)) for _ in range(rng.randrange(4)))
        number, dtype = rng.choice((0.0, 1.0, -1.0, np.nan, np.inf, 1e300)), rng.choice(("f4", "f8", "i8", "?"))
        with np.errstate(all="ignore"):
            array = np.full(shape, number).astype(dtype)
        buffer = io.BytesIO()
        np.save(buffer, array)
        return buffer.getvalue()
