"""Calls of the vector unit that sort, transpose and compact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from npusim.ascendc.calls.table import Chip, Table, every_repeat, lanes_of, local
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Lanes, LocalOperand
from npusim.data.dtypes import INT32, UINT8, UINT64
from npusim.isa import (
    BLOCK_BYTES,
    GatherMask,
    Local,
    MicroOp,
    MrgSort,
    MrgSort4,
    ProposalConcat,
    ProposalExtract,
    RpSort16,
    Sort32,
    TransDataTo5HD,
    Transpose,
)
from npusim.isa.sorting import PlacesOf

__all__ = ["CALLS"]

SORTED, PROPOSALS, PROPOSAL_ELEMENTS = 32, 16, 8
"""Elements per repeat of Sort32, proposals per repeat of RpSort16, elements of a proposal."""
PAIR_BYTES = 8
PATTERNS = get_args(PlacesOf)
"""By the number of src1Pattern, from 1 on."""
FIRST = 1
"""The form of Lanes with a count per repeat."""
LISTS = {3: 2, 7: 3, 15: 4}
"""validBit of MrgSort4Info -> the number of lists that are merged."""


def _sort32(
    _: Chip, dst: LocalOperand, keys: LocalOperand, indices: LocalOperand, repeats: int
) -> Iterator[MicroOp]:
    count = SORTED * repeats
    if count:
        yield Sort32(local(dst, count, UINT64), local(keys, count), local(indices, count, INT32))


def _lists(*words: int) -> tuple[tuple[int, ...], int]:
    """The lengths of the merged lists, and the number of merges."""
    *lengths, suspends, valid, repeats = words
    if suspends:
        raise AscendCError(
            "MrgSort must go on where a list is exhausted, not stop as ifExhaustedSuspension says; "
            "leave it out, and merge what is left"
        )
    if valid not in LISTS:
        raise AscendCError(f"MrgSort: validBit must be 3, 7 or 15, not {valid}; choose one")
    return tuple(lengths[: LISTS[valid]]), repeats


def _mrg_sort(
    _: Chip,
    dst: LocalOperand,
    first: LocalOperand,
    second: LocalOperand,
    third: LocalOperand,
    fourth: LocalOperand,
    *words: int,
) -> Iterator[MicroOp]:
    lengths, repeats = _lists(*words)
    lists = (first, second, third, fourth)[: len(lengths)]
    begin = min(each.address_bytes for each in lists)
    starts = [(each.address_bytes - begin) // PAIR_BYTES for each in lists]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    src = replace(local(first, max(ends), UINT64), offset_bytes=begin)
    whole = sum(lengths)
    for repeat in range(repeats):
        own = replace(src, offset_bytes=begin + repeat * whole * PAIR_BYTES)
        to = replace(
            local(dst, whole, UINT64),
            offset_bytes=dst.address_bytes + repeat * whole * PAIR_BYTES,
        )
        yield MrgSort(to, own, lengths, first.dtype, *starts)


def _proposals(operand: LocalOperand, count: int) -> Local:
    return local(operand, count * PROPOSAL_ELEMENTS)


def _mrg_sort4(
    _: Chip,
    dst: LocalOperand,
    first: LocalOperand,
    _second: LocalOperand,
    _third: LocalOperand,
    _fourth: LocalOperand,
    *words: int,
) -> Iterator[MicroOp]:
    lengths, repeats = _lists(*words)
    count = sum(lengths) * repeats
    yield MrgSort4(_proposals(dst, count), _proposals(first, count), lengths)


def _rp_sort16(_: Chip, dst: LocalOperand, src: LocalOperand, repeats: int) -> Iterator[MicroOp]:
    count = PROPOSALS * repeats
    yield RpSort16(_proposals(dst, count), _proposals(src, count))


def _proposal_concat(
    _: Chip, dst: LocalOperand, src: LocalOperand, repeats: int, mode: int
) -> Iterator[MicroOp]:
    count = PROPOSALS * repeats
    yield ProposalConcat(mode, _proposals(dst, count), local(src, count))


def _proposal_extract(
    _: Chip, dst: LocalOperand, src: LocalOperand, repeats: int, mode: int
) -> Iterator[MicroOp]:
    count = PROPOSALS * repeats
    yield ProposalExtract(mode, local(dst, count), _proposals(src, count))


def _rows(lanes: Lanes, src: LocalOperand) -> Local:
    """The source of GatherMask: unlike others, it extends beyond a repeat if a count needs it."""
    form, low, _, repeats = lanes
    if form != FIRST or low <= lanes_of(src):
        (found,) = every_repeat(lanes, src)
        return found
    whole = local(src, low * repeats)
    if repeats == 1:
        return whole
    bits = low * src.dtype.bits
    if bits % (8 * BLOCK_BYTES):
        raise AscendCError(
            f"GatherMask: a count beyond one repeat must fill whole blocks of {BLOCK_BYTES} bytes "
            f"where there are several, not be {low} of {src.dtype}; take the rest apart"
        )
    return replace(whole, repeat_stride=src.repeat_stride, repeat_blocks=bits // (8 * BLOCK_BYTES))


def _gather_mask(
    _: Chip, dst: LocalOperand, src: LocalOperand, pattern: int, lanes: Lanes
) -> Iterator[MicroOp]:
    if not 1 <= pattern <= len(PATTERNS):
        raise AscendCError(
            f"GatherMask: src1Pattern must be a number from 1 to 7, not {pattern}; pass one"
        )
    made = GatherMask(PATTERNS[pattern - 1], local(dst, 1), _rows(lanes, src))
    assert made.taken is not None
    yield replace(made, dst=local(dst, made.taken.size))


def _gather_mask_by_tensor(
    _: Chip, dst: LocalOperand, src: LocalOperand, bits: LocalOperand, lanes: Lanes
) -> Iterator[MicroOp]:
    own = _rows(lanes, src)
    row = -(-lanes.low // 8)
    places = local(bits, row * lanes.repeats, UINT8)
    if lanes.repeats > 1:
        places = replace(
            places,
            repeat_stride=bits.repeat_stride,
            repeat_blocks=max(1, -(-row // BLOCK_BYTES)),
            mask=None if row % BLOCK_BYTES == 0 else (1 << row) - 1,
        )
    yield GatherMask(places, local(dst, own.count), own)


def _trans_data_to_5hd(
    _: Chip,
    kind: int,
    dst_high: int,
    src_high: int,
    repeats: int,
    dst_stride: int,
    src_stride: int,
    *addresses: int,
) -> Iterator[MicroOp]:
    dtype = LocalOperand(0, 0, kind, 0, 1, 8).dtype
    is_narrow = dtype.bits == 8
    count = (16 if is_narrow else BLOCK_BYTES * 8 // dtype.bits) * repeats

    def rows(places: tuple[int, ...], stride: int, is_high: int) -> tuple[Local, ...]:
        mask = (0xFFFF << 16 * is_high) if is_narrow else None
        step = stride if repeats > 1 else 1
        return tuple(Local("ub", x, dtype, count, 1, step, 1, mask) for x in places)

    if repeats:
        yield TransDataTo5HD(
            rows(addresses[:16], dst_stride, dst_high), rows(addresses[16:], src_stride, src_high)
        )


def _transpose(_: Chip, dst: LocalOperand, src: LocalOperand) -> Iterator[MicroOp]:
    count = 16 * 16
    yield Transpose(local(dst, count), local(src, count))


CALLS: Table = {
    "GatherMask": _gather_mask,
    "GatherMaskByTensor": _gather_mask_by_tensor,
    "MrgSort": _mrg_sort,
    "MrgSort4": _mrg_sort4,
    "ProposalConcat": _proposal_concat,
    "ProposalExtract": _proposal_extract,
    "RpSort16": _rp_sort16,
    "Sort32": _sort32,
    "TransDataTo5HD": _trans_data_to_5hd,
    "Transpose": _transpose,
}
