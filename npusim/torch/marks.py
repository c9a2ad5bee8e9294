"""`torch.npu.mstx`: marks for the vendor's profiler, which are ignored here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

__all__ = ["mstx"]


class mstx:  # noqa: N801
    """Marks and ranges of a script."""

    _numbers = count(1)

    @staticmethod
    def mark(message: str = "", stream: object = None, domain: str = "default") -> None:
        """Mark a point in time."""

    @staticmethod
    def range_start(message: str, stream: object = None, domain: str = "default") -> int:  # noqa: ARG004
        """Begin a range; returns its number."""
        return next(mstx._numbers)

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """End the range with the number *range_id*."""

    @staticmethod
    def mstx_range(
        message: str,  # noqa: ARG004
        stream: object = None,  # noqa: ARG004
        domain: str = "default",  # noqa: ARG004
    ) -> Callable[[Callable[..., object]], Callable[..., object]]:
        """A decorator that marks each call as a range."""
        return lambda call: call
