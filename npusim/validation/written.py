"""Convert a measured call to a row, which :func:`npusim.validation.read` reads back."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from io import StringIO
from typing import Any

from npusim import ops
from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec
from npusim.validation.calls import KERNELS, timed
from npusim.validation.rows import Row, RowError
from npusim.validation.timed import Call, NotModelledError
from npusim.validation.words import columns_of

__all__ = ["row_of", "to_csv"]

PRODUCTS = ("matmul", "npu_quant_matmul", "npu_weight_quant_batchmatmul")


def row_of(call: Call, **measured: Any) -> Row | None:
    """The row of *call*, with what was *measured*; None if a row cannot describe it.

    The row is timed like *call*, except for the state of the caches.
    """
    columns = _columns(call)
    if columns is None:
        return None
    device = call.device if isinstance(call.device, str) else call.device.name
    row = Row(op=call.op, device=device, **{"l2": "unknown"} | columns | measured)
    try:
        kernels = timed(row)
    except (RowError, NotModelledError):
        return None
    found = kernels[0]
    same = isinstance(found, Call) and len(kernels) == 1 and _asked(found) == _asked(call)
    return row if same else None


def _asked(call: Call) -> tuple[object, ...]:
    # The vendor chooses the template.
    arguments = {name: value for name, value in _bound(call).items() if name != "template"}
    plain = {name: tuple(x) if isinstance(x, list) else x for name, x in arguments.items()}
    return call.op, plain


def _bound(call: Call) -> Arguments:
    bound = ops.signature(ops.load(call.op)).bind(*call.args, **call.options)
    bound.apply_defaults()
    return bound.arguments


def _columns(call: Call) -> dict[str, Any] | None:
    if call.op not in KERNELS:
        return columns_of(call.op, _bound(call))
    x = call.args[0]
    if not isinstance(x, TensorSpec):
        return None
    facts: dict[str, Any] = {"x_dtype": x.dtype}
    *batches, m, last = x.shape if len(x.shape) > 1 else (1, *x.shape)
    facts |= {"m": m, "b": batches[0] if batches else None}
    weight = call.args[1] if len(call.args) > 1 else None
    if call.op not in PRODUCTS or not isinstance(weight, TensorSpec):
        return facts | {"n": last}
    facts |= {"k": last, "n": weight.shape[-1], "w_dtype": weight.dtype}
    facts |= {"w_layout": "NZ" if weight.layout != "ND" else "ND"}
    facts["note"] = "weight [N,K]" if weight.transposed else "weight [K,N]"
    if x.transposed:
        facts["note"] += ", x [K,M]"
    facts["out_dtype"] = str(call.options.get("output_dtype", x.dtype))
    scale = call.args[2] if len(call.args) > 2 else None
    facts["scale_dtype"] = scale.dtype if isinstance(scale, TensorSpec) else ""
    facts["pertoken"] = "pertoken_scale" in call.options
    facts["antiquant_offset"] = "antiquant_offset" in call.options
    facts["bias"] = "bias" in call.options
    return facts


def to_csv(rows: Sequence[Row]) -> str:
    """*rows* as the text of a file."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Row))
    for row in rows:
        writer.writerow("" if cell is None else cell for cell in astuple(row))
    return text.getvalue()
