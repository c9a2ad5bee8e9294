"""What is written as JSON."""

from __future__ import annotations

from typing import Any

__all__ = ["Json"]

Json = dict[str, Any]
"""An object of JSON: key -> a value, a list, or an object in it."""
