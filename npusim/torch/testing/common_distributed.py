"""`torch_npu.testing.common_distributed`: skip tests that need several cards."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from functools import wraps

from npusim.torch import numbering

__all__ = ["skipIfUnsupportMultiNPU"]


def skipIfUnsupportMultiNPU(  # noqa: N802
    npu_number_needed: int,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Skip a test unless there are *npu_number_needed* cards: one for each process of torchrun."""

    def skipped(test: Callable[..., object]) -> Callable[..., object]:
        @wraps(test)
        def only_with_all(*args: object, **kwargs: object) -> object:
            if numbering.count() < npu_number_needed:
                raise unittest.SkipTest(f"needs {npu_number_needed} cards, not {numbering.count()}")
            return test(*args, **kwargs)

        return only_with_all

    return skipped
