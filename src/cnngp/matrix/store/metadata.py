"""The two `zarr.json` of a store: the group's, which says what the matrix is, and the array's, which follows from it.

The array's document decides how everybody's Zarr reads the numbers: one changed letter in it gives other numbers, or
none. So all of it is compared with what the group says, and it is written anew where it differs.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from cnngp.common.errors import StoreError

from .spec import Spec


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

    from .keys import Keys

    keys = Keys(MemoryStore(), read_only=False)
    keys.new_array("K", shape, tile, dtype)
    document = keys.get_bytes("K/zarr.json")
    assert document is not None
    return document


def array_differs(data: bytes | None, spec: Spec) -> str | None:
    """What is wrong with the array's document; None where it is that of the matrix.

    `"shape"` alone is what a process leaves that is killed while the matrix grows.
    """
    if data is None:
        return "it is missing"
    try:
        document = _parsed(data)
    except ValueError as error:
        return f"it cannot be read ({error})"
    ours = _parsed(array_document(spec))
    strange = document.keys() - ours.keys() - {"dimension_names"}
    found, wanted = _plain(document), _plain(ours)
    keys = (found.keys() | wanted.keys()) - {"attributes"}
    differs = sorted(strange | {key for key in keys if found.get(key) != wanted.get(key)})
    return None if not differs else "shape" if differs == ["shape"] else f"changed in {', '.join(differs)}"


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
