"""The calls that npu_dynamic_quant and npu_dynamic_quant_asymmetric accept, and their split.

Both accept the same calls, except that kernels with several rows per instruction give no offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT4, INT8, INT32, Array, DType
from npusim.data.errors import Code, shown
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import share
from npusim.kernel.rows import balanced
from npusim.ops import _vocabulary as ops
from npusim.ops._dynamic_quant.choice import (
    IN_PARTS,
    PART_COLUMNS,
    UB_BYTES,
    Traits,
    asked_for,
    chosen,
)
from npusim.ops._row_groups import check_group_index, groups_by_end
from npusim.ops._row_quant import LARGEST, output_of
from npusim.ops._torch import Result, quantised
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row, present

TARGETS = {"int8": INT8, "quint4x2": INT4}
COLUMNS_310P = 32
"""Kernels of 310P accept rows in whole blocks of int8 (dynamic_quant_tiling_310P.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: `x` is `(rows, columns)` in the kernel."""

    x: Operand
    smooth_scales: Operand | None
    """`(columns,)`, or `(groups, columns)` with a group_index; None if no kernel reads them."""
    group_index: Operand | None
    """`(groups,)`: the end of each group's rows."""
    target: DType
    """int8 or int4."""
    asked: str | None
    """The kernel that the caller selected."""
    traits: Traits
    """The properties that decide which kernel runs the call."""

    @property
    def rows(self) -> int:
        return self.traits.rows

    @property
    def columns(self) -> int:
        return self.traits.columns

    @property
    def groups(self) -> int:
        """Groups of rows with their own smooth scales; 0 without a group_index."""
        return self.traits.groups

    @property
    def largest(self) -> int:
        """The quantised value of the largest magnitude of a row."""
        return LARGEST[self.target]

    @property
    def group_of(self) -> Array:
        """`(rows,)`: the group of each row."""
        assert self.group_index is not None
        return groups_by_end(self.group_index, self.rows)


SUPPORT = (
    *(
        Row(
            on=A2_A3,
            x=Operands((kind,), ranks=(2, 8)),
            smooth_scales=kind,
            group_index=INT32,
            dst_type=tuple(TARGETS),
        )
        for kind in (FLOAT16, BFLOAT16)
    ),
    Row(
        on=ATLAS_INFERENCE,
        x=Operands((FLOAT16,), ranks=(2, 8)),
        smooth_scales=FLOAT16,
        group_index=INT32,
        dst_type=("int8",),
    ),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    is_symmetric = contract.op == "npu_dynamic_quant"
    is_310p = contract.spec.series in ATLAS_INFERENCE
    tokens, smooth = contract.operand("x"), contract.optional("smooth_scales")
    index = contract.optional("group_index")
    _check_rows(contract, tokens)
    _check_modes(contract)
    if is_310p:
        # op-plugin's document calls them reserved.
        for operand in present(smooth, index):
            contract.warn(
                f"{operand.name} should be None on Atlas inference, where no kernel reads it; "
                f"leave it out"
            )
        smooth = index = None
    _check_smooth(contract, tokens, smooth, index)
    name = contract.value("dst_type")
    target = INT8 if name is None else TARGETS[contract.choice("dst_type")]
    output = output_of(contract, tokens, target, f"dst_type={name!r}")
    traits = _traits(contract.spec, tokens, smooth, index, target is INT4, is_symmetric)
    numbers = ("scale",) if is_symmetric else ("scale", "offset")
    of_rows = {name: TensorSpec(tokens.shape[:-1], "float32") for name in numbers}
    return Problem(
        inputs=present(tokens, smooth, index),
        outputs={"output": output} | of_rows,
        x=tokens,
        smooth_scales=smooth,
        group_index=index,
        target=target,
        asked=asked_for(contract, traits),
        traits=traits,
    )


def _traits(
    spec: DeviceSpec | None, x: Any, smooth: Any, index: Any, is_int4: bool, is_symmetric: bool
) -> Traits:
    """The properties that decide the kernel; without a *spec* on an Atlas A2."""
    return Traits(
        rows=prod(x.shape[:-1]),
        columns=x.shape[-1],
        smooth=smooth is not None,
        ub_bytes=UB_BYTES if spec is None else spec.cores[spec.vector_kinds[0]].usable_bytes("ub"),
        is_int4=is_int4,
        groups=0 if index is None else index.shape[0],
        is_symmetric=is_symmetric,
    )


def _check_rows(contract: ops.Contract, x: Operand) -> None:
    columns, is_310p = x.shape[-1], contract.spec.series in ATLAS_INFERENCE
    contract.require(
        columns > 0 or prod(x.shape[:-1]) == 0,
        f"the last dimension of x must not be empty where x has rows, not shape {x.shape}; "
        f"drop the rows",
    )
    contract.require(
        not is_310p or columns % COLUMNS_310P == 0,
        f"the last dimension of x must be a multiple of {COLUMNS_310P} on {contract.spec.series}, "
        f"not {columns}; pad it",
        Code.TILING_ERROR,
    )


def _check_modes(contract: ops.Contract) -> None:
    """Check newer parameters, which only later chips use."""
    quant_mode, dst_type_max = contract.value("quant_mode"), contract.value("dst_type_max")
    modes = ("pertoken", "pertensor", "perchannel")
    if quant_mode is not None:
        contract.choice("quant_mode", modes)
    contract.require(
        quant_mode in (None, "pertoken"),
        f"quant_mode must be pertoken, not {quant_mode!r}, which only Ascend950 has; leave it out",
        Code.INNER_ERROR,
    )
    contract.require(
        not dst_type_max,
        f"dst_type_max must be 0.0, not {shown(dst_type_max)}: only Ascend950 takes another "
        f"largest number; leave it out",
        Code.INNER_ERROR,
    )


def _check_smooth(
    contract: ops.Contract, x: Operand, smooth: Operand | None, index: Operand | None
) -> None:
    columns = x.shape[-1]
    if smooth is None:
        contract.require(
            index is None,
            "smooth_scales must be given with a group_index, not None; pass a row for each group",
        )
        return
    if index is None:
        contract.require(
            smooth.shape == (columns,),
            f"smooth_scales must have shape ({columns},) like the last dimension of x, not "
            f"{smooth.shape}; pass a scale for each column",
        )
        return
    check_group_index(contract, index)
    wanted = (index.shape[0], columns)
    contract.require(
        smooth.shape == wanted,
        f"smooth_scales must have shape {wanted}, a row for each group, not {smooth.shape}; "
        f"pass a scale for each group and column",
        Code.TILING_ERROR,
    )
    # The kernel searches for the group of a row, past the last entry if there is none.
    rows, most = prod(x.shape[:-1]), None if index.array is None else index.array.max()
    contract.require(
        most is None or most >= rows,
        f"group_index must end with the number of rows of x, {rows}, not with {most}; pass the end "
        f"row of each group",
    )


# ---- tiling: ops-nn@e5c3fa9 quant/dynamic_quant/op_host ----

COUPLED_PART_COLUMNS = 4096
"""310P processes longer rows in parts of this many columns (dynamic_quant_tiling_310P.cpp)."""
PATCH_UNIT, PATCH_RESERVED_BYTES, WRAPS_FROM = 8, 10240, 747
"""Limits of the rows that 310P loads together, from the same file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own rows and processes them in pieces."""

    template: str
    reason: str
    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together."""
    column_step: int
    """Columns that are loaded together: all, unless rows are too long for the buffer."""
    depth: int
    """Depth of x: 1 loads and computes alternately, 2 at the same time."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers like the vendor; only cores with work are started.

    ops-nn@e5c3fa9 quant/dynamic_quant/op_host/dynamic_quant_tiling.cpp. That parts of moe_large are
    those of large is assumed.
    """
    if spec.arch == "2002":
        return _coupled(spec, p, p.traits.ub_bytes)
    taken = chosen(p.traits, p.asked)
    template, row_step = taken.name, min(p.rows, taken.row_step)
    rows = _rows_of_core(template, p.rows, row_step, len(spec.vector_cores))
    return Plan(
        block_dim=len(rows),
        template=template,
        reason=taken.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=min(p.columns, PART_COLUMNS) if template in IN_PARTS else p.columns,
        depth=2 if template == "db" or (template == "large" and p.traits.is_symmetric) else 1,
    )


def _coupled(spec: DeviceSpec, p: Problem, ub_bytes: int) -> Plan:
    """310P: patches of *patch* rows each, divided among all AI cores; the rest goes to the last.

    ops-nn@e5c3fa9 quant/dynamic_quant/op_host/dynamic_quant_tiling_310P.cpp. The vector cores
    besides the AI cores are not used (asc-devkit, GetCoreNumAiv.md).
    """
    cores = spec.cores["ai_core"].count
    patch = _patch_rows(p.rows, p.columns, cores, ub_bytes)
    patches, left = divmod(p.rows, patch)
    rows = [patch * len(share(patches, cores, core)) for core in range(cores)]
    rows[-1] += left
    template = "aligned" if left == 0 else "unaligned"
    reason = f"{patch} rows at a time{', and some are left' if left else ''}"
    if p.columns > COUPLED_PART_COLUMNS:
        template, reason = "unaligned_large", f"rows of more than {COUPLED_PART_COLUMNS} elements"
    return Plan(
        block_dim=cores,
        template=template,
        reason=reason,
        rows_of_core=tuple(rows),
        row_step=patch,
        column_step=min(p.columns, COUPLED_PART_COLUMNS),
        depth=2,
    )


def _patch_rows(rows: int, columns: int, cores: int, ub_bytes: int) -> int:
    """Rows that 310P loads together: as many as fit, in steps of eight, and at most as needed."""
    if columns > COUPLED_PART_COLUMNS:
        return PATCH_UNIT
    a = align_up(columns, 16)
    fitting = (ub_bytes - 2 * a - PATCH_RESERVED_BYTES) // (5 * a)
    # Unsigned in the source: beyond 746 columns it wraps around and is never the smaller one.
    shorter = align_down(213 - 2 * a // 7, PATCH_UNIT) if a < WRAPS_FROM else fitting
    if fitting > 64 and a >= 512:
        patch = 64
    elif fitting > shorter > PATCH_UNIT and a >= 64:
        patch = shorter
    elif fitting > 192 and a < 64:
        patch = 192
    else:
        patch = align_down(fitting, PATCH_UNIT)
    return min(patch, max(PATCH_UNIT, align_up(ceil_div(rows, cores), PATCH_UNIT)))


def _rows_of_core(template: str, rows: int, row_step: int, cores: int) -> tuple[int, ...]:
    """Rows of each core that is started: at most those of the first one."""
    if template == "single_row":
        # Whole pieces, equally many on each core; the rest goes to the last one.
        count = ceil_div(rows, row_step)
        each = ceil_div(count, balanced(count, cores)) * row_step
        full = (each,) * ((rows - 1) // each)
        return (*full, rows - sum(full))
    if template == "multi_row":
        # A core is not started for less than a whole piece.
        cores = min(cores, max(1, rows // row_step))
    cores = min(cores, rows)
    return tuple(len(share(rows, cores, core)) for core in range(cores))


# ---- oracle ----


def template_of(given: ops.Given, *, is_symmetric: bool) -> str:
    """The kernel of a call on A2 and A3: the requested one, or the vendor's choice."""
    if given.template:
        return str(given.template)
    smooth, index, is_int4 = given.smooth_scales, given.group_index, given.dst_type == "quint4x2"
    return chosen(_traits(given.spec, given.x, smooth, index, is_int4, is_symmetric)).name


def smoothed(given: ops.Given) -> Array:
    """x times the smooth scales of each row's group, in fp32."""
    values: Array = given.x.astype(np.float32)
    if given.smooth_scales is None:
        return values
    factors, index = given.smooth_scales.astype(np.float32), given.group_index
    if index is not None:
        # The first group that ends after the row.
        behind = np.arange(prod(values.shape[:-1]))[:, None] < index[None, :]
        factors = factors[behind.argmax(1)].reshape(values.shape)
    return np.asarray(values * factors)


def extreme_of(values: Array, larger: Any, in_parts: bool) -> Array:
    """The largest or the smallest of each row of *values* `(..., columns)`."""
    columns = values.shape[-1]
    step = PART_COLUMNS if in_parts else max(columns, 1)
    parts = [values[..., start : start + step] for start in range(0, columns, step)]
    if not parts:
        return np.zeros(values.shape[:-1], np.float32)
    first, *others = (larger.reduce(part, axis=-1) for part in parts)
    for part in others:
        # If neither compares as larger, the later one remains: a NaN is lost unless it is in the
        # last.
        keeps = first > part if larger is np.maximum else first < part
        first = np.where(keeps, first, part)
    return np.asarray(first)


# ---- torch ----


def torch_function(
    name: str, results: int, aclnn: Callable[[ops.TorchArguments], str]
) -> ops.TorchFunction:
    """The function of torch_npu with *results* tensors; *aclnn* says what it calls."""

    def called(given: ops.TorchArguments) -> str:
        is_newer = given["quant_mode"] not in (None, "pertoken") or given["dst_type_max"]
        return "aclnnDynamicQuantV4" if is_newer else aclnn(given)

    def outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
        x = given["x"]
        return quantised(x, given["dst_type"]), *((x.shape[:-1], "float32"),) * (results - 1)

    return ops.TorchFunction(
        schema=f"{name}(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, "
        'int? dst_type=None, str? quant_mode="pertoken", float? dst_type_max=0.0) -> '
        f"({', '.join(['Tensor'] * results)})",
        aclnn=called,
        outputs=outputs,
        names={"input": "x"},
        dtypes={"dst_type": {"qint8": "int8"}},
    )
