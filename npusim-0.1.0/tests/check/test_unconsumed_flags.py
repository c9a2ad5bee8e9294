"""Flags between cores that are up at the end: which are refused, and what the advice is worth."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from draws import draws
from hypothesis import event, given
from hypothesis import strategies as st
from random_programs import DEVICE

import npusim
from npusim import DeviceSpec, Kernel, TensorSpec, chip, devices, micro, ops
from npusim.check.hazards import DeadlockError, FlagError
from npusim.check.hazards.cross_core import MOST_SETS
from npusim.check.rules import RuleError
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode, Global, MicroOp
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Body, Call, Program

A2 = devices.load(DEVICE)
MUST = (
    "a flag between cores must be awaited as often as it is set, on each core whose counter it "
    "raises, but"
)
COURSE = Path(__file__).parents[2] / "docs" / "course" / "07_two_kinds_of_chip.md"
GROUP = ("aic", "aiv", "aiv")


def raised(count: int, mode: CrossMode = "group") -> list[MicroOp]:
    return [CrossCoreSetFlag(mode, "mte2", 0)] * count


def awaited(count: int, mode: CrossMode = "group") -> list[MicroOp]:
    return [CrossCoreWaitFlag(mode, "mte2", 0)] * count


def launch(*cores: list[MicroOp], kinds: tuple[str, ...] = GROUP) -> tuple[Block, ...]:
    return tuple(
        Block(core, kinds[core], Program("kernel", tuple(ops)), {})
        for core, ops in enumerate(cores)
    )


def verify(*cores: list[MicroOp], kinds: tuple[str, ...] = GROUP) -> None:
    chip.verify(launch(*cores, kinds=kinds), A2)


def refused(text: str, *cores: list[MicroOp], kinds: tuple[str, ...] = GROUP) -> None:
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        verify(*cores, kinds=kinds)
    # Only whoever says so may leave them.
    chip.verify(launch(*cores, kinds=kinds), A2, flags_may_stay_up=True)


def test_what_vector_cores_set_their_cube_core_awaits() -> None:
    verify(awaited(3), raised(3), raised(3))
    refused(
        f"kernel #1 mte2: cross_core_set_flag group 0 on core 1: {MUST} group 0 is set 3 times on "
        "cores 1 and 2 and awaited once on core 0; await it at the end twice more on core 0, or "
        "leave out its last 2 sets on cores 1 and 2",
        *(awaited(1), raised(3), raised(3)),
    )
    refused(
        f"kernel #0 mte2: cross_core_set_flag group 0 on core 1: {MUST} group 0 is set once on "
        "cores 1 and 2 and awaited 0 times on core 0; await it at the end once more on core 0, or "
        "leave out its last set on cores 1 and 2",
        *([], raised(1), raised(1)),
    )


def test_a_set_that_the_other_vector_core_has_not_made_is_left_over_too() -> None:
    refused(
        f"kernel #2 mte2: cross_core_set_flag group 0 on core 2: {MUST} group 0 is set twice on "
        "core 1 and 3 times on core 2 and awaited twice on core 0; leave out its last set on "
        "core 2",
        *(awaited(2), raised(2), raised(3)),
    )


def test_what_a_cube_core_sets_each_of_its_vector_cores_awaits() -> None:
    verify(raised(2), awaited(2), awaited(2))
    refused(
        f"kernel #1 mte2: cross_core_set_flag group 0 on core 0: {MUST} group 0 is set twice on "
        "core 0 and awaited twice on core 1 and once on core 2; await it at the end once more on "
        "core 2",
        *(raised(2), awaited(2), awaited(1)),
    )
    refused(
        f"kernel #0 mte2: cross_core_set_flag group 0 on core 0: {MUST} group 0 is set 3 times on "
        "core 0 and awaited once on core 1 and 0 times on core 2; await it at the end twice more "
        "on core 1 and 3 times more on core 2, or leave out its last 2 sets on core 0, and await "
        "it at the end once more on core 2",
        *(raised(3), awaited(1), []),
    )


def test_what_nobody_can_await_is_left_over() -> None:
    refused(
        f"kernel #0 mte2: cross_core_set_flag group 0 on core 0: {MUST} group 0 is set once on "
        "core 0 and awaited by no core of the launch; leave out its last set on core 0",
        raised(1),
    )


def test_cores_of_a_kind_await_all_of_their_kind() -> None:
    kinds = ("aiv",) * 3
    meeting = [*raised(1, "all"), *awaited(1, "all")]
    verify(meeting, meeting, meeting, kinds=kinds)
    refused(
        f"kernel #0 mte2: cross_core_set_flag all 0 on core 0: {MUST} all 0 is set once on cores "
        "0, 1 and 2 and awaited once on cores 0 and 1 and 0 times on core 2; await it at the end "
        "once more on core 2",
        *(meeting, meeting, raised(1, "all")),
        kinds=kinds,
    )


def test_each_group_has_its_own_flags() -> None:
    even, more = (awaited(2), raised(2), raised(2)), (awaited(1), raised(2), raised(2))
    blocks = tuple(
        Block(3 * group + core, GROUP[core], Program("kernel", tuple(ops)), {}, group)
        for group, cores in enumerate((even, more))
        for core, ops in enumerate(cores)
    )
    text = (
        f"kernel #1 mte2: cross_core_set_flag group 0 on core 4: {MUST} group 0 is set twice on "
        "cores 4 and 5 and awaited once on core 3; await it at the end once more on core 3, or "
        "leave out its last set on cores 4 and 5"
    )
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        chip.verify(blocks, A2)


def test_sets_in_calls_are_counted_and_numbered_as_written_out() -> None:
    turn = Body(tuple(raised(1)))
    vector = Program("kernel", (Call(turn), Call(turn), Call(turn)))
    cube = Program("kernel", tuple(awaited(2)))
    blocks = (Block(0, "aic", cube, {}), *(Block(n, "aiv", vector, {}) for n in (1, 2)))
    with pytest.raises(
        FlagError, match=r"^kernel #2 mte2: .* is set 3 times on cores 1 and 2 and "
    ):
        chip.verify(blocks, A2)


# ---- the advice ----


def cores_of(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


TIMES = {"once": 1, "twice": 2}


def followed(advice: str, cores: list[list[MicroOp]]) -> list[list[MicroOp]]:
    """*cores* with the sets left out, and the waits added at the end, that *advice* asks for."""
    fixed = [list(ops) for ops in cores]
    for part in re.split(r", and (?=await)", advice):
        shares = re.findall(
            r"(its last(?: \d+)? sets?|once more|twice more|\d+ times more) "
            r"on cores? ((?:\d+, )*\d+(?: and \d+(?! times))?)",
            part,
        )
        assert shares, advice
        for what, where in shares:
            number = re.search(r"\d+", what)
            count = int(number[0]) if number else TIMES.get(what.split()[0], 1)
            for core in cores_of(where):
                if part.startswith("await"):
                    fixed[core] += awaited(count)
                else:
                    sets = [i for i, op in enumerate(fixed[core]) if op in raised(1)]
                    for index in reversed(sets[-count:]):
                        del fixed[core][index]
    return fixed


counts = st.integers(0, 4)
flags = st.tuples(counts, counts).map(lambda each: [*raised(each[0]), *awaited(each[1])])
"""Sets come first, so that nobody waits for ever who is awaited as often."""


def is_left_over(cores: list[list[MicroOp]]) -> bool:
    """Counters as the chip has them: the cube core's rises when both others have set."""
    sets, waits = ([ops.count(op) for ops in cores] for op in (raised(1)[0], awaited(1)[0]))
    cube, first, second = sets
    up = [min(first, second) - waits[0], cube - waits[1], cube - waits[2]]
    return any(up) or first != second


def left_over(cores: list[list[MicroOp]]) -> FlagError | None:
    try:
        verify(*cores)
    except FlagError as error:
        return error
    return None


def ways(error: FlagError) -> list[str]:
    """What its advice leaves a choice between."""
    return str(error).rpartition("; ")[2].split(", or ")


@given(flags, flags, flags)
@draws(300)
def test_the_advice_helps(cube: list[MicroOp], first: list[MicroOp], second: list[MicroOp]) -> None:
    cores = [cube, first, second]
    try:
        error = left_over(cores)
    except DeadlockError:
        event("deadlock")
        return
    event("left over" if error else "fine")
    assert (error is not None) == is_left_over(cores)
    for advice in ways(error) if error else ():
        fixed = followed(advice, cores)
        # What cube cores set and what vector cores set are two flags, though both are number 0.
        other = left_over(fixed)
        for its_advice in ways(other) if other else ():
            assert left_over(followed(its_advice, fixed)) is None


# ---- who is held to it ----


def signalling(spec: DeviceSpec, x: TensorSpec, awaits: bool = False) -> Kernel:
    """Vector cores copy x and say so; their cube core hears of it, or not."""
    blocks = []
    for core, kind in enumerate(GROUP):
        builder = Builder("signalling", spec.cores[kind], spec.sync)
        if kind == "aiv":
            piece = builder.claim("ub", x.nbytes // 2).of(x.element, x.size // 2)
            start = (core - 1) * x.nbytes // 2
            builder.data_copy(piece, Global("x", start, x.nbytes // 2))
            builder.sync("mte2", "mte3")
            builder.data_copy(Global("y", start, x.nbytes // 2), piece)
            builder.cross_core_set_flag("group", "mte3", 2)
        elif awaits:
            builder.cross_core_wait_flag("group", "mte2", 2)
        bindings = {name: Binding(name) for name in ("x", "y")}
        blocks.append(Block(core, kind, builder.build(), bindings))
    return Kernel("signalling", tuple(blocks), {"x": x}, {"y": x}, True)


def test_a_custom_kernel_must_have_its_flags_awaited() -> None:
    x = TensorSpec((64,), "float16")
    says = (
        rf"^signalling #4 \(line \d+ of {re.escape(Path(__file__).name)}\) mte3: "
        rf"cross_core_set_flag group 2 on core 1: {re.escape(MUST)} group 2 is set once on cores 1 "
        r"and 2 and awaited 0 times on core 0; await it at the end once more on core 0, or leave "
        r"out its last set on cores 1 and 2$"
    )
    with pytest.raises(FlagError, match=says):
        npusim.run(signalling, x, device="Atlas A2")
    with pytest.raises(FlagError, match=says):
        micro.time(signalling(A2, x), A2)
    assert npusim.run(signalling, x, awaits=True, device="Atlas A2").cycles > 0


def test_three_operators_end_as_the_vendors_kernels_do() -> None:
    kept = [name for name in ops.names() if ops.load(name).flags_may_stay_up]
    assert kept == ["npu_grouped_matmul", "npu_quant_matmul", "npu_weight_quant_batchmatmul"]
    operator = ops.load("npu_quant_matmul")
    problem = operator.check(
        A2,
        x1=TensorSpec((64, 512), "int8"),
        x2=TensorSpec((512, 256), "int8"),
        scale=TensorSpec((256,), "float32"),
        pertoken_scale=TensorSpec((64,), "float32"),
        output_dtype="bfloat16",
    )
    blocks = operator.build(A2, problem, operator.tile(A2, problem))
    where = r"^npu_quant_matmul #\d+ \(line \d+ of epilogue.py\) mte2: "
    with pytest.raises(FlagError, match=where):
        chip.verify(blocks, A2)
    assert chip.verify(blocks, A2, flags_may_stay_up=True)


def test_a_flag_is_counted_as_far_as_the_vendors_ring_goes() -> None:
    # Two halves of up to 8 slots.
    assert MOST_SETS == 16
    assert f"up to {MOST_SETS} sets" in (CrossCoreSetFlag.__doc__ or "")
    assert f"up to {MOST_SETS} that it has not awaited (assumed: " in COURSE.read_text("utf-8")
    verify(awaited(16), raised(16), raised(16))
    with pytest.raises(FlagError, match=r"^kernel: a core counts up to 16 sets of a flag "):
        verify(awaited(17), raised(17), raised(17))
    with pytest.raises(RuleError, match=r"must have an event in \[0, 11\)"):
        verify([CrossCoreSetFlag("group", "mte2", 11)], [], [])
