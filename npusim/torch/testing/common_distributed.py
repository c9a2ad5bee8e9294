"""`torch_npu.testing.common_distributed`: how many cards a test needs."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from functools import wraps

from npusim.torch import npu

__all__ = ["skipIfUnsupportMultiNPU"]

Test = Callable[..., object]


def skipIfUnsupportMultiNPU(npu_number_needed: int) -> Callable[[Test], Test]:  # noqa: N802
    """Skips a test unless there are as many cards."""

    def decorated(test: Test) -> Test:
        @wraps(test)
        def only_there(*args: object, **kwargs: object) -> object:
            if npu.device_count() < npu_number_needed:
                raise unittest.SkipTest(
                    f"only with {npu_number_needed} cards; there are {npu.device_count()}"
                )
            return test(*args, **kwargs)

        return only_there

    return decorated
