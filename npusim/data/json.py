"""Writing JSON."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["Json", "json_text"]

Json = dict[str, Any]
"""A JSON object: key -> a value, a list, or a nested object."""


def json_text(value: object) -> str:
    """*value* as JSON text, the same bytes for the same value."""
    # The only control character that json does not escape.
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
