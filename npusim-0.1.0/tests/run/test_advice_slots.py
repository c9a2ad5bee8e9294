"""Advice on queues: what a slot more gives was tried, on a kernel that could be launched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import DeviceSpec, Run, TensorSpec
from npusim.check.hazards import RaceError
from npusim.data.integers import align_down
from npusim.kernel import BinaryScalar, Binding, Block, Builder, Global, Kernel, ProgramError
from npusim.kernel.builder import deeper
from npusim.kernel.program import QueueName
from npusim.kernel.queues import Slot
from npusim.run.advice import MIN_GAIN, Advice
from npusim.run.call import Options, play
from npusim.run.memory_cache import forget

A2, TILE, TILES = "ascend910b2", 2048, 24
X = TensorSpec((TILE * TILES,), "float32")
HEAVY = 8
"""How many times as much every third tile is worked on as the others are."""


def tiled(x: TensorSpec, builder: Builder, pair: Sequence[Slot] = ()) -> Kernel:
    """y = 2 x; tiles come into the slots of a queue, or in turn into a *pair* of buffers."""
    ys = builder.queue("ub", 4 * TILE, "vector", "mte3", 3)
    xs = builder.queue("ub", 4 * TILE, "mte2", "vector", 2)
    for number in range(TILES):
        start = 4 * TILE * number
        slot = xs.alloc()
        own = (pair[number % 2] if pair else slot).of(x.element, TILE)
        builder.data_copy(own, Global("x", start, 4 * TILE))
        xs.enque(slot)
        slot, out = xs.deque(), ys.alloc()
        for _ in range(1 if number % 3 else HEAVY):
            builder.emit(BinaryScalar("mul", out.of(x.element, TILE), own, 2.0))
            builder.barrier("vector")
        xs.free(slot)
        ys.enque(out)
        out = ys.deque()
        builder.data_copy(Global("y", start, 4 * TILE), out.of(x.element, TILE))
        ys.free(out)
    block = Block(0, "aiv", builder.build(), {name: Binding(name) for name in "xy"})
    return Kernel("doubled", (block,), {"x": x}, {"y": x})


def begun(spec: DeviceSpec) -> Builder:
    return Builder("doubled", spec.cores["aiv"], spec.sync)


def doubled(spec: DeviceSpec, x: TensorSpec) -> Kernel:
    return tiled(x, begun(spec))


def full(spec: DeviceSpec, x: TensorSpec) -> Kernel:
    """Five tiles that leave no room for a sixth."""
    builder = begun(spec)
    builder.claim("ub", builder.room_bytes("ub") - 5 * 4 * TILE)
    return tiled(x, builder)


def in_turn(spec: DeviceSpec, x: TensorSpec) -> Kernel:
    """The queue hands its flags out, and two buffers take turns: a third slot would be a race."""
    builder = begun(spec)
    pair = [builder.claim("ub", 4 * TILE) for _ in range(2)]
    return tiled(x, builder, pair)


def by_room(spec: DeviceSpec, x: TensorSpec) -> Kernel:
    """Its tiles share what a queue leaves of the room."""
    builder = begun(spec)
    builder.claim("ub", builder.room_bytes("ub") - 7 * 4 * TILE)
    first = builder.queue("ub", 4 * TILE // 2, "mte2", "vector", 2)
    tile = align_down(builder.room_bytes("ub") // 6 // 4, 64)
    ys = builder.queue("ub", 4 * tile, "vector", "mte3", 3)
    for start in range(0, x.size, tile):
        count = min(tile, x.size - start)
        out = ys.alloc()
        for place in range(start, start + count, TILE // 2):
            slot, part = first.alloc(), min(TILE // 2, start + count - place)
            builder.data_copy(slot.of(x.element, part), Global("x", 4 * place, 4 * part))
            first.enque(slot)
            slot = first.deque()
            there = out.of(x.element, part, 4 * (place - start))
            builder.emit(BinaryScalar("mul", there, slot.of(x.element, part), 2.0))
            first.free(slot)
        ys.enque(out)
        out = ys.deque()
        builder.data_copy(Global("y", 4 * start, 4 * count), out.of(x.element, count))
        ys.free(out)
    block = Block(0, "aiv", builder.build(), {name: Binding(name) for name in "xy"})
    return Kernel("doubled", (block,), {"x": x}, {"y": x})


def deeper_queues(run: Run) -> list[Advice]:
    return [each for each in run.advice() if each.queues]


def again(run: Run, queues: tuple[QueueName, ...], **options: Any) -> Run:
    assert run.call is not None
    asked = Options(values=False, deeper=queues, **options)
    return play(run.call.op, (), run.call.arguments, run.device, asked)


def test_a_third_slot_of_a_custom_kernel_is_tried() -> None:
    run = npusim.run(doubled, X, device=A2)
    (told,) = deeper_queues(run)
    (name,) = told.queues
    assert (name.buffer, name.src, name.dst) == ("ub", "mte2", "vector")
    assert told.kind == "what if"
    assert not told.arguments
    assert not told.settings
    assert told.text.startswith("mte2 of aiv waits for room in ub ")
    assert told.text.endswith(" % of the cores' time, which vector has to give")
    file, line = name.line
    written = Path(__file__).read_text().splitlines()[line - 1].strip()
    assert written == 'xs = builder.queue("ub", 4 * TILE, "mte2", "vector", 2)'
    assert Path(file).name == Path(__file__).name
    assert told.change == (
        f"with 3 slots in place of 2 in the queue from mte2 to vector ({file}:{line})"
    )
    assert told.after_us == pytest.approx(again(run, told.queues).time_us)
    assert told.gain >= MIN_GAIN


def test_what_a_kernel_has_no_room_for_is_not_advised() -> None:
    run = npusim.run(full, X, device=A2)
    assert run.time_us == npusim.run(doubled, X, device=A2).time_us
    assert deeper_queues(run) == []
    queues = deeper_queues(npusim.run(doubled, X, device=A2))[0].queues
    with pytest.raises(ProgramError) as raised:
        again(run, queues)
    assert str(raised.value) == (
        "doubled: a claim must fit into the 0 bytes of ub that are left, not need 8192; "
        "use smaller tiles"
    )


def test_a_deeper_queue_that_makes_a_race_is_not_advised() -> None:
    run = npusim.run(in_turn, X, device=A2)
    queues = deeper_queues(npusim.run(doubled, X, device=A2))[0].queues
    with pytest.raises(RaceError):
        again(run, queues)
    assert deeper_queues(run) == []


def test_a_deeper_queue_that_changes_the_tiles_is_not_advised() -> None:
    assert deeper_queues(npusim.run(by_room, X, device=A2)) == []


def added(device: str = "ascend310p3") -> Run:
    x, other = TensorSpec((1000, 4000), "float16"), TensorSpec((4000,), "float16")
    return npusim.run("add", x, other, device=device)


def test_queues_of_an_operator_are_tried_once_for_cores_of_two_kinds() -> None:
    run = added()
    (told,) = deeper_queues(run)
    assert told.text.startswith("mte2 of vector_core waits for room in ub ")
    assert told.change == "with 2 slots in place of 1 in each of the 2 queues from mte2 to vector"
    assert told.after_us == pytest.approx(again(run, told.queues, engine="simpy").time_us)


def test_a_deeper_kernel_computes_the_same_values() -> None:
    rng = np.random.default_rng(0)
    x, scale = rng.normal(0, 50, (512, 2048)), rng.uniform(1, 2, (4, 2048))
    ends = np.array([128, 256, 384, 512])
    args = x.astype(np.float16), scale.astype(np.float16), ends
    run = npusim.run("npu_group_quant", *args, device=A2)
    (told,) = deeper_queues(run)
    changed = play("npu_group_quant", args, {}, A2, Options(deeper=told.queues))
    assert changed.time_us == pytest.approx(told.after_us)
    np.testing.assert_array_equal(changed.output, run.output)


@pytest.mark.usefixtures("nothing_kept")
def test_a_deeper_kernel_is_another_entry_of_caches(tmp_path: Path) -> None:
    run = added()
    queues = deeper_queues(run)[0].queues
    for _ in range(2):
        forget()  # the second time both come from the folder
        changed = again(run, queues, cache=tmp_path).time_us
        assert changed is not None
        assert run.time_us is not None
        assert changed < run.time_us
        assert again(run, (), cache=tmp_path).time_us == run.time_us
    assert len(list(tmp_path.iterdir())) == 2


def test_a_depth_advised_as_a_change_is_no_what_if() -> None:
    x = TensorSpec((100_000,), "float32")
    course = Path(__file__).parents[2] / "docs" / "course" / "vector_add.py"
    run = npusim.run(f"{course}:add", x, x, device=A2)
    told = run.advice()
    assert any("depth" in each.arguments for each in told)
    assert not any(each.queues for each in told)


def test_a_builder_makes_the_queues_of_a_line_deeper() -> None:
    spec = npusim.devices.load(A2)

    def queues() -> list[int]:
        builder = begun(spec)
        both = [builder.queue("ub", 256, "mte2", "vector", depth) for depth in (1, 2)]
        builder.queue("ub", 256, "vector", "mte3")
        names.extend(each.name for each in builder.build().queues)
        return [len(each.events) for each in both]

    names: list[QueueName] = []
    assert queues() == [1, 2]
    first, second, last = names
    assert first == second
    assert (last.src, last.dst) == ("vector", "mte3")
    with deeper([first]):
        assert queues() == [2, 3]
    assert queues() == [1, 2]
