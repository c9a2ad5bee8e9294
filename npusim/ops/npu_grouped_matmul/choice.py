"""The choice of the kernel for int8 or int4 weights, which the oracle needs, too.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md, op_host/op_api/aclnn_grouped_matmul.cpp,
op_host/op_tiling/grouped_matmul_tiling.cpp, op_kernel/grouped_matmul_antiquant_a16w8_msd.h.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.dtypes import INT8
from npusim.data.integers import align_up, ceil_div
from npusim.kernel.launch import share
from npusim.ops.npu_grouped_matmul.problem import Problem

# ---- int4 weights with integer rows ----

GROUP_K = 256
"""k of a group with int8 x."""
VECTOR_DEQUANTISED = ((1, 16, 256, 512), (256, 1024, 512, 32768))
"""(e, m, k, n) of calls with FRACTAL_NZ in which vector cores scale the groups, in fp32."""
FEW_COLUMNS = 4
"""Up to this n for each row of an expert, the weight is unpacked to int8, without groups of k."""


def groups_of_k(p: Problem) -> int:
    """The number of groups of k with separate scales."""
    shape = p.scale[0].shape
    return shape[1] if len(shape) == 3 else 1


def is_vector(p: Problem) -> bool:
    """Whether vector cores scale the groups of k, all of which have 256."""
    k, n = p.weight_shape(0)
    is_listed = p.is_nz and (p.experts, p.rows, k, n) in VECTOR_DEQUANTISED
    return is_listed and not p.offset and groups_of_k(p) * GROUP_K == k


def is_unpacked(p: Problem) -> bool:
    """Whether an int4 weight is unpacked to int8 before rows of int8 are multiplied by it."""
    is_plain = groups_of_k(p) == 1 and not p.offset
    return is_plain and p.weight_shape(0)[1] * p.experts <= FEW_COLUMNS * p.rows


# ---- int8 or int4 weights with float rows ----

UNIT, LONGEST_K, LEAST_N, MOST_ROWS = 128, 12288, 1024, 64
WIDE_N, WIDTH, WIDTH_OF_WIDE = 2048, 256, 512
PIECE_BYTES, SUM_BYTES = 32768, 131072
"""Half of L0A or L0B, and all of L0C."""
MOST_GROUPS = 12
"""Most groups of a batch."""
STRIP = 1024
"""Columns of a block are a multiple of this if there are many."""


def group_k(p: Problem, weight: int) -> int:
    """k of a group with its own scales, of weight index *weight*: all of it without groups."""
    k = p.weight_shape(weight)[0]
    shape = p.antiquant_scale[weight].shape
    has_groups = len(shape) == len(p.weight[weight].shape)
    return k // shape[-2] if has_groups else k


def fits_msd(k: int, n: int) -> bool:
    """Whether x with this k can be split into digits."""
    return n % UNIT == 0 and k % UNIT == 0 and k <= LONGEST_K


def in_digits(p: Problem) -> bool:
    """Whether x is split into two digits of int8."""
    if p.asked is not None:
        return p.asked == "msd"
    k, n = p.weight_shape(0)
    is_small = n >= LEAST_N and p.rows <= MOST_ROWS * p.experts
    can_be = p.types.weight is INT8 and p.is_single and p.group_type == 0
    return can_be and fits_msd(k, n) and is_small


# The bits of the digits depend on which cores sum which part of a row. Assumed: the cores are
# divided evenly among the groups of a batch.


class Blocks(NamedTuple):
    """Rows of digits and columns of a base tile, and columns of a block."""

    rows: int
    columns: int
    single_n: int


def blocks_of(p: Problem) -> Blocks:
    """The blocks of a call."""
    k, n = p.weight_shape(0)
    width = WIDTH_OF_WIDE if n >= WIDE_N and not p.trans_weight else WIDTH
    base_k = PIECE_BYTES // width
    m = min(PIECE_BYTES // base_k, SUM_BYTES // (4 * width), align_up(2 * p.rows, 16))
    is_flat = n >= WIDE_N and n // k >= 2
    return Blocks(m, width, STRIP * ceil_div(n // 4, STRIP) if is_flat else width)


class Split(NamedTuple):
    """The cores that write the digits of a group."""

    batch: int
    cores: range
    piece_k: int
    """k of a row on each core; less than all if there are fewer rows than cores."""


def splits(p: Problem, cores: int) -> list[Split]:
    """The split of each group over *cores*; groups without rows are in no batch."""
    rows, blocks, (k, n) = p.groups.m.tolist(), blocks_of(p), p.weight_shape(0)
    batches: list[list[int]] = [[]]
    made = 0
    for index, count in enumerate(rows):
        if not count:
            continue
        if len(batches[-1]) == MOST_GROUPS or made >= cores:
            batches.append([])
            made = 0
        batches[-1].append(index)
        made += ceil_div(2 * count, blocks.rows) * ceil_div(n, blocks.single_n)
    found = [Split(-1, range(0), k)] * len(rows)
    for number, batch in enumerate(batches):
        for place, index in enumerate(batch):
            own = share(cores, len(batch), place)
            piece_k = k
            if rows[index] < len(own):
                piece_k = align_up(ceil_div(k, len(own)), UNIT)
            found[index] = Split(number, own, piece_k)
    return found
