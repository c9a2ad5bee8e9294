"""What npu_moe_init_routing_v2 accepts, on Atlas A2 and A3, and how it is split over cores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, UINT64, Array, DType
from npusim.data.errors import Code, shown
from npusim.data.integers import align_down, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._sorting import LISTS_AT_ONCE
from npusim.ops._vocabulary import A2_A3, Operands, Row, listed, present

CUMULATIVE, COUNTS, PAIRS = range(3)
"""What expert_tokens_num_type stands for."""
NO_QUANT, STATIC, DYNAMIC = -1, 0, 1
"""And quant_mode."""
DROPLESS, DROP_PAD = range(2)
"""And drop_pad_mode."""
NOWHERE = -1
"""The place of a choice whose row does not come out."""
MOST_EXPERTS, MOST_OF_PAIRS = 10240, 5120
"""Experts, and those of pairs (torch_npu 2.14.0, the text of npu_moe_init_routing_v2)."""
MOST_OF_QUANTISED = 5120
"""Experts whose rows are counted next to one that is quantised whole; more are not simulated."""
MOST_QUANTISED = 8192
"""Columns of a row that is quantised whole; longer ones are not simulated."""
ONE_TOKEN = (7168, 8, 256)
"""Columns, choices and experts of the model whose single tokens have their own kernel
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
    """Experts whose rows come first."""
    scale: Operand | None
    quantises: bool
    capacity: int | None
    """Rows that each expert has; None where it has as many as go to it."""
    counts: int
    """CUMULATIVE, COUNTS or PAIRS."""
    has_counts: bool
    by_source: bool
    """Whether the index says where each row has gone, in place of where it came from."""
    chosen: tuple[int, ...] | None
    """The expert of each choice; None without values."""

    @property
    def rows(self) -> int:
        """Choices, each of a row of x."""
        return self.tokens * self.k

    @property
    def rows_out(self) -> int:
        """Rows that come out: one for each choice, or what experts have."""
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
        """The expert of each choice, or *experts* if it is not active: `(rows,)`.

        Without values the choices go to all active experts in turn.
        """
        if self.chosen is None:
            return np.arange(self.rows) % len(self.active) + self.active.start
        chosen = np.array(self.chosen, np.int64)
        is_active = (chosen >= self.active.start) & (chosen < self.active.stop)
        return np.where(is_active, chosen, self.experts)


FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""What rows are made of; the form for 310P is another kernel, which is not simulated."""
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
)


def check(contract: ops.Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    quantises = _quantises(contract)
    tokens, where = contract.operand("x"), contract.operand("expert_idx")
    _require_shapes(contract, tokens, where, quantises)
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
        chosen=contract.indices(
            "expert_idx",
            where.array,
            range(experts),
            "experts",
            remedy="raise expert_num, or correct it",
        ),
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
    """Refuse less rows than choices: no source says what becomes of the index then."""
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
    """Hold what drop_pad_mode=1 asks for: its output has rows for all experts."""
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
"""Bytes of a choice that is sorted: its expert, key and number, two pairs, and bits of a mask."""
LANES = 64
"""Keys of a repeat, of which comparisons take whole ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Some cores sort, then all copy rows."""

    parts: int
    """Lists that are sorted by themselves: 1, or a power of four."""
    part_rows: int
    """Choices of each."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """All vector cores; the choices are sorted by one of them if its buffer holds them.

    Otherwise 4^x parts are, each by a core, and merged four at a time. Assumed: what the buffer
    holds, see SORT_BYTES.
    """
    if not p.rows:
        return None
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
