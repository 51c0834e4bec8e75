"""Where a store is: a folder of this machine, an fsspec URL, or a place in a Zarr store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import StoreError


def local_path(where: Any) -> Path | None:
    """The folder of a store, or None where it is not on a file system of this machine."""
    if isinstance(where, Path):
        return where.expanduser()
    if isinstance(where, str):
        if where.startswith("file://"):
            where = where.removeprefix("file://")
        if "://" not in where and "::" not in where:
            return Path(where).expanduser()
    return None


def child(where: Any, name: str) -> Any:
    """A store inside a store."""
    from zarr.abc.store import Store
    from zarr.storage import StorePath

    local = local_path(where)
    if local is not None:
        return local / name
    if isinstance(where, Store):
        return StorePath(where, name)
    return where / name if isinstance(where, StorePath) else f"{str(where).rstrip('/')}/{name}"


def locate(where: Any, read_only: bool) -> tuple[Any, str, Path | None, str]:
    """The Zarr store, the path of the group in it, the local folder if any, and a name for messages."""
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, LocalStore, StorePath

    local = local_path(where)
    if local is not None:
        return LocalStore(local, read_only=read_only), "", local, str(local)
    if isinstance(where, Store):
        return where, "", None, str(where)
    if isinstance(where, StorePath):
        return where.store, where.path, None, str(where)
    if not isinstance(where, str):
        raise StoreError(f"store={where!r}: expected a path, a URL such as s3://bucket/name, or a Zarr store")
    try:
        return FsspecStore.from_url(where, read_only=read_only), "", None, where
    except ImportError as error:
        raise StoreError(f"store={where!r}: {error}") from None
    except (ValueError, OSError) as error:
        raise StoreError(f"store={where!r} cannot be opened: {error}") from None


def check_place(local: Path) -> None:
    """Refuse a folder that holds something else, before anything is put there."""
    if local.exists() and not local.is_dir():
        raise StoreError(f"store={str(local)!r} is a file; expected a folder, or a name that is not taken yet")
    if local.is_dir() and not (local / "zarr.json").exists():
        strange = [p.name for p in local.iterdir() if p.name != "K" and p.suffix != ".partial"]
        if strange or (local / "K" / "c").exists():
            held = ", ".join(sorted(strange)[:3]) if strange else "tiles, but no zarr.json that says of what"
            raise StoreError(
                f"store={str(local)!r} is a folder that cnngp did not make (it holds {held}); give a name that is not "
                "taken yet"
            )


def remove_leftovers(local: Path) -> None:
    """What a killed process was writing. Only under the lock: another process's would be in use."""
    for folder in (local, local / "K", *(local / "K" / "c").glob("*")):
        for path in folder.glob("*.partial"):
            with suppress(OSError):
                path.unlink()
