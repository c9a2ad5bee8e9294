"""What npu_format_cast accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32
from npusim.data.errors import shown
from npusim.data.integers import ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import LAYOUTS, Operand
from npusim.isa import BLOCK_BYTES
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, Row

__all__ = ["FORMATS", "SUPPORT", "Problem", "check"]

FORMATS: dict[Any, str] = {2: "ND", 29: "FRACTAL_NZ", "ND": "ND", "FRACTAL_NZ": "FRACTAL_NZ"}
"""acl_format -> layout."""
RANKS = (2, 6)
"""Of x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: `batch` matrices of `rows` x `row_bytes`, as they lie in memory."""

    x: Operand

    @property
    def is_done(self) -> bool:
        """Whether *x* is in the format already."""
        return self.x.spec.layout == self.output.layout

    @property
    def to_fractals(self) -> bool:
        return self.output.layout == "FRACTAL_NZ"

    @property
    def batch(self) -> int:
        return prod(self.x.shape[:-2])

    @property
    def rows(self) -> int:
        return self.x.shape[-1 if self.x.spec.transposed else -2]

    @property
    def row_bytes(self) -> int:
        return self.x.element.nbytes(self.x.shape[-2 if self.x.spec.transposed else -1])

    @property
    def fractals_m(self) -> int:
        """Fractals from top to bottom (m1)."""
        return ceil_div(self.rows, FRACTAL_ROWS)

    @property
    def fractals_n(self) -> int:
        """Columns of fractals (n1), each a block of 32 bytes."""
        return ceil_div(self.row_bytes, BLOCK_BYTES)


SUPPORT = (
    Row(on=A2_A3, x=Operands((FLOAT16, BFLOAT16, FLOAT32, INT8, INT32), LAYOUTS, RANKS)),
    Row(on=ATLAS_INFERENCE, x=Operands((FLOAT16, FLOAT32, INT8, INT32), LAYOUTS, RANKS)),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    found, acl_format = contract.matrix("x"), contract.value("acl_format")
    is_known = isinstance(acl_format, int | np.integer | str) and acl_format in FORMATS
    contract.require(
        is_known and not isinstance(acl_format, bool),
        f"acl_format must be 2 (ND) or 29 (FRACTAL_NZ), not {shown(acl_format)}; pass one of them",
    )
    layout = FORMATS[acl_format]
    if found.spec.layout == "ND" and layout != "ND":
        found = replace(found, spec=replace(found.spec, transposed=False))
    return Problem(inputs=(found,), outputs={"output": replace(found.spec, layout=layout)}, x=found)
