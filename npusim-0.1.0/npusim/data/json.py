"""What is written as JSON."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["Json", "json_text"]

Json = dict[str, Any]
"""An object of JSON: key -> a value, a list, or an object in it."""


def json_text(value: object) -> str:
    """*value* as JSON text, the same bytes for the same value."""
    # The one control character that json leaves as it is.
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")
