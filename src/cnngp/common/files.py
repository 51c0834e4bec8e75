"""Models, and checkpoints of a solve, in files without pickle: a zip of plain arrays and a JSON header, with a checksum
over all of it.

Reading such a file runs no code: arrays come through NumPy's format with pickling off, the header through JSON, and a
file that is cut short, altered or of another kind is refused before anything is built from it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelFileError

FORMAT = 1
_HEADER = "header.json"
_CHECKSUM = "sha256"


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]], what: str = "model") -> None:
    """Write to a temporary file beside `path` and rename it, so that a crash leaves no half of a model."""
    path = Path(path).resolve()  # of a link, what it points to
    if not path.parent.is_dir():
        raise ModelFileError(f"{path.parent}: no such folder to save {path.name} in")
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} is there and is not a file; give another name to save the {what} under")
    members = {_HEADER: json.dumps({f"cnngp_{what}": FORMAT} | header, sort_keys=True, default=_plain).encode()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ModelFileError(f"{name} holds Python objects, which are not saved; use text or numbers")
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        members[f"{name}.npy"] = buffer.getvalue()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as file:
            for name, data in members.items():
                file.writestr(name, data)
            file.writestr(_CHECKSUM, _digest(members))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path, what: str = "model") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays that `write` wrote, after checking them."""
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"{path}: no such {what} file")
    try:
        with zipfile.ZipFile(path) as file:
            if any(info.compress_type != zipfile.ZIP_STORED for info in file.infolist()):
                raise ModelFileError(f"{path} is not a {what} saved by cnngp")
            members = {info.filename: file.read(info) for info in file.infolist()}
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} is not a whole {what} file ({error}); save or copy it again") from None
    checksum = members.pop(_CHECKSUM, b"")
    if _HEADER not in members:
        raise ModelFileError(f"{path} is not a {what} saved by cnngp")
    if checksum.decode(errors="replace") != _digest(members):
        raise ModelFileError(f"{path} has been altered: its checksum does not match; save or copy it again")
    header = _header(members.pop(_HEADER))
    if header.get(f"cnngp_{what}") != FORMAT:
        raise ModelFileError(f"{path} has {what} format {header.get(f'cnngp_{what}')!r}; this version reads {FORMAT}")
    try:
        arrays = {name.removesuffix(".npy"): _array(data) for name, data in members.items()}
    except (ValueError, EOFError) as error:
        raise ModelFileError(f"{path} holds an array that cannot be read ({error})") from None
    return header, arrays


def packed(upper: NDArray[np.float64], diagonal: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """A symmetric matrix by rows from the diagonal on, in `dtype` where that loses nothing, else in float64.

    Only what stands above the diagonal of `upper` is read.
    """
    n = len(upper)
    for kind in (dtype, "float64"):
        entries = np.empty(n * (n + 1) // 2, kind)
        start, exact = 0, True
        for i in range(n):
            row = entries[start : start + n - i]
            row[0], row[1:] = diagonal[i], upper[i, i + 1 :]
            exact = exact and row[0] == diagonal[i] and bool((row[1:] == upper[i, i + 1 :]).all())
            start += n - i
        if exact:
            break
    return entries


def unpacked(entries: NDArray[Any], n: int) -> NDArray[np.float64]:
    """The whole symmetric matrix again, in float64."""
    if entries.shape != (n * (n + 1) // 2,):
        raise ValueError(f"{entries.shape} kernel entries for {n} images")
    A = np.empty((n, n))
    start = 0
    for i in range(n):
        A[i, i:] = A[i:, i] = entries[start : start + n - i]
        start += n - i
    return A


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise ModelFileError(f"{value!r} cannot be saved; use plain numbers and text")


def _header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    return header if isinstance(header, dict) else {}


def _array(data: bytes) -> NDArray[Any]:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


def _digest(members: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(members):
        total.update(f"{name} {len(members[name])} ".encode())
        total.update(members[name])
    return total.hexdigest()
