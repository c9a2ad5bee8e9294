"""Rules of the cube, of copies into it and of flags between cores, each broken once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tiny import tiny_spec

from npusim import isa
from npusim.check.rules import Place, RuleError, check
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, UINT64, DType
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Body, Call, Program

CHIPS = {"aiv": tiny_spec(), "aic": tiny_spec(), "ai_core": tiny_spec("2002")}


def at(buffer: str, dtype: DType, count: int, offset_bytes: int = 0) -> isa.Local:
    return isa.Local(buffer, offset_bytes, dtype, count)


ND2NZ = isa.LoadNd2Nz(at("l1", FLOAT16, 1024), isa.Global("x", 0, 64, 20, 4096), 32)
# 20 x 40 of int8 from (16, 32) on: whole fractals are 32 x 64.
PIECE = isa.LoadData(at("l0a", INT8, 2048), at("l1", INT8, 8192), 64, 16, 32, 20, 40)
# As the transpose of it, (64, 32) to the right of L0B.
TURNED = isa.LoadData(at("l0b", INT8, 2048), at("l1", INT8, 8192), 64, 32, 32, 32, 40, True)
BIAS = isa.LoadTable(at("bt", FLOAT32, 64), at("l1", FLOAT16, 64))
SCALES = isa.LoadTable(at("fb", UINT64, 64), at("l1", UINT64, 64))
# 20 x 40 x 50: fractals of 32 x 48 x 64.
MMAD = isa.Mmad(at("l0c", INT32, 1536), at("l0a", INT8, 2048), at("l0b", INT8, 3072), 20, 40, 50)
BIASED = replace(MMAD, init="bias", bias=at("bt", INT32, 48))
HALVES = isa.Mmad(
    at("l0c", FLOAT32, 256), at("l0a", FLOAT16, 256), at("l0b", FLOAT16, 256), 16, 16, 16
)
OUT = isa.Fixpipe(
    isa.Global("y", 0, 80, 20, 4096), at("l0c", FLOAT32, 1536), 20, 40, 32, FLOAT16, "cast"
)
VECTORS = replace(
    OUT, src=at("l0c", INT32, 1536), mode="deqf16", scale=at("fb", UINT64, 40)
)  # fmt: skip
PLAIN = replace(OUT, mode="none", dtype=FLOAT32, dst=isa.Global("y", 0, 160, 20, 4096))
TO_L1 = replace(OUT, dst=at("l1", FLOAT16, 2048), dst_rows=32)
DRAIN = isa.CopyL0c(at("ub", FLOAT16, 1024), at("l0c", INT32, 1024), "deqf16", 1, 32)
TO_CUBE = isa.CopyToL1(at("l1", UINT8, 192), at("ub", UINT8, 128), 64, 2, 64, 128)
ABS = isa.Unary("abs", at("ub", FLOAT32, 64), at("ub", FLOAT32, 64, 256))
SUM = isa.BlockReduce("sum", at("ub", FLOAT32, 8), at("ub", FLOAT32, 64, 256))
ADD = isa.Store(isa.Global("y", 0, 64), at("ub", FLOAT32, 16), atomic=FLOAT32)

ACCEPTED: list[tuple[str, isa.MicroOp]] = [
    ("aic", ND2NZ),
    ("aic", PIECE),
    ("aic", TURNED),
    ("aic", isa.LoadData(at("l0b", INT4, 1024), at("l1", INT4, 4096), 32, 0, 0, 16, 64)),
    ("aic", isa.LoadData(at("l0a", BFLOAT16, 512), at("l1", BFLOAT16, 4096), 32, 0, 16, 32, 16)),
    ("ai_core", isa.LoadData(at("l0a", FLOAT16, 512), at("l1", FLOAT16, 4096), 32, 0, 16, 32, 16)),
    ("aic", BIAS),
    ("aic", isa.LoadTable(at("bt", INT32, 16), at("l1", INT32, 16))),
    ("aic", SCALES),
    ("aic", MMAD),
    ("aic", replace(MMAD, init="accumulate")),
    ("aic", BIASED),
    ("ai_core", HALVES),
    ("aic", OUT),
    ("aic", VECTORS),
    ("aic", replace(VECTORS, scale=7)),
    ("aic", PLAIN),
    ("aic", replace(PLAIN, atomic=True)),
    ("aic", TO_L1),
    ("aic", replace(OUT, dtype=BFLOAT16)),
    ("aic", replace(OUT, unit_flag=True)),
    ("aic", replace(OUT, dtype=INT8, mode="qf322b8", scale=7, dst=isa.Global("y", 0, 40, 20, 64))),
    ("ai_core", DRAIN),
    ("ai_core", replace(DRAIN, scale=at("ub", UINT64, 32))),
    ("ai_core", isa.CopyL0c(at("ub", INT32, 512), at("l0c", INT32, 512), "none", None, 32)),
    ("ai_core", TO_CUBE),
    ("aiv", ABS),
    ("aiv", SUM),
    ("aiv", isa.Axpy(at("ub", FLOAT16, 64), at("ub", FLOAT16, 64, 256), 2.0)),
    ("aiv", isa.MulAddDst(*[at("ub", FLOAT32, 64, 256 * i) for i in range(3)])),
    ("aiv", isa.Copy(at("ub", INT32, 64), at("ub", INT32, 64, 256))),
    ("aiv", ADD),
    ("aiv", isa.CrossCoreSetFlag("group", "mte3", 10)),
    ("aic", isa.CrossCoreWaitFlag("all", "mte2", 0)),
]


def test_rules_accept(subtests: pytest.Subtests) -> None:
    for kind, op in ACCEPTED:
        with subtests.test(str(op)):
            check(Program("kernel", (op,)), Place(CHIPS[kind], kind))


def other(op: Any, **changes: Any) -> isa.MicroOp:
    return replace(op, **changes)


FRACTION = "rows must be filled and each of their blocks have its own place, not "
PART = "a piece must lie within a matrix whose rows are a multiple of 16, not "
SUMS = (
    "a and b must share one of float16, bfloat16, float32, int8, int4 on arch 2201 and dst be "
    "float32 for floats, int32 for integers, not "
)
BIASES = "a bias must be 40 elements of int32 in bt, given if init is bias and only then, not "
SCALED = "mode deqf16 must come with one scale, or with uint64 for 40 columns in fb, not "

REFUSED_AIC: list[tuple[isa.MicroOp, str]] = [
    # ---- operands that name less than is moved ----
    (
        other(ND2NZ, dst=at("l1", FLOAT16, 815)),
        "dst must hold the 1664 bytes that are written, l1[0:1664] uint8, not be l1[0:1630] "
        "float16; name more or move less",
    ),
    (
        other(PIECE, src=at("l1", INT8, 4096)),
        "src must hold the 3072 bytes that are read, l1[2560:5632] uint8, not be l1[0:4096] "
        "int8; name more or move less",
    ),
    (
        other(OUT, src=at("l0c", FLOAT32, 1535)),
        "src must hold the 6144 bytes that are read, l0c[0:6144] float32, not be l0c[0:6140] "
        "float32; name more or move less",
    ),
    (
        other(TO_L1, dst=at("l1", FLOAT16, 1328)),
        "dst must hold the 2688 bytes that are written, l1[0:2688] uint8, not be l1[0:2656] "
        "float16; name more or move less",
    ),
    # ---- copies ----
    (
        other(ND2NZ, src=isa.Global("x", 0, 63, 20, 4096)),
        "rows must be whole elements of float16, not 63 bytes; change their size",
    ),
    (
        other(ND2NZ, src=isa.Global("x", 0, 64, 20, 63)),
        "bursts must lie at least their 64 bytes apart in global memory, not 63; "
        "raise the stride, or copy them one by one",
    ),
    (
        isa.LoadNd2Nz(at("l1", FLOAT16, 16), isa.Global("x", 0, 32), 16400),
        "dst_rows must be at most 16384, not 16400; make it several copies",
    ),
    (
        other(OUT, dst=isa.Global("y", 0, 80, 20, 79)),
        "rows must lie at least their 80 bytes apart in global memory, not 79; raise the stride",
    ),
    (other(ND2NZ, dst_rows=16), FRACTION + "20 rows of 64 bytes every 1 in 16; raise dst_rows"),
    (
        other(ND2NZ, dst=at("l1", FLOAT16, 1024, 16)),
        "each operand must start at a multiple of 32 bytes, not at 16; align it",
    ),
    # ---- mte1 ----
    (
        other(PIECE, dst=at("bt", INT8, 1024)),
        "it must go a way that aic has for it, one of l1_to_l0a, l1_to_l0b, not l1_to_bt; "
        "take another buffer",
    ),
    (
        other(PIECE, dst=at("l0a", INT8, 2048, 256)),
        "operands in l0a must start at a multiple of 512 bytes, not at 256; align it",
    ),
    (
        other(PIECE, dst=at("l0a", FLOAT16, 2048)),
        "src and dst must share one of float16, bfloat16, float32, int8, int4 on arch 2201, "
        "not int8, float16; cast first",
    ),
    (
        other(PIECE, row=8),
        "a piece must begin at a row of 16 and a column of 32, not at 8, 32; cut between fractals",
    ),
    (
        other(PIECE, column=16),
        "a piece must begin at a row of 16 and a column of 32, not at 16, 16; cut between fractals",
    ),
    (
        other(TURNED, row=16),
        "a piece must begin at a row of 32 and a column of 32, not at 16, 32; cut between fractals",
    ),
    (other(PIECE, row=48), PART + "[48:+20, 32:+40] of 64 rows; cut it"),
    (other(PIECE, src_rows=60), PART + "[16:+20, 32:+40] of 60 rows; cut it"),
    (other(PIECE, rows=0), PART + "[16:+0, 32:+40] of 64 rows; cut it"),
    (
        other(PIECE, dst=at("l0a", INT8, 2047)),
        "dst must hold the 2048 elements of whole fractals, not 2047; claim more or load less",
    ),
    (
        other(TURNED, dst=at("l0b", INT8, 1535)),
        "dst must hold the 1536 elements of whole fractals, not 1535; claim more or load less",
    ),
    (
        other(PIECE, src=at("l1", INT8, 32, 524288 - 4096)),
        "each operand must be a range within the 524288 bytes of l1, "
        "not l1[522752:525824] uint8; claim it with the builder",
    ),
    (
        other(BIAS, dst=at("bt", FLOAT16, 64)),
        "the bias table must get float32 from float16 or float32, or int32, and the fixpipe buffer "
        "uint64, not float16 from float16 in bt; cast first",
    ),
    (
        other(SCALES, dst=at("fb", FLOAT32, 64)),
        "the bias table must get float32 from float16 or float32, or int32, and the fixpipe buffer "
        "uint64, not float32 from uint64 in fb; cast first",
    ),
    (
        other(BIAS, src=at("l1", FLOAT16, 63)),
        "operands must have the same number of elements, and at least one, not 63, 64; "
        "cut them alike",
    ),
    (
        other(BIAS, dst=at("bt", FLOAT32, 64, 32)),
        "operands in bt must start at a multiple of 64 bytes, not at 32; align it",
    ),
    # ---- cube ----
    (
        other(MMAD, a=at("l0b", INT8, 2048)),
        "a, b and dst must lie in l0a, l0b and l0c, not in l0b, l0b and l0c; load them there",
    ),
    (other(MMAD, b=at("l0b", FLOAT16, 3072)), SUMS + "int8, float16 and int32; cast first"),
    (other(MMAD, dst=at("l0c", FLOAT32, 1536)), SUMS + "int8, int8 and float32; cast first"),
    (
        other(MMAD, n=4096),
        "m, n and k must lie in [1, 4095], not be 20, 4096, 50; use smaller tiles",
    ),
    (other(MMAD, k=0), "m, n and k must lie in [1, 4095], not be 20, 40, 0; use smaller tiles"),
    (
        other(MMAD, b=at("l0b", INT8, 3071)),
        "a, b and dst must hold whole fractals, 2048, 3072, 1536 elements, not 2048, 3071, 1536; "
        "claim more",
    ),
    (
        other(MMAD, dst=at("l0c", INT32, 1536, 512)),
        "dst must start at a multiple of 1024 bytes, not at 512; align it",
    ),
    (other(MMAD, init="bias"), BIASES + "None with init bias; fix one of them"),
    (
        other(BIASED, init="accumulate"),
        BIASES + "bt[0:192] int32 with init accumulate; fix one of them",
    ),
    (
        other(BIASED, bias=at("bt", FLOAT32, 48)),
        BIASES + "bt[0:192] float32 with init bias; fix one of them",
    ),
    (
        other(BIASED, bias=at("bt", INT32, 39)),
        BIASES + "bt[0:156] int32 with init bias; fix one of them",
    ),
    # ---- out of L0C ----
    (
        other(OUT, dtype=INT8),
        "mode cast must turn float32 into float16 or float32 into bfloat16, "
        "not float32 into int8; use another mode",
    ),
    (
        other(OUT, src_rows=16),
        "src_rows must be a multiple of 16 and at least the rows of a piece, "
        "not 16 for 20x40; round it up",
    ),
    (other(OUT, scale=7), "mode cast must come without a scale, not with 7; drop it"),
    (other(VECTORS, scale=None), SCALED + "None; load it first"),
    (other(VECTORS, scale=at("fb", UINT64, 39)), SCALED + "39 in fb[0:312] uint64; load it first"),
    (
        other(VECTORS, scale=at("fb", FLOAT32, 40)),
        SCALED + "40 in fb[0:160] float32; load it first",
    ),
    (other(VECTORS, scale=at("l1", UINT64, 40)), SCALED + "40 in l1[0:320] uint64; load it first"),
    (
        other(VECTORS, scale=at("fb", UINT64, 40, 32)),
        "operands in fb must start at a multiple of 64 bytes, not at 32; align it",
    ),
    (
        other(OUT, dst=isa.Global("y", 0, 80, 19, 4096)),
        "global memory must get 20 bursts of 80 bytes, not 19 of 80; change them",
    ),
    (
        other(TO_L1, dst_rows=19),
        "dst_rows must be at least 20, not 19; raise it",
    ),
    (
        other(TO_L1, mode="none", dtype=FLOAT32),
        "what goes to l1 must be one of float16, bfloat16, int8, not float32; "
        "use another mode or go to global memory",
    ),
    (
        other(TO_L1, atomic=True),
        "what is combined must be one of float32, float16, bfloat16, int32, int16, int8 and go to "
        "global memory, not float16 to l1; combine it on a vector core",
    ),
    (
        other(OUT, dst=at("l0a", FLOAT16, 64), dst_rows=32),
        "it must go a way that aic has for it, one of l0c_to_gm, l0c_to_l1, not l0c_to_l0a; "
        "take another buffer",
    ),
    (
        isa.CrossCoreSetFlag("pair", "fixpipe", 0),
        "a flag of a pair must be one of vector cores, not of aic; take the mode group",
    ),
]
REFUSED_AI_CORE: list[tuple[isa.MicroOp, str]] = [
    # ---- operands that name less than is moved ----
    (
        other(TO_CUBE, dst=at("l1", UINT8, 160)),
        "dst must hold the 192 bytes that are written, l1[0:192] uint8, not be l1[0:160] "
        "uint8; name more or move less",
    ),
    (
        other(TO_CUBE, src=at("ub", UINT8, 127)),
        "src must hold the 128 bytes that are read, ub[0:128] uint8, not be ub[0:127] "
        "uint8; name more or move less",
    ),
    # ---- copies ----
    (
        ND2NZ,
        "nd2nz must go to l1 on arch 2201, not to l1 on arch 2002; "
        "load row by row and copy block by block",
    ),
    (
        other(ADD, atomic=INT32),
        "what is combined by add must be one of float32, float16, int16 on arch 2002, not int32; "
        "combine it in the unified buffer",
    ),
    (
        other(ADD, atomic_op="max"),
        "what is combined by max must be one of none on arch 2002, not float32; combine it in the "
        "unified buffer",
    ),
    (
        other(TO_CUBE, burst_bytes=48),
        "pieces must be whole blocks of 32 bytes that lie apart, not 2x48 bytes every 128 <- 64; "
        "pad them",
    ),
    (
        other(TO_CUBE, dst_pitch_bytes=32),
        "pieces must be whole blocks of 32 bytes that lie apart, not 2x64 bytes every 32 <- 64; "
        "pad them",
    ),
    # ---- mte1 ----
    (
        isa.LoadData(at("l0a", BFLOAT16, 512), at("l1", BFLOAT16, 4096), 32, 0, 16, 32, 16),
        "src and dst must share one of float16, int8 on arch 2002, not bfloat16, bfloat16; "
        "cast first",
    ),
    (
        BIAS,
        "each operand must be a range within a buffer that ai_core has, "
        "not bt[0:256] float32; claim it with the builder",
    ),
    # ---- out of L0C ----
    (
        OUT,
        "its pipe must be one of ai_core's, which are scalar, vector, cube, mte1, mte2, mte3, "
        "not fixpipe; run it on another kind of core",
    ),
    (
        other(DRAIN, mode="qf322b8"),
        "mode qf322b8 must turn nothing here, not int32 into float16; use another mode",
    ),
    (
        other(DRAIN, rows=24),
        "src and dst must be the same whole fractals, in L0C of 16 x 16, "
        "not 1024 and 1024 elements of 24 rows; cut them alike",
    ),
    (
        other(DRAIN, scale=at("ub", UINT64, 31)),
        "mode deqf16 must come with one scale, or with uint64 for 32 columns in ub, "
        "not 31 in ub[0:248] uint64; load it first",
    ),
    # ---- vector ----
    (
        isa.Duplicate(at("l1", FLOAT32, 64), 0.0),
        "operands must lie in ub, not in l1; copy them there first",
    ),
    (
        other(HALVES, unit_flag=True),
        "unit_flag must be False on arch 2002, not True; use flags alone",
    ),
    # ---- flags between cores ----
    (
        isa.CrossCoreSetFlag("all", "vector", 0),
        "the arch must have flags between cores, as 2201 has, not be 2002; "
        "give each core its own work",
    ),
]
REFUSED_AIV: list[tuple[isa.MicroOp, str]] = [
    # ---- copies ----
    (
        other(ND2NZ, dst=at("ub", FLOAT16, 64)),
        "nd2nz must go to l1 on arch 2201, not to ub on arch 2201; "
        "load row by row and copy block by block",
    ),
    (
        other(ADD, atomic=UINT8),
        "what is combined by add must be one of float32, float16, bfloat16, int32, int16, int8 on "
        "arch 2201, not uint8; combine it in the unified buffer",
    ),
    (
        other(ADD, dst=isa.Global("y", 0, 62)),
        "bursts must be whole elements of float32 to be combined, not 62 bytes; change their size",
    ),
    (
        other(TO_CUBE, dst=at("ub", UINT8, 64, 4096)),
        "a copy must go a way that aiv has, one of gm_to_ub, l2_to_ub, ub_to_gm, ub_to_l2, "
        "not ub_to_ub; take another buffer",
    ),
    # ---- vector ----
    (
        other(ABS, dst=at("ub", FLOAT16, 64)),
        "operands must share one of float32, float16, not float32, float16; cast first",
    ),
    (
        other(ABS, dst=at("ub", INT32, 64), src=at("ub", INT32, 64)),
        "operands must share one of float32, float16, not int32, int32; cast first",
    ),
    (
        isa.Axpy(at("ub", FLOAT32, 64), at("ub", FLOAT32, 63, 256), 2.0),
        "operands must have the same number of elements, and at least one, not 63, 64, 64; "
        "cut them alike",
    ),
    (
        isa.Duplicate(at("ub", INT8, 64), 0),
        "operands must share one type of 16 or 32 bits, not int8; cast first",
    ),
    (
        isa.Copy(at("ub", INT32, 64), at("ub", INT32, 56, 256)),
        "operands must have the same number of elements, and at least one, not 56, 64; "
        "cut them alike",
    ),
    (
        other(SUM, dst=at("ub", FLOAT32, 7)),
        "dst must be 8 elements, from the first to the last that comes of the 64 of src, not 7; "
        "change its count",
    ),
    # ---- flags between cores ----
    (
        isa.CrossCoreWaitFlag("group", "mte2", 11),
        "a flag between cores must have an event in [0, 11), not 11; use another event",
    ),
    (
        isa.CrossCoreSetFlag("group", "fixpipe", 0),
        "its pipe must be one of aiv's, which are scalar, vector, mte2, mte3, not fixpipe; "
        "run it on another kind of core",
    ),
]
REFUSED = {"aic": REFUSED_AIC, "ai_core": REFUSED_AI_CORE, "aiv": REFUSED_AIV}


@pytest.mark.parametrize("kind", REFUSED)
def test_rules_refuse(kind: str, subtests: pytest.Subtests) -> None:
    for op, message in REFUSED[kind]:
        text = f"kernel #0: {op}: {message}"
        with subtests.test(message), pytest.raises(RuleError, match=f"^{re.escape(text)}$"):
            check(Program("kernel", (op,)), Place(CHIPS[kind], kind))


def test_a_body_is_looked_at_where_it_first_comes(tiny: DeviceSpec) -> None:
    good, bad = Body((ABS, SUM)), Body((ABS, isa.CrossCoreSetFlag("all", "mte3", 12)))
    calls = (Call(good), Call(good), ABS, Call(bad, {"y": 32}), Call(bad))
    with pytest.raises(RuleError, match=r"^kernel #6: cross_core_set_flag all 12: "):
        check(Program("kernel", calls), Place(tiny, "aiv"))
