"""The errors that a user of a card would see, with CANN's codes for them."""

from __future__ import annotations

import sys
from enum import IntEnum

import numpy as np

__all__ = [
    "Code",
    "DocumentWarning",
    "OpError",
    "SlowEngineWarning",
    "TrapError",
    "callers_level",
    "shown",
]

MOST_SHOWN = 80
"""Most characters of a value that a message repeats, so that the rest stays readable."""


class Code(IntEnum):
    """Return codes of aclnn and of the runtime (public CANN headers and issue threads)."""

    NULL_POINTER = 161001
    """ACLNN_ERR_PARAM_NULLPTR: a required tensor is missing."""

    INVALID_PARAMETER = 161002
    """ACLNN_ERR_PARAM_INVALID: a dtype, shape or attribute is outside the contract."""

    INNER_ERROR = 561000
    """ACLNN_ERR_INNER: a function of aclnn that only later chips have."""

    TILING_ERROR = 561002
    """ACLNN_ERR_INNER_TILING_ERROR: the kernel's tiling refuses a call that aclnn accepts."""

    OUT_OF_MEMORY = 207001
    """ACL_ERROR_RT_MEMORY_ALLOCATION: the tensors do not fit into global memory."""

    UNSUPPORTED = 361001
    """ACLNN_ERR_RUNTIME_ERROR: the chip has no such kernel, or npusim does not simulate it."""

    AICORE_EXCEPTION = 507015
    """ACL_ERROR_RT_AICORE_EXCEPTION: the kernel stopped itself while running."""


class OpError(RuntimeError):
    """An operator refused its input, or trapped while running.

    The message has the form *who: what must hold, not what came; what to do.*
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{message} [{code.value}]")
        self.code = code
        """The CANN code that the card would report."""


class DocumentWarning(UserWarning):
    """A call is accepted although the vendor's document excludes it."""


class HazardWarning(UserWarning):
    """The flags of a kernel leave something uncertain, but harmless."""


class SlowEngineWarning(UserWarning):
    """Times come from the slower engine, since the compiled one was not built."""


def callers_level() -> int:
    """The `stacklevel` at which a warning of the caller names the line outside npusim and torch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    return level


def _is_inside(module: str | None) -> bool:
    # Code compiled by torch is in no module.
    return module is None or module.partition(".")[0] in ("npusim", "torch")


class TrapError(Exception):
    """A kernel executed `trap`: the core stops, and the host sees it at the next sync."""


def shown(value: object) -> str:
    """*value* as a message names it: one short line in any case.

    >>> shown("qint8"), shown(np.zeros((2, 3), np.int8)), shown("a" * 100)[-5:]
    ("'qint8'", 'an array of int8 (2, 3)', 'aa...')
    """
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    try:
        line = " ".join(repr(value).split())
    except Exception:
        # Some objects fail to describe themselves, and Python refuses to print very long integers.
        return f"some {type(value).__name__}"
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 3]}..."
