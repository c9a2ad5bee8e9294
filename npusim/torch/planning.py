"""Settings of plans without values: the memory of several cards, and the choice of experts.

::

    memory_bytes("8x64GiB")         # 549755813888
    shares_of("experts.json")       # (3.0, 1.0, 1.0, 1.0), from a file with [3, 1, 1, 1]
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npusim.data.files import content

__all__ = ["PlanError", "memory_bytes", "shares_of"]

UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}
MOST_BYTES = 1 << 16
"""Most bytes of a file with a list of experts."""
_MEMORY = re.compile(r"(?:(\d+)x)?(\d+)(GiB|MiB)")


class PlanError(ValueError):
    """A plan cannot be read."""


def memory_bytes(text: str) -> int:
    """The bytes of *text*, such as 64GiB or 8x64GiB. Raises PlanError."""
    found = _MEMORY.fullmatch(text) if isinstance(text, str) else None
    if found is None or not int(found[2]) * int(found[1] or 1):
        raise PlanError(
            f"npusim.torch: memory must be cards times GiB, not {text!r}; write for example 8x64GiB"
        )
    cards, size, unit = found.groups()
    return int(cards or 1) * int(size) * UNITS[unit]


def shares_of(experts: str | os.PathLike[str] | Sequence[float]) -> tuple[float, ...]:
    """The relative frequency of each expert, from a list or a JSON file with a list.

    Raises PlanError.
    """
    found: Any = experts
    if isinstance(experts, str | os.PathLike):
        try:
            found = json.loads(content(Path(experts), MOST_BYTES))
        except (OSError, ValueError) as error:
            raise PlanError(
                f"npusim.torch: experts must name a file of JSON, not {experts}, which cannot be "
                f"read: {error}; write a list of numbers into it, one for each expert"
            ) from None
    is_list = isinstance(found, list | tuple) and len(found) > 0
    if not is_list or not all(map(_is_share, found)) or not sum(found):
        raise PlanError(
            f"npusim.torch: experts must be a list of numbers from 0 on, one for each expert and "
            f"one of them larger than 0, not {found!r}; write for example [3, 1, 1, 1]"
        )
    return tuple(map(float, found))


def _is_share(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf
