"""The errors that a user of a card would see, with the codes that CANN gives them."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Code", "OpError", "TrapError"]


class Code(IntEnum):
    """Return codes of aclnn and of the runtime (public CANN headers and issue threads)."""

    NULL_POINTER = 161001
    """ACLNN_ERR_PARAM_NULLPTR: a required tensor is missing."""

    INVALID_PARAMETER = 161002
    """ACLNN_ERR_PARAM_INVALID: a dtype, shape or attribute is outside the contract."""

    OUT_OF_MEMORY = 207001
    """ACL_ERROR_RT_MEMORY_ALLOCATION: the tensors do not fit into global memory."""

    UNSUPPORTED = 361001
    """ACLNN_ERR_RUNTIME_ERROR: the chip has no such kernel."""

    AICORE_EXCEPTION = 507015
    """ACL_ERROR_RT_AICORE_EXCEPTION: the kernel stopped itself while running."""


class OpError(RuntimeError):
    """An operator refused its input, or trapped while it ran.

    The message has the form *who: what must hold, not what came; what to do.*
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{message} [{code.value}]")
        self.code = code
        """Which CANN code the card would report."""


class TrapError(Exception):
    """A kernel executed `trap`: the core stops and the host learns of it at the next sync."""
