"""What a store says about its matrix, in the `zarr.json` of its group: network, data, engine, type and tiles.

`id` ties every tile to its matrix (`tile_bytes.py`); `sha256` is a checksum over all the rest but the notes for people.
The `zarr.json` of the array follows from it. That decides how everybody's Zarr reads the numbers: one changed letter in
it gives other numbers, or none. So all of it is compared, and it is written anew where it differs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cnngp.common.errors import StoreError, one_line
from cnngp.common.tiles import Grid
from cnngp.network.layers import NetworkError
from cnngp.network.names import zoo_name
from cnngp.network.serialize import from_json
from cnngp.network.zoo import resnet

FORMAT = 3
_MARK = "cnngp_gram"
_CHECKSUM = "sha256"
_LONGEST = 80
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
            differs.append(f"the network ({shown(self.network)} there, {shown(wanted.network)} now)")
        sets = ("the matrix of one set of images", "the matrix of two sets")
        for what, there, now in (
            ("the kernel", self.kind, wanted.kind),
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


def shown(network: str | None) -> str:
    """A network, given as JSON, by its name or as the code that makes it, cut where that is long.

    >>> from cnngp import zoo
    >>> shown(zoo.small_cnn().to_json())
    'small_cnn'
    """
    if network is None:
        return "one with a Python function"
    try:
        made = from_json(network)
    except NetworkError:
        return "one that this version cannot read"
    name = next((f"resnet{depth}" for depth in range(8, 111, 6) if made == resnet(depth)), zoo_name(made))
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


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
        document = json.loads(data)
        if (document["zarr_format"], document["node_type"]) != (3, "group"):
            raise ValueError("it is not that of a Zarr group, format 3")
        return dict(document.get("attributes", {}))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{name}: its zarr.json cannot be read ({one_line(error)}); bring it back from a copy, or delete the store"
        ) from None


def group_document(attributes: dict[str, Any]) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=2).encode()


def array_document(spec: Spec) -> bytes:
    """The document of the array: by it any reader of Zarr finds the numbers."""
    document = {
        "shape": spec.shape,
        "data_type": spec.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": spec.tile}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(document, indent=2).encode()


def array_fits(data: bytes | None, spec: Spec) -> bool:
    """Whether an array's document is that of the matrix, but for attributes and what versions of Zarr leave out."""

    def plain(text: bytes | None) -> dict[str, Any]:
        optional: dict[str, Any] = {"storage_transformers": [], "dimension_names": None}
        optional |= json.loads(text or b"{}")
        return optional | {"attributes": {}}

    try:
        return plain(data) == plain(array_document(spec))
    except (ValueError, TypeError, RecursionError):
        return False
