"""acl.rt of pyACL. Memory of the simulated card has addresses of the host, and copies no time."""

from __future__ import annotations

import ctypes
from typing import NoReturn

from npusim.torch import card, shapes
from npusim.torch.clock import clock

__all__ = ["memcpy"]

SUCCESS, PARAM_INVALID = 0, 107000
"""Codes that functions return (CANN 8.1.RC1, acl/error_codes/rt_error_codes.h)."""


def memcpy(dst: int, dest_max: int, src: int, count: int, direction: int) -> int:  # noqa: ARG001
    """Copy *count* bytes from address *src* to *dst*, once the card has finished; returns a code.

    At most *dest_max* bytes may be written. A *direction* has no effect: there is one memory.
    """
    if not dst or not src or not 0 < count <= dest_max:
        return PARAM_INVALID
    if not card.computes_values():
        shapes.refuse("acl.rt.memcpy")
    clock.wait()
    ctypes.memmove(dst, src, count)
    return SUCCESS


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"module 'acl.rt' has no attribute {name!r}\nnpusim.torch: of acl.rt a script must call "
        f"memcpy alone, not {name}; do without it"
    )
