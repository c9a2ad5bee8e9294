"""What the contracts of the routing operators share."""

from __future__ import annotations

from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.errors import Code
from npusim.ops._contract import Contract, listed

__all__ = ["FLOATS", "one_of", "require_series"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""What tokens are made of (ops-transformer@c29bc10, moe)."""


def require_series(contract: Contract, kernel: str) -> None:
    """Refuse chips without vector cores of their own: ops-transformer has *kernel* for A2 and A3.

    The form of npu_moe_init_routing_v2 for 310P is another kernel, which is not simulated.
    """
    contract.require(
        contract.spec.series != "Atlas inference",
        f"the chip must have the kernel {kernel} of Atlas A2, not be one of "
        f"{contract.spec.series}; run on Atlas A2 or A3",
        Code.UNSUPPORTED,
    )


def one_of(contract: Contract, name: str, value: Any, choices: tuple[int, ...]) -> int:
    """An attribute that is one of a few whole numbers."""
    number = contract.integer(name, value)
    known = listed(tuple(map(str, choices)))
    contract.require(number in choices, f"{name} must be {known}, not {number}; pass {choices[0]}")
    return number
