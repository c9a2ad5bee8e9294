"""Bank conflicts, against the vendor's measured cycles and against counting by hand."""

from __future__ import annotations

import pytest

from npusim import devices
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.devices.schema import Banks, DeviceSpec
from npusim.isa import Binary, BinaryScalar, Cast, Local
from npusim.timing.banks import repeat_cycles
from npusim.timing.cost import cost

KIB = 1024
BANKS = Banks(groups=16, banks_per_group=3, bank_bytes=4096)
"""As on arch 2201: the group of an address is bits 8 to 5, its bank bits 17 and 16."""


def ub(offset_bytes: int, *strides: int, count: int = 4096) -> Local:
    return Local("ub", offset_bytes, FLOAT32, count, *strides)


@pytest.fixture(scope="module")
def chip() -> DeviceSpec:
    return devices.load("ascend910b1")


# asc-devkit, 05_best_practices/04_memory_access/bank_conflict_ub: Add of fp32, 64 repeats. Beside
# the repeats the model has 22 cycles of head and tail.
@pytest.mark.parametrize(
    ("a", "b", "dst", "measured", "modelled"),
    [
        (0, 64 * KIB + 256, 128 * KIB, 88, 86),
        (0, 64 * KIB, 128 * KIB + 256, 154, 150),
        (0, 16 * KIB + 256, 16 * KIB, 139, 150),
    ],
    ids=["no conflict", "two reads in a group", "a read and a write in a bank"],
)
def test_the_vendors_measured_adds(
    a: int, b: int, dst: int, measured: int, modelled: int, chip: DeviceSpec
) -> None:
    took = cost(Binary("add", ub(dst), ub(a), ub(b)), chip, chip.cores["aiv"])
    assert took.head + took.body + took.tail == modelled
    assert modelled == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize(
    ("reads", "dst", "repeats", "cycles"),
    [
        # Reads of repeat r + 1 at 256 (r + 1) and 256 (r + 2), in groups 8 to 15 and 0 to 7 by
        # turns; the write of repeat r goes to another bank.
        ((ub(0), ub(64 * KIB + 256)), ub(128 * KIB), 64, 64),
        # Both in the same groups; and the same operand twice, which is read once.
        ((ub(0), ub(64 * KIB)), ub(128 * KIB + 256), 64, 128),
        ((ub(0), ub(0)), ub(128 * KIB), 64, 64),
        # A block stride of 16 puts eight blocks in one group, one of 8 four in each of two.
        ((ub(0, 16, 128),), ub(64 * KIB), 8, 8 * 8),
        ((ub(64 * KIB),), ub(0, 16, 128), 8, 8 * 8),
        ((ub(0, 8, 64),), ub(64 * KIB), 8, 8 * 4),
        # Of eight blocks in one group four are written into each of two banks.
        ((ub(128 * KIB),), ub(40 * KIB, 240, 16), 8, 8 * 8),
        # 144 blocks from row to row: one group. 145, padded: eight groups.
        ((ub(0, 144, 8),), ub(64 * KIB), 8, 8 * 8),
        ((ub(0, 145, 8),), ub(64 * KIB), 8, 8),
        # A result in place is written a repeat later.
        ((ub(0),), ub(0), 64, 64),
        ((ub(0),), ub(512), 64, 64),
        # Written blocks lie one repeat further than those of the same group that are read: in the
        # same bank, and in another one.
        ((ub(0),), ub(256), 64, 64),
        ((ub(0),), ub(256 + 512), 64, 128),
        ((ub(0),), ub(64 * KIB + 768), 64, 64),
    ],
    ids=str,
)
def test_a_repeat_takes(reads: tuple[Local, ...], dst: Local, repeats: int, cycles: int) -> None:
    assert repeat_cycles(BANKS, reads, dst, 64, repeats) == cycles


def test_repeats_beyond_the_period_of_the_groups_go_on_alike() -> None:
    for reads, dst in [((ub(0), ub(64 * KIB)), ub(128 * KIB)), ((ub(0, 3, 7),), ub(4096))]:
        one_by_one = [
            repeat_cycles(BANKS, reads, dst, 64, repeats + 1)
            - repeat_cycles(BANKS, reads, dst, 64, repeats)
            for repeats in range(16, 64)
        ]
        assert one_by_one[:16] == one_by_one[16:32] == one_by_one[32:]


def test_a_period_that_is_begun_takes_as_long_as_its_repeats() -> None:
    for reads, dst in [((ub(0), ub(64 * KIB)), ub(128 * KIB)), ((ub(0, 3, 7),), ub(4096))]:
        some, all_of_one, more = (
            repeat_cycles(BANKS, reads, dst, 64, repeats) for repeats in (5, 16, 16 + 5)
        )
        assert more == all_of_one + some


def test_a_cast_reads_eight_blocks_and_writes_four(chip: DeviceSpec) -> None:
    half = Local("ub", 64 * KIB, FLOAT16, 4096)
    assert cost(Cast(half, ub(0), "none"), chip, chip.cores["aiv"]).body == 64


def test_a_cast_into_one_group_takes_a_cycle_a_block(chip: DeviceSpec) -> None:
    # A repeat: 4 blocks of 128 int8 become 8 blocks of fp16, 128 blocks apart; or 1 becomes 2.
    coupled = devices.load("ascend310p3")
    for depth, body in ((128, 8 * 128), (32, 2 * 128)):
        dst = Local("ub", 64 * KIB, FLOAT16, 128 * depth, 128, 1, depth // 16)
        src = Local("ub", 0, INT8, 128 * depth, 128, 1, depth // 32)
        for spec, kind in ((chip, "aiv"), (coupled, "ai_core")):
            assert cost(Cast(dst, src), spec, spec.cores[kind]).body == body


def test_a_conflict_shows_only_where_it_exceeds_the_units_own_pace(chip: DeviceSpec) -> None:
    slow, fast = (BinaryScalar(op, ub(768), ub(0), 2.0) for op in ("div", "mul"))
    rate = chip.vector.classes["div"].cycles_per_repeat_32bit
    assert rate >= 2
    assert cost(slow, chip, chip.cores["aiv"]).body == 64 * rate
    assert cost(fast, chip, chip.cores["aiv"]).body == 128
