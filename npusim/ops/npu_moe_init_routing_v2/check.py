"""The calls that npu_moe_init_routing_v2 accepts, and how they are split over cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT64, Array, DType
from npusim.data.errors import Code, shown
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._sorting import LISTS_AT_ONCE
from npusim.ops._vocabulary import A2_A3, ATLAS_INFERENCE, Operands, Row, listed, present

CUMULATIVE, COUNTS, PAIRS = range(3)
"""Values of expert_tokens_num_type."""
NO_QUANT, STATIC, DYNAMIC = -1, 0, 1
"""Values of quant_mode."""
DROPLESS, DROP_PAD = range(2)
"""Values of drop_pad_mode."""
NOWHERE = -1
"""The place of a choice whose row is not output."""
MOST_EXPERTS, MOST_OF_PAIRS = 10240, 5120
"""Most experts, and most for pairs (torch_npu 2.14.0, the text of npu_moe_init_routing_v2)."""
MOST_OF_QUANTISED = 5120
"""Most experts for rows quantised as a whole; more are not simulated."""
MOST_QUANTISED = 8192
"""Most columns of a row quantised as a whole; longer ones are not simulated."""
ONE_TOKEN = (7168, 8, 256)
"""Columns, choices and experts of the model whose single tokens have a separate kernel
(ops-transformer, moe_init_routing_v3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: x `(tokens, width)`, of which each row goes to *k* experts."""

    element: DType
    tokens: int
    k: int
    width: int
    experts: int
    active: range
    """Experts whose rows are output."""
    scale: Operand | None
    quantises: bool
    capacity: int | None
    """Rows of each expert; None if an expert has as many as are routed to it."""
    counts: int
    """CUMULATIVE, COUNTS or PAIRS."""
    has_counts: bool
    by_source: bool
    """Whether the index gives the place of each choice rather than the choice of each row."""
    chosen: tuple[int, ...] | None
    """The expert of each choice; None without values."""

    @property
    def rows(self) -> int:
        """Number of choices, each of a row of x."""
        return self.tokens * self.k

    @property
    def rows_out(self) -> int:
        """Rows of the output: one per choice, or the capacity of all experts."""
        return self.rows if self.capacity is None else self.experts * self.capacity

    @property
    def is_one_token(self) -> bool:
        """Whether the kernel for single tokens of a certain model runs."""
        width, k, experts = ONE_TOKEN
        shape = (self.tokens, self.width, self.k) == (1, width, k)
        whole = self.active == range(experts) and self.element is BFLOAT16 and self.quantises
        scaled = self.scale is not None and self.scale.shape == (experts, width)
        counted = self.has_counts and self.counts == PAIRS
        return shape and whole and scaled and counted and self.capacity is None

    def expert_keys(self) -> Array:
        """The expert of each choice, or *experts* if it is below the active ones: `(rows,)`.

        Without values the choices are distributed evenly over the active experts.
        """
        if self.chosen is None:
            return np.arange(self.rows) % len(self.active) + self.active.start
        chosen = np.array(self.chosen, np.int64)
        return np.where(chosen < self.active.start, self.experts, chosen)


FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""Types of rows."""
MODES: dict[str, Any] = {
    "expert_tokens_num_type": (CUMULATIVE, COUNTS, PAIRS),
    "row_idx_type": (0, 1),
    "drop_pad_mode": (DROPLESS, DROP_PAD),
}
CHOICES = Operands((INT32,), shape="tokens k")
SUPPORT = (
    Row(
        on=A2_A3,
        x=Operands((*FLOATS, INT8), shape="tokens width"),
        expert_idx=CHOICES,
        scale=FLOAT32,
        quant_mode=(NO_QUANT,),
        **MODES,
    ),
    Row(
        on=A2_A3,
        x=Operands(FLOATS, shape="tokens width"),
        expert_idx=CHOICES,
        scale=FLOAT32,
        quant_mode=(DYNAMIC,),
        **MODES,
    ),
    # 310P has another kernel, which does not support the other modes.
    Row(
        on=ATLAS_INFERENCE,
        x=Operands((FLOAT32, FLOAT16), shape="tokens width"),
        expert_idx=CHOICES,
        quant_mode=(NO_QUANT,),
        drop_pad_mode=(DROPLESS,),
    ),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    quantises = _quantises(contract)
    tokens, where = contract.operand("x"), contract.operand("expert_idx")
    _require_shapes(contract, tokens, where, quantises)
    if contract.spec.series in ATLAS_INFERENCE:
        return _check_310p(contract, tokens, where)
    (count, width), rows = tokens.shape, where.spec.size
    kind = contract.integer("expert_tokens_num_type")
    experts = _experts(contract, kind, quantises)
    active = _active(contract, experts)
    by_source = contract.integer("row_idx_type") == 0
    is_padded = contract.integer("drop_pad_mode") == DROP_PAD
    _require_all(contract, rows)
    capacity = contract.integer("expert_capacity")
    if is_padded:
        _require_padding(contract, capacity, active == range(experts), by_source)
    shapes = ((1, width), (len(active), width)) if quantises else ((count,),)
    factors = _scale(contract, quantises, shapes)
    places: tuple[int, ...] = (experts, capacity) if is_padded else (rows,)
    return Problem(
        inputs=present(tokens, where, factors),
        outputs={
            "output": TensorSpec((*places, width), "int8" if quantises else tokens.spec.dtype),
            "expanded_row_idx": TensorSpec((rows,), "int32"),
            "expert_token_cumsum_or_count": TensorSpec(
                (experts, 2) if kind == PAIRS else (len(active),), "int64"
            ),
            "expanded_scale": TensorSpec((prod(places),), "float32"),
        },
        element=tokens.element,
        tokens=count,
        k=where.shape[1],
        width=width,
        experts=experts,
        active=active,
        scale=factors,
        quantises=quantises,
        capacity=capacity if is_padded else None,
        counts=kind,
        has_counts=contract.boolean("expert_tokens_num_flag"),
        by_source=by_source,
        chosen=_chosen(contract, where, experts),
    )


def _check_310p(contract: ops.Contract, x: Operand, where: Operand) -> Problem:
    """The conditions of the kernel of 310P, which reads no other attributes than these."""
    series, rows, (count, width) = contract.spec.series, where.spec.size, x.shape
    contract.integer("drop_pad_mode")
    experts = _experts(contract, CUMULATIVE, quantises=False)
    active = _active(contract, experts)
    contract.require(
        active == range(experts),
        f"active_expert_range must name all experts on {series}, not [{active.start}, "
        f"{active.stop}); leave it out",
    )
    contract.require(
        contract.integer("active_num") >= 0,
        f"active_num must not be negative on {series}, not {contract.value('active_num')}; pass 0, "
        f"or the {rows} choices",
    )
    _require_all(contract, rows)
    contract.require(
        width % WIDTH_UNIT_310P == 0,
        f"x must have a multiple of {WIDTH_UNIT_310P} columns on {series}, not {width}; pad it",
    )
    problem = Problem(
        inputs=(x, where),
        outputs={
            "output": TensorSpec((rows, width), x.spec.dtype),
            "expanded_row_idx": TensorSpec((rows,), "int32"),
            "expert_token_cumsum_or_count": TensorSpec((experts,), "int32"),
            "expert_tokens_before_capacity": TensorSpec((experts,), "int32"),
        },
        element=x.element,
        tokens=count,
        k=where.shape[1],
        width=width,
        experts=experts,
        active=active,
        scale=None,
        quantises=False,
        capacity=None,
        counts=CUMULATIVE,
        has_counts=True,
        by_source=True,
        chosen=_chosen(contract, where, experts),
    )
    need_bytes, most_bytes = needed_bytes(contract.spec, problem), room_bytes(contract.spec)
    contract.require(
        not rows or (width <= WIDEST_310P and need_bytes < most_bytes),
        f"x and expert_idx must be so small that a core holds all choices and its rows of at most "
        f"{WIDEST_310P} columns, in fewer than {most_bytes} bytes on {series}, not {need_bytes} "
        f"bytes and {width} columns, for which other kernels wait for each other in a way that is "
        f"not simulated; pass fewer tokens a call",
        Code.UNSUPPORTED,
    )
    return problem


def _chosen(contract: ops.Contract, where: Operand, experts: int) -> tuple[int, ...] | None:
    return contract.indices(
        "expert_idx",
        where.array,
        range(experts),
        "experts",
        remedy="raise expert_num, or correct it",
    )


def _quantises(contract: ops.Contract) -> bool:
    contract.require(
        contract.whole("quant_mode", contract.value("quant_mode")) != STATIC,
        "quant_mode must be -1 or 1, not 0, whose rounding no source gives; pass -1, and the rows "
        "to npu_quantize",
        Code.UNSUPPORTED,
    )
    return contract.integer("quant_mode") == DYNAMIC


def _experts(contract: ops.Contract, kind: int, quantises: bool) -> int:
    experts = contract.integer("expert_num")
    most, when = MOST_EXPERTS, ""
    if kind == PAIRS:
        most, when = MOST_OF_PAIRS, f" for expert_tokens_num_type={PAIRS}"
    elif quantises:
        most, when = MOST_OF_QUANTISED, f" for quant_mode={DYNAMIC}, as far as it is simulated"
    contract.require(
        1 <= experts <= most,
        f"expert_num must be from 1 to {most}{when}, not {experts}; pass how many there are",
    )
    return experts


def _require_all(contract: ops.Contract, rows: int) -> None:
    """Refuse fewer rows than choices: no source says what happens to the index then."""
    number = contract.integer("active_num")
    contract.require(
        number in (-1, 0) or number >= rows,
        f"active_num must be -1, 0 or at least the {rows} choices, not {number}, whose index is "
        f"not known; pass -1",
        Code.UNSUPPORTED,
    )


def _require_padding(
    contract: ops.Contract, capacity: int, is_whole: bool, by_source: bool
) -> None:
    """Check the conditions of drop_pad_mode=1: its output has rows for all experts."""
    contract.require(
        capacity > 0,
        f"expert_capacity must be positive for drop_pad_mode=1, not {capacity}; pass how many rows "
        f"an expert takes",
    )
    contract.require(
        is_whole,
        "active_expert_range must name all experts for drop_pad_mode=1, whose output has rows for "
        "each of them; leave it out",
    )
    contract.require(
        by_source,
        "row_idx_type must be 0 for drop_pad_mode=1, not 1: rows that are filled up come from "
        "nowhere; pass 0",
    )


def _require_shapes(contract: ops.Contract, x: Operand, where: Operand, quantises: bool) -> None:
    contract.require(
        x.shape[1] > 0 and where.shape[1] > 0,
        f"x and expert_idx must have columns, not shapes {x.shape} and {where.shape}; pass some",
    )
    contract.require(
        not quantises or x.shape[1] <= MOST_QUANTISED,
        f"x must have at most {MOST_QUANTISED} columns for quant_mode=1, not {x.shape[1]}; longer "
        f"rows are not simulated: quantise first",
    )


def _active(contract: ops.Contract, experts: int) -> range:
    given = contract.value("active_expert_range")
    if len(given) not in (0, 2):
        contract.fail(
            f"active_expert_range must be empty or two integers, not {shown(given)}; pass the "
            f"first expert and the one behind the last"
        )
    first, last = given or (0, experts)
    contract.require(
        0 <= first < last <= experts,
        f"active_expert_range must name experts in [0, {experts}), not [{first}, {last}); correct "
        f"it",
    )
    return range(first, last)


def _scale(
    contract: ops.Contract, quantises: bool, shapes: tuple[tuple[int, ...], ...]
) -> Operand | None:
    factors = contract.optional("scale")
    if factors is None:
        return None
    if not factors.spec.size and not contract.operand("x").spec.size:
        # Nothing is read where there is no row.
        return None
    known = listed(tuple(dict.fromkeys(map(str, shapes))))
    what = "a row for each active expert" if quantises else "a number for each row of x"
    contract.require(
        factors.shape in shapes,
        f"scale must have shape {known} for quant_mode={DYNAMIC if quantises else NO_QUANT}, "
        f"{what}, not {factors.shape}; reshape it",
    )
    return factors


# ---- tiling: ops-transformer@c29bc10 moe/moe_init_routing_v3 ----

SORT_BYTES = 3 * 4 + 2 * 8 + 1
"""Bytes per sorted choice: its expert, key and index, two pairs, and bits of a mask."""
LANES = 64
"""Keys in a repeat; comparisons need full repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Some cores sort, then all copy rows."""

    parts: int
    """Lists that are sorted separately: 1, or a power of four."""
    part_rows: int
    """Choices per list."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | CoupledPlan | None:
    """All vector cores copy; one of them sorts the choices if its buffer can hold them.

    Otherwise 4^x parts are sorted, each by a core, and merged four at a time. The capacity of the
    buffer, see SORT_BYTES, is assumed.
    """
    if not p.rows:
        return None
    if spec.series in ATLAS_INFERENCE:
        return _coupled(spec, p)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    most = align_down(room // SORT_BYTES, LANES) - LANES
    parts = 1
    while ceil_div(p.rows, parts) > most:
        parts *= LISTS_AT_ONCE
    part_rows = ceil_div(p.rows, parts)
    template = "one_token" if p.is_one_token else "one_core"
    pairs = dict.fromkeys(("pairs0", "pairs1"), UINT64.nbytes(p.rows)) if parts > 1 else {}
    return Plan(
        block_dim=len(spec.vector_cores),
        template="many_cores" if parts > 1 else template,
        reason=f"{p.rows} choices, of which a core sorts {most}",
        parts=ceil_div(p.rows, part_rows),
        part_rows=part_rows,
        workspaces={
            "sorted_experts": INT32.nbytes(p.rows),
            "sorted_rows": INT32.nbytes(p.rows),
            "histogram": INT32.nbytes(len(p.active)),
        }
        | pairs,
    )


# ---- 310P: ops-transformer@3a280bc moe/moe_init_routing_v2/op_host, whose vector cores are the AI
# cores (asc-devkit, GetCoreNumAiv.md) ----

WIDTH_UNIT_310P, WIDEST_310P = 32, 16376
"""Columns are a multiple of the first; more than the second are copied in parts."""
SORT_LANES, SORT_WORDS = 32, 24 + 3
"""Choices are rounded up to the first, and take the second in words of the buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoupledPlan(ops.Plan):
    """Each core sorts all choices, and copies the rows of a run of them."""

    rows_of_core: int
    tokens_of_core: int
    """The most rows of x that a run refers to."""


def room_bytes(spec: DeviceSpec) -> int:
    """The unified buffer of a core."""
    return spec.cores[spec.vector_kinds[0]].usable_bytes("ub")


def needed_bytes(spec: DeviceSpec, p: Problem) -> int:
    """Bytes that the tiling counts for a core with all choices, their counts and its rows."""
    cores = spec.cores[spec.vector_kinds[0]].count
    tokens, rest = divmod(p.tokens, cores)
    tokens += 1 if rest <= 1 else 2
    sort_bytes = align_up(p.rows, SORT_LANES) * INT32.nbytes(SORT_WORDS)
    return sort_bytes + align_up(INT32.nbytes(p.experts), 32) + tokens * p.element.nbytes(p.width)


def _coupled(spec: DeviceSpec, p: Problem) -> CoupledPlan:
    """Equal shares of the choices; all AI cores start."""
    cores = spec.cores[spec.vector_kinds[0]].count
    rows = ceil_div(p.rows, cores)
    begin = np.arange(0, p.rows, rows)
    end = np.minimum(begin + rows, p.rows)
    return CoupledPlan(
        block_dim=cores,
        template="full_load",
        reason=f"{p.rows} choices, which a core holds with its rows",
        rows_of_core=rows,
        tokens_of_core=int((-(-end // p.k) - begin // p.k).max()),
    )
