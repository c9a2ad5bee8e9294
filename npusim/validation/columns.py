"""The meaning of the columns of a measured row: sizes, tensors, and the state of the caches."""

from __future__ import annotations

import re

from npusim import devices
from npusim.chip import L2State
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import ICache
from npusim.timing.memory import WHOLE, resident_share
from npusim.validation.rows import Row, RowError
from npusim.validation.turns import TURNS, Turns

__all__ = [
    "batches",
    "bias_dtype",
    "icache_of",
    "l2_of",
    "operands",
    "rows_of",
    "shapes",
    "size",
    "sizes",
    "weight_of",
]

COPIES = 6
"""Copies of the weights, used in turn: hudingyi688/aiconfigurator-npu@90d7765, its benchmark."""
TRACED = "docs/profiler_alignment"
"""A source with traces of a whole model, where other kernels run in between."""
PROFILED = "kernel_details.csv"
"""The same for tables that torch_npu's profiler writes."""
TRANSPOSED = ("matmul_bf16_910b", "wqbmm_310p")
"""Families whose weight is stored as `[N, K]` although their notes do not say so."""
SHORT = {"fp16": "float16", "bf16": "bfloat16"}


def size(row: Row, column: str) -> int:
    """The number in *column*; raises RowError if the cell is empty."""
    found: int | None = getattr(row, column)
    if found is None:
        raise RowError(
            f"validate: row {row.id}: {column} must be given for {row.op}, not empty; fill the cell"
        )
    return found


def sizes(row: Row) -> tuple[int, int, int]:
    """m, k and n of a product."""
    return size(row, "m"), size(row, "k"), size(row, "n")


def batches(row: Row) -> tuple[int, ...]:
    """The batch dimension before those of the matrix, if there are several matrices."""
    return () if row.b in (None, 1) else (size(row, "b"),)


def rows_of(row: Row, columns: str, dtype: str) -> TensorSpec:
    """The activations, `(m, columns)` per batch."""
    return TensorSpec((*batches(row), size(row, "m"), size(row, columns)), dtype)


def weight_of(row: Row, dtype: str) -> TensorSpec:
    """The weight, `(k, n)` per batch for the operator."""
    _, k, n = sizes(row)
    layout = "FRACTAL_NZ" if row.w_layout == "NZ" else "ND"
    says = "[N,K]" in row.note or "[K,N]" in row.note
    if "[N,K]" in row.note or (not says and row.family in TRANSPOSED):
        return TensorSpec((*batches(row), n, k), dtype, layout).T
    return TensorSpec((*batches(row), k, n), dtype, layout)


def bias_dtype(row: Row) -> str:
    """The last dtype that the note lists."""
    listed = row.note.rpartition(";")[2].strip().split("/")
    if len(listed) < 2:
        return "int32" if row.x_dtype == "int8" else row.x_dtype
    return listed[-1]


def icache_of(row: Row) -> ICache | None:
    """Whether the instruction caches hold the kernel: not if others run in between, and None if
    that depends on the other kernel.
    """
    if row.l2 == "flushed":
        return None
    others_run = any(word in row.source for word in (TRACED, PROFILED))
    return "cold" if others_run or " + " in row.op else "warm"


def l2_of(row: Row, weight: TensorSpec | None = None, *names: str) -> L2State | Turns:
    """The contents of the L2 at launch; *names* are those of the *weight* and of the activations;
    without a weight, all are activations.
    """
    if row.op == "clone" and TRACED in row.source:
        return "served"
    if row.l2 == "warm":
        return "repeat"
    if row.l2 in TURNS:
        return row.l2
    if not row.l2.startswith("weights cold"):
        return "cold"
    if weight is None:
        return "repeat"
    name, *activations = names
    share = 0
    if row.l2 == "weights cold":
        # All copies of the weights are used between two uses of one copy.
        share = resident_share(COPIES * weight.nbytes, devices.load(row.device))
    if share == WHOLE:
        return "warm"
    return {name: share / WHOLE} | dict.fromkeys(activations, 1.0) if share else tuple(activations)


def shapes(row: Row) -> tuple[tuple[int, ...], ...]:
    """The shapes in the column, `3x4 , 3x4` for two inputs; raises RowError."""
    texts = row.shape.split(" , ")
    if not all(re.fullmatch(r"\d+(x\d+)*", text) for text in texts):
        raise RowError(
            f"validate: row {row.id}: shape must be sizes such as 3x4 , 3x4 for {row.op}, "
            f"not {row.shape!r}; fix the cell"
        )
    return tuple(tuple(int(extent) for extent in text.split("x")) for text in texts)


def operands(row: Row) -> list[TensorSpec]:
    """The tensors of the column shape: all of the first type unless each has a type."""
    sizes, names = shapes(row), row.x_dtype.split("/")
    if len(names) != len(sizes):
        names = names[:1] * len(sizes)
    layouts = ["FRACTAL_NZ" if row.w_layout == "NZ" else "ND"] + ["ND"] * (len(sizes) - 1)
    return [
        TensorSpec(shape, SHORT.get(name, name), layout)
        for shape, name, layout in zip(sizes, names, layouts, strict=True)
    ]
