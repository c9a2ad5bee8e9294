"""A card that remembers: what one launch leaves, the next one finds."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest
from engine_times import assert_equal_traces, needs_compiled

import npusim
from npusim import DeviceSpec, TensorSpec
from npusim.run.addresses import MIB, Addresses

X = TensorSpec((64, 8192), "float16")
BYTES = 64 * 8192 * 2


def small_l2(nbytes: int) -> DeviceSpec:
    """Atlas A2 with an L2 of so many bytes."""
    spec = npusim.devices.load("ascend910b2")
    return spec.model_copy(update={"l2": spec.l2.model_copy(update={"capacity_bytes": nbytes})})


def test_the_first_launch_is_a_run_alone() -> None:
    with npusim.card("Atlas A2") as card:
        first = card.run("npu_swiglu", X)
    alone = npusim.run("npu_swiglu", X, device="Atlas A2")
    assert first.time_us == alone.time_us
    assert first.to_json()["l2"] == {"resident_bytes": 0, "dirty_bytes": 0}


def test_a_launch_finds_what_the_one_before_has_written() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8192)).astype(np.float16)
    with npusim.card("Atlas A2") as card:
        y = card.run("npu_swiglu", x).output
        after = card.run("npu_dynamic_quant", y)
        other = card.run("npu_dynamic_quant", y.copy())
    assert isinstance(after.l2, npusim.chip.Arrival)
    # The output's block has a line more for the allocator's slack, which nobody touches.
    assert after.l2.resident_bytes == after.l2.dirty_bytes == y.nbytes
    assert other.l2.resident_bytes == 0
    assert after.time_us < npusim.run("npu_dynamic_quant", y, device="Atlas A2").time_us
    np.testing.assert_array_equal(after.output[0], other.output[0])


def test_part_of_an_array_lies_within_it() -> None:
    x = np.ones((128, 8192), np.float16)
    with npusim.card("Atlas A2") as card:
        card.run("npu_swiglu", x)
        half = card.run("npu_swiglu", x[64:])
        assert half.l2.resident_bytes == BYTES


def test_instruction_caches_hold_what_fits_of_the_kernels_that_ran_last() -> None:
    calls = ("npu_swiglu", "npu_swiglu", "npu_dynamic_quant", "npu_swiglu", "sigmoid", "gelu")
    calls += ("sigmoid", "npu_swiglu", "sigmoid")
    with npusim.card("Atlas A2") as card:
        found = [card.run(op, X).icache for op in calls]
    cold, warm = "cold", "warm"
    assert found == [cold, warm, cold, cold, cold, cold, warm, cold, cold]


def test_code_that_the_l2_still_has_is_fetched_sooner() -> None:
    with npusim.card("Atlas A2") as card:
        first, _, again = (
            card.run(op, X) for op in ("npu_swiglu", "npu_dynamic_quant", "npu_swiglu")
        )
    launch_us = [run.launch_us for run in (first, again)]
    held_us = npusim.run("npu_swiglu", X, device="Atlas A2", icache="warm").launch_us
    assert launch_us[0] - held_us == pytest.approx(4 * (launch_us[1] - held_us))


def test_dirty_lines_are_written_back_once_and_take_their_time() -> None:
    spec = small_l2(BYTES)
    with npusim.card(spec) as card:
        runs = [card.run("npu_swiglu", X) for _ in range(8)]
    # Each call stores half as much as it reads; in the end as much leaves as is stored.
    assert runs[0].trace.gm_written_bytes < BYTES // 2
    assert runs[-1].trace.gm_written_bytes == pytest.approx(BYTES / 2, rel=0.05)
    again = npusim.run("npu_swiglu", X, device=spec, l2="repeat")
    assert again.trace.gm_written_bytes < runs[-1].trace.gm_written_bytes


@needs_compiled
def test_both_engines_find_and_leave_the_same() -> None:
    spec = small_l2(3 * MIB)
    x, w = TensorSpec((256, 1024), "float16"), TensorSpec((1024, 1024), "float16")
    found: dict[str, list[npusim.Run]] = {"compiled": [], "simpy": []}
    for engine, runs in found.items():
        card = npusim.card(spec)
        for _ in range(3):
            runs.append(card.run("matmul", x, w, engine=engine))
            runs.append(card.run("npu_swiglu", runs[-1].output, engine=engine))
    for one, other in zip(*found.values(), strict=True):
        assert one.l2.digest == other.l2.digest
        assert_equal_traces(one.trace, other.trace)
    assert one.l2.resident_bytes > 0
    assert one.trace.gm_written_bytes > 0


def test_a_launch_that_is_found_alike_is_known() -> None:
    with npusim.card("Atlas A2") as card:
        for _ in range(4):
            last = card.run("npu_swiglu", X)
        assert card.run("npu_swiglu", X).trace is last.trace


# ---- addresses ----


def test_blocks_are_apart_and_memory_comes_back() -> None:
    rng = np.random.default_rng(0)
    addresses, blocks = Addresses(), []
    for _ in range(300):
        if blocks and rng.random() < 0.45:
            blocks.pop(rng.integers(len(blocks)))
        blocks.append(addresses.take(int(2 ** rng.uniform(0, 25))))
        places = sorted((block.address, block.address + block.nbytes) for block in blocks)
        assert all(a[1] <= b[0] for a, b in pairwise(places))
    del blocks[:]
    gc.collect()
    # Segments are whole again, and as large as they were.
    lowest = addresses.take(20 * MIB - 32)
    assert lowest.nbytes == 20 * MIB


def test_blocks_are_of_the_allocators_sizes() -> None:
    addresses = Addresses()
    small = [addresses.take(100), addresses.take(481)]
    assert [(x.address, x.nbytes) for x in small] == [(0, 512), (512, 1024)]
    middle = addresses.take(3 * MIB)
    assert middle.address == 2 * MIB
    large = addresses.take(30 * MIB)
    assert (large.address, large.nbytes) == (22 * MIB, 30 * MIB + 512)
