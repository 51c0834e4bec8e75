"""The folder where a user's programs keep what they can make again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """The package's folder there. `RuntimeError` for a user without a home."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "cnngp"
