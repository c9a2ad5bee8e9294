"""What tests of npu_grouped_matmul have in common."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from npusim import Code, OpError, devices, run
from npusim.data.dtypes import pack_int4

OP = "npu_grouped_matmul"
A2, A3 = "ascend910b2", "ascend910_9391"


def packed(numbers: Any) -> Any:
    """int4 `(..., rows, columns)`, eight to an int32."""
    words = pack_int4(np.ascontiguousarray(numbers)).view(np.int32)
    return words.reshape(*numbers.shape[:-1], -1)


def assert_refused(call: dict[str, Any], message: str, code: Code) -> None:
    """*call* ends with *message*, which names the series of an Atlas A2, on both lines of chips."""
    for device in (A2, A3):
        said = f"{OP}: {message} [{code.value}]".replace("Atlas A2", devices.load(device).series)
        with pytest.raises(OpError, match=f"^{re.escape(said)}$"):
            run(OP, **call, device=device, timing=False)
