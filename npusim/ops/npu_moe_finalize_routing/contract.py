"""What npu_moe_finalize_routing accepts: Atlas A2 and A3 only."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from npusim.data.dtypes import INT32, Array, DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._moe.contract import FLOATS
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, alike

__all__ = ["DROPPED", "SUPPORT", "Problem", "check"]

MODES = (0, 1, 2, 3)
MOST_CHOICES = 1024
"""As many as npu_moe_gating_top_k_softmax chooses; the bound of this kernel is not known."""
DROPPED = -1
"""The index of a row that is not there, in the modes with capacities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: `(tokens, width)` comes of *k* rows for each token."""

    element: DType
    tokens: int
    k: int
    width: int
    names: dict[str, Operand]
    """The inputs that were given, by name."""
    is_by_token: bool
    """Whether the indices of a token lie side by side, in place of those of all tokens."""
    rows: int
    """Rows that experts made, empty ones of their capacity included."""
    places: tuple[int, ...] | None
    """The row behind each index; None without values."""
    experts: tuple[int, ...] | None
    """The expert of token r and choice j at number `r * k + j`; None without bias or values."""

    def index_of(self, token: int, choice: int) -> int:
        """Where the index of the row stands that *token* gets by its *choice*."""
        return token * self.k + choice if self.is_by_token else choice * self.tokens + token

    def row_of(self, token: int, choice: int) -> int:
        """The row itself, or DROPPED."""
        index = self.index_of(token, choice)
        return index % self.rows if self.places is None else self.places[index]

    def expert_of(self, token: int, choice: int) -> int:
        """Whose bias is added to it."""
        number, experts = token * self.k + choice, self.names["bias"].shape[0]
        return number % experts if self.experts is None else self.experts[number]


SUPPORT = alike(
    FLOATS,
    *("expanded_permuted_rows", "skip1", "skip2", "bias", "scales"),
    on=A2_A3,
    expanded_src_to_dst_row=INT32,
    export_for_source_row=INT32,
    drop_pad_mode=MODES,
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    mode = contract.integer("drop_pad_mode")
    rows = contract.operand("expanded_permuted_rows")
    _require_rank(contract, rows, mode)
    where = contract.operand("expanded_src_to_dst_row")
    weights = contract.optional("scales")
    choices = _choices(contract, where, weights)
    tokens, width = where.spec.size // choices, rows.shape[-1]
    of_expert = contract.optional("bias")
    skips = [contract.optional(name) for name in ("skip1", "skip2")]
    experts = contract.optional("export_for_source_row")
    _require_rows(contract, rows, mode, tokens * choices)
    _require_skips(contract, skips, (tokens, width))
    _require_bias(contract, of_expert, experts, rows, (tokens, choices))
    inputs = present(rows, *skips, of_expert, weights, where, experts)
    return Problem(
        inputs=inputs,
        outputs={"output": TensorSpec((tokens, width), rows.spec.dtype)},
        element=rows.element,
        tokens=tokens,
        k=choices,
        width=width,
        names={operand.name: operand for operand in inputs},
        is_by_token=mode in (2, 3),
        rows=prod(rows.shape[:-1]),
        places=_places(contract, where, prod(rows.shape[:-1]), mode),
        experts=_experts(contract, of_expert, experts),
    )


def _require_rank(contract: Contract, rows: Operand, mode: int) -> None:
    is_padded = mode in (1, 3)
    shape = "three dimensions, (experts, capacity, width)"
    if not is_padded:
        shape = "two dimensions, (rows, width)"
    contract.require(
        len(rows.shape) == 2 + is_padded,
        f"expanded_permuted_rows must have {shape} for drop_pad_mode={mode}, not shape "
        f"{rows.shape}; reshape it",
    )


def _choices(contract: Contract, where: Operand, weights: Operand | None) -> int:
    """How many experts each token has."""
    contract.require(
        len(where.shape) == 1,
        f"expanded_src_to_dst_row must have one dimension, not {len(where.shape)}; flatten it",
    )
    count = contract.integer("k")
    if weights is None:
        contract.require(
            count > 0 and where.spec.size % count == 0,
            f"k must be a positive divisor of the {where.spec.size} indices without scales, not "
            f"{count}; pass how many experts a token has",
        )
        return _few(contract, "k", count)
    contract.require(
        len(weights.shape) == 2 and weights.shape[1] > 0 and weights.spec.size == where.spec.size,
        f"scales must have shape (tokens, k) with a number for each of the {where.spec.size} "
        f"indices, not {weights.shape}; pass what the gate gives",
    )
    return _few(contract, "the second dimension of scales", weights.shape[1])


def _few(contract: Contract, name: str, count: int) -> int:
    contract.require(
        count <= MOST_CHOICES,
        f"{name} must be at most {MOST_CHOICES}, not {count}; add up fewer experts at a time",
    )
    return count


def _require_rows(contract: Contract, rows: Operand, mode: int, count: int) -> None:
    contract.require(
        mode in (1, 3) or rows.shape[0] == count,
        f"expanded_permuted_rows must have the {count} rows of expanded_src_to_dst_row for "
        f"drop_pad_mode={mode}, not {rows.shape[0]}; pass all of them, or pad them for each expert",
    )
    contract.require(
        prod(rows.shape[:-1]) > 0 or count == 0,
        f"expanded_permuted_rows must have rows for the {count} indices, not shape {rows.shape}; "
        f"pass them",
    )


def _require_skips(contract: Contract, skips: list[Operand | None], shape: tuple[int, int]) -> None:
    contract.require(
        skips[0] is not None or skips[1] is None,
        "skip1 must be given where skip2 is, not None; pass skip2 as skip1",
    )
    for skip in skips:
        contract.require(
            skip is None or skip.shape == shape,
            f"{skip.name if skip else ''} must have the shape {shape} of the output, not "
            f"{skip.shape if skip else None}; pass a row for each token",
        )


def _require_bias(
    contract: Contract,
    bias: Operand | None,
    experts: Operand | None,
    rows: Operand,
    shape: tuple[int, int],
) -> None:
    if bias is None:
        return
    is_padded = len(rows.shape) == 3
    wanted = f"({rows.shape[0] if is_padded else 'experts'}, {rows.shape[-1]})"
    fits = len(bias.shape) == 2 and bias.shape[0] > 0 and bias.shape[1] == rows.shape[-1]
    contract.require(
        fits and (not is_padded or bias.shape[0] == rows.shape[0]),
        f"bias must have shape {wanted}, not {bias.shape}; pass a row for each expert",
    )
    if experts is None:
        contract.fail(
            "export_for_source_row must be given with bias, not None; pass the expert of each row"
        )
    contract.require(
        experts.shape == shape,
        f"export_for_source_row must have the shape {shape} of scales, not {experts.shape}; "
        f"{'reshape it' if experts.spec.size == prod(shape) else 'pass the expert of each row'}",
    )


def _places(contract: Contract, where: Operand, rows: int, mode: int) -> tuple[int, ...] | None:
    """The values of the indices, if there are any."""
    if where.array is None:
        return None
    least = DROPPED if mode in (1, 3) else 0
    for index in _edges(where.array):
        contract.require(
            least <= index < rows,
            f"expanded_src_to_dst_row must name rows in [{least}, {rows}) of "
            f"expanded_permuted_rows, not {index}; a card would read elsewhere: correct them",
        )
    return tuple(where.array.tolist())


def _experts(
    contract: Contract, bias: Operand | None, experts: Operand | None
) -> tuple[int, ...] | None:
    """The values of export_for_source_row, if the kernel looks at any."""
    if bias is None or experts is None or experts.array is None:
        return None
    for expert in _edges(experts.array):
        contract.require(
            0 <= expert < bias.shape[0],
            f"export_for_source_row must name experts in [0, {bias.shape[0]}) of bias, not "
            f"{expert}; a card would read elsewhere: correct them",
        )
    return tuple(experts.array.ravel().tolist())


def _edges(numbers: Array) -> tuple[int, ...]:
    """The smallest and the largest of *numbers*, if there are any."""
    return (int(np.min(numbers)), int(np.max(numbers))) if numbers.size else ()
