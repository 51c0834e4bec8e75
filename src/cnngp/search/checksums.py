"""Checksums of the records in a study, over what they say and not over how a database keeps it."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(content: Any) -> str:
    """Of what comes back from the file as it was put there: numbers as floats, which is how Optuna keeps them."""
    text = json.dumps(_comparable(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _comparable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(v) for v in value]
    return value if value is None or isinstance(value, (str, bool)) else float(value)
