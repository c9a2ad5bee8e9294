"""How long each micro-op holds its pipe, and what copies ask of the memory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, INT16, INT32, UINT8, UINT64, DType
from npusim.devices.schema import DeviceSpec
from npusim.timing import cost as costs
from npusim.timing.cost import Charge, Cost, charge


@pytest.fixture(scope="module")
def classy() -> DeviceSpec:
    """Every class of vector micro-ops has a head of its own, and 16-bit repeats take 2 cycles."""
    numbers: dict[str, float] = {}
    for head, name in enumerate(tiny_spec().vector.classes, 100):
        numbers[f"vector__classes__{name}__head_cycles"] = head
        numbers[f"vector__classes__{name}__cycles_per_repeat_16bit"] = 2.0
        numbers[f"vector__classes__{name}__cycles_per_repeat_32bit"] = 3.0
    return tiny_spec(**numbers)


def cost(op: isa.MicroOp, spec: DeviceSpec, kind: str = "aiv") -> Cost:
    return costs.cost(op, spec, spec.cores[kind])


def ub(offset_bytes: int, dtype: DType, count: int, *strides: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, dtype, count, *strides)


X, Y, Z = (ub(at, FLOAT32, 64) for at in (0, 256 + 8192, 512))
HALF = ub(512, FLOAT16, 64)
W = ub(0, INT32, 64)


def test_each_vector_micro_op_has_its_class(classy: DeviceSpec, subtests: pytest.Subtests) -> None:
    for op, name in [
        *((isa.Binary(op, Z, X, Y), "add") for op in ("add", "sub")),
        (isa.Binary("mul", Z, X, Y), "mul"),
        (isa.Binary("div", Z, X, Y), "div"),
        *((isa.Binary(op, Z, X, Y), "max") for op in ("min", "max")),
        *((isa.BinaryScalar(op, X, X, 1.0), "adds") for op in ("add", "sub")),
        (isa.BinaryScalar("mul", X, X, 1.0), "muls"),
        (isa.BinaryScalar("div", X, X, 1.0), "div"),
        *((isa.BinaryScalar(op, X, X, 1.0), "maxs") for op in ("min", "max")),
        (isa.Cast(ub(512, INT32, 64), X, "rint"), "cast"),
        (isa.Duplicate(X, 1.0), "duplicate"),
        (isa.Broadcast(Z, ub(0, FLOAT32, 8)), "broadcast"),
        (isa.Reduce("max", Z, X), "reduce"),
        (isa.WholeReduce("max", Z.at(0, 1), X), "reduce"),
        (isa.Fold("max", Z, X), "max"),
        (isa.Unary("abs", Z, X), "adds"),
        (isa.Unary("relu", Z, X), "maxs"),
        (isa.Unary("not", ub(0, INT16, 128), ub(0, INT16, 128)), "logic"),
        (isa.Binary("and", ub(0, INT16, 64), ub(256, INT16, 64), ub(640, INT16, 64)), "logic"),
        (isa.Unary("exp", Z, X), "transcendental"),
        *((isa.Unary(op, Z, X), op) for op in ("ln", "sqrt", "rsqrt")),
        (isa.Unary("reciprocal", Z, X), "rsqrt"),
        *((isa.Binary(op, Z, X, Y), "add") for op in ("add_relu", "sub_relu")),
        (isa.BinaryScalar("leaky_relu", X, X, 0.5), "muls"),
        (isa.BinaryScalar("shift_left", W, W, 3), "adds"),
        (isa.MulAddDst(Z, X, Y, "mul_add_relu"), "muladd"),
        (isa.CastDequant(ub(512, FLOAT16, 64), X.as_dtype(INT32), 0.5), "cast"),
        (isa.Compare("lt", "cmp_mask", X, Y), "compare"),
        (isa.Scatter(ub(4096, FLOAT32, 640), Z, Y.as_dtype(INT32)), "gather"),
        (isa.GatherBlocks(Z, ub(4096, FLOAT32, 640), ub(0, INT32, 8)), "copy"),
        (isa.Fold("add", Z, X), "add"),
        (isa.Axpy(Z, X, 2.0), "muls"),
        (isa.MulAddDst(Z, X, Y), "muladd"),
        *((isa.BlockReduce(op, Z, X), "block_reduce") for op in ("sum", "max")),
        (isa.Copy(Z, X), "copy"),
        (isa.Compare("lt", ub(512, UINT8, 8), X, Y), "compare"),
        (isa.CompareScalar("lt", ub(512, UINT8, 8), X, 0.5), "compare"),
        (isa.Select(Z, ub(1024, UINT8, 8), X, Y), "select"),
        (isa.Select(Z, ub(1024, UINT8, 8), X, 0.5), "select"),
        (isa.Transpose(ub(0, FLOAT16, 256), ub(8192 + 256, FLOAT16, 256)), "transpose"),
        (isa.Gather(Z, ub(4096, FLOAT32, 640), Y.as_dtype(INT32)), "gather"),
        (isa.Sort32(ub(512, UINT64, 32), X.at(0, 32), Y.at(0, 32).as_dtype(INT32)), "sort"),
        (isa.MrgSort(ub(0, UINT64, 32), ub(512, UINT64, 90), (20, 12), FLOAT32, "r", "r"), "merge"),
        (isa.GatherMask("even", Z.at(0, 32), X), "gather_mask"),
    ]:
        with subtests.test(str(op)):
            is_narrow = {x.dtype.bits for x in (*isa.reads(op), *isa.writes(op))} == {16}
            repeats = 2 if isinstance(op, isa.Transpose) else 1
            cycles = repeats * (2 if is_narrow else 3)
            assert cost(op, classy) == Cost(cycles, classy.vector.classes[name].head_cycles, 3)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        # A repeat is 64 elements of 32 bits or 128 of 16; a begun one counts.
        (isa.BinaryScalar("add", ub(0, FLOAT32, 65), ub(0, FLOAT32, 65), 1.0), 2 * 3),
        (isa.BinaryScalar("add", ub(0, FLOAT16, 128), ub(0, FLOAT16, 128), 1.0), 2),
        (isa.BinaryScalar("add", ub(0, FLOAT16, 129), ub(0, FLOAT16, 129), 1.0), 2 * 2),
        # The wider side of a cast counts, and narrow types run as 16 bits.
        (isa.Cast(ub(4096, FLOAT16, 128), ub(0, FLOAT32, 128), "none"), 2 * 3),
        (isa.Cast(ub(0, FLOAT32, 128), ub(4096, FLOAT16, 128), "none"), 2 * 3),
        (isa.Cast(ub(4096, INT8, 256), ub(0, FLOAT16, 256), "rint"), 2 * 2),
        (isa.Cast(ub(4096, INT4, 256), ub(0, FLOAT16, 256), "rint"), 2 * 2),
        (isa.Copy(ub(4096, UINT8, 256), ub(0, UINT8, 256)), 2 * 2),
        # A row of nine blocks takes two repeats.
        (isa.Copy(ub(4096, FLOAT32, 216, 1, 9, 9), ub(0, FLOAT32, 216, 1, 11, 9)), 3 * 2 * 3),
        # Of each of 16 rows a block for each repeat: squares of two repeats.
        (isa.TransDataTo5HD((ub(0, FLOAT16, 48, 1, 16, 1),) * 16, (HALF,) * 16), 3 * 2 * 2),
        # A broadcast fills its target, a reduction walks its source.
        (isa.Broadcast(ub(0, FLOAT32, 128), ub(4096, FLOAT32, 16)), 2 * 3),
        (isa.Reduce("min", ub(4096, FLOAT16, 1), ub(0, FLOAT16, 640)), 5 * 2),
        (isa.BlockReduce("max", ub(4096, FLOAT16, 40), ub(0, FLOAT16, 640)), 5 * 2),
        (isa.BlockReduce("sum", ub(4096, FLOAT32, 16), ub(0, FLOAT32, 128)), 2 * 3),
        (isa.WholeReduce("max", ub(4096, FLOAT32, 5), ub(0, FLOAT32, 320)), 5 * 3),
        # A repeat each, also where only some of its lanes take part.
        (isa.WholeReduce("sum", ub(4096, FLOAT32, 5), ub(0, FLOAT32, 80, 1, 3, 2), 13), 5 * 3),
        (isa.WholeReduce("sum", ub(4096, FLOAT16, 5), ub(0, FLOAT16, 80, 1, 1, 1)), 5 * 2),
        # Comparing walks its source too; looking up goes by what is looked up.
        (isa.Compare("eq", ub(4096, UINT8, 80), ub(0, FLOAT16, 640), ub(0, FLOAT16, 640)), 5 * 2),
        (isa.Gather(ub(0, FLOAT16, 130), ub(4096, FLOAT16, 64), ub(8192, INT32, 130)), 3 * 3),
        # A repeat of pairs has 32 of them; a merge goes by those that it takes.
        (isa.Sort32(ub(1024, UINT64, 96), ub(0, FLOAT16, 96), ub(512, INT32, 96)), 3 * 3),
        (isa.MrgSort(ub(0, UINT64, 70), ub(4096, UINT64, 90), (40, 30), FLOAT16), 3 * 3),
        (isa.GatherMask("odd", ub(4096, FLOAT16, 128), ub(0, FLOAT16, 256)), 2 * 2),
        # Proposals of 16 or 32 bits go by their number.
        (isa.ProposalConcat(4, ub(1024, FLOAT16, 384), ub(0, FLOAT16, 48)), 3 * 3),
        (isa.ProposalExtract(4, ub(0, FLOAT32, 48), ub(1024, FLOAT32, 384)), 3 * 3),
        (isa.RpSort16(ub(1024, FLOAT32, 512), ub(4096, FLOAT32, 512)), 2 * 3),
        (isa.MrgSort4(ub(1024, FLOAT16, 384), ub(4096, FLOAT16, 384), (16, 16, 16)), 2 * 3),
        # A fold walks its source; every other repeat lies in the groups of its result.
        (isa.Fold("max", ub(0, FLOAT16, 128), ub(256, FLOAT16, 640)), 5 * 2),
    ],
    ids=str,
)
def test_a_body_is_its_repeats(op: isa.MicroOp, body: int, classy: DeviceSpec) -> None:
    assert cost(op, classy).body == body


def test_a_rate_below_one_is_rounded_up_over_all_repeats() -> None:
    spec = tiny_spec(vector__classes__duplicate__cycles_per_repeat_32bit=0.5)
    bodies = [cost(isa.Duplicate(ub(0, FLOAT32, 64 * n), 0.0), spec).body for n in (1, 2, 3, 4)]
    assert bodies == [1, 1, 2, 2]
    assert cost(isa.Broadcast(ub(0, FLOAT32, 192), ub(4096, FLOAT32, 24)), spec).body == 3


def test_a_repeat_ends_with_the_blocks_of_a_strided_operand(tiny: DeviceSpec) -> None:
    two_blocks = ub(0, FLOAT32, 64, 1, 3, 2)
    assert cost(isa.BinaryScalar("add", two_blocks, two_blocks, 1.0), tiny).body == 4


def test_a_broadcast_leaves_the_banks_alone(tiny: DeviceSpec) -> None:
    # The block behind the one that is read lies in the bank of the first block that is written.
    assert cost(isa.Broadcast(X, ub(256 + 4096, FLOAT32, 8)), tiny).body == 1


def test_a_conflict_in_the_buffer_lengthens_the_body(tiny: DeviceSpec) -> None:
    # The tiny buffer has 16 groups of two banks of 512 bytes; 8192 bytes on is the other bank.
    far = ub(8192, FLOAT32, 64)
    assert cost(isa.Binary("add", X, X, far), tiny).body == 2
    assert cost(isa.Binary("add", X, X, ub(8192 + 256, FLOAT32, 64)), tiny).body == 1
    # Axpy and MulAddDst read what they add to, so that meets the other operands.
    assert cost(isa.Axpy(X, far, 2.0), tiny).body == 2
    assert cost(isa.Axpy(X, ub(8192 + 256, FLOAT32, 64), 2.0), tiny).body == 1
    assert cost(isa.MulAddDst(X, far, ub(4096, FLOAT32, 64)), tiny).body == 3


def test_a_selection_meets_what_it_selects_from(tiny: DeviceSpec) -> None:
    mask = ub(0, UINT8, 8)
    assert cost(isa.Select(X, mask, X, ub(8192, FLOAT32, 64)), tiny).body == 2
    assert cost(isa.Select(X, mask, X, ub(8192 + 256, FLOAT32, 64)), tiny).body == 1
    assert cost(isa.Select(X, mask, X, 0.0), tiny).body == 1


def test_every_other_repeat_of_a_fold_meets_its_result(tiny: DeviceSpec) -> None:
    # Groups 0 to 7 hold the result. While a repeat is written the next one is read, and these begin
    # at groups 0, 8, 0, 8, 0.
    assert cost(isa.Fold("max", X, ub(256, FLOAT32, 320)), tiny).body == 2 + 1 + 2 + 1 + 2
    assert cost(isa.Fold("max", X, ub(512, FLOAT32, 256)), tiny).body == 1 + 2 + 1 + 2


BYTE = isa.Local("ub", 0, UINT8, 1)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (isa.ScalarLoad("r", BYTE), 4),
        (isa.ScalarStore(BYTE, "r"), 3),
        (isa.ScalarLoadGlobal("r", isa.Global("x", 0, 4), INT32), 30),
        (isa.ScalarLoadGlobal("r", isa.Global("x", 0, 4), INT32, is_cached=True), 4),
        (isa.ScalarAlu("add", "r", "r", 1), 1),
        (isa.Trap("r", "stop"), 1),
        (isa.ScalarLoop(10, (isa.ScalarLoad("r", BYTE, 1), isa.Trap("r", "stop"))), 50),
        (isa.SetFlag("mte2", "vector", 0), 5),
        (isa.WaitFlag("mte2", "vector", 0), 6),
        (isa.Barrier("vector"), 7),
        (isa.Barrier(), 7),
        (isa.CrossCoreSetFlag("group", "cube", 0), 5),
        (isa.CrossCoreWaitFlag("all", "vector", 0), 6),
    ],
    ids=str,
)
def test_scalar_and_flag_cycles_are_the_chips(op: isa.MicroOp, body: int) -> None:
    spec = tiny_spec(sync__set_flag_cycles=5, sync__wait_flag_cycles=6, sync__barrier_cycles=7)
    assert cost(op, spec) == Cost(body)


def test_a_copy_has_no_other_cost(tiny: DeviceSpec) -> None:
    text = (
        "cost: load ub[0:1] uint8 <- x+0 32 B must be charged with the offset of its tensor; "
        "use charge"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        cost(isa.Load(BYTE, isa.Global("x", 0, 32)), tiny)


# ---- cube: 7 cycles of start-up, 2 of them when it follows another ----


def mmad(m: int, n: int, k: int, dtype: DType = FLOAT16) -> isa.Mmad:
    accumulator = INT32 if dtype in (INT8, INT4) else FLOAT32
    a, b = isa.Local("l0a", 0, dtype, 4096), isa.Local("l0b", 0, dtype, 4096)
    return isa.Mmad(isa.Local("l0c", 0, accumulator, 4096), a, b, m, n, k)


@pytest.mark.parametrize(
    ("op", "tiles"),
    [
        (mmad(64, 64, 64), 64),
        (mmad(1, 1, 1), 1),
        (mmad(40, 50, 60), 3 * 4 * 4),
        (mmad(16, 16, 64, INT8), 2),
        (mmad(16, 17, 65, INT4), 2 * 2),
        (mmad(16, 16, 16, FLOAT32), 4),
    ],
    ids=str,
)
def test_an_mmad_takes_a_cycle_a_tile(op: isa.Mmad, tiles: int, tiny: DeviceSpec) -> None:
    assert cost(op, tiny, "aic") == Cost(2 + tiles, 0, 5)


def test_a_following_mmad_never_takes_longer_than_a_lone_one() -> None:
    spec = tiny_spec(cube__startup_cycles=1)
    assert cost(mmad(16, 16, 16), spec, "aic") == Cost(3, 0, 0)


def test_an_mmad_of_a_type_without_a_rate_is_refused(tiny_2002: DeviceSpec) -> None:
    op = mmad(16, 16, 16, FLOAT32)
    text = (
        f"cost: cube.k_per_cycle must state int4, int8, float16 or more for {op}, not lack "
        f"float32; use one of these types or add it to the device"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cost(op, tiny_2002, "ai_core")


L1 = isa.Local("l1", 0, FLOAT16, 2048)
L0C = isa.Local("l0c", 0, FLOAT32, 1024)


@pytest.mark.parametrize(
    ("op", "body"),
    [
        # A start-up of its own for each path, and the bytes: 4096 at 256 and at 128 a cycle.
        (isa.LoadData(isa.Local("l0a", 0, FLOAT16, 2048), L1, 32, 0, 0, 32, 64), 3 + 16),
        (isa.LoadData(isa.Local("l0b", 0, FLOAT16, 2048), L1, 32, 0, 0, 32, 64, True), 4 + 32),
        (isa.LoadTable(isa.Local("bt", 0, FLOAT32, 16), isa.Local("l1", 0, FLOAT16, 16)), 5 + 2),
        (isa.LoadTable(isa.Local("fb", 0, UINT8, 65), isa.Local("l1", 0, UINT8, 65)), 6 + 3),
        # 64 elements a cycle whatever the type, columns in sixteens.
        (isa.Fixpipe(L1, L0C, 16, 64, 16, FLOAT16, "cast", dst_rows=16), 7 + 16),
        (isa.Fixpipe(L1, L0C, 16, 64, 16, INT8, "req8", 1, dst_rows=16), 7 + 16),
        (isa.Fixpipe(L1, L0C, 4, 20, 16, FLOAT16, "cast", dst_rows=16), 7 + 2),
        (isa.Fixpipe(L1, L0C, 16, 20, 16, FLOAT16, "cast", dst_rows=16), 7 + 8),
    ],
    ids=str,
)
def test_copies_between_buffers(op: isa.MicroOp, body: int, tiny: DeviceSpec) -> None:
    assert cost(op, tiny, "aic") == Cost(body)


def test_coupled_cores_move_matrices_through_the_unified_buffer(tiny_2002: DeviceSpec) -> None:
    out = isa.CopyL0c(ub(0, FLOAT16, 1024), L0C, "cast")
    back = isa.CopyToL1(isa.Local("l1", 0, UINT8, 32), ub(0, UINT8, 32), 40, 3, 64, 64)
    bias = isa.BroadcastToL0c(L0C, ub(0, FLOAT32, 64), 16)
    # 4096 bytes at 256 a cycle, or at 512; three bursts of two blocks at 64.
    assert cost(bias, tiny_2002, "ai_core") == Cost(10 + 8)
    assert cost(out, tiny_2002, "ai_core") == Cost(8 + 16)
    assert cost(back, tiny_2002, "ai_core") == Cost(9 + 3)


def test_a_core_without_the_path_is_refused(tiny: DeviceSpec) -> None:
    op = isa.CopyToL1(isa.Local("l1", 0, UINT8, 32), ub(0, UINT8, 32), 32)
    text = (
        f"cost: a core must have the path ub_to_l1 for {op}, not only gm_to_ub, l2_to_ub, "
        f"ub_to_gm, ub_to_l2; use another core or add the path to the device"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cost(op, tiny)


# ---- copies: sectors of 32 bytes, lines of 128 ----


def test_rows_become_fractals_and_products_rows_at_the_price_of_copies() -> None:
    spec = tiny_spec(transfer__burst_cycles=3)
    rows = isa.Global("x", 0, 100, 16, 128)
    load = isa.LoadNd2Nz(isa.Local("l1", 0, UINT8, 32), rows, 16)
    store = isa.Fixpipe(rows, L0C, 16, 50, 16, FLOAT16, "cast", atomic=True)
    # Rows of 128 bytes lie in a line each; only what becomes fractals goes row by row.
    assert charge(load, 0, spec) == Charge(16 * 128, 48, rows=16)
    assert charge(load, 64, spec) == Charge(16 * 128, 48, rows=32)
    assert charge(store, 0, spec) == Charge(16 * 128, 48)


@pytest.mark.parametrize(
    ("base", "columns", "stride", "cycles"),
    [
        # Rows of whole sectors of 32 bytes, and of 48 bytes, which are two blocks of 32 each.
        (0, 32, 64, 4),
        (0, 24, 64, 4 * 2 * 5),
        # Rows that begin within a sector, all of them, and every other one.
        (2, 32, 64, 4 * 2 * 5),
        (0, 32, 80, 2 * 2 * 5),
    ],
)
def test_the_fixpipe_stores_ragged_rows_block_by_block(
    base: int, columns: int, stride: int, cycles: int
) -> None:
    spec = tiny_spec(transfer__ragged_block_cycles=5)
    sums = isa.Local("l0c", 0, FLOAT32, 512)
    out = isa.Global("y", 0, 2 * columns, 4, stride)
    op = isa.Fixpipe(out, sums, 16, 4, columns, FLOAT16, "cast")
    assert charge(op, base, spec).hold_cycles == cycles


def test_what_stays_in_its_core_cannot_be_charged(tiny: DeviceSpec) -> None:
    op = isa.Fixpipe(L1, L0C, 16, 64, 16, FLOAT16, "cast", dst_rows=16)
    text = f"charge: {op} must touch global memory, but stays in its core; use cost"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        charge(op, 0, tiny)


@pytest.mark.parametrize(
    ("place", "base", "nbytes"),
    [
        (isa.Global("x", 0, 32), 0, 32),
        (isa.Global("x", 0, 33), 0, 64),
        (isa.Global("x", 32, 1), 0, 32),
        (isa.Global("x", 1, 1), 0, 128),
        (isa.Global("x", 1, 127), 0, 128),
        (isa.Global("x", 1, 128), 0, 256),
        (isa.Global("x", 0, 32), 16, 128),
        (isa.Global("x", 16, 32), 16, 32),
        (isa.Global("x", 0, 100, 3, 128), 0, 3 * 128),
        (isa.Global("x", 0, 100, 3, 160), 0, 3 * 128),
        (isa.Global("x", 8, 100, 3, 128), 0, 3 * 128),
        # At 0: 4 sectors; at 104: lines 0 and 1; at 208: lines 1 and 2; at 312: lines 2 and 3.
        (isa.Global("x", 0, 100, 4, 104), 0, 128 + 256 + 256 + 256),
    ],
    ids=str,
)
def test_bytes_as_moved(place: isa.Global, base: int, nbytes: int, tiny: DeviceSpec) -> None:
    local = isa.Local("ub", 0, UINT8, 32)
    for op in (isa.Load(local, place, 128), isa.Store(place, local, 128)):
        assert charge(op, base, tiny).nbytes == nbytes


def test_the_official_copy_example_loses_a_fifth_on_odd_rows() -> None:
    # asc-devkit, 05_best_practices, data_copy: rows of 12287 elements in place of 12288. On odd
    # addresses 2048 bytes lie in 5 lines of 512; 22 % were measured.
    spec = tiny_spec(l2__line_bytes=512, transfer__sector_bytes=128)
    local = isa.Local("ub", 0, UINT8, 2048)
    moved = [charge(isa.Load(local, isa.Global("x", at, 2048)), 0, spec).nbytes for at in (0, 2)]
    assert moved == [2048, 2560]


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 9), st.integers(0, 400))
def test_bursts_add_up(offset: int, burst: int, bursts: int, stride: int) -> None:
    spec = tiny_spec()
    local = isa.Local("ub", 0, UINT8, 32)
    together = charge(isa.Load(local, isa.Global("x", offset, burst, bursts, stride), 320), 7, spec)
    apart = [
        charge(isa.Load(local, isa.Global("x", offset + index * stride, burst)), 7, spec).nbytes
        for index in range(bursts)
    ]
    assert together.nbytes == sum(apart)


def test_a_copy_holds_its_pipe_for_the_issue_or_for_its_bursts() -> None:
    spec = tiny_spec(transfer__issue_cycles=21, transfer__burst_cycles=3)
    local = isa.Local("ub", 0, UINT8, 32)
    charges = [
        charge(isa.Load(local, isa.Global("x", 0, 32, n, 32), 32), 0, spec) for n in (1, 7, 8)
    ]
    assert charges == [Charge(32, 21), Charge(224, 21), Charge(256, 24)]
