"""The arguments of a call of an operator."""

from __future__ import annotations

from typing import Any

__all__ = ["Arguments"]

Arguments = dict[str, Any]
"""Parameter -> what a call gives for it: an operand, a list of them, or an attribute's value."""
