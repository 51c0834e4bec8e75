"""What a store says about its matrix, in the `zarr.json` of its group: network, data, engine, type and tiles.

`id` ties every tile to its matrix (`tile_bytes.py`); `sha256` is a checksum over all the rest but the notes for people.
The `zarr.json` of the array follows from it. That decides how everybody's Zarr reads the numbers: one changed letter in
it gives other numbers, or none. So all of it is compared, and it is written anew where it differs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any

from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid

from .places import Keys

FORMAT = 3
_MARK = "cnngp_gram"
_CHECKSUM = "sha256"
_KINDS = {"nngp": "the Gaussian process's, kind 'nngp',", "ntk": "the tangent kernel, kind 'ntk',"}
_REMEDY = "bring zarr.json back from a copy, or delete the store"


@dataclass(frozen=True)
class Data:
    """A set of images: how many, their shape, and the SHA-256 of their pixels in the matrix's type."""

    images: int
    shape: tuple[int, ...]
    sha256: str
    prefix: str | None = None
    """The SHA-256 of as many images as the store holds, to recognise a set that grew; it is not kept."""


class OtherMatrixError(StoreError):
    """A store that holds the matrix of another network, other images or another engine."""


@dataclass(frozen=True)
class Spec:
    """The identity of a kernel matrix. `Z` is None for the symmetric matrix of X."""

    network: str | None
    """JSON; None where a layer is a Python function, which only the fingerprint covers."""
    network_fingerprint: str
    X: Data
    Z: Data | None
    engine: str
    dtype: str
    tile: tuple[int, int]
    kind: str = "nngp"
    """Which kernel of the network."""
    id: str = ""
    """Ties the tiles to this matrix."""

    def identified(self) -> Spec:
        """With the identity of a matrix that begins now: the same for all who begin it, kept when images are added."""
        return replace(self, id=_digest(replace(self, id="").attributes()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.images, (self.X if self.Z is None else self.Z).images

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, self.tile, self.Z is None)

    def attributes(self) -> dict[str, Any]:
        """As JSON."""
        a: dict[str, Any] = json.loads(json.dumps({_MARK: FORMAT, **asdict(self)}))
        for data in filter(None, (a["X"], a["Z"])):
            del data["prefix"]
        return a | {_CHECKSUM: _digest(a)}

    @classmethod
    def of_attributes(cls, a: dict[str, Any], name: str) -> Spec:
        if _MARK not in a:
            raise StoreError(
                f"{name} is a Zarr group that cnngp did not make; give another place, or a name inside it such as "
                f"{name}/kernel"
            )
        if a[_MARK] != FORMAT:
            raise StoreError(f"{name} has format {a[_MARK]!r}; this version of cnngp reads format {FORMAT}")
        try:
            given = {field.name: a[field.name] for field in fields(cls)}
            X, Z = (None if d is None else Data(d["images"], tuple(d["shape"]), d["sha256"]) for d in (a["X"], a["Z"]))
            spec = cls(**given | {"X": X, "Z": Z, "tile": tuple(given["tile"])})
            whole = spec.attributes()
            sound = whole == {key: a[key] for key in whole} and spec.dtype in ("float32", "float64")
            sound = sound and min(*spec.shape, *spec.tile) >= 1
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(f"{name}: its metadata is damaged ({error!r}); {_REMEDY}") from None
        if not sound:
            raise StoreError(f"{name}: its metadata is damaged (its checksum does not match); {_REMEDY}")
        return spec

    def refuse_unless_same_or_grown(self, wanted: Spec, name: str) -> None:
        """`StoreError` with all that differs, unless `wanted` is this matrix or one that it is the beginning of."""
        differs = []
        if self.network_fingerprint != wanted.network_fingerprint:
            from .differences import difference

            differs.append(f"the network ({difference(self.network, wanted.network)})")
        sets = ("the matrix of one set of images", "the matrix of two sets")
        for what, there, now in (
            ("the kernel", _KINDS.get(self.kind, self.kind), _KINDS.get(wanted.kind, wanted.kind)),
            ("the kind", sets[self.Z is not None], sets[wanted.Z is not None]),
            ("the type", self.dtype, wanted.dtype),
            ("the tile", _side(self.tile), _side(wanted.tile)),
        ):
            if there != now:
                differs.append(f"{what} ({there} there, {now} now)")
        if self.dtype == wanted.dtype:
            differs += _data_differs("X", self.X, wanted.X)
            if self.Z is not None and wanted.Z is not None:
                differs += _data_differs("Z", self.Z, wanted.Z)
        if differs:
            raise OtherMatrixError(f"{name} was made for something else: {'; '.join(differs)}. Give another store")


def _digest(attributes: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def _data_differs(which: str, there: Data, now: Data) -> list[str]:
    if there.shape != now.shape:
        return [f"{which} ({there.images:,} images of shape {there.shape} there, {now.images:,} of {now.shape} now)"]
    if now.images < there.images:
        return [f"{which} ({there.images:,} images there, only {now.images:,} now)"]
    if there.sha256 == (now.sha256 if now.images == there.images else now.prefix):
        return []
    if now.images == there.images:
        return [f"{which} (the pixels of its {now.images:,} images)"]
    return [f"{which} (the first {there.images:,} of its {now.images:,} images are not those of the store)"]


def _side(tile: tuple[int, int]) -> str:
    return f"{tile[0]}" if tile[0] == tile[1] else f"{tile[0]} × {tile[1]}"


# ---- the two zarr.json --------------------------------------------------------------------------------------------


def group_attributes(data: bytes | None, name: str) -> dict[str, Any] | None:
    """The attributes in a group's document; None where there is none. `StoreError` where it is no such document."""
    if data is None:
        return None
    try:
        document = _parsed(data)
        if document.get("node_type") == "array":
            raise ValueError("it is that of an array, not of a group")
        if document.get("zarr_format") != 3 or document.get("node_type") != "group":
            raise ValueError("it is not that of a Zarr group, format 3")
        attributes = document.get("attributes", {})
        if not isinstance(attributes, dict):
            raise ValueError("its attributes are no table")
    except ValueError as error:
        raise StoreError(
            f"{name}: its zarr.json cannot be read ({error}); bring it back from a copy, or delete the store"
        ) from None
    return attributes


def group_document(attributes: dict[str, Any]) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=2).encode()


def array_document(spec: Spec) -> bytes:
    """The document of the array as Zarr itself writes it."""
    return _array_document(spec.shape, spec.tile, spec.dtype)


@cache
def _array_document(shape: tuple[int, int], tile: tuple[int, int], dtype: str) -> bytes:
    from zarr.storage import MemoryStore

    keys = Keys(MemoryStore(), read_only=False)
    keys.new_array("K", shape, tile, dtype)
    document = keys.get_bytes("K/zarr.json")
    assert document is not None
    return document


def array_differs(data: bytes | None, spec: Spec, but: Sequence[str] = ()) -> str | None:
    """What is wrong with the array's document, in other keys than `but`; None where it is that of the matrix."""
    if data is None:
        return "it is missing"
    try:
        document = _parsed(data)
    except ValueError as error:
        return f"it cannot be read ({error})"
    ours = _parsed(array_document(spec))
    strange = document.keys() - ours.keys() - {"dimension_names"}
    found, wanted = _plain(document), _plain(ours)
    keys = (found.keys() | wanted.keys()) - {"attributes", *but}
    differs = sorted(strange | {key for key in keys if found.get(key) != wanted.get(key)})
    return f"changed in {', '.join(differs)}" if differs else None


def _parsed(data: bytes) -> dict[str, Any]:
    """A JSON object. `ValueError` for all else."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _plain(value: Any) -> Any:
    """Without what is empty: versions of Zarr differ in whether they write it."""
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item not in (None, {}, [])}
    return [_plain(item) for item in value] if isinstance(value, list) else value
