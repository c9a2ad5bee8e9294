"""npu_moe_finalize_routing on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given
from npusim.ops.npu_moe_finalize_routing.contract import DROPPED

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """`(tokens, width)` of the type of expanded_permuted_rows."""
    expanded_permuted_rows, experts = given.expanded_permuted_rows, given.export_for_source_row
    skip1, skip2, bias, scales = given.skip1, given.skip2, given.bias, given.scales
    dtype = expanded_permuted_rows.dtype
    # float16 and float32 are calculated in their own type, bfloat16 in float32.
    wide = dtype if dtype in (np.float16, np.float32) else np.dtype(np.float32)
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1]).astype(wide)
    choices = given.k if scales is None else scales.shape[1]
    where = given.expanded_src_to_dst_row
    if given.drop_pad_mode in (0, 1):
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
            if bias is not None:
                term = term + bias.astype(wide)[experts[:, choice]]
            elif wide == dtype:
                term = term + wide.type(0)
            if scales is not None:
                term = term * scales[:, choice : choice + 1].astype(wide)
            term = np.where(where[:, choice : choice + 1] == DROPPED, wide.type(0), term)
            total = term if total is None else total + term
        assert total is not None
        return np.asarray(total.astype(dtype))
