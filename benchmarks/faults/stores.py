"""Faults in stores: killed processes, full disks, and files changed by people."""

from __future__ import annotations

import errno
import json
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from cnngp import Dense, Kernel, gram
from cnngp.gp import solve
from cnngp.matrix.store.store import GramStore

from .campaign import FOUND, REFUSED, SAME, expect, refused
from .victim import TILE, Victim, images

KERNEL = Kernel(Dense(), device="cpu", threads=1)
N, M = 120, 70
X, Z = images(N), images(M) + 0.5
WANTED = {"K": KERNEL(X), "cross": KERNEL(X, Z)}
TARGETS = np.random.default_rng(1).standard_normal((N, 2))
NOISE = 100.0
WEIGHTS = np.linalg.solve(WANTED["K"].astype(np.float64) + NOISE * np.eye(N), TARGETS)


def matrix(place: Path, kind: str, **options: Any) -> Any:
    return gram(KERNEL, X, None if kind == "K" else Z, store=place, tile=TILE, progress=False, **options)


def check_all_uses(place: Path, kind: str) -> str:
    """Check that reading an altered store gives correct numbers or a one-line error, and that gram repairs it."""
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    read = refused(lambda: GramStore(place, read_only=True).array()[:])
    expect(read is None or bool((read == WANTED[kind]).all()), "a wrong number was read")
    if kind == "K":
        for method in ("cholesky", "cg"):
            found = refused(lambda method=method: solve(place, TARGETS, NOISE, method, device="cpu", progress=False))
            expect(found is None or np.allclose(found.weights, WEIGHTS, rtol=1e-6, atol=1e-12), "wrong weights")
    whole = refused(lambda: matrix(place, kind))
    if whole is None:
        kept = all(p.exists() and p.read_bytes() == data for p, data in before.items() if "/c/" in str(p))
        expect(kept, "tiles of a store that was refused are gone")
        return REFUSED
    expect(bool((whole[:] == WANTED[kind]).all()), "a wrong matrix was given out")
    return SAME if read is not None else FOUND


class Stores:
    """Finished stores; every trial damages a copy of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind in ("K", "cross"):
            matrix(folder / kind, kind)
        other = Kernel(Dense(bias_var=1.0), device="cpu", threads=1)
        gram(other, X, store=folder / "K-other", tile=TILE, progress=False)
        gram(other, X, Z, store=folder / "cross-other", tile=TILE, progress=False)

    def copy(self, rng: random.Random, folder: Path) -> tuple[Path, str]:
        kind = rng.choice(("K", "K", "cross"))
        return Path(shutil.copytree(self.folder / kind, folder / "store")), kind


def files_of(place: Path) -> list[Path]:
    return sorted(p for p in place.rglob("*") if p.is_file() and p.name != ".lock")


class Flips:
    name = "one bit flipped in any file of a store"
    promise = "no number"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, kind = self.stores.copy(rng, folder)
        some = [place / "zarr.json", place / "K/zarr.json"] if rng.random() < 0.4 else files_of(place)
        path = rng.choice(some)
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return check_all_uses(place, kind)


class Moves:
    name = "a tile or seal moved, swapped, or put there from another store"
    promise = "no number"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, kind = self.stores.copy(rng, folder)
        rows, columns = -(-N // TILE), -(-(N if kind == "K" else M) // TILE)
        a, b = ((rng.randrange(rows), rng.randrange(columns)) for _ in range(2))
        how = rng.choice(("copy", "swap", "other"))
        for part in rng.choice((("c",), ("c", "seals"))):
            first, second = (place / "K" / part / str(i) / str(j) for i, j in (a, b))
            source = self.stores.folder / f"{kind}-other" / second.relative_to(place) if how == "other" else second
            if not source.exists() or not first.exists():
                continue
            one, two = first.read_bytes(), source.read_bytes()
            first.write_bytes(two)
            if how == "swap":
                second.write_bytes(one)
        return check_all_uses(place, kind)


class Losses:
    name = "files of a store lost, cut short, emptied or zeroed"
    promise = "no number"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, kind = self.stores.copy(rng, folder)
        for path in rng.sample(files_of(place), rng.randint(1, 4)):
            data = path.read_bytes()
            match rng.randrange(4):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(data[: rng.randrange(len(data))])
                case 2:
                    path.write_bytes(b"")
                case _:
                    path.write_bytes(bytes(len(data)))
        return check_all_uses(place, kind)


class Metadata:
    name = "K/zarr.json made to say something else"
    promise = "no number"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, kind = self.stores.copy(rng, folder)
        path = place / "K/zarr.json"
        document = json.loads(path.read_text())
        spots: list[tuple[Any, Any]] = []

        def collect(node: Any) -> None:
            for key in node if isinstance(node, dict) else range(len(node)):
                spots.append((node, key))
                if isinstance(node[key], (dict, list)):
                    collect(node[key])

        collect(document)
        node, key = rng.choice(spots)
        node[key] = rng.choice([None, 0, -1, 7, "x", ".", "big", "float64", [], {}, [1, 2], 1e300, True])
        path.write_text(json.dumps(document))
        return check_all_uses(place, kind)


class Links:
    name = "a link in the place of a file or folder of a store"
    promise = "no foreign file"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, kind = self.stores.copy(rng, folder)
        private = folder / "private"
        private.mkdir()
        for name in ("0", "1", "2", "thesis.tex", "3.0a.partial", "zarr.json"):
            (private / name).write_text("chapter 1")
        places = [place / "K/.lock", *(p for p in place.rglob("*") if p != place)]
        path = rng.choice(places)
        folderlike = path.is_dir()
        shutil.rmtree(path) if folderlike else path.unlink(missing_ok=True)
        path.symlink_to(private if folderlike else rng.choice([private / "thesis.tex", private / "new"]))
        whole = refused(lambda: matrix(place, kind))
        expect(whole is None or bool((whole[:] == WANTED[kind]).all()), "a wrong matrix was given out")
        refused(lambda: gram(KERNEL, images(N + 9), store=place, progress=False))
        left = {p.name: p.read_text() for p in private.iterdir()}
        untouched = len(left) == 6 and all(text == "chapter 1" for text in left.values())
        expect(untouched, f"files behind the link {path.relative_to(place)} were touched")
        return REFUSED if whole is None else FOUND


class Replaced:
    name = "a store deleted, replaced or linked elsewhere while gram runs"
    promise = "no foreign file"

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, other = folder / "store", Path(shutil.copytree(self.stores.folder / "K-other", folder / "other"))
        before = {p.relative_to(other): p.read_bytes() for p in files_of(other)}
        results: list[Any] = []
        running = threading.Thread(target=lambda: results.append(refused(lambda: matrix(place, "K"))))
        running.start()
        time.sleep(rng.uniform(0.0, 0.15))
        how = rng.choice(("deleted", "replaced", "linked"))
        if place.exists():
            place.rename(folder / "aside")
            if how == "deleted":
                shutil.rmtree(folder / "aside", ignore_errors=True)
            elif how == "replaced":
                other = other.rename(place)
            else:
                place.symlink_to(other)
        running.join()
        expect(len(results) == 1, "gram ended in an error that is not one line")
        kept = {p.relative_to(other): p.read_bytes() for p in files_of(other)}
        expect(kept == before, f"the other store was touched ({how})")
        if how == "linked" and place.is_symlink():
            place.unlink()
        elif how == "replaced" and other == place:
            other.rename(folder / "other")
        expect(bool((matrix(place, "K")[:] == WANTED["K"]).all()), "a wrong matrix, or none, after that")
        return SAME if results[0] is not None else REFUSED


class FullDisk(zarr.storage.LocalStore):
    """A store on a disk with room for `room` more bytes."""

    room = 0

    async def set(self, key: str, value: Any) -> None:
        if len(value) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(value)
        await super().set(key, value)


class FullDisks:
    name = "the disk full at any byte of a run, then a run with room"
    promise = "nothing lost"

    def __call__(self, rng: random.Random, folder: Path) -> str:
        kind = rng.choice(("K", "cross"))
        disk = FullDisk(folder / "store")
        disk.room = rng.randrange(80_000)
        first = refused(lambda: matrix(disk, kind))  # type: ignore[arg-type]
        expect(first is None or bool((first[:] == WANTED[kind]).all()), "a wrong matrix was given out")
        expect(not list(folder.rglob("*.partial")), "a part of a file was left")
        expect(bool((matrix(folder / "store", kind)[:] == WANTED[kind]).all()), "a wrong matrix after a full disk")
        return SAME if first is not None else REFUSED


class Kills:
    name = "gram killed at any moment, also while it grows, with one or two processes at it"
    promise = "nothing lost"

    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place, longest, killed = folder / "store", 0.4, 0
        for attempt in range(rng.randint(1, 5)):
            n = N // 2 if attempt == 0 and rng.random() < 0.5 else N
            there = (place / "zarr.json").exists() and GramStore(place, read_only=True).found
            n = max(n, there.shape[0]) if there else n
            codes = self.victim.kill_one("gram", str(place), n, rng.uniform(0.0, longest), rng.choice((1, 1, 2)))
            expect(all(code in (0, -9) for code in codes), f"a process that was not killed failed: {codes}")
            killed += codes.count(-9)
        expect(bool((matrix(place, "K")[:] == WANTED["K"]).all()), "a wrong matrix after a kill")
        expect(not list(place.rglob("*.partial")), "a part of a file was left")
        return FOUND if killed else SAME


class SolveKills:
    name = "a solve killed at any moment, its checkpoint at times with a bit flipped, and run again"
    promise = "nothing lost"

    def __init__(self, stores: Stores, victim: Victim) -> None:
        self.stores, self.victim = stores, victim
        K = WANTED["K"].astype(np.float64)
        self.weights = np.linalg.solve(K + 1e-5 * np.eye(N), X)

    def __call__(self, rng: random.Random, folder: Path) -> str:
        place = Path(shutil.copytree(self.stores.folder / "K", folder / "store"))
        self.victim.kill_one("solve", str(place), N, rng.uniform(0.0, 0.3))
        left = sorted(folder.glob("store.solve-*"))
        outcome = FOUND if left else SAME
        if left and rng.random() < 0.5:
            path = rng.choice(left)
            data = bytearray(path.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        found = refused(lambda: solve(place, X, 1e-5, "cg", rank=4, device="cpu", progress=False))
        if found is None:
            return REFUSED
        residual = WANTED["K"].astype(np.float64) @ found.weights + 1e-5 * found.weights - X
        expect(float(np.linalg.norm(residual) / np.linalg.norm(X)) < 1e-8, "wrong weights after a kill")
        return outcome
