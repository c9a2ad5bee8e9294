"""Each row of the rules broken once, with its whole message, next to a neighbour that passes."""

from __future__ import annotations

import re
from itertools import product
from typing import get_args

import pytest
from tiny import tiny_spec

from npusim import devices, isa
from npusim.check.rules import CASTS, Place, RuleError, check
from npusim.data.dtypes import (
    BFLOAT16,
    BUFFER_DTYPES,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    RoundMode,
)
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Program

X = isa.Local("ub", 0, FLOAT32, 64)
Y = isa.Local("ub", 256, FLOAT32, 64)


def half(offset_bytes: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, INT8, 16, mask=0xFFFF)


def rows(offset_bytes: int, dtype: DType, repeats: int = 1) -> tuple[isa.Local, ...]:
    """16 blocks, and as many more behind them for each further repeat."""
    count = repeats * 256 // dtype.bits
    return tuple(ub(offset_bytes + 32 * row, dtype, count, 1, 16, 1) for row in range(16))


def masked(offset_bytes: int, count: int, mask: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, FLOAT32, count, mask=mask)


BYTE = isa.Local("ub", 3, UINT8, 1)
CHIPS = {"aiv": tiny_spec(), "aic": tiny_spec(), "ai_core": tiny_spec("2002")}


def ub(offset_bytes: int, dtype: DType, count: int, *strides: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, dtype, count, *strides)


def load(burst: int = 32, pitch: int = 32, bursts: int = 2, stride: int = 32) -> isa.Load:
    named = ub(0, UINT8, (bursts - 1) * pitch + burst)
    return isa.Load(named, isa.Global("x", 0, burst, bursts, stride), pitch)


def store(burst: int = 32, pitch: int = 32, bursts: int = 2, stride: int = 32) -> isa.Store:
    named = ub(0, UINT8, (bursts - 1) * pitch + burst)
    return isa.Store(isa.Global("y", 0, burst, bursts, stride), named, pitch)


def loop(
    *body: isa.ScalarLoad | isa.ScalarStore | isa.ScalarAlu | isa.Trap, count: int = 4
) -> isa.ScalarLoop:
    return isa.ScalarLoop(count, body)


def refused(at: Place, op: isa.MicroOp, message: str) -> None:
    text = f"kernel #1: {op}: {message}"
    with pytest.raises(RuleError, match=f"^{re.escape(text)}$"):
        check(Program("kernel", (isa.Barrier("mte2"), op)), at)


def accepted(at: Place, op: isa.MicroOp) -> None:
    check(Program("kernel", (op,)), at)


UNSET = (
    "a register must be set before it is read, but nobody has set 'r'; "
    "load it with ScalarLoad or compute it with ScalarAlu first"
)
UNSET_MASK = UNSET.replace("'r'", "'cmp_mask'")
ROUNDS = (
    "a round must not touch what another round stores, not even in part; "
    "store elsewhere, or write the rounds one by one"
)
WITHIN_UB = "each operand must be a range within the 16384 bytes of ub, not "
BLOCKS = (
    "strided operands must be blocks of 32 bytes, up to those of a repeat or a multiple of them, "
    "not "
)
ONCE = (
    "dst must have strides that bring it to each block once, not {} for 512 bytes; "
    "raise them, or write elsewhere and combine"
)

# What is refused, its message, and a neighbour that is accepted, on each kind of core.
ROWS_AIV: list[tuple[isa.MicroOp, str, isa.MicroOp]] = [
    (
        isa.Barrier("cube"),
        "its pipe must be one of aiv's, which are scalar, vector, mte2, mte3, not cube; "
        "run it on another kind of core",
        isa.Barrier("vector"),
    ),
    (
        isa.Duplicate(ub(16384 - 224, FLOAT32, 64), 0.0),
        WITHIN_UB + "ub[16160:16416] float32; claim it with the builder",
        isa.Duplicate(ub(16384 - 256, FLOAT32, 64), 0.0),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 0), 0.0),
        WITHIN_UB + "ub[0:0] float32; claim it with the builder",
        isa.Duplicate(ub(0, FLOAT32, 8), 0.0),
    ),
    (
        isa.ScalarLoad("r", isa.Local("l1", 0, UINT8, 1)),
        "each operand must be a range within a buffer that aiv has, "
        "not l1[0:1] uint8; claim it with the builder",
        isa.ScalarLoad("r", BYTE),
    ),
    (
        loop(isa.ScalarLoad("r", ub(16380, UINT8, 1), 1), count=5),
        WITHIN_UB + "ub[16380:16385] uint8; claim it with the builder",
        loop(isa.ScalarLoad("r", ub(16380, UINT8, 1), 1), count=4),
    ),
    (
        isa.Binary("add", X, X, ub(304, FLOAT32, 64)),
        "each operand must start at a multiple of 32 bytes, not at 0, 304, 0; align it",
        isa.Binary("add", X, X, ub(320, FLOAT32, 64)),
    ),
    (
        isa.Load(ub(16, UINT8, 32), isa.Global("x", 0, 32)),
        "each operand must start at a multiple of 32 bytes, not at 16; align it",
        isa.Load(ub(32, UINT8, 32), isa.Global("x", 0, 32)),
    ),
    (
        load(pitch=48),
        "rows must be filled and lie whole blocks of 32 bytes apart, not 32 bytes every 48; "
        "pad the rows",
        load(pitch=64),
    ),
    (
        load(burst=33, pitch=32, stride=64),
        "rows must lie at least the 64 bytes apart that each fills, not 32; raise the pitch",
        load(burst=33, pitch=64, stride=64),
    ),
    (
        isa.Cast(ub(256, INT8, 64), X, "rint"),
        "mode must be one of none known for float32 to int8 on arch 2201, "
        "not 'rint'; use one of these, or cast in two steps",
        isa.Cast(ub(256, INT32, 64), X, "rint"),
    ),
    (
        isa.Binary("add", X, X, ub(512, FLOAT16, 64)),
        "operands must share one of float32, float16, int32, int16, not float32, float16, float32; "
        "cast first",
        isa.Binary("add", X, X, Y),
    ),
    (
        isa.BinaryScalar("mul", ub(0, BFLOAT16, 64), ub(0, BFLOAT16, 64), 1.0),
        "operands must share one of float32, float16, int32, int16, not bfloat16, bfloat16; cast "
        "first",
        isa.BinaryScalar("mul", ub(0, INT32, 64), ub(0, INT32, 64), 1),
    ),
    (
        isa.BinaryScalar("div", ub(0, INT32, 64), ub(0, INT32, 64), 2),
        "operands must share one of float32, float16, not int32, int32; cast first",
        isa.BinaryScalar("div", ub(0, FLOAT16, 64), ub(0, FLOAT16, 64), 2.0),
    ),
    (
        isa.Unary("relu", ub(0, INT16, 64), ub(0, INT16, 64)),
        "operands must share one of float32, float16, int32, not int16, int16; cast first",
        isa.Unary("relu", ub(0, INT32, 64), ub(0, INT32, 64)),
    ),
    (
        isa.Unary("exp", ub(0, INT32, 64), ub(0, INT32, 64)),
        "operands must share one of float32, float16, not int32, int32; cast first",
        isa.Unary("exp", ub(0, FLOAT16, 64), ub(0, FLOAT16, 64)),
    ),
    (
        isa.BinaryScalar("shift_left", *[X.as_dtype(INT16)] * 2, 17),
        "bits must be shifted 0 to 16 places, not 17; shift all out with Duplicate",
        isa.BinaryScalar("shift_left", *[X.as_dtype(INT32)] * 2, 17),
    ),
    (
        isa.BinaryScalar("shift_right_round", *[X.as_dtype(UINT16)] * 2, 1),
        "operands must share one of int16, int32, not uint16, uint16; take the bytes as such",
        isa.BinaryScalar("shift_right", *[X.as_dtype(UINT16)] * 2, 1),
    ),
    (
        isa.Binary("mul", ub(1024, INT16, 64), ub(0, FLOAT16, 64), ub(256, FLOAT16, 64)),
        "operands must share one of float32, float16, int32, int16, not float16, float16, int16; "
        "cast first",
        isa.Binary("mul", ub(1024, UINT8, 64), ub(0, FLOAT16, 64), ub(256, FLOAT16, 64)),
    ),
    (
        isa.CastDequant(ub(1024, INT8, 64), ub(0, FLOAT16, 64), 1.0),
        "src and dst must be int32 and float16, or int16 and int8 or uint8, not float16, int8; use "
        "Cast",
        isa.CastDequant(ub(1024, FLOAT16, 64), ub(0, INT32, 64), 1.0),
    ),
    (
        isa.CastDequant(ub(1024, FLOAT16, 64), ub(0, INT32, 64), 1e6),
        "scale must be a number, of float16 for int32, which has no offset, or for int16 16 uint64 "
        "without strides, which have their own, not 1000000.0 and 0; change it",
        isa.CastDequant(ub(1024, FLOAT16, 64), ub(0, INT32, 64), 1e3),
    ),
    (
        isa.CastDequant(ub(1024, INT8, 16), ub(0, INT16, 16), 1.0, 3),
        "bytes must fill the first or the second half of a block for each block of src, by the "
        "mask of dst, not ub[1024:1040] int8 of ub[0:32] int16; give it the lanes of src, those of "
        "one block 32 further than those of the block before",
        isa.CastDequant(
            isa.Local("ub", 1024, INT8, 16, mask=0xFFFF_0000), ub(0, INT16, 16), 1.0, 3
        ),
    ),
    (
        isa.Binary("or", X, X, X),
        "operands must share one of int16, uint16, not float32, float32, float32; take the bytes "
        "as such",
        isa.Binary("or", *[X.as_dtype(INT16)] * 3),
    ),
    (
        isa.Compare("lt", ub(1024, UINT8, 8), ub(0, INT32, 64), ub(256, INT32, 64)),
        "dst must be uint8 and what is compared share one of float32, float16, or for eq int32, "
        "not int32, int32, uint8 for lt; cast first",
        isa.Compare("eq", ub(1024, UINT8, 8), ub(0, INT32, 64), ub(256, INT32, 64)),
    ),
    (
        isa.CompareScalar("lt", ub(1024, UINT8, 8), ub(0, FLOAT16, 64), 0.5),
        "what is compared must be whole repeats of 256 bytes, or for the register one, all with "
        "the same number of elements and a bit in dst for each, not 64 elements and 64 bits; pad "
        "them",
        isa.CompareScalar("lt", ub(1024, UINT8, 16), ub(0, FLOAT16, 128), 0.5),
    ),
    (
        isa.CompareScalar("eq", ub(1024, UINT8, 8), ub(0, INT32, 64), 0.5),
        "scalar must be a number that int32 has, not 0.5; round or clip it",
        isa.CompareScalar("eq", ub(1024, UINT8, 8), ub(0, INT32, 64), 1),
    ),
    (
        isa.Compare("lt", ub(1024, UINT8, 64, 2), ub(0, FLOAT32, 512), ub(2048, FLOAT32, 512)),
        "dst must be without strides, not ub[1024:1120] uint8 stride 2,8; take the pieces one by "
        "one",
        isa.Compare("lt", ub(1024, UINT8, 16), ub(0, FLOAT32, 128, 1, 16), ub(2048, FLOAT32, 128)),
    ),
    (
        isa.Compare("lt", "cmp_mask", ub(0, FLOAT32, 128), ub(2048, FLOAT32, 128)),
        "what is compared must be whole repeats of 256 bytes, or for the register one, all with "
        "the same number of elements and a bit in dst for each, not 128, 128 elements and 128 "
        "bits; pad them",
        isa.Compare("lt", "cmp_mask", masked(0, 4, 0xF0), masked(2048, 4, 0xF0)),
    ),
    (
        isa.Select(ub(4096, FLOAT32, 128), ub(1024, UINT8, 9), *[ub(0, FLOAT32, 128)] * 2),
        "mask must be uint8 with a bit for each element, and all others share their number of "
        "elements and one of float32, float16, not 9 uint8, 128 float32, 128 float32, 128 float32; "
        "cast first, or cut them alike",
        # The bits of one repeat for both.
        isa.Select(ub(4096, FLOAT32, 128), ub(1024, UINT8, 8), *[ub(0, FLOAT32, 128)] * 2),
    ),
    (
        isa.GatherBlocks(X, ub(1024, FLOAT32, 64), ub(2048, UINT32, 7)),
        "src and dst must share one type of 16 or 32 bits, and offsets be int32 or uint32, one for "
        "each block that is moved, not 64 float32, 7 uint32, 64 float32; cast first, or cut them "
        "alike",
        isa.GatherBlocks(X, ub(1024, FLOAT32, 64), ub(2048, UINT32, 8)),
    ),
    (
        isa.Scatter(ub(1024, FLOAT32, 64), X, ub(2048, UINT32, 64)),
        "the arch must be 2002, not 2201; store one by one",
        isa.Gather(ub(1024, FLOAT32, 64), X, ub(2048, UINT32, 64)),
    ),
    (
        isa.TransDataTo5HD(rows(2048, FLOAT16)[1:], rows(0, FLOAT16)),
        "src and dst must be 16 rows each of one type of 8, 16 or 32 bits, all of as many blocks, "
        "or halves of blocks of bytes by their masks, one to a repeat, not "
        + ", ".join(["16 float16"] * 31)
        + "; change them",
        isa.TransDataTo5HD(rows(2048, FLOAT16), rows(0, FLOAT16)),
    ),
    (
        isa.TransDataTo5HD(rows(32, FLOAT16, 2), rows(0, FLOAT16, 2)),
        f"rows of several repeats must not lie where others are read, as they do of "
        f"{isa.TransDataTo5HD(rows(32, FLOAT16, 2), rows(0, FLOAT16, 2))}; move them, or turn them "
        f"one by one",
        isa.TransDataTo5HD(rows(32, FLOAT16), rows(0, FLOAT16)),
    ),
    (
        isa.GetCmpMask(ub(16, UINT8, 15), "cmp_mask"),
        UNSET_MASK,
        isa.SetCmpMask(ub(0, UINT8, 16)),
    ),
    (
        isa.SetCmpMask(ub(0, UINT8, 15)),
        "the register must go to or come from 16 uint8, not 15 uint8; take so many",
        isa.SetCmpMask(ub(0, UINT8, 16)),
    ),
    (
        isa.Copy(half(0), half(1024)),
        "a mask must be of 16 or 32 bits, not int8, int8; copy them as such",
        isa.Copy(ub(0, INT64, 4), ub(1024, INT64, 4)),
    ),
    (
        isa.GatherMask(ub(2048, UINT32, 3), ub(1024, FLOAT32, 64), X),
        "places must be unsigned and as wide as elements of src, with a bit for each of the 64 of "
        "each repeat, not 3 of ub[2048:2060] uint32; change them",
        isa.GatherMask(ub(2048, UINT32, 2), ub(1024, FLOAT32, 64), X, "kept"),
    ),
    (
        isa.WholeReduce("max", ub(1026, FLOAT16, 2), ub(0, FLOAT16, 128), None, "value_index"),
        "each operand must start at a multiple of 32 bytes, not at 0, 1026; align it",
        isa.WholeReduce("max", ub(1028, FLOAT16, 2), ub(0, FLOAT16, 128), None, "value_index"),
    ),
    (
        isa.Select(X, ub(1024, UINT8, 7), X, Y),
        "mask must be uint8 with a bit for each element, and all others share their number of "
        "elements and one of float32, float16, not 7 uint8, 64 float32, 64 float32, 64 float32; "
        "cast first, or cut them alike",
        isa.Select(X, ub(1024, UINT8, 8), X, Y),
    ),
    (
        isa.Select(ub(0, FLOAT16, 8), ub(1024, UINT8, 1), ub(0, FLOAT16, 8), 1e5),
        "b must be a number that float16 has, not 100000.0; round it",
        isa.Select(ub(0, FLOAT16, 8), ub(1024, UINT8, 1), ub(0, FLOAT16, 8), float("inf")),
    ),
    (
        isa.Gather(X, ub(1024, FLOAT32, 9), ub(2048, INT32, 63)),
        "src and dst must share one type of 16 or 32 bits, and offsets be int32 or uint32, one for "
        "each element that is moved, not 9 float32, 63 int32, 64 float32; cast first, or cut them "
        "alike",
        isa.Gather(X, ub(1024, FLOAT32, 9), ub(2048, INT32, 64)),
    ),
    (
        isa.MulAddDst(ub(1024, FLOAT32, 64), ub(0, FLOAT16, 64), ub(512, FLOAT32, 64)),
        "operands must share one of float32, float16, not float16, float32, float32, float32; cast "
        "first",
        isa.MulAddDst(ub(1024, FLOAT32, 64), ub(0, FLOAT16, 64), ub(512, FLOAT16, 64)),
    ),
    (
        isa.Sort32(ub(1024, UINT64, 40), ub(0, FLOAT32, 40), ub(512, INT32, 40)),
        "keys must be float32 or float16, indices int32 and dst uint64, all with the same number "
        "of elements, a multiple of 32, not 40 float32, 40 int32, 40 uint64; cast or pad them",
        isa.Sort32(ub(1024, UINT64, 64), ub(0, FLOAT32, 64), ub(512, INT32, 64)),
    ),
    (
        isa.Sort32(ub(256, UINT64, 64), ub(0, FLOAT32, 64), ub(512, INT32, 64)),
        "dst must lie apart from what is read, not ub[256:768] uint64 among ub[0:256] float32, "
        "ub[512:768] int32; write elsewhere",
        isa.Sort32(ub(256, UINT64, 64), ub(0, FLOAT32, 64), ub(768, INT32, 64)),
    ),
    (
        isa.MrgSort(ub(1024, UINT64, 64), ub(0, UINT64, 64), (32, 32), FLOAT32, 0, 33),
        "src and dst must be uint64, key float32 or float16, and two to four lists make the pairs "
        "of dst and lie within src, not 64 uint64, 64 uint64, key float32 and lists of 32, 32 "
        "from 0, 33; change their counts",
        isa.MrgSort(ub(1024, UINT64, 64), ub(0, UINT64, 64), (32, 32), FLOAT32, 32, 0),
    ),
    (
        isa.MrgSort(ub(256, UINT64, 64), ub(0, UINT64, 64), (32, 32), FLOAT16, 0, 32),
        "dst must lie apart from what is read, not ub[256:768] uint64 among ub[0:512] uint64; "
        "write elsewhere",
        isa.MrgSort(ub(512, UINT64, 64), ub(0, UINT64, 64), (32, 32), FLOAT16, 0, 32),
    ),
    (
        isa.GatherMask("odd", ub(1024, FLOAT32, 33), ub(0, FLOAT32, 64)),
        "src and dst must share one type of 16 or 32 bits, and dst have as many elements as come, "
        "of src or with a tensor at most, not 64 float32, 33 float32; change its count",
        isa.GatherMask("odd", ub(1024, FLOAT32, 32), ub(0, FLOAT32, 64)),
    ),
    (
        isa.Transpose(ub(0, FLOAT16, 256), ub(1024, FLOAT16, 128)),
        "src and dst must be as many matrices of 512 bytes each, of one type of 16 or 32 bits, not "
        "128 float16, 256 float16; pad them",
        isa.Transpose(ub(0, FLOAT16, 256), ub(1024, FLOAT16, 256)),
    ),
    (
        isa.ScalarLoadGlobal("r", isa.Global("x", 6, 4), INT32),
        "src must be one element of 8 to 64 bits that lies at a multiple of its size, not 4 bytes "
        "of int32 at 6; name just that one",
        isa.ScalarLoadGlobal("r", isa.Global("x", 8, 4), INT32),
    ),
    (
        isa.WholeReduce("sum", ub(1024, FLOAT32, 4), ub(0, FLOAT32, 64, 1, 3, 2), 17),
        "mask must be at most the 16 elements of a repeat, not 17; take more blocks a repeat",
        isa.WholeReduce("sum", ub(1024, FLOAT32, 4), ub(0, FLOAT32, 64, 1, 3, 2), 16),
    ),
    (
        isa.Binary("add", X, X, ub(256, FLOAT32, 63)),
        "operands must have the same number of elements, and at least one, not 64, 63, 64; "
        "cut them alike",
        isa.Binary("add", ub(0, FLOAT32, 63), ub(0, FLOAT32, 63), ub(256, FLOAT32, 63)),
    ),
    (
        isa.Duplicate(ub(0, INT8, 64), 0),
        "operands must share one type of 16 or 32 bits, not int8; cast first",
        isa.Duplicate(ub(0, BFLOAT16, 64), 0),
    ),
    (
        isa.Broadcast(ub(256, FLOAT16, 128), ub(0, FLOAT32, 8)),
        "operands must share one type of 16 or 32 bits, not float32, float16; cast first",
        isa.Broadcast(ub(256, FLOAT16, 128), ub(0, FLOAT16, 8)),
    ),
    (
        isa.Reduce("max", ub(256, FLOAT16, 1), X),
        "operands must share one type of 16 or 32 bits, not float32, float16; cast first",
        isa.Reduce("max", ub(256, FLOAT32, 1), X),
    ),
    (
        # A base may be any element.
        isa.Gather(X, ub(1026, FLOAT32, 9), ub(2048, INT32, 64)),
        "each operand must start at a multiple of 32 bytes, not at 1026, 2048, 0; align it",
        isa.Gather(X, ub(1028, FLOAT32, 9), ub(2048, INT32, 64)),
    ),
    (
        # A mask picks lanes of one block, not of two.
        isa.Binary("add", ub(20, FLOAT32, 4), ub(52, FLOAT32, 4), ub(84, FLOAT32, 4)),
        "each operand must start at a multiple of 32 bytes, not at 52, 84, 20; align it",
        isa.Binary("add", ub(20, FLOAT32, 3), ub(52, FLOAT32, 3), ub(84, FLOAT32, 3)),
    ),
    (
        isa.Binary("add", ub(20, FLOAT32, 1), ub(52, FLOAT32, 1), ub(88, FLOAT32, 1)),
        "each operand must start at a multiple of 32 bytes, not at 52, 88, 20; align it",
        isa.Binary("add", ub(20, FLOAT32, 1), ub(52, FLOAT32, 1), ub(84, FLOAT32, 1)),
    ),
    (
        isa.WholeReduce("max", ub(256, FLOAT32, 2), ub(512, FLOAT32, 64)),
        "dst must be one element, from the first to the last that comes of the 64 of src, not 2; "
        "change its count",
        isa.WholeReduce("max", ub(256, FLOAT32, 2), ub(512, FLOAT32, 128, 1, 300)),
    ),
    (
        isa.WholeReduce("min", ub(256, FLOAT16, 1), ub(512, FLOAT16, 129)),
        "dst must be 2 elements, from the first to the last that comes of the 129 of src, not 1; "
        "change its count",
        # Where the chip counts elements, the second repeat has one.
        isa.WholeReduce("min", ub(256, FLOAT16, 2), ub(512, FLOAT16, 129)),
    ),
    (
        isa.WholeReduce("min", ub(256, FLOAT16, 2), ub(512, FLOAT16, 129), 3),
        "with a mask src must be whole repeats and have none, not 129 of ub[512:770] float16; take "
        "one of the two",
        isa.WholeReduce("min", ub(256, FLOAT16, 2), ub(512, FLOAT16, 256), 3),
    ),
    (
        isa.WholeReduce("max", ub(256, FLOAT32, 2), ub(512, FLOAT32, 128), None, "value", 3),
        "dst must be 4 elements, from the first to the last that comes of the 128 of src, not 2; "
        "change its count",
        isa.WholeReduce("max", ub(256, FLOAT32, 8), ub(512, FLOAT32, 128), None, "index_value", 3),
    ),
    (
        isa.WholeReduce("max", ub(256, FLOAT32, 65, 2), ub(512, FLOAT32, 128), None, "value", 64),
        "dst must have either strides or a stride of results, not both as ub[256:736] float32 "
        "stride 2,8 has; take the former out",
        isa.WholeReduce("max", ub(256, FLOAT32, 65), ub(1024, FLOAT32, 128), None, "value", 64),
    ),
    (
        isa.WholeReduce("sum", ub(256, FLOAT32, 2), ub(512, FLOAT32, 64), None, "value_index"),
        "a sum must leave a value, not value_index; take min or max",
        isa.WholeReduce("min", ub(256, FLOAT32, 2), ub(512, FLOAT32, 64), None, "value_index"),
    ),
    (
        isa.BlockReduce("max", ub(256, FLOAT32, 2), masked(512, 4, 0x303)),
        "a mask must come with a dst_stride, not with None; say how far apart the results of "
        "repeats lie",
        isa.BlockReduce("max", ub(256, FLOAT32, 2), masked(512, 4, 0x303), 1),
    ),
    (
        isa.Fold("max", X, ub(256, FLOAT32, 100)),
        "dst must be one repeat of at most 256 bytes and src a number of such repeats, not 256 and "
        "400 bytes; cut them so",
        isa.Fold("max", X, ub(256, FLOAT32, 128)),
    ),
    (
        isa.Broadcast(ub(256, FLOAT32, 56), ub(0, FLOAT32, 8)),
        "dst must be 32 bytes for each of the 8 elements, not 224 in all; change its count",
        isa.Broadcast(ub(256, FLOAT32, 64), ub(0, FLOAT32, 8)),
    ),
    (
        isa.Fold("add", ub(0, FLOAT32, 12), ub(64, FLOAT32, 12, 2, 16)),
        BLOCKS + "48, 48, 48 bytes; pad them",
        isa.Fold("add", ub(0, FLOAT32, 16), ub(64, FLOAT32, 16, 2, 16)),
    ),
    (
        isa.Fold("add", ub(0, FLOAT32, 32), ub(128, FLOAT32, 96, 2, 16)),
        BLOCKS + "384, 128, 128 bytes; pad them",
        isa.Fold("add", ub(0, FLOAT32, 32), ub(128, FLOAT32, 96, 2, 16, 4)),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 40, 2, 16, 4), 0.0),
        "strided operands that end within a repeat must have whole repeats of 256 bytes of the "
        "widest before, not 40 of ub[0:544] float32 stride 2,16 of 4 blocks; give them a mask",
        # Where the chip counts elements, 12 of the second repeat are left.
        isa.Duplicate(ub(0, FLOAT32, 76, 2, 16), 0.0),
    ),
    (
        isa.Unary("exp", masked(0, 20, 0x3FF), masked(1024, 20, 0x7FE)),
        "all operands must have the same mask, or none, not ub[1024:1324] float32 mask 0x7fe, "
        "ub[0:296] float32 mask 0x3ff; give it to each",
        isa.Unary("exp", masked(0, 20, 0x7FE), masked(1024, 20, 0x7FE)),
    ),
    (
        isa.Duplicate(masked(0, 20, 0x7FE << 54), 0.0),
        "a mask must pick lanes of a repeat of 256 bytes, of elements of whole bytes, and the "
        "number of elements be as many for each repeat, not 20 of ub[0:516] float32 mask "
        "0x1ff80000000000000; count those that take part",
        isa.Duplicate(masked(0, 20, 0x7FE << 53), 0.0),
    ),
    (
        isa.Duplicate(masked(0, 21, 0x7FE), 0.0),
        "a mask must pick lanes of a repeat of 256 bytes, of elements of whole bytes, and the "
        "number of elements be as many for each repeat, not 21 of ub[0:520] float32 mask 0x7fe; "
        "count those that take part",
        isa.Duplicate(masked(0, 30, 0x7FE), 0.0),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 72, 2, 18, 9), 0.0),
        "a repeat must have at most 8 blocks, not 9; make it several",
        isa.Copy(ub(0, FLOAT32, 144, 1, 9, 9), ub(4096, FLOAT32, 144, 2, 18, 9)),
    ),
    (
        isa.Cast(ub(4096, FLOAT16, 256, 2, 16), ub(0, INT8, 256, 2, 8)),
        "strided operands must have the same number of elements in a repeat, not 256, 128; "
        "take fewer blocks a repeat of the narrower one",
        isa.Cast(ub(4096, FLOAT16, 256, 2, 16), ub(0, INT8, 256, 2, 8, 4)),
    ),
    (
        loop(isa.ScalarAlu("add", "s", "r", 2)),
        UNSET,
        loop(isa.ScalarLoad("r", BYTE, 1), isa.ScalarAlu("add", "s", "r", 2)),
    ),
    (
        loop(isa.ScalarStore(BYTE, "r", 1)),
        UNSET,
        loop(isa.ScalarAlu("add", "r", 1, 2), isa.ScalarStore(BYTE, "r", 1)),
    ),
    (loop(isa.Trap("r", "stop")), UNSET, loop(isa.ScalarLoad("r", BYTE, 1), isa.Trap("r", "stop"))),
    (
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1), 1), isa.ScalarStore(ub(1, UINT8, 1), "r", 1)),
        ROUNDS,
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1), 1), isa.ScalarStore(ub(0, UINT8, 1), "r", 1)),
    ),
    (
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1)), isa.ScalarStore(ub(0, UINT8, 1), "r")),
        ROUNDS,
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1)), isa.ScalarStore(ub(0, UINT8, 1), "r"), count=1),
    ),
    (
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1), 1), isa.ScalarStore(ub(3, UINT8, 1), "r", 1)),
        ROUNDS,
        loop(isa.ScalarLoad("r", ub(0, UINT8, 1), 1), isa.ScalarStore(ub(4, UINT8, 1), "r", 1)),
    ),
    (
        isa.Load(ub(0, FLOAT32, 8), isa.Global("x", 0, 256)),
        "dst must hold the 256 bytes that are written, ub[0:256] uint8, not be ub[0:32] float32; "
        "name more or move less",
        isa.Load(ub(0, FLOAT32, 64), isa.Global("x", 0, 256)),
    ),
    (
        isa.Load(ub(0, FLOAT32, 8), isa.Global("x", 0, 33), 0),
        "dst must hold the 64 bytes that are written, ub[0:64] uint8, not be ub[0:32] float32; "
        "name more or move less",
        isa.Load(ub(0, FLOAT32, 9), isa.Global("x", 0, 33), 0),
    ),
    (
        isa.Store(isa.Global("y", 0, 256), ub(0, FLOAT32, 63)),
        "src must hold the 256 bytes that are read, ub[0:256] uint8, not be ub[0:252] float32; "
        "name more or move less",
        isa.Store(isa.Global("y", 0, 256), ub(0, FLOAT32, 64)),
    ),
    (
        isa.Store(isa.Global("y", 0, 32, 2, 32), ub(0, UINT8, 64), 0),
        "rows must lie at least the 32 bytes apart that each fills, not 0; raise the pitch",
        isa.Store(isa.Global("y", 0, 32, 1, 32), ub(0, UINT8, 64), 0),
    ),
    (
        load(stride=31),
        "bursts must lie at least their 32 bytes apart in global memory, not 31; "
        "raise the stride, or copy them one by one",
        load(stride=31, bursts=1),
    ),
    (
        isa.Load(ub(0, UINT8, 64, 2, 8), isa.Global("x", 0, 64)),
        "operands must be without strides, which vector instructions on ub alone have, not "
        "ub[0:96] uint8 stride 2,8; take the pieces one by one",
        isa.Load(ub(0, UINT8, 64), isa.Global("x", 0, 64)),
    ),
    (
        isa.ScalarLoad("r", ub(0, UINT8, 2)),
        "what is loaded or stored must be one element of 8 to 64 bits, not 2 in ub[0:2] uint8; "
        "take one after the other",
        isa.ScalarLoad("r", ub(0, UINT8, 1)),
    ),
    (
        loop(isa.ScalarLoad("r", ub(0, INT4, 1))),
        "what is loaded or stored must be one element of 8 to 64 bits, not 1 in ub[0:1] int4; "
        "take one after the other",
        loop(isa.ScalarLoad("r", ub(0, INT8, 1))),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 128, 1, 0), 0.0),
        ONCE.format("1 and 0"),
        isa.Duplicate(ub(0, FLOAT32, 128, 2, 1), 0.0),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 128, 2, 4), 0.0),
        ONCE.format("2 and 4"),
        isa.Duplicate(ub(0, FLOAT32, 128, 2, 5), 0.0),
    ),
    (
        isa.Binary("add", ub(0, FLOAT32, 10**9), *[ub(0, FLOAT32, 10**9, 0, 0)] * 2),
        WITHIN_UB + "ub[0:32] float32 stride 0,0; claim it with the builder",
        isa.Binary("add", ub(0, FLOAT32, 512), *[ub(2048, FLOAT32, 512, 0, 0)] * 2),
    ),
    (
        isa.Binary("add", ub(0, FLOAT32, 128, 1, 256), *[ub(0, FLOAT32, 128)] * 2),
        "strides must be at most 255 blocks, not those of ub[0:512] float32, ub[0:512] float32, "
        "ub[0:8448] float32 stride 1,256; emit what in_reach makes of it",
        isa.Binary("add", ub(0, FLOAT32, 128, 1, 255), *[ub(0, FLOAT32, 128)] * 2),
    ),
    (
        isa.Duplicate(ub(0, FLOAT32, 16, 256), 0.0),
        "strides must be at most 255 blocks, not those of ub[0:8224] float32 stride 256,8; "
        "emit what in_reach makes of it",
        # With one repeat nothing comes of the other stride.
        isa.Duplicate(ub(0, FLOAT32, 16, 255, 256), 0.0),
    ),
    (
        isa.Copy(ub(8192, FLOAT32, 8), ub(0, FLOAT16, 16)),
        "operands must have the same number of elements, and at least one, not 16, 8; "
        "cut them alike",
        # A DataCopy, whose gaps are wider.
        isa.Copy(ub(8192, FLOAT32, 16), ub(0, FLOAT32, 16, 256, 8)),
    ),
    (
        isa.Cast(ub(0, INT4, 63), ub(256, FLOAT16, 63), "rint"),
        "operands of int4 must be whole bytes, not 63, 63 elements; pad them",
        isa.Cast(ub(0, INT4, 64), ub(256, FLOAT16, 64), "rint"),
    ),
    (
        isa.BinaryScalar("mul", ub(0, INT32, 64), ub(0, INT32, 64), 1.5),
        "scalar must be a number that int32 has, not 1.5; round or clip it",
        isa.BinaryScalar("mul", ub(0, INT32, 64), ub(0, INT32, 64), 2.0),
    ),
    (
        isa.Axpy(ub(0, FLOAT16, 64), ub(256, FLOAT16, 64), 65520.0),
        "scalar must be a number that float16 has, not 65520.0; round or clip it",
        isa.Axpy(ub(0, FLOAT16, 64), ub(256, FLOAT16, 64), float("inf")),
    ),
    (
        isa.Duplicate(ub(0, INT32, 64), 2**31),
        "scalar must be a number that int32 has, not 2147483648; round or clip it",
        isa.Duplicate(ub(0, INT32, 64), -(2**31)),
    ),
    (
        isa.Reduce("max", Y, X),
        "dst must be one element, not 64; change its count",
        isa.Reduce("max", ub(256, FLOAT32, 1), X),
    ),
    (
        isa.SetFlag("mte2", "vector", 8),
        "a flag must go between two pipes with an event in [0, 8), not mte2->vector 8; "
        "use another event",
        isa.SetFlag("mte2", "vector", 7),
    ),
    (
        isa.Unary("abs", ub(32, FLOAT32, 64), ub(0, FLOAT32, 64)),
        "within a repeat, a source and dst must be the same bytes or have none in common, not "
        "share a part as ub[0:256] float32 and ub[32:288] float32 do; move one of them",
        isa.Unary("abs", ub(0, FLOAT32, 64), ub(0, FLOAT32, 64)),
    ),
    (
        isa.Cast(ub(0, FLOAT32, 128), ub(0, FLOAT16, 128), "none"),
        "no repeat must read what one before it has written, as it does of ub[0:256] float16 and "
        "ub[0:512] float32; move one of them, or take a repeat at a time with a barrier between",
        isa.Cast(ub(0, FLOAT32, 128), ub(256, FLOAT16, 128), "none"),
    ),
    (
        isa.Unary("abs", ub(256, FLOAT32, 128), ub(0, FLOAT32, 128)),
        "no repeat must read what one before it has written, as it does of ub[0:512] float32 and "
        "ub[256:768] float32; move one of them, or take a repeat at a time with a barrier between",
        # What a later repeat writes, an earlier one has read by then.
        isa.Unary("abs", ub(0, FLOAT32, 128), ub(256, FLOAT32, 128)),
    ),
    (
        isa.Binary("add", ub(0, FLOAT32, 128), ub(512, FLOAT32, 128), ub(0, FLOAT32, 128, 1, 0)),
        "no repeat must read what one before it has written, as it does of ub[0:256] float32 "
        "stride 1,0 and ub[0:512] float32; move one of them, or take a repeat at a time with a "
        "barrier between",
        isa.Binary("add", ub(0, FLOAT32, 64), ub(512, FLOAT32, 64), ub(0, FLOAT32, 64, 1, 0)),
    ),
    (
        isa.WaitFlag("vector", "vector", 0),
        "a flag must go between two pipes with an event in [0, 8), not vector->vector 0; "
        "use another event",
        isa.WaitFlag("vector", "mte3", 0),
    ),
    (
        isa.SetFlag("vector", "cube", 0),
        "a flag must go between pipes of aiv, which are scalar, vector, mte2, mte3, "
        "not vector->cube; drop it",
        isa.SetFlag("vector", "mte3", 0),
    ),
]
ROWS_AIC: list[tuple[isa.MicroOp, str, isa.MicroOp]] = [
    (
        isa.Duplicate(X, 0.0),
        "its pipe must be one of aic's, which are scalar, mte1, mte2, mte3, cube, fixpipe, "
        "not vector; run it on another kind of core",
        isa.Barrier("mte1"),
    ),
    (
        isa.Load(isa.Local("l0a", 0, UINT8, 32), isa.Global("x", 0, 32)),
        "a copy must go a way that aic has, one of gm_to_l1, l2_to_l1, l1_to_l0a, l1_to_l0b, "
        "l1_to_bt, l1_to_fb, l0c_to_l1, l0c_to_gm, l0c_to_l2, l1_to_gm, l1_to_l2, "
        "not gm_to_l0a or l2_to_l0a; take another buffer",
        isa.Load(isa.Local("l1", 0, UINT8, 32), isa.Global("x", 0, 32)),
    ),
]
ROWS_AI_CORE: list[tuple[isa.MicroOp, str, isa.MicroOp]] = [
    (
        load(burst=48, pitch=64, stride=64),
        "bursts and strides must be multiples of 32 bytes on arch 2002, not 48 and 64; "
        "copy row by row, and let the tail overlap",
        load(burst=64, pitch=64, stride=64),
    ),
    (
        store(burst=32, stride=40),
        "bursts and strides must be multiples of 32 bytes on arch 2002, not 32 and 40; "
        "copy row by row, and let the tail overlap",
        store(burst=32, stride=64),
    ),
    (
        isa.Cast(ub(256, INT8, 64), ub(0, FLOAT16, 64), "rint"),
        "mode must be one of floor, ceil, round, trunc, none for float16 to int8 on arch 2002, "
        "not 'rint'; use one of these, or cast in two steps",
        isa.Cast(ub(256, INT8, 64), ub(0, FLOAT16, 64), "round"),
    ),
    (
        isa.Sort32(ub(1024, UINT64, 32), ub(0, FLOAT32, 32), ub(512, INT32, 32)),
        "the arch must be 2201, which sorts pairs, not 2002; sort on the host",
        isa.Copy(ub(1024, FLOAT32, 64), ub(0, FLOAT32, 64)),
    ),
    (
        isa.GatherMask("all", ub(1024, FLOAT32, 64), ub(0, FLOAT32, 64)),
        "places must be some of all on arch 2002, not all; copy them",
        isa.GatherMask("third", ub(1024, FLOAT32, 16), ub(0, FLOAT32, 64)),
    ),
    (
        isa.GatherBlocks(ub(0, FLOAT32, 64), ub(1024, FLOAT32, 64), ub(2048, UINT32, 8)),
        "the arch must be 2201, not 2002; copy block by block",
        isa.Scatter(ub(0, FLOAT32, 64), ub(1024, FLOAT32, 64), ub(2048, UINT32, 64)),
    ),
    (
        load(stride=32 * 65537),
        "bursts must lie at most 2097120 bytes from end to start, not 2097152; "
        "copy them one by one",
        load(stride=32 * 65536),
    ),
    (
        isa.BroadcastToL0c(isa.Local("l0c", 0, FLOAT32, 256), ub(0, FLOAT16, 16), 16),
        "src and dst must share one of float32, int32, not float16, float32; cast first",
        isa.BroadcastToL0c(isa.Local("l0c", 0, FLOAT32, 256), ub(0, FLOAT32, 16), 16),
    ),
    (
        isa.BroadcastToL0c(isa.Local("l0c", 0, FLOAT32, 256), ub(0, FLOAT32, 16), 24),
        "rows and columns must be multiples of 16 and dst hold each column so often, not 256 "
        "elements for 24 rows of 16; pad them",
        isa.BroadcastToL0c(isa.Local("l0c", 0, FLOAT32, 512), ub(0, FLOAT32, 16), 32),
    ),
    (
        isa.BroadcastToL0c(ub(0, FLOAT32, 256), ub(2048, FLOAT32, 16), 16),
        "it must go a way that ai_core has for it, one of ub_to_l0c, not ub_to_ub; "
        "take another buffer",
        isa.BroadcastToL0c(isa.Local("l0c", 0, INT32, 256), ub(2048, INT32, 16), 16),
    ),
]
ROWS = {"aiv": ROWS_AIV, "aic": ROWS_AIC, "ai_core": ROWS_AI_CORE}


@pytest.mark.parametrize("kind", ROWS)
def test_rules_refuse(kind: str, subtests: pytest.Subtests) -> None:
    at = Place(CHIPS[kind], kind)
    for bad, message, good in ROWS[kind]:
        with subtests.test(message):
            refused(at, bad, message)
            accepted(at, good)


def test_the_other_arch_moves_any_number_of_bytes(tiny: DeviceSpec) -> None:
    accepted(Place(tiny, "aiv"), load(burst=5, pitch=32, stride=7))
    accepted(Place(tiny, "aiv"), store(burst=5, pitch=32, stride=7))


@pytest.mark.parametrize("arch", ["2201", "2002"])
def test_the_table_of_casts_is_exact(arch: str, tiny: DeviceSpec, tiny_2002: DeviceSpec) -> None:
    at = Place(tiny, "aiv") if arch == "2201" else Place(tiny_2002, "ai_core")
    taken = []
    for src, dst, mode in product(BUFFER_DTYPES, BUFFER_DTYPES, get_args(RoundMode)):
        op = isa.Cast(ub(1024, dst, 64), ub(0, src, 64), mode)
        try:
            accepted(at, op)
        except RuleError:
            continue
        taken.append((src, dst, mode))
    table = [(src, dst, mode) for (src, dst), modes in CASTS[arch].items() for mode in modes]
    assert sorted(taken, key=str) == sorted(table, key=str)


# asc-devkit, Cast.md: what one arch has and the other has not. int32 becomes fp16 whatever the mode
# (kernel_operator_vec_vconv_impl.h), though the table names none alone.
@pytest.mark.parametrize(
    ("src", "dst", "mode", "on_2201", "on_2002"),
    [
        (FLOAT16, INT8, "rint", True, False),
        (FLOAT16, INT8, "round", True, True),
        (FLOAT16, INT4, "rint", True, False),
        (FLOAT16, INT4, "none", True, True),
        (FLOAT32, FLOAT16, "rint", True, False),
        (FLOAT32, FLOAT16, "odd", True, True),
        (FLOAT32, BFLOAT16, "rint", True, False),
        (FLOAT32, FLOAT32, "rint", True, False),
        (FLOAT32, INT32, "rint", True, True),
        (INT4, FLOAT16, "none", True, False),
        (INT32, FLOAT16, "none", True, True),
        (INT32, FLOAT16, "round", True, True),
        (INT32, FLOAT32, "rint", False, False),
        (FLOAT32, INT8, "rint", False, False),
        (INT8, FLOAT32, "none", False, False),
        (INT64, INT32, "none", True, False),
    ],
)
def test_casts_that_the_two_architectures_have(
    src: DType, dst: DType, mode: RoundMode, on_2201: bool, on_2002: bool
) -> None:
    found = [mode in CASTS[arch].get((src, dst), ()) for arch in ("2201", "2002")]
    assert found == [on_2201, on_2002]


@pytest.mark.parametrize(
    ("kind", "many", "most"),
    [
        ("aiv", load(bursts=4096, burst=1), load(bursts=4095, burst=1)),
        ("aiv", store(bursts=4096, burst=1), store(bursts=4095, burst=1)),
        (
            "ai_core",
            isa.CopyToL1(isa.Local("l1", 0, UINT8, 2**17), ub(0, UINT8, 2**17), 32, 4096, 32, 32),
            isa.CopyToL1(isa.Local("l1", 0, UINT8, 2**17), ub(0, UINT8, 2**17), 32, 4095, 32, 32),
        ),
    ],
)
def test_bursts_fit_into_twelve_bits(kind: str, many: isa.MicroOp, most: isa.MicroOp) -> None:
    spec = devices.load("ascend910b2" if kind == "aiv" else "ascend310p3")
    refused(
        Place(spec, kind), many, "a copy must have at most 4095 bursts, not 4096; make it several"
    )
    accepted(Place(spec, kind), most)


def test_a_loop_takes_no_register_from_outside(tiny: DeviceSpec) -> None:
    op = loop(isa.ScalarAlu("add", "s", "r", 2), isa.ScalarLoad("r", BYTE, 1))
    message = (
        f"kernel #1: {op}: a loop must set each register before it reads it, not take r from "
        f"outside; load it inside the loop"
    )
    with pytest.raises(RuleError, match=f"^{re.escape(message)}$"):
        check(Program("kernel", (isa.ScalarLoad("r", BYTE), op)), Place(tiny, "aiv"))


def test_the_first_bad_micro_op_is_named(tiny: DeviceSpec) -> None:
    bad = isa.SetFlag("mte2", "vector", 9)
    with pytest.raises(RuleError, match=r"^kernel #2: set_flag mte2->vector 9: "):
        check(Program("kernel", (load(), load(), bad, bad)), Place(tiny, "aiv"))


def test_a_flag_between_cores_has_one_of_eleven_events(tiny: DeviceSpec) -> None:
    check(Program("kernel", (isa.CrossCoreSetFlag("group", "mte3", 10),)), Place(tiny, "aiv"))
    for kind in (isa.CrossCoreSetFlag, isa.CrossCoreWaitFlag):
        text = "a flag between cores must have an event in [0, 11), not 11; use another event"
        refused(Place(tiny, "aiv"), kind("group", "mte3", 11), text)
