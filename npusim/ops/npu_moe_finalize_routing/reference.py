"""npu_moe_finalize_routing on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops.npu_moe_finalize_routing.contract import DROPPED

__all__ = ["reference"]


def reference(
    expanded_permuted_rows: Array,
    skip1: Array | None,
    skip2: Array | None,
    bias: Array | None,
    scales: Array | None,
    expanded_src_to_dst_row: Array,
    export_for_source_row: Array | None,
    drop_pad_mode: int = 0,
    k: int = 1,
) -> Array:
    """`(tokens, width)` of the type of *expanded_permuted_rows*."""
    dtype = expanded_permuted_rows.dtype
    # float16 and float32 are calculated in their own type, bfloat16 in float32.
    wide = dtype if dtype in (np.float16, np.float32) else np.dtype(np.float32)
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1]).astype(wide)
    choices = k if scales is None else scales.shape[1]
    where = expanded_src_to_dst_row
    if drop_pad_mode in (0, 1):
        where = where.reshape(choices, -1).T
    where = where.reshape(-1, choices)
    total: Array | None = None
    with np.errstate(all="ignore"):
        if skip1 is not None:
            total = skip1.astype(wide)
            total = total if skip2 is None else total + skip2.astype(wide)
        for choice in range(choices):
            # Rows of all tokens, (tokens, width).
            term = rows[where[:, choice]]
            if bias is not None and export_for_source_row is not None:
                term = term + bias.astype(wide)[export_for_source_row[:, choice]]
            elif wide == dtype:
                term = term + wide.type(0)
            if scales is not None:
                term = term * scales[:, choice : choice + 1].astype(wide)
            term = np.where(where[:, choice : choice + 1] == DROPPED, wide.type(0), term)
            total = term if total is None else total + term
        assert total is not None
        return np.asarray(total.astype(dtype))
