"""What npu_moe_init_routing_v2 accepts: Atlas A2 and A3 only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT8, INT32, Array, DType
from npusim.data.errors import shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._moe.contract import FLOATS, one_of, require_series
from npusim.ops._protocol import present

__all__ = ["CUMULATIVE", "MOST_QUANTISED", "PAIRS", "Problem", "check"]

CUMULATIVE, COUNTS, PAIRS = range(3)
"""What expert_tokens_num_type stands for."""
NO_QUANT, DYNAMIC = -1, 1
"""And quant_mode."""
MOST_EXPERTS = 2048
"""As many as npu_moe_gating_top_k takes; the bound of this kernel is not known."""
MOST_QUANTISED = 8192
"""Columns of a row that is quantised whole; longer ones are not simulated."""
ONE_TOKEN = (7168, 8, 256)
"""Columns, choices and experts of the model whose single tokens have a kernel of their own
(ops-transformer, moe_init_routing_v3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
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
    counts: int
    """CUMULATIVE, COUNTS or PAIRS."""
    has_counts: bool
    by_source: bool
    """Whether the index says where each row has gone, in place of where it came from."""
    chosen: tuple[int, ...] | None
    """The expert of each choice; None without values."""

    @property
    def rows(self) -> int:
        """Rows that come out, one for each choice."""
        return self.tokens * self.k

    @property
    def is_one_token(self) -> bool:
        """Whether the kernel for single tokens of a certain model runs."""
        width, k, experts = ONE_TOKEN
        shape = (self.tokens, self.width, self.k) == (1, width, k)
        whole = self.active == range(experts) and self.element is BFLOAT16 and self.quantises
        scaled = self.scale is not None and self.scale.shape == (experts, width)
        return shape and whole and scaled and self.has_counts and self.counts == PAIRS

    def expert_keys(self) -> Array:
        """Of each choice the expert, or *experts* if it is not active: `(rows,)`.

        Without values the choices go to all active experts in turn.
        """
        if self.chosen is None:
            return np.arange(self.rows) % len(self.active) + self.active.start
        chosen = np.array(self.chosen, np.int64)
        is_active = (chosen >= self.active.start) & (chosen < self.active.stop)
        return np.where(is_active, chosen, self.experts)


def check(
    spec: DeviceSpec,
    x: Any,
    expert_idx: Any,
    *,
    scale: Any = None,
    active_num: Any = -1,
    expert_capacity: Any = -1,
    expert_num: Any = -1,
    drop_pad_mode: Any = 0,
    expert_tokens_num_type: Any = 0,
    expert_tokens_num_flag: Any = False,
    quant_mode: Any = -1,
    active_expert_range: Any = (),
    row_idx_type: Any = 0,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("npu_moe_init_routing_v2", spec)
    require_series(contract, "MoeInitRoutingV3")
    quantises = one_of(contract, "quant_mode", quant_mode, (NO_QUANT, DYNAMIC)) == DYNAMIC
    tokens = contract.operand("x", x, FLOATS if quantises else (*FLOATS, INT8))
    where = contract.operand("expert_idx", expert_idx, (INT32,))
    _require_shapes(contract, tokens, where, quantises)
    one_of(contract, "drop_pad_mode", drop_pad_mode, (0,))
    contract.integer("expert_capacity", expert_capacity)
    rows = where.spec.size
    one_of(contract, "active_num", active_num, (-1, rows))
    experts = contract.integer("expert_num", expert_num)
    contract.require(
        1 <= experts <= MOST_EXPERTS,
        f"expert_num must be from 1 to {MOST_EXPERTS}, not {experts}; pass how many there are",
    )
    active = _active(contract, active_expert_range, experts)
    factors = _scale(contract, scale, quantises, len(active), tokens.shape[1])
    kind = one_of(contract, "expert_tokens_num_type", expert_tokens_num_type, (0, 1, 2))
    width = tokens.shape[1]
    return Problem(
        inputs=present(tokens, where, factors),
        outputs={
            "output": TensorSpec((rows, width), "int8" if quantises else tokens.spec.dtype),
            "expanded_row_idx": TensorSpec((rows,), "int32"),
            "expert_token_cumsum_or_count": TensorSpec(
                (experts, 2) if kind == PAIRS else (len(active),), "int64"
            ),
            "expanded_scale": TensorSpec((rows,), "float32"),
        },
        element=tokens.element,
        tokens=tokens.shape[0],
        k=where.shape[1],
        width=width,
        experts=experts,
        active=active,
        scale=factors,
        quantises=quantises,
        counts=kind,
        has_counts=contract.boolean("expert_tokens_num_flag", expert_tokens_num_flag),
        by_source=one_of(contract, "row_idx_type", row_idx_type, (0, 1)) == 0,
        chosen=_chosen(contract, where, experts),
    )


def _require_shapes(contract: Contract, x: Operand, where: Operand, quantises: bool) -> None:
    contract.require(
        len(x.shape) == 2 and x.shape[1] > 0,
        f"x must have shape (tokens, width), not {x.shape}; reshape it",
    )
    contract.require(
        len(where.shape) == 2 and where.shape[0] == x.shape[0] and where.shape[1] > 0,
        f"expert_idx must have shape ({x.shape[0]}, k), a row for each of x, not {where.shape}; "
        f"pass what the gate gives",
    )
    contract.require(
        not quantises or x.shape[1] <= MOST_QUANTISED,
        f"x must have at most {MOST_QUANTISED} columns for quant_mode=1, not {x.shape[1]}; longer "
        f"rows are not simulated: quantise first",
    )


def _active(contract: Contract, given: Any, experts: int) -> range:
    is_list = isinstance(given, list | tuple)
    if not is_list or len(given) not in (0, 2):
        contract.fail(
            f"active_expert_range must be empty or two numbers, not {shown(given)}; pass the first "
            f"expert and the one behind the last"
        )
    first, last = (contract.integer("active_expert_range", each) for each in given or (0, experts))
    contract.require(
        0 <= first < last <= experts,
        f"active_expert_range must name experts in [0, {experts}), not [{first}, {last}); correct "
        f"it",
    )
    return range(first, last)


def _scale(
    contract: Contract, scale: Any, quantises: bool, experts: int, width: int
) -> Operand | None:
    contract.require(
        quantises or scale is None,
        "scale must be None for quant_mode=-1, whose scales are not simulated, not given; gather "
        "it by expanded_row_idx",
    )
    factors = contract.optional("scale", scale, (FLOAT32,))
    contract.require(
        factors is None or factors.shape in ((1, width), (experts, width)),
        f"scale must have shape (1, {width}) or ({experts}, {width}), a row for each active "
        f"expert, not {factors.shape if factors else None}; pass one of them",
    )
    return factors


def _chosen(contract: Contract, where: Operand, experts: int) -> tuple[int, ...] | None:
    if where.array is None:
        return None
    numbers = where.array.ravel()
    for expert in (int(numbers.min()), int(numbers.max())) if numbers.size else ():
        contract.require(
            0 <= expert < experts,
            f"expert_idx must name experts in [0, {experts}), not {expert}; raise expert_num, or "
            f"correct it",
        )
    return tuple(numbers.tolist())
