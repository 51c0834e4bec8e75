"""Metadata of a store, in the `zarr.json` of its group: network, data, engine, type and tiles of the matrix.

`id` ties every tile to its matrix (`tile_bytes.py`); `sha256` is a checksum over the rest, except the notes for people.
The `zarr.json` of the array follows from this metadata. Every Zarr reader depends on it, and one changed letter gives
wrong numbers or none, so the whole document is compared and rewritten if it differs.
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
from cnngp.network.layers import Network, NetworkError
from cnngp.network.names import zoo_name
from cnngp.network.serialize import from_json
from cnngp.network.zoo import resnet

from .places import Keys

FORMAT = 3
_MARK = "cnngp_gram"
_CHECKSUM = "sha256"
_KINDS = {"nngp": "the Gaussian process's, kind 'nngp',", "ntk": "the tangent kernel, kind 'ntk',"}
_REMEDY = "bring zarr.json back from a copy, or delete the store"
# Largest number of characters of a network, or of a value in it, in a message.
_LONGEST = 80


@dataclass(frozen=True)
class Data:
    """Identity of a set of images: number, shape, and the SHA-256 of the pixels in the matrix's type."""

    images: int
    shape: tuple[int, ...]
    sha256: str
    prefix: str | None = None
    """SHA-256 of the first images, as many as the store holds, to recognise a set that grew; it is not stored."""


class OtherMatrixError(StoreError):
    """Error for a store that holds another matrix: of another network, kind, type, tile size or set of images."""


@dataclass(frozen=True)
class Spec:
    """Identity of a kernel matrix. `Z` is None for the symmetric matrix of X."""

    network: str | None
    """JSON; None if a layer has a Python function, which only the fingerprint covers."""
    network_fingerprint: str
    X: Data
    Z: Data | None
    engine: str
    dtype: str
    tile: tuple[int, int]
    kind: str = "nngp"
    """Kind of the kernel ("nngp" or "ntk"), with its symmetry if it has one."""
    id: str = ""
    """Identifier that ties the tiles to this matrix."""

    def identified(self) -> Spec:
        """Copy with the `id` of a new matrix: equal in every process that starts it, and kept when images are added."""
        return replace(self, id=_digest(replace(self, id="").attributes()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.images, (self.X if self.Z is None else self.Z).images

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, self.tile, self.Z is None)

    def attributes(self) -> dict[str, Any]:
        """Return the metadata as JSON values."""
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
        """Raise `OtherMatrixError` with all differences, unless `wanted` is this matrix or extends it by images."""
        differs = []
        if self.network_fingerprint != wanted.network_fingerprint:
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


# ---- networks in messages ------------------------------------------------------------------------------------------


def told(network: Network) -> str:
    """Describe a network by its name, by the code that makes it if that is short, else by its number of layers.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> told(zoo.resnet(20)), told(Sequential(*[Conv(3), ReLU()] * 9, Dense()))
    ('resnet20', 'a Sequential of 19 layers')
    """
    name = zoo_name(network)
    if "(" in name:  # a ResNet may have any depth
        name = next((f"resnet{depth}" for depth in range(8, 111, 6) if network == resnet(depth)), name)
    if len(name) <= _LONGEST:
        return name
    text = network.to_json()
    leaves = text.count('"layer":') - text.count('"layers":') - text.count('"branches":')
    return f"a {type(network).__name__} of {leaves:,} layers"


def difference(there: str | None, now: str | None) -> str:
    """Describe the difference between two networks, each given as JSON, or None for one with a Python function.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> difference(zoo.resnet(20).to_json(), zoo.resnet(32).to_json())
    'resnet20 there, resnet32 now'
    >>> difference(*(Sequential(Conv(k), ReLU(), Dense()).to_json() for k in (3, 5)))
    'layers[0].kernel_size is 3 there, 5 now'
    """
    try:
        names = ["one with a Python function" if text is None else told(from_json(text)) for text in (there, now)]
    except NetworkError:
        return "one that this version cannot read there"
    both = f"{names[0]} there, {names[1]} now"
    of_the_zoo = [" " not in name and "(" not in name for name in names]
    if there is None or now is None or all(of_the_zoo):
        return both
    place = _first(json.loads(there)["network"], json.loads(now)["network"], "")
    return f"{both}; {place}" if any(of_the_zoo) else place


def _first(there: Any, now: Any, place: str) -> str:
    """Describe the first place where two documents differ."""
    if isinstance(there, dict) and isinstance(now, dict) and there.get("layer") == now.get("layer"):
        found = (_first(there[k], now[k], f"{place}.{k}" if place else k) for k in there if k in now)
        return next(filter(None, found), "")
    if isinstance(there, list) and isinstance(now, list):
        found = (_first(a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(there, now, strict=False)))
        lengths = "" if len(there) == len(now) else f"{place} are {len(there)} there, {len(now)} now"
        return next(filter(None, found), lengths)
    return "" if there == now else f"{place or 'it'} is {_short(there)} there, {_short(now)} now"


def _short(value: Any) -> str:
    return str(value["layer"]) if isinstance(value, dict) and "layer" in value else str(value)[:_LONGEST]


# ---- the two zarr.json --------------------------------------------------------------------------------------------


def group_attributes(data: bytes | None, name: str) -> dict[str, Any] | None:
    """Return the attributes in a group's document, None without a document; raise `StoreError` if it is invalid."""
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


@cache
def array_document(spec: Spec) -> bytes:
    """Return the document of the array as Zarr itself writes it."""
    from zarr.storage import MemoryStore

    keys = Keys(MemoryStore(), read_only=False)
    keys.new_array("K", spec.shape, spec.tile, spec.dtype)
    document = keys.get_bytes("K/zarr.json")
    assert document is not None
    return document


def array_differs(data: bytes | None, spec: Spec, but: Sequence[str] = ()) -> str | None:
    """Describe how the array's document differs from the matrix in keys other than `but`; None if it does not."""
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
    """Parse a JSON object; raise `ValueError` for anything else."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _plain(value: Any) -> Any:
    """Drop empty values, which only some versions of Zarr write."""
    if isinstance(value, dict):
        plain = {key: _plain(item) for key, item in value.items()}
        return {key: item for key, item in plain.items() if item not in (None, {}, [])}
    return [_plain(item) for item in value] if isinstance(value, list) else value
