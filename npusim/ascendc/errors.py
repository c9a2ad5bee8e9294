"""What can be wrong with a source of Ascend C, with its call, and with what it does."""

from __future__ import annotations

__all__ = ["AscendCError", "CompileError", "CrashError", "StuckError"]


class AscendCError(ValueError):
    """A source cannot be found, compiled or called, or does what no core can do."""


class CompileError(AscendCError):
    """The compiler refuses a source, or there is no compiler."""


class CrashError(AscendCError):
    """The C++ of a kernel crashed."""


class StuckError(AscendCError):
    """A kernel does not come to an end."""
