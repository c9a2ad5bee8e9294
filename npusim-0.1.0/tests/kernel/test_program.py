"""What the builder writes: flags of queues as text, and every way to ask for too much."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tiny import builder, tiny_spec

from npusim.data.dtypes import FLOAT32, INT4, UINT8
from npusim.devices.schema import DeviceSpec
from npusim.isa import Duplicate, Global, Load, Local
from npusim.kernel.builder import Builder
from npusim.kernel.program import Body, Call, Program
from npusim.kernel.queues import ProgramError


def message(text: str) -> str:
    return f"^{re.escape(text)}$"


def copying(spec: DeviceSpec, depth: int, tiles: int) -> Program:
    write = builder(spec)
    queue = write.queue("ub", 100, "mte2", "mte3", depth)
    for tile in range(tiles):
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 100), Global("x", 100 * tile, 100))
        queue.enque(slot)
        slot = queue.deque()
        write.data_copy(Global("y", 100 * tile, 100), slot.of(UINT8, 100))
        queue.free(slot)
    return write.build()


def test_a_queue_of_depth_1_waits_for_its_only_buffer(tiny: DeviceSpec) -> None:
    assert str(copying(tiny, 1, 2)).splitlines() == [
        "mte2     load ub[0:100] uint8 <- x+0 100 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     store y+0 100 B <- ub[0:100] uint8",
        "mte3     set_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 0",
        "mte2     load ub[0:100] uint8 <- x+100 100 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     store y+100 100 B <- ub[0:100] uint8",
        "mte3     set_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 0",
    ]


def test_a_queue_of_depth_2_takes_turns_with_an_event_each(tiny: DeviceSpec) -> None:
    # Buffers of 100 bytes are claimed as 128; the last waits drain both.
    assert str(copying(tiny, 2, 3)).splitlines() == [
        "mte2     load ub[0:100] uint8 <- x+0 100 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     store y+0 100 B <- ub[0:100] uint8",
        "mte3     set_flag mte3->mte2 0",
        "mte2     load ub[128:228] uint8 <- x+100 100 B",
        "mte2     set_flag mte2->mte3 1",
        "mte3     wait_flag mte2->mte3 1",
        "mte3     store y+100 100 B <- ub[128:228] uint8",
        "mte3     set_flag mte3->mte2 1",
        "mte2     wait_flag mte3->mte2 0",
        "mte2     load ub[0:100] uint8 <- x+200 100 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     store y+200 100 B <- ub[0:100] uint8",
        "mte3     set_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 1",
    ]


def test_an_unused_queue_leaves_no_trace(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.queue("ub", 32, "mte2", "vector", 2)
    program = write.build()
    assert (str(program), program.claimed_bytes) == ("", {"ub": 64})


def test_a_second_drain_waits_for_nothing(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    queue = write.queue("ub", 32, "mte2", "vector")
    queue.free(queue.alloc())
    queue.drain()
    queue.drain()
    assert str(write.build()).splitlines() == [
        "vector   set_flag vector->mte2 0",
        "mte2     wait_flag vector->mte2 0",
    ]


def test_queues_between_the_same_pipes_get_events_of_their_own(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    first = write.queue("ub", 32, "mte2", "vector", 2)
    second = write.queue("ub", 32, "vector", "mte2")
    third = write.queue("ub", 32, "vector", "mte3")
    events = [queue.alloc().event for queue in (first, first, second, third)]
    assert events == [0, 1, 2, 0]


def test_a_plain_wait_uses_the_last_event(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.sync("vector", "scalar")
    write.barrier("vector")
    write.barrier()
    # 8 events, of which the framework keeps 2.
    assert str(write.build()).splitlines() == [
        "vector   set_flag vector->scalar 5",
        "scalar   wait_flag vector->scalar 5",
        "vector   barrier vector",
        "scalar   barrier all",
    ]


def test_buffers_are_claimed_in_whole_blocks_from_the_low_end(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    # 16384 bytes, of which the framework keeps 256.
    assert write.room_bytes("ub") == 16128
    first, second = write.claim("ub", 33), write.claim("ub", 64)
    assert [(slot.offset_bytes, slot.nbytes) for slot in (first, second)] == [(0, 64), (64, 64)]
    assert write.room_bytes("ub") == 16000
    assert write.build().claimed_bytes == {"ub": 128}


def test_later_buffers_may_lie_on_top_of_earlier_ones(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.claim("ub", 32)
    below = write.claim("ub", 128)
    with write.on_top_of(below):
        inside = write.claim("ub", 64)
        assert write.room_bytes("ub") == 16128 - 32 - 64
    assert inside.offset_bytes == below.offset_bytes == 32
    assert write.claim("ub", 32).offset_bytes == 160
    # One that is larger than what it lies on keeps its place too.
    with write.on_top_of(below):
        write.claim("ub", 512)
    assert write.claim("ub", 32).offset_bytes == 544
    assert write.build().claimed_bytes == {"ub": 576}


def test_a_slot_gives_ranges_of_itself(tiny: DeviceSpec) -> None:
    slot = builder(tiny).claim("ub", 64)
    assert str(slot.of(FLOAT32, 8, 32)) == "ub[32:64] float32"
    assert str(slot.of(INT4, 3)) == "ub[0:2] int4"


# ---- asking for too much ----


def test_a_range_beyond_its_slot_is_refused(tiny: DeviceSpec) -> None:
    slot = builder(tiny).claim("ub", 64)
    text = (
        "Slot.of: 9 elements of float32 at byte 32 must end within 64 bytes, not at 68; "
        "make the slot larger"
    )
    with pytest.raises(ProgramError, match=message(text)):
        slot.of(FLOAT32, 9, 32)


def test_an_alloc_without_a_free_slot_is_refused(tiny: DeviceSpec) -> None:
    queue = builder(tiny).queue("ub", 32, "mte2", "vector", 2)
    queue.alloc()
    queue.alloc()
    text = (
        "Queue.alloc: one of 2 slots must be free; free a slot first, or give the queue more depth"
    )
    with pytest.raises(ProgramError, match=message(text)):
        queue.alloc()


def test_a_deque_before_an_enque_is_refused(tiny: DeviceSpec) -> None:
    queue = builder(tiny).queue("ub", 32, "mte2", "vector")
    text = "Queue.deque: a slot must have been enqueued; call enque first"
    with pytest.raises(ProgramError, match=message(text)):
        queue.deque()


def test_a_claim_beyond_the_buffer_is_refused(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.claim("ub", 16000)
    text = (
        "kernel: a claim must fit into the 128 bytes of ub that are left, not need 160; "
        "use smaller tiles"
    )
    with pytest.raises(ProgramError, match=message(text)):
        write.claim("ub", 129)
    assert write.claim("ub", 128).offset_bytes == 16000


@pytest.mark.parametrize("nbytes", [-32, -1024, 1.5, True, "64", None, float("nan")])
def test_claims_are_whole_blocks(nbytes: Any, tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.claim("ub", 64)
    text = f"must be an integer from 0 on, not {nbytes!r}; pass an int that fits"
    with pytest.raises(ProgramError, match=message(f"kernel: a claim {text}")):
        write.claim("ub", nbytes)
    with pytest.raises(ProgramError, match=message(f"kernel: a claim {text}")):
        write.queue("ub", nbytes, "mte2", "vector")
    assert write.claim("ub", np.int64(32)).offset_bytes == 64


@pytest.mark.parametrize("depth", [0, -1, 1.5, "2", None])
def test_a_queue_without_a_buffer_is_refused(depth: Any, tiny: DeviceSpec) -> None:
    text = (
        f"kernel: the depth of a queue must be an integer from 1 on, not {depth!r}; "
        f"pass an int that fits"
    )
    with pytest.raises(ProgramError, match=message(text)):
        builder(tiny).queue("ub", 32, "mte2", "vector", depth)


def test_a_kernel_alone_may_claim_every_byte(tiny: DeviceSpec) -> None:
    core = tiny.cores["aiv"]
    assert Builder("kernel", core, tiny.sync).room_bytes("ub") == 16 * 1024 - 256
    assert Builder("kernel", core, tiny.sync, alone=True).room_bytes("ub") == 16 * 1024
    with pytest.raises(
        ProgramError, match=message("kernel: the core must have a l1, but it has none")
    ):
        Builder("kernel", core, tiny.sync, alone=True).room_bytes("l1")


def test_events_run_out(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.queue("ub", 32, "mte2", "vector", 4)
    write.queue("ub", 32, "vector", "mte2", 2)
    text = (
        "kernel: mte2 and vector must get by with 6 events, but another queue slot needs one more; "
        "use fewer queues or less depth"
    )
    with pytest.raises(ProgramError, match=message(text)):
        write.queue("ub", 32, "mte2", "vector")
    text = (
        "kernel: vector and mte2 must have an event left for a plain wait; "
        "use fewer queues or less depth"
    )
    with pytest.raises(ProgramError, match=message(text)):
        write.sync("vector", "mte2")
    write.queue("ub", 32, "mte2", "mte3", 6)


def test_the_event_of_a_plain_wait_is_not_given_to_a_queue_afterwards(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    write.queue("ub", 32, "mte2", "vector", 5)
    write.sync("mte2", "vector")
    write.sync("vector", "mte2")
    with pytest.raises(ProgramError, match=r"^kernel: mte2 and vector must get by with 5 events, "):
        write.queue("ub", 32, "mte2", "vector")


def test_a_core_with_fewer_events_has_fewer_slots() -> None:
    spec = tiny_spec(sync__event_ids=3, sync__reserved_event_ids=1)
    write = Builder("kernel", spec.cores["aiv"], spec.sync)
    write.queue("ub", 32, "mte2", "vector", 2)
    with pytest.raises(ProgramError, match=r"^kernel: mte2 and vector must get by with 2 events, "):
        write.queue("ub", 32, "mte2", "vector")


# ---- stages ----


def test_a_later_stage_gets_the_same_buffers_and_events(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    first = write.queue("ub", 64, "mte2", "mte3")
    write.claim("ub", 32)
    write.reset_buffers()
    second = write.queue("ub", 32, "mte2", "mte3")
    for queue, name in ((first, "x"), (second, "y")):
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 32), Global(name, 0, 32))
        queue.enque(slot)
        queue.free(queue.deque())
        if queue is first:
            write.end_stage()
    program = write.build()
    assert str(program).splitlines() == [
        "mte2     load ub[0:32] uint8 <- x+0 32 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     set_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 0",
        "scalar   barrier all",
        "mte2     load ub[0:32] uint8 <- y+0 32 B",
        "mte2     set_flag mte2->mte3 0",
        "mte3     wait_flag mte2->mte3 0",
        "mte3     set_flag mte3->mte2 0",
        "mte2     wait_flag mte3->mte2 0",
    ]
    assert program.claimed_bytes == {"ub": 96}


# ---- ranges ----


def test_a_range_is_cut_by_elements() -> None:
    whole = builder(tiny_spec()).claim("ub", 256).of(FLOAT32, 64)
    assert str(whole.at(8, 16)) == "ub[32:96] float32"
    assert str(whole.as_dtype(UINT8)) == "ub[0:256] uint8"
    assert whole.as_dtype(UINT8).count == 256
    assert str(whole.as_dtype(UINT8, 7)) == "ub[0:7] uint8"
    text = "isa.Local.at: elements [60, 65) must lie in [0, 64); ask for less"
    with pytest.raises(ValueError, match=message(text)):
        whole.at(60, 5)


def test_calls_of_one_key_share_a_body_and_are_moved_each_on_its_own(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    slot = write.claim("ub", 64)
    for at in (0, 64):
        write.call(
            "tile", {"x": at}, lambda: write.data_copy(slot.of(UINT8, 64), Global("x", 8, 64))
        )
    first, second, drain = write.build().calls
    assert first.body is second.body
    assert len(first.lines) == len(first.ops) == len(first.body) == 1
    program = Program("kernel", (first, second, drain))
    assert program.bodies == (first.body, drain.body)
    assert [str(op) for op in program.ops] == [
        "load ub[0:64] uint8 <- x+8 64 B",
        "load ub[0:64] uint8 <- x+72 64 B",
    ]


def test_a_call_may_hold_calls_and_parts_that_pass_slots_on(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    queue = write.queue("ub", 64, "mte2", "vector", 2)
    written = []

    def fill() -> None:
        written.append("fill")
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 64), Global("x", 8, 64))
        queue.enque(slot)

    def tile() -> None:
        written.append("tile")
        for at in (0, 64):
            write.call_part("fill", {"x": at}, fill)
            queue.free(queue.deque())

    for at in (0, 256, 512):
        write.call("tile", {"x": at}, tile)
    first, second, third, _ = write.build().calls
    # Once with slots that were never used, each of two; then the flag of each is awaited.
    assert written == ["tile", "fill", "fill", "tile", "fill", "fill"]
    assert second.body is third.body is not first.body
    program = Program("kernel", (second, third))
    assert len(program) == 2 * len(second.body) == len(program.ops) == 20
    assert [str(op) for op in program.ops if isinstance(op, Load)] == [
        f"load ub[{start}:{start + 64}] uint8 <- x+{at} 64 B"
        for start, at in ((0, 264), (64, 328), (0, 520), (64, 584))
    ]
    assert len(second.body.lines) == 10
    assert len(program.leaves) == len(second.body.leaves) == 4


def test_bodies_of_equal_micro_ops_stay_apart() -> None:
    ops = (Duplicate(Local("ub", 0, FLOAT32, 8), 1.0),)
    one, other = Body(ops), Body(ops)
    assert {one: 1, other: 2}[one] == 1
    assert Program("kernel", (Call(one), Call(other), Call(one))).bodies == (one, other)
    assert list(one) == list(other) == [*ops]


def test_what_is_known_of_bodies_is_laid_out_call_by_call() -> None:
    first, second = (Duplicate(Local("ub", place, FLOAT32, 8), 0.0) for place in (0, 32))
    inner = Body((first, second))
    outer = Body((second, Call(inner), Call(inner)))
    program = Program("kernel", (first, Call(outer), Call(inner), Call(outer)))

    ops, numbers = program.distinct()
    assert [ops[number] for number in numbers] == list(program.ops)
    assert len(ops) == 4  # one alone, one before the inner body, two in it
    asked: list[Body] = []

    def widths(body: Body) -> np.ndarray:
        asked.append(body)
        return np.array([op.dst.offset_bytes for op in body])

    assert program.laid_out(widths).tolist() == [op.dst.offset_bytes for op in program.ops]
    assert len(asked) == len(set(asked)) == 3
    assert Program("kernel", ()).laid_out(widths).tolist() == []
    assert [(call.body, begin, own) for call, begin, own in program.between(3, 7)] == [
        (outer, 1, slice(2, 5)),
        (inner, 6, slice(0, 1)),
    ]
