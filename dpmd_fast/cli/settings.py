"""Small JSON files that options name: bounds, noise, preprocessors."""

from __future__ import annotations

import json
from typing import Any

_MOST_BYTES = 1 << 24  # parsed JSON takes up to 25 times as much


def read_json(path: str) -> Any:
    """Return what a JSON file holds; None if it is too large or is not JSON."""
    with open(path, "rb") as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        return None
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or an abyss of brackets
        return None
