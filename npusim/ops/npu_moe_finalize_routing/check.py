"""What npu_moe_finalize_routing accepts, on Atlas A2 and A3, and how tokens are split."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops import _vocabulary as ops
from npusim.ops._gates import FLOATS
from npusim.ops._vocabulary import A2_A3, alike, present

MODES = (0, 1, 2, 3)
MOST_CHOICES = 1024
"""The most that npu_moe_gating_top_k_softmax chooses; the limit of this kernel is not known."""
DROPPED = -1
"""The index of a row that was dropped, in the modes with capacities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: `(tokens, width)` is the sum of *k* rows for each token."""

    element: DType
    tokens: int
    k: int
    width: int
    names: dict[str, Operand]
    """The inputs that were given, by name."""
    is_by_token: bool
    """Whether the indices of a token are adjacent, instead of those of a choice."""
    rows: int
    """Rows computed by experts, including the empty ones of their capacity."""
    places: tuple[int, ...] | None
    """The row for each index; None without values."""
    experts: tuple[int, ...] | None
    """The expert of token r and choice j at index `r * k + j`; None without bias or values."""


SUPPORT = alike(
    FLOATS,
    *("expanded_permuted_rows", "skip1", "skip2", "bias", "scales"),
    on=A2_A3,
    expanded_src_to_dst_row=INT32,
    export_for_source_row=INT32,
    drop_pad_mode=MODES,
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    mode = contract.integer("drop_pad_mode")
    rows = contract.operand("expanded_permuted_rows")
    is_padded = mode in (1, 3)
    shape = "two dimensions, (rows, width)"
    if is_padded:
        shape = "three dimensions, (experts, capacity, width)"
    contract.require(
        len(rows.shape) == 2 + is_padded,
        f"expanded_permuted_rows must have {shape} for drop_pad_mode={mode}, not shape "
        f"{rows.shape}; reshape it",
    )
    where = contract.operand("expanded_src_to_dst_row")
    weights = contract.optional("scales")
    choices = _choices(contract, where, weights)
    tokens, width = where.spec.size // choices, rows.shape[-1]
    of_expert = contract.optional("bias")
    skips = [contract.optional(name) for name in ("skip1", "skip2")]
    experts = contract.optional("export_for_source_row")
    _require_rows(contract, rows, mode, tokens * choices)
    _require_skips(contract, skips, (tokens, width))
    experts_of_rows = _experts(contract, of_expert, experts, rows, (tokens, choices))
    count = prod(rows.shape[:-1])
    named = range(DROPPED if is_padded else 0, count)
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
        rows=count,
        places=contract.indices(where.name, where.array, named, "rows", rows.name),
        experts=experts_of_rows,
    )


def _choices(contract: ops.Contract, where: Operand, weights: Operand | None) -> int:
    """The number of experts of each token."""
    contract.require(
        len(where.shape) == 1,
        f"expanded_src_to_dst_row must have one dimension, not {len(where.shape)}; flatten it",
    )
    count, indices = contract.integer("k"), where.spec.size
    if weights is None:
        name = "k"
        contract.require(
            count > 0 and indices % count == 0,
            f"k must be a positive divisor of the {indices} indices without scales, not "
            f"{count}; pass how many experts a token has",
        )
    else:
        contract.require(
            len(weights.shape) == 2
            and weights.shape[1] > 0
            and weights.spec.size == where.spec.size,
            f"scales must have shape (tokens, k) with a number for each of the {indices} "
            f"indices, not {weights.shape}; pass what the gate gives",
        )
        name, count = "the second dimension of scales", weights.shape[1]
    contract.require(
        count <= MOST_CHOICES,
        f"{name} must be at most {MOST_CHOICES}, not {count}; add up fewer experts at a time",
    )
    return count


def _require_rows(contract: ops.Contract, rows: Operand, mode: int, count: int) -> None:
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


def _require_skips(
    contract: ops.Contract, skips: list[Operand | None], shape: tuple[int, int]
) -> None:
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


def _experts(
    contract: ops.Contract,
    bias: Operand | None,
    experts: Operand | None,
    rows: Operand,
    shape: tuple[int, int],
) -> tuple[int, ...] | None:
    """The expert of each row, whose bias is added."""
    if bias is None:
        return None
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
    return contract.indices(experts.name, experts.array, range(bias.shape[0]), "experts", "bias")


# ---- tiling: ops-transformer@c29bc10 moe/moe_finalize_routing/op_host ----

PING_PONG = 2
"""Buffers for the rows of experts, which are loaded ahead (ops-transformer,
moe_finalize_routing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has a run of tokens, of which as many are summed at a time as fit."""

    tokens_per_core: int
    tokens_per_tile: int
    columns: int
    """Columns of a row that are summed at a time: all, unless a single row is too long."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split tokens evenly over the vector cores; a tile fills the unified buffer.

    Assumed: which buffers are in it, see :func:`_bytes`, and that parts of a long row are as long
    as fits.
    """
    per_core = ceil_div(p.tokens, len(spec.vector_cores))
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    columns = p.width
    lanes = BLOCK_BYTES * 8 // p.element.bits
    if sum(_bytes(p, columns)) > room:
        each, once = _bytes(p, lanes)
        scales_bytes = _scale_bytes(p)
        per_block = each + once - scales_bytes - BLOCK_BYTES
        columns = align_down((room - scales_bytes - BLOCK_BYTES) // per_block * lanes, lanes)
    each, once = _bytes(p, columns)
    return Plan(
        block_dim=ceil_div(p.tokens, per_core),
        tokens_per_core=per_core,
        tokens_per_tile=min(per_core, max(1, (room - once) // each)),
        columns=columns,
    )


def _scale_bytes(p: Problem) -> int:
    """Bytes of the scales of a token, in their type and as float32."""
    if "scales" not in p.names:
        return 0
    is_wide = p.element is BFLOAT16
    return p.element.nbytes(p.k) + (FLOAT32.nbytes(p.k) + BLOCK_BYTES if is_wide else 0)


def _bytes(p: Problem, columns: int) -> tuple[int, int]:
    """Bytes of the buffers with *columns*: for each token of a tile, and fixed.

    A token needs its skips, its sum and its scales; rows and biases are loaded in turn. With
    bfloat16 the sum, the second skip and what is loaded in turn also need float32 buffers.
    """
    own_bytes = align_up(p.element.nbytes(columns), BLOCK_BYTES)
    is_wide = p.element is BFLOAT16
    wide_bytes = own_bytes * FLOAT32.bits // p.element.bits if is_wide else 0
    skips = sum(name in p.names for name in ("skip1", "skip2"))
    each = (1 + skips) * own_bytes + wide_bytes * (2 if skips == 2 else 1) + _scale_bytes(p)
    passing = 2 if "bias" in p.names else 1
    return each, passing * (PING_PONG * own_bytes + wide_bytes) + BLOCK_BYTES
