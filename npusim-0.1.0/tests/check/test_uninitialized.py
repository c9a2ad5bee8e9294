"""What nobody wrote must not end up in an output; where it is dropped it does no harm."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_programs import OUTPUTS, TENSORS, random_program

from npusim import chip, devices, isa
from npusim.check.hazards import Orders
from npusim.check.uninitialized import UnwrittenError, Written
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8, UINT64, DType
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Binding, Block, Body, Call, Program

A2 = devices.load("ascend910b2")
P3 = devices.load("ascend310p3")
SIZES = {"y": 4096}


def ub(start: int, count: int, dtype: DType = FLOAT32) -> isa.Local:
    return isa.Local("ub", start, dtype, count)


def load(start: int, nbytes: int, name: str = "x") -> isa.Load:
    return isa.Load(ub(start, nbytes, UINT8), isa.Global(name, 0, nbytes))


def store(start: int, nbytes: int, to: int = 0, name: str = "y") -> isa.Store:
    return isa.Store(isa.Global(name, to, nbytes), ub(start, nbytes, UINT8))


def check(
    *parts: isa.MicroOp | Call, kind: str = "aiv", spec: DeviceSpec = A2, **bindings: Binding
) -> None:
    """Only for bytes that nobody wrote: flags and rules are left to others."""
    names = {"x": Binding("x"), "y": Binding("y"), "w": Binding("w")} | bindings
    block = Block(0, kind, Program("kernel", parts), names)
    orders = Orders()
    Written(spec.cores[kind], orders, SIZES).check(block, range(len(block.program)))


def refused(
    text: str, *parts: isa.MicroOp | Call, kind: str = "aiv", spec: DeviceSpec = A2
) -> None:
    start = "kernel: bytes must be written before they are used, but nobody wrote "
    with pytest.raises(UnwrittenError, match=f"^{re.escape(start + text)}$"):
        check(*parts, kind=kind, spec=spec)


def leaves(
    where: str, *parts: isa.MicroOp | Call, kind: str = "aiv", spec: DeviceSpec = A2
) -> None:
    with pytest.raises(UnwrittenError, match=rf"but nobody wrote {re.escape(where)} before "):
        check(*parts, kind=kind, spec=spec)


def test_a_store_of_what_nobody_wrote_is_refused() -> None:
    refused(
        f"ub[128:256] before #1 mte3: {store(0, 256)} stores it; load or fill it before",
        *(load(0, 128), store(0, 256)),
    )
    check(load(0, 256), store(0, 256))


def test_bytes_that_were_stored_once_are_checked_again_after_a_loop_of_stores() -> None:
    loop = isa.ScalarLoop(
        9, (isa.ScalarLoad("a", ub(512, 1), 4), isa.ScalarStore(ub(0, 1), "a", 4))
    )
    # The last round leaves something written in the register.
    good = load(0, 32), store(0, 32), load(544, 32)
    check(*good, load(512, 32), loop, store(0, 32))
    leaves("ub[512:544]", *good, loop, store(0, 32))


def test_an_accumulator_that_nobody_set_is_refused() -> None:
    add = isa.Binary("add", ub(256, 64), ub(256, 64), ub(0, 64))
    refused(
        f"ub[256:512] before #1 vector: {add} reads it, and #2 mte3: {store(256, 256)} stores what "
        f"comes of it; load or fill it before",
        *(load(0, 256), add, store(256, 256)),
    )
    check(load(0, 256), isa.Duplicate(ub(256, 64), 0.0), add, store(256, 256))


def test_lanes_that_are_dropped_do_no_harm() -> None:
    # 20 elements are loaded, whole repeats computed, and 20 stored.
    ops = (load(0, 80), isa.BinaryScalar("mul", ub(256, 64), ub(0, 64), 2.0))
    check(*ops, store(256, 80))
    check(*ops, store(256, 96))  # A copy pads its rows with zeros up to a whole block.
    leaves("ub[96:256]", *ops, store(256, 100))


def test_what_is_stored_over_again_does_no_harm() -> None:
    # Whole blocks, the tail of each under the next one, and the last beyond the end.
    rows = [store(64 * row, 32, 20 * row) for row in range(3)]
    filled = [load(64 * row, 20) for row in range(3)]
    check(*(isa.Duplicate(ub(64 * row, 5), 0.0) for row in range(3)), *rows, store(0, 20, 60))
    leaves("ub[148:160]", *(isa.Duplicate(ub(64 * row, 5), 0.0) for row in range(3)), *rows)
    check(*filled, isa.Duplicate(ub(0, 5), 0.0), store(0, 32, 4076))
    leaves(
        "ub[20:32]",
        *(isa.Duplicate(ub(0, 5), 0.0), store(0, 32), load(64, 64, "y"), store(64, 20, 20)),
    )


def test_what_is_added_does_not_make_it_written() -> None:
    add = isa.Store(isa.Global("y", 0, 32), ub(64, 32, UINT8), atomic=FLOAT32)
    leaves("ub[0:32]", isa.Duplicate(ub(64, 8), 0.0), store(0, 32), add)
    leaves("ub[64:96]", load(0, 32), store(0, 32), add)


def test_what_goes_to_workspaces_counts_as_written() -> None:
    check(store(0, 64, name="w"), load(256, 64, "w"), store(256, 64))


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (isa.Cast(ub(512, 64, FLOAT16), ub(0, 64), "none"), 128),
        (isa.Unary("abs", ub(512, 64), ub(0, 64)), 256),
        (isa.Unary("exp", ub(512, 64), ub(0, 64)), 256),
        (isa.Binary("max", ub(512, 64), ub(1024, 64), ub(0, 64)), 256),
        (isa.Binary("max", ub(512, 64), ub(0, 64), ub(1024, 64)), 256),
        (isa.BinaryScalar("min", ub(512, 64), ub(0, 64), 1.0), 256),
        (isa.Axpy(ub(512, 64), ub(0, 64), 2.0), 256),
        (isa.MulAddDst(ub(512, 64), ub(0, 64), ub(1024, 64)), 256),
        (isa.MulAddDst(ub(512, 64), ub(1024, 64), ub(0, 64)), 256),
        (isa.Copy(ub(512, 64), ub(0, 64)), 256),
        (isa.Copy(ub(512, 128, FLOAT16), ub(0, 128, FLOAT16)), 256),
        (isa.Broadcast(ub(512, 512), ub(0, 64)), 2048),
        (isa.BlockReduce("sum", ub(512, 8), ub(0, 64)), 32),
        (isa.Select(ub(512, 64), ub(1024, 8, UINT8), ub(0, 64), ub(1280, 64)), 256),
        (isa.Select(ub(512, 64), ub(1024, 8, UINT8), ub(0, 64), 1.0), 256),
    ],
    ids=lambda x: type(x).__name__,
)
def test_each_element_comes_of_its_own(op: isa.MicroOp, result: int) -> None:
    known = [isa.Duplicate(ub(1024, 64), 0.0), isa.Duplicate(ub(512, 512), 0.0)]
    known = known[:1] if isinstance(op, isa.Broadcast) else known
    # The first half is there, and so is the first half of the result, but no byte more.
    check(*known, load(0, 128), op, store(512, result // 2))
    leaves("ub[128:256]", *known, load(0, 128), op, store(512, result // 2 + 1))
    leaves("ub[128:256]", *known, load(0, 128), op, store(512, result))
    check(*known, load(0, 256), op, store(512, result))


def zero(start: int, count: int = 64) -> isa.Duplicate:
    return isa.Duplicate(ub(start, count), 0.0)


GATHER = isa.Gather(ub(512, 64), ub(1024, 64), ub(0, 64, INT32))
INDICES = isa.Duplicate(ub(256, 64, INT32), 0)
SORT = isa.Sort32(ub(512, 64, UINT64), ub(0, 64), ub(256, 64, INT32))
EVEN = isa.GatherMask("even", ub(512, 32), ub(0, 64))
SQUARE = isa.Transpose(ub(1024, 256, FLOAT16), ub(0, 256, FLOAT16))
CHOSEN = isa.Select(ub(1024, 128), ub(0, 16, UINT8), ub(512, 128), 1.0)
LEAST = isa.Reduce("min", ub(512, 1), ub(0, 64))
FOLD = isa.Fold("max", ub(512, 16), ub(0, 64))
# The first half of each of four repeats of 16 elements.
HALVES = isa.Duplicate(isa.Local("ub", 0, FLOAT32, 32, 2, 16), 0.0)
WHOLE = isa.WholeReduce("max", ub(1024, 2), ub(0, 128))
MASKED = isa.WholeReduce("sum", ub(1024, 1), ub(0, 64), 32)
ROWS = isa.Load(ub(0, 32, UINT8), isa.Global("x", 0, 32, 8, 32), 64)
EVERY_OTHER = isa.Local("ub", 0, FLOAT32, 64, 2, 16)


@pytest.mark.parametrize(
    ("where", "ops"),
    [
        ("", (zero(1024), load(0, 128), GATHER, store(512, 128))),
        ("ub[128:256]", (zero(1024), load(0, 128), GATHER, store(512, 256))),
        ("ub[1024:1280]", (load(0, 256), GATHER, store(512, 32))),
        ("", (INDICES, load(0, 128), SORT, store(512, 256))),
        ("ub[128:256]", (INDICES, load(0, 128), SORT, store(512, 264))),
        ("ub[256:512]", (load(0, 256), SORT, store(512, 8))),
        ("", (load(0, 128), EVEN, store(512, 64))),
        ("ub[128:256]", (load(0, 128), EVEN, store(512, 68))),
        # The first row of a square that is turned is the first column of what is there.
        ("ub[32:512]", (load(0, 32), SQUARE, store(1024, 32))),
        ("", (load(0, 256), zero(256), SQUARE, store(1024, 512))),
        ("", (zero(512, 128), load(0, 32), CHOSEN, store(1024, 512))),
        ("ub[0:16]", (zero(512, 128), CHOSEN, store(1024, 512))),
        ("ub[128:256]", (load(0, 128), LEAST, store(512, 4))),
        ("", (load(0, 256), LEAST, store(512, 4))),
        ("", (HALVES, zero(512, 16), FOLD, store(512, 32))),
        ("ub[32:64]", (HALVES, zero(512, 16), FOLD, store(512, 36))),
        ("ub[512:576]", (load(0, 256), FOLD, store(512, 4))),
        ("", (load(0, 256), WHOLE, store(1024, 4))),
        ("ub[256:512]", (load(0, 256), WHOLE, store(1024, 8))),
        ("", (load(0, 128), MASKED, store(1024, 4))),
        ("ub[96:256]", (load(0, 96), MASKED, store(1024, 4))),
        ("", (ROWS, isa.Copy(ub(512, 64), EVERY_OTHER), store(512, 256))),
        ("ub[32:64]", (ROWS, isa.Copy(ub(512, 64), ub(0, 64)), store(512, 256))),
        ("", (ROWS, isa.Store(isa.Global("y", 0, 32, 3, 32), ub(0, 32, UINT8), 64))),
        ("ub[32:40]", (ROWS, isa.Store(isa.Global("y", 0, 40, 3, 40), ub(0, 40, UINT8), 64))),
    ],
    ids=str,
)
def test_a_result_comes_of_what_it_is_made_of(where: str, ops: tuple[isa.MicroOp, ...]) -> None:
    if where:
        leaves(where, *ops)
    else:
        check(*ops)


def test_what_is_looked_up_may_come_of_any_element() -> None:
    half, offsets = isa.Duplicate(ub(1024, 32), 0.0), ub(0, 64, INT32)
    gather = isa.Gather(ub(512, 64), ub(1024, 64), offsets)
    leaves("ub[1152:1280]", half, load(0, 256), gather, store(512, 32))


def test_a_byte_of_bits_comes_of_eight_elements() -> None:
    zero = isa.Duplicate(ub(1024, 64), 0.0)
    for compare in (
        isa.Compare("lt", ub(512, 8, UINT8), ub(0, 64), ub(1024, 64)),
        isa.CompareScalar("lt", ub(512, 8, UINT8), ub(0, 64), 1.0),
    ):
        check(zero, load(0, 96), compare, store(512, 3))
        leaves("ub[96:256]", zero, load(0, 96), compare, store(512, 4))


def test_merged_lists_come_of_theirs_or_of_all_that_a_register_may_mean() -> None:
    word = isa.ScalarLoad("r", ub(0, 1, INT32))
    for start, sign in ((0, check), ("r", leaves)):
        lists = isa.MrgSort(ub(1024, 16, UINT64), ub(0, 32, UINT64), (8, 8), FLOAT32, start, 8)
        told = ["ub[128:256]"] if sign is leaves else []
        sign(*told, load(0, 128), word, lists, store(1024, 128))


def test_a_field_of_a_proposal_comes_of_its_list_and_of_the_keys() -> None:
    keys, lists, proposals = ub(0, 32, FLOAT16), ub(512, 256, FLOAT16), ub(1024, 256, FLOAT16)
    known, sort = isa.ProposalConcat(4, lists, keys), isa.RpSort16(proposals, lists)
    merge, out = isa.MrgSort4(lists, proposals, (16, 16)), ub(2048, 32, FLOAT16)
    take = [isa.ProposalExtract(place, out, lists) for place in (0, 4)]
    labels = isa.ProposalConcat(0, lists, keys)
    on_core: Any = {"kind": "ai_core", "spec": P3}
    check(load(0, 64), known, sort, merge, take[1], store(2048, 64), **on_core)
    check(load(0, 64), known, labels, sort, merge, take[0], store(2048, 64), **on_core)
    with pytest.raises(UnwrittenError):
        check(load(0, 64), known, sort, merge, take[0], store(2048, 64), **on_core)
    with pytest.raises(UnwrittenError):
        check(load(0, 32), known, sort, merge, take[1], store(2048, 2), **on_core)


def test_registers_pass_it_on() -> None:
    take, word = isa.ScalarLoad("r", ub(4, 1)), ub(512, 8)
    for use in (
        (isa.Duplicate(word, "r"),),
        (isa.Duplicate(word, 0.0), isa.BinaryScalar("add", word, word, "r")),
        (isa.Duplicate(word, 0.0), isa.ScalarStore(ub(512, 1), "r")),
        (
            isa.Duplicate(word, 0.0),
            isa.ScalarAlu("add", "s", "r", 1),
            isa.ScalarStore(ub(512, 1), "s"),
        ),
    ):
        leaves("ub[4:8]", isa.Duplicate(ub(0, 1), 0.0), take, *use, store(512, 32))
        check(load(0, 32), take, *use, store(512, 32))
        # A register that is set again is as good as any.
        check(take, load(0, 32), take, *use, store(512, 32))
    trap = isa.Trap("r", "x must be zero")
    refused(
        f"ub[4:8] before #0 scalar: {take} reads it, and #1 scalar: {trap} stops by what comes of "
        f"it; load or fill it before",
        *(take, trap),
    )
    check(load(0, 32), take, trap)


def test_rounds_of_a_loop_are_distinguished() -> None:
    body = (isa.ScalarLoad("r", ub(0, 1), 4), isa.ScalarStore(ub(512, 1), "r", 4))
    loop = isa.ScalarLoop(16, body)
    check(load(0, 32), loop, store(512, 32))
    leaves("ub[32:64]", load(0, 32), loop, store(512, 36))


def test_calls_are_followed_until_nothing_changes() -> None:
    # What is unwritten moves on by one place a call, and comes out with the fourth.
    steps = [isa.Copy(ub(64 * i + 64, 8), ub(64 * i, 8)) for i in (3, 2, 1, 0)]
    body = Body((*steps, store(256, 32)))
    first = tuple(isa.Duplicate(ub(64 * i, 8), 0.0) for i in range(1, 5))
    check(*first, *(Call(body, {"y": 32 * turn}) for turn in range(3)))
    leaves("ub[0:32]", *first, *(Call(body, {"y": 32 * turn}) for turn in range(4)))


# ---- around the cube ----

NZ_ROWS, K, N = 32, 32, 32


def product(m: int, k: int = K, n: int = N, loaded: int | None = None) -> tuple[isa.MicroOp, ...]:
    """(m, k) times (k, n), of which *loaded* rows of the first are loaded, to L0C."""
    rows = m if loaded is None else loaded
    l1_b = 16 * 1024
    return (
        isa.LoadNd2Nz(
            isa.Local("l1", 0, FLOAT16, rows * k), isa.Global("x", 0, 2 * k, rows, 2 * k), NZ_ROWS
        ),
        isa.LoadNd2Nz(
            isa.Local("l1", l1_b, FLOAT16, k * n), isa.Global("w", 0, 2 * n, k, 2 * n), NZ_ROWS
        ),
        isa.LoadData(
            *(isa.Local("l0a", 0, FLOAT16, 32 * 32), isa.Local("l1", 0, FLOAT16, 32 * 32)),
            *(NZ_ROWS, 0, 0, m, k),
        ),
        isa.LoadData(
            *(isa.Local("l0b", 0, FLOAT16, 32 * 32), isa.Local("l1", l1_b, FLOAT16, 32 * 32)),
            *(NZ_ROWS, 0, 0, k, n, True),
        ),
        isa.Mmad(
            *(isa.Local("l0c", 0, FLOAT32, 32 * 32), isa.Local("l0a", 0, FLOAT16, 32 * 32)),
            *(isa.Local("l0b", 0, FLOAT16, 32 * 32), m, n, k),
        ),
    )


def out(m: int, n: int = N) -> isa.Fixpipe:
    where = isa.Global("y", 0, 4 * n, m, 4 * n)
    return isa.Fixpipe(where, isa.Local("l0c", 0, FLOAT32, 32 * 32), m, n, 32, FLOAT32)


@pytest.mark.parametrize("m", [17, 20, 32])
@pytest.mark.parametrize("k", [20, 32])
@pytest.mark.parametrize("n", [17, 32])
def test_edges_of_fractals_take_no_part_in_a_product(m: int, k: int, n: int) -> None:
    check(*product(m, k, n), out(m, n), kind="aic")


def test_rows_that_nobody_loaded_leave_their_mark() -> None:
    ops = product(20, loaded=18)
    check(*ops, out(18), kind="aic")
    leaves("l1[576:1024]", *ops, out(19), kind="aic")
    # What lies beyond a product in its fractals nobody has written.
    leaves("l0c[1280:1344]", *product(20), out(21), kind="aic")


def test_columns_beyond_a_product_are_written_by_nobody() -> None:
    # All factors are whole fractals, but of the second 16 columns the product takes 4.
    *loads, whole = product(32)
    assert isinstance(whole, isa.Mmad)
    narrow = replace(whole, n=20)
    check(*loads, narrow, out(32, 20), kind="aic")
    leaves("l0c[2064:2112]", *loads, narrow, out(32, 21), kind="aic")


def test_a_sum_that_goes_on_goes_on_from_something() -> None:
    *loads, mmad = product(32)
    on = isa.Mmad(mmad.dst, mmad.a, mmad.b, 32, 32, 32, "accumulate")
    check(*loads, mmad, on, out(32), kind="aic")
    leaves("l0c[0:4096]", *loads, on, out(32), kind="aic")


def test_biases_and_scales_come_from_somewhere() -> None:
    *loads, mmad = product(32)
    table = isa.Local("bt", 0, FLOAT32, 32)
    bias = isa.Mmad(mmad.dst, mmad.a, mmad.b, 32, 32, 32, "bias", table)
    row = isa.Load(isa.Local("l1", 65536, UINT8, 128), isa.Global("x", 0, 128))
    take = isa.LoadTable(table, isa.Local("l1", 65536, FLOAT32, 32))
    check(*loads, row, take, bias, out(32), kind="aic")
    leaves("bt[0:128]", *loads, row, bias, out(32), kind="aic")
    leaves("l1[65536:65664]", *loads, take, bias, out(32), kind="aic")
    scales = isa.Local("fb", 0, UINT64, 32)
    sums = isa.Local("l0c", 0, INT32, 1024)
    where = isa.Global("y", 0, 64, 32, 64)
    scaled = isa.Fixpipe(where, sums, 32, 32, 32, FLOAT16, "deqf16", scales)
    leaves("fb[0:256]", *loads, mmad, scaled, kind="aic")


def test_what_the_fixpipe_puts_into_l1_may_be_read_there() -> None:
    back = isa.Local("l1", 32768, FLOAT16, 32 * 32)
    to_l1 = isa.Fixpipe(
        back, isa.Local("l0c", 0, FLOAT32, 1024), 20, 32, 32, FLOAT16, "cast", dst_rows=32
    )
    again = isa.LoadData(isa.Local("l0a", 0, FLOAT16, 1024), back, 32, 0, 0, 20, 32)
    *_, mmad = product(20)
    check(*product(20), to_l1, again, mmad, out(20), kind="aic")
    leaves("l1[32768:34816]", *product(20), again, mmad, out(20), kind="aic")


def test_sums_of_a_coupled_core_go_through_the_unified_buffer() -> None:
    src = isa.Local("l0c", 0, FLOAT32, 16 * 32)
    row = load(0, 128)
    spread = isa.BroadcastToL0c(src, ub(0, 32), 16)
    copy = isa.CopyL0c(ub(1024, 512), src, rows=16)
    words: dict[str, Any] = {"kind": "ai_core", "spec": P3}
    check(row, spread, copy, store(1024, 2048), **words)
    leaves("l0c[0:2048]", row, copy, store(1024, 2048), **words)
    leaves("ub[64:128]", load(0, 64), spread, copy, store(1024, 2048), **words)
    check(load(0, 64), spread, copy, store(1024, 1024), **words)
    to_l1 = isa.CopyToL1(isa.Local("l1", 0, UINT8, 64), ub(0, 64, UINT8), 32, 2, 64, 32)
    a = isa.LoadData(
        isa.Local("l0a", 0, FLOAT16, 256), isa.Local("l1", 0, FLOAT16, 256), 16, 0, 0, 2, 16
    )
    b = isa.LoadData(
        isa.Local("l0b", 0, FLOAT16, 256), isa.Local("l1", 0, FLOAT16, 256), 16, 0, 0, 2, 16
    )
    mmad = isa.Mmad(
        src, isa.Local("l0a", 0, FLOAT16, 256), isa.Local("l0b", 0, FLOAT16, 256), 2, 2, 16
    )
    get = (isa.CopyL0c(ub(1024, 256), isa.Local("l0c", 0, FLOAT32, 256), rows=16), store(1024, 8))
    check(load(0, 32), load(64, 32), to_l1, a, b, mmad, *get, **words)
    leaves("ub[64:96]", load(0, 32), to_l1, a, b, mmad, *get, **words)


# ---- held against values ----


def outputs_of(seed: int, pattern: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    program = random_program(seed)
    monkeypatch.setattr("npusim.values.buffers.UNWRITTEN", pattern)
    data = {name: np.zeros(size + 512, np.uint8) for name, size in TENSORS.items()}
    tensors = [GlobalTensor(name, size, data[name]) for name, size in TENSORS.items()]
    orders = chip.verify(program.blocks, A2)
    chip.compute(program.blocks, tensors, A2, orders)
    return data["y"][: TENSORS["y"]].tobytes()


def test_outputs_do_not_depend_on_what_buffers_held(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = differ = 0
    for seed in range(240):
        blocks = random_program(seed).blocks
        # What goes through a workspace is not followed.
        names = {place.name for op in blocks[0].program.ops for place in [_place(op)] if place}
        if len(blocks) > 1 or names & {"w", "v"}:
            continue
        try:
            chip.verify(blocks, A2, OUTPUTS)
        except UnwrittenError:
            found = {outputs_of(seed, pattern, monkeypatch) for pattern in (0x00, 0x7B, 0xFF)}
            differ += len(found) > 1
        except RuntimeError:
            continue
        else:
            found = {outputs_of(seed, pattern, monkeypatch) for pattern in (0x00, 0x7B, 0xFF)}
            assert len(found) == 1, seed
            passed += 1
    assert passed > 20
    assert differ > 5


def _place(op: isa.MicroOp) -> isa.Global | None:
    return op.src if isinstance(op, isa.Load) else op.dst if isinstance(op, isa.Store) else None


def test_a_whole_chip_is_checked_block_by_block() -> None:
    good = Program("kernel", (load(0, 64), isa.Barrier(), store(0, 64)))
    bad = Program("kernel", (load(0, 32), isa.Barrier(), store(0, 64)))
    bound = [{"x": Binding("x"), "y": Binding("y", 64 * core)} for core in range(2)]
    blocks = Block(0, "aiv", good, bound[0]), Block(1, "aiv", bad, bound[1])
    chip.verify(blocks, A2)
    with pytest.raises(UnwrittenError, match=r"but nobody wrote ub\[32:64\] before #2 mte3: "):
        chip.verify(blocks, A2, SIZES)
