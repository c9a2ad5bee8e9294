"""Errors of an Ascend C source, of its call, and of its execution."""

from __future__ import annotations

__all__ = ["AscendCError", "CompileError", "CrashError", "StuckError"]


class AscendCError(ValueError):
    """A source cannot be found, compiled or called, or does something that no core can do."""


class CompileError(AscendCError):
    """The compiler rejects a source, or there is no compiler."""


class CrashError(AscendCError):
    """The C++ of a kernel crashed."""


class StuckError(AscendCError):
    """A kernel does not terminate."""
