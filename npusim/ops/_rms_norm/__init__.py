"""Parts shared by operators that scale rows by their root mean square.

.. code-block:: text

    r = 1 / sqrt(mean(x * x) + epsilon)
    y = x * r * gamma

Pages import this as `norm`: the checks of a call, the choice of the template, the rows of each core
and their steps, and the sums in plain numpy. ``core`` has the core that the kernels are written
for.

Sources: ops-nn@e5c3fa9 norm/rms_norm, norm/add_rms_norm, norm/add_rms_norm_quant and
norm/add_rms_norm_dynamic_quant, their op_kernel and op_host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npusim.data.dtypes import Array, dtype_of
from npusim.data.errors import Code, shown
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    FLOAT32,
    FLOATS_PER_REPEAT,
    Block,
    DType,
    GmView,
    GmViews,
    Step,
)
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.rows import parts_of
from npusim.ops import _vocabulary as ops
from npusim.ops._rms_norm.core import NormCore

# ---- rows of each core; no row is shared by cores, and none depends on another one ----

CORES, UB_BYTES = 48, 196_352
"""Vector cores of Ascend910B2, and the bytes of the unified buffer that kernels may use: 192 KiB
less 256 bytes (platform_ascendc.cpp of the toolkit)."""

RESERVED_BYTES = 1024
"""Bytes of it that the vendor's tiling does not use, except for dynamic quantisation."""


WHOLE_ROW, WHOLE_ROW_FLOAT32 = 12288, 10240
"""Elements of the longest row that is processed whole ({rms,add_rms}_norm_tiling.cpp)."""


def whole_row(element: DType) -> int:
    """Elements of the longest row of *element* that is processed whole."""
    return WHOLE_ROW_FLOAT32 if element is FLOAT32 else WHOLE_ROW


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a chip that the tiling uses."""

    cores: int
    """The vector cores of 310P besides its AI cores are not used: assumed, as for other kernels
    there (asc-devkit, GetCoreNumAiv.md)."""
    ub_bytes: int
    is_310p: bool

    @staticmethod
    def of(spec: DeviceSpec | None) -> Machine:
        """The machine of *spec*, or of an Ascend910B2."""
        if spec is None:
            return Machine(CORES, UB_BYTES, is_310p=False)
        core = spec.cores[spec.vector_kinds[0]]
        return Machine(core.count, core.usable_bytes("ub"), is_310p=spec.arch == "2002")


@dataclass(frozen=True, slots=True)
class Template:
    """One of the vendor's kernels, applied to a call."""

    name: str
    reason: str
    """Why it is selected for the calls that it can run."""
    fits: bool
    """Whether it can run this one."""
    row_step: int
    """Rows that are loaded together, or whose per-row results are stored together."""
    column_step: int
    """Columns that are loaded together: all, unless rows are cut into pieces."""
    unit: int = 1
    """The rows of a core are a multiple of this."""
    room: int = 0
    """Columns for which the buffers of a row have room, or 0 for its own."""


def chosen(templates: tuple[Template, ...], asked: str | None) -> Template:
    """The first of *templates* that can run the call, or the one called *asked*."""
    for template in templates:
        if template.name == asked:
            return replace(template, reason="asked for")
    return next(template for template in templates if template.fits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own rows and processes them in steps."""

    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows of a step, if a core has that many; see :class:`Template`."""
    column_step: int
    """Columns that are loaded together."""
    room: int
    """Columns for which the buffers of a row have room: offsets depend on the longest row."""

    def parts(self, columns: int) -> tuple[slice, ...]:
        """The pieces of a row of *columns*."""
        return parts_of(columns, self.column_step)


def planned(templates: tuple[Template, ...], spec: DeviceSpec, p: Problem) -> Plan:
    """The plan of the template for *p*: equally many rows per core, with the rest on the last."""
    taken = chosen(templates, p.asked)
    each = align_up(ceil_div(p.rows, Machine.of(spec).cores), taken.unit)
    full, left = divmod(p.rows, each)
    rows_of_core = (each,) * full + ((left,) if left else ())
    return Plan(
        block_dim=len(rows_of_core),
        template=taken.name,
        reason=taken.reason,
        rows_of_core=rows_of_core,
        row_step=taken.row_step,
        column_step=taken.column_step,
        room=taken.room or taken.column_step,
    )


def element_of(tensor: Operand | Array) -> DType:
    """The type of the elements of *tensor*."""
    found = tensor.element if isinstance(tensor, Operand) else dtype_of(tensor)
    assert found is not None
    return found


# ---- checks of a call ----

PAIR = {"x1": "*rows columns", "x2": "*rows columns"}
"""The sizes of two tensors that are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x is `(rows, columns)` in the kernel, gamma is `(columns,)`."""

    x: Operand
    """x, or the first of the two that are added."""
    gamma: Operand
    epsilon: float
    """In fp32."""
    asked: str | None
    """The kernel that the caller selected."""

    @property
    def columns(self) -> int:
        return prod(self.gamma.shape)

    @property
    def rows(self) -> int:
        return self.x.spec.size // self.columns

    @property
    def mean(self) -> float:
        """`1 / columns` in fp32, by which the kernels multiply instead of dividing."""
        return float(np.float32(1) / np.float32(self.columns))

    def matrix(self, name: str) -> GmView:
        """Tensor *name*, of the type of x, in global memory: `(rows, columns)`."""
        return GmView.of(name, self.x.element, self.rows, self.columns)


def vector_of(operand: Operand) -> GmView:
    """*operand* in global memory, as one row."""
    return GmView.vector(operand.name, operand.element, operand.spec.size)


def root_shape(x: Any, gamma: Any) -> tuple[Any, ...]:
    """The shape of 1 / root: that of *x*, with 1 for each dimension of *gamma*."""
    rank = len(gamma.shape)
    return (*x.shape[: len(x.shape) - rank], *(1,) * rank)


def epsilon_of(contract: ops.Contract, least: str = ">= 0") -> float:
    """epsilon as passed to the kernel, in fp32; *least* is `>= 0`, `> 0`, or empty for any."""
    epsilon = contract.value("epsilon")
    with np.errstate(over="ignore"):
        found = float(np.float32(epsilon))
    holds = {">= 0": found >= 0, "> 0": found > 0, "": True}[least]
    contract.require(
        holds,
        f"epsilon must be {least}, not {shown(epsilon)}; pass one such as 1e-6",
        Code.TILING_ERROR,
    )
    return found


def check_gamma(
    contract: ops.Contract, x: Operand, gamma: Operand, *, code: Code = Code.TILING_ERROR
) -> None:
    """The shape of gamma is that of the last dimensions of *x*."""
    rank = len(gamma.shape)
    contract.require(
        1 <= rank <= len(x.shape),
        f"gamma must have 1 to {len(x.shape)} dimensions like {x.name}, not shape {gamma.shape}; "
        f"reshape it",
    )
    wanted = x.shape[len(x.shape) - rank :]
    contract.require(
        gamma.shape == wanted,
        f"gamma must have the shape of the last dimensions of {x.name}, {wanted}, not "
        f"{gamma.shape}; pass a number for each of their elements",
        code,
    )


def template_of(contract: ops.Contract, templates: tuple[Template, ...]) -> str | None:
    """The template that the caller selected, one of *templates* that can run, or None."""
    asked, spec = contract.value("template"), contract.spec
    if asked is None:
        return None
    if spec.arch == "2002":
        contract.fail(
            f"template must be None on {spec.series}, where rows and types decide, not "
            f"{shown(asked)}; leave it out"
        )
    found = [each for each in templates if isinstance(asked, str) and each.name == asked]
    if not found:
        names = ops.listed(tuple(each.name for each in templates))
        contract.fail(
            f"template must be {names} on Atlas A2 and Atlas A3, not {shown(asked)}; leave it out "
            f"to get the vendor's choice"
        )
    contract.require(
        found[0].fits,
        f"template must name a kernel that can take the call, not {asked!r} ({found[0].reason}); "
        f"leave it out to get the vendor's choice",
    )
    return found[0].name


# ---- launches ----


class Kernel(NamedTuple):
    """The stages of a template."""

    group: Callable[..., None]
    """The steps for some rows."""
    begin: Callable[[], None] | None = None
    """The steps before the first row of a core."""


Templates = Mapping[str, Callable[[NormCore, Any, Plan], Kernel]]
"""Name -> the function that writes the kernel for a problem and its plan."""


def launch_rows(
    op: str,
    templates: Templates,
    spec: DeviceSpec,
    p: Problem,
    plan: Plan,
    *views: GmView,
    by_core: tuple[GmView, ...] = (),
) -> tuple[Block, ...]:
    """A block for each core, whose kernel one of *templates* writes.

    It gets *views* cut to the rows of a step, vectors to their elements; then those *by_core*, of
    which each core has an equal number of rows.
    """
    core = NormCore(op, spec, p.mean, p.epsilon)
    kernel = templates[str(plan.template)](core, p, plan)
    pieces = RowPieces.of(plan.rows_of_core, plan.row_step)
    arguments = [pieces.views(view) for view in views]
    for view in by_core:
        rows = view.rows // plan.block_dim
        arguments.append(GmViews.of(view, pieces.core * rows, 0, rows, view.columns))
    return core.launch(Step(kernel.group, tuple(arguments), pieces.core), begin=kernel.begin)


# ---- oracle: rows along the last axis, fp32 throughout, each operation rounded once ----


def lanes_sum(values: Array) -> Array:
    """`(...,)` from `(..., n)`: 64 running sums, then a tree of them."""
    *outer, columns = values.shape
    sums = np.zeros((*outer, FLOATS_PER_REPEAT), np.float32)
    for start in range(0, columns, FLOATS_PER_REPEAT):
        part = values[..., start : start + FLOATS_PER_REPEAT]
        sums[..., : part.shape[-1]] = part + sums[..., : part.shape[-1]]
    return _tree(sums)


def halving_sum(values: Array) -> Array:
    """`(...,)` from `(..., n)`: the upper half onto the lower one down to 64, then a tree.

    The first half is the largest power of two in n.
    """
    *outer, columns = values.shape
    if columns <= FLOATS_PER_REPEAT:
        sums = np.zeros((*outer, FLOATS_PER_REPEAT), np.float32)
        sums[..., :columns] = values
        return _tree(sums)
    half = 1 << (columns.bit_length() - 1)
    sums = values[..., :half].copy()
    sums[..., : columns - half] += values[..., half:]
    while half > FLOATS_PER_REPEAT:
        half //= 2
        sums = sums[..., :half] + sums[..., half:]
    return _tree(sums)


def root_of_rows(
    values: Array,
    epsilon: float,
    template: Template,
    add: Callable[[Array], Array],
    *,
    scales_squares: bool,
) -> Array:
    """`1 / sqrt(mean(values * values) + epsilon)`, `(...,)` from `(..., n)`.

    The sum is `((0 + a) + b) + ...` of the results of *add* for the columns that *template* loads
    together. Each square is multiplied by 1 / n (*scales_squares*), or the sum is.
    """
    *outer, columns = values.shape
    mean, squares = np.float32(1) / np.float32(columns), values * values
    if scales_squares:
        squares = squares * mean
    total = np.zeros(outer, np.float32)
    for start in range(0, columns, template.column_step):
        total = total + add(squares[..., start : start + template.column_step])
    if not scales_squares:
        total = total * mean
    return np.asarray(np.float32(1) / np.sqrt(total + np.float32(epsilon)))


def _tree(sums: Array) -> Array:
    """Add neighbours, then neighbouring sums, and so on: `(...,)` from `(..., 64)`."""
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return np.asarray(sums[..., 0])
