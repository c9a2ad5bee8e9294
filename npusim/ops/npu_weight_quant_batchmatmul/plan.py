"""What the kernels have in common: their plans, the weight, workspaces and rings of slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from npusim.data.dtypes import FLOAT32, INT4, INT8
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.isa import Duplicate
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.plane import REPEAT
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops import _protocol
from npusim.ops._dequantised_weight import MatrixTile, QuantisedWeight
from npusim.ops.npu_weight_quant_batchmatmul.check import Problem

__all__ = [
    "OP",
    "Plan",
    "RingSlot",
    "Zeros",
    "bindings",
    "chosen",
    "gm_weight",
    "output_view",
    "quantised_weight",
    "rectangles",
    "ring_slot",
    "vector_view",
    "workspace_bytes",
]

OP = "npu_weight_quant_batchmatmul"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Which kernel runs, why, and on how many cores; each template adds its own sizes."""

    template: str
    form: str
    """Which of the template's kernels; empty where it has one."""
    reason: str
    is_mix: bool
    workspaces: dict[str, int]


def chosen(p: Problem) -> dict[str, Any]:
    """What every plan says of the choice of its kernel."""
    return {"template": p.choice.template, "form": p.choice.form, "reason": p.choice.reason}


# ---- tensors ----


def gm_weight(p: Problem) -> GmMatrix:
    """The weight element by element: an int32 holds eight int4."""
    f = p.traits
    rows, columns = (f.n, f.k) if f.trans_weight else (f.k, f.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
    dtype = INT8 if f.weight == "int8" else INT4
    return GmMatrix("weight", dtype, rows, columns, not f.trans_weight, layout)


def quantised_weight(p: Problem) -> QuantisedWeight:
    """The weight, and what vector cores dequantise it with."""
    f, matrix = p.traits, gm_weight(p)
    groups = ceil_div(f.k, f.group_size) if f.group_size else 1
    shape = (groups, f.n) if matrix.k_is_first else (f.n, groups)
    is_single = p.antiquant_scale.spec.size == 1

    def view(operand: Operand | None) -> GmView | None:
        if operand is None:
            return None
        if is_single:
            return GmView.vector(operand.name, operand.element, 1)
        return GmView.of(operand.name, operand.element, *shape)

    parameters = view(p.antiquant_offset), view(p.antiquant_scale)
    return QuantisedWeight(matrix, f.k, f.n, f.group_size, *parameters, is_single)


def output_view(p: Problem) -> GmView:
    """All of the output, `(m, n)`."""
    return GmView.of("output", p.output.element, p.traits.m, p.traits.n)


def vector_view(p: Problem, operand: Operand | None) -> GmView | None:
    """An operand that has an element for each column, `(n,)`, if it is given."""
    return None if operand is None else GmView.vector(operand.name, operand.element, p.traits.n)


def workspace_bytes(*views: GmView | None) -> dict[str, int]:
    """Name -> bytes of the workspaces that *views* make up."""
    found: dict[str, int] = {}
    for view in views:
        if view is not None:
            found[view.name] = found.get(view.name, 0) + view.nbytes
    return found


def bindings(p: Problem, plan: Plan) -> dict[str, Binding]:
    """Inputs, output and workspaces, each under its own name."""
    names = [*(operand.name for operand in p.inputs), "output", *plan.workspaces]
    return {name: Binding(name) for name in names}


# ---- shares ----


class RingSlot(NamedTuple):
    """What a step uses of a ring, which is filled and read half by half."""

    view: GmView
    waits: bool
    """Whether the step is the first in a half that was filled before: it must have been read."""
    releases: bool
    """Whether the step is the last in a half that is filled again: its readers set a flag."""


def ring_slot(ring: GmView, slots: int, index: int, count: int) -> RingSlot:
    """What step number *index* of *count* uses of *ring*: *slots* of them, below each other."""
    # (slots x rows, columns): slots are stacked, used in turn
    half, rows = slots // 2, ring.rows // slots
    top = index % slots * rows
    return RingSlot(
        view=ring[top : top + rows, :],
        waits=index >= slots and index % half == 0,
        releases=(index + 1) % half == 0 and index + 1 + half < count,
    )


def rectangles(
    shape: tuple[int, int], core: tuple[int, int], base: tuple[int, int]
) -> tuple[tuple[MatrixTile, ...], ...]:
    """The base tiles of each core; all sizes are `(m, n)`, cores and tiles along n come first.

    >>> [len(tiles) for tiles in rectangles((16, 200), (16, 128), (16, 64))]
    [2, 2]
    """
    return tuple(
        tuple(
            MatrixTile(row, column, min(base[0], bottom - row), min(base[1], right - column))
            for row in range(top, bottom, base[0])
            for column in range(left, right, base[1])
        )
        for top in range(0, shape[0], core[0])
        for left in range(0, shape[1], core[1])
        for bottom, right in [(min(top + core[0], shape[0]), min(left + core[1], shape[1]))]
    )


# ---- sums that cores add up in global memory ----


class Zeros:
    """Fills float32 *name* of *count* elements with zeros: an even part for each of *cores*."""

    def __init__(self, core: VectorCore, name: str, count: int, cores: int, max_bytes: int) -> None:
        """*max_bytes* of zeros are stored at a time."""
        self.core, self._sums = core, GmView.vector(name, FLOAT32, count)
        # (count,) fp32, an equal part of whole repeats for each core
        self._part = align_up(ceil_div(count, cores), REPEAT)
        self._zeros = core.tile(FLOAT32, min(self._part, max_bytes // FLOAT32.nbytes(1)))

    def write(self, index: int) -> None:
        """Fill the part of vector core number *index*."""
        part = self._sums[:, index * self._part : (index + 1) * self._part]
        if part.columns:
            repeat(self.core, self._fill)
        # The same zeros are stored again and again: nothing overwrites them.
        for first, count in pieces(part.columns, self._zeros.count):
            repeat(self.core, self._store, part[:, first : first + count])

    def _fill(self) -> None:
        self.core.emit(Duplicate(self._zeros, 0.0))
        self.core.sync("vector", "mte3")

    def _store(self, sums: GmView) -> None:
        self.core.data_copy(sums.operand, self._zeros[: sums.columns])
