"""Blocks that are computed side by side give the bits of those that are computed one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_programs import random_program

import npusim
from npusim import chip, devices
from npusim.check.cross_core_flags import CrossCoreFlagCounts
from npusim.check.hazards import HazardError
from npusim.check.rules import RuleError
from npusim.chip import Binding, Block, Model
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.data.errors import TrapError
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Barrier,
    BinaryScalar,
    Cast,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Store,
    Trap,
)
from npusim.kernel.program import Program
from npusim.values.facts import facts_of
from npusim.values.lanes import OPERAND_BYTES, batches
from npusim.values.play import _meet

KINDS = {"ascend910b2": "aiv", "ascend910_9391": "aiv", "ascend310p3": "ai_core"}
CHIPS = {name: devices.load(name) for name in KINDS}
REGION_BYTES = 4096
SEEDS = range(150)


def launch(program: Program, kind: str, bases: tuple[int, ...]) -> tuple[Block, ...]:
    """A block for each of *bases*, from which on it has memory of its own."""

    def bindings(base: int) -> dict[str, Binding]:
        tensors = {"x": ("x", 0), "y": ("y", 0), "w": ("ws", 64), "v": ("ws", 128)}
        return {name: Binding(tensor, base + at) for name, (tensor, at) in tensors.items()}

    return tuple(Block(core, kind, program, bindings(base)) for core, base in enumerate(bases))


def computed(blocks: tuple[Block, ...], spec: DeviceSpec, alone: bool) -> bytes:
    """What x, y and ws hold in the end; x is random."""
    size = (2 + max(bound.base_bytes for b in blocks for bound in b.bindings.values())) + 8192
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 256, size, np.uint8) for name in ("x", "y", "ws")}
    tensors = [GlobalTensor(name, size, each) for name, each in data.items()]
    chip.compute(blocks, tensors, spec, chip.verify(blocks, spec), Model(byte_exact=alone))
    return b"".join(each.tobytes() for each in data.values())


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", KINDS)
def test_random_programs_give_the_same_side_by_side(device: str) -> None:
    played = 0
    for seed in SEEDS:
        blocks = random_program(seed).blocks
        if len(blocks) > 1:
            continue
        step = REGION_BYTES
        # Equally far apart, not so, and each twice: loads and stores find them in different ways.
        for places in ((0, 1, 2, 3, 4), (0, 1, 3, 7), (5, 2, 0, 4)):
            bases = tuple(step * place for place in places)
            side_by_side = launch(blocks[0].program, KINDS[device], bases)
            try:
                expected = computed(side_by_side, CHIPS[device], alone=True)
            except (HazardError, RuleError):
                break
            assert computed(side_by_side, CHIPS[device], alone=False) == expected, seed
            played += 1
    # Half of them are refused, on the 310P most: there copies are of whole blocks.
    assert played > (10 if device == "ascend310p3" else len(SEEDS))


RNG = np.random.default_rng(1)


def half(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 40).astype(np.float16)


CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "quantize": ("npu_quantize", (half(61, 333), RNG.random(333, np.float32), None, "qint8", -1)),
    "dynamic": ("npu_dynamic_quant", (half(101, 224),)),
    "many rows of a group": (
        "npu_group_quant",
        (half(1500, 64), RNG.random((3, 64), np.float32), np.int32([700, 710, 1500])),
    ),
    "group": (
        "npu_group_quant",
        (half(100, 64), RNG.random((4, 64), np.float32), np.int32([3, 50, 50, 100])),
    ),
    "anti": (
        "npu_anti_quant",
        (RNG.integers(-128, 128, (99, 130), np.int8), RNG.random(130, np.float32)),
    ),
}
CALLS["specials"] = (
    "npu_quantize",
    (
        np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(64, 1024),
        np.full(1024, 0.5, np.float32),
        None,
        "qint8",
        -1,
    ),
)


@pytest.mark.sample(8)
@pytest.mark.parametrize("device", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_operators_give_the_same_side_by_side(name: str, device: str) -> None:
    op, args = CALLS[name]
    if op == "npu_group_quant" and device == "ascend310p3":
        pytest.skip("npu_group_quant is not on this chip")
    found, expected = (
        npusim.run(op, *args, device=device, timing=False, byte_exact=alone).outputs
        for alone in (False, True)
    )
    for output in expected:
        assert np.asarray(found[output]).tobytes() == np.asarray(expected[output]).tobytes()


# ---- who is computed beside whom ----

X = Local("ub", 0, FLOAT32, 8)
ROW = Local("ub", 0, UINT8, 32)
COPY = (Load(ROW, Global("x", 0, 32)), Barrier(), Store(Global("y", 0, 32), ROW))


def cut(*blocks: Block) -> list[list[int]]:
    """The cores of each batch."""
    calls = {block.program: block.program.calls for block in blocks}
    return [[block.core for block in batch] for batch in batches(blocks, calls)]


def block(core: int, program: Program, tensor: str = "x", kind: str = "aiv") -> Block:
    return Block(core, kind, program, {"x": Binding(tensor), "y": Binding("y", 32 * core)})


def test_blocks_of_the_same_bodies_kind_and_tensors_lie_side_by_side() -> None:
    one, other = Program("one", COPY), Program("other", COPY)
    same = [block(0, one), block(2, one), block(4, one)]
    assert cut(*same, block(5, other), block(1, one, "z"), block(3, one, kind="aic")) == [
        [0, 2, 4],
        [5],
        [1],
        [3],
    ]


def test_blocks_whose_programs_differ_share_what_their_calls_share() -> None:
    bodies = Program("one", COPY).calls
    first, second = Program("one", bodies), Program("two", bodies)
    assert cut(block(0, first), block(1, second)) == [[0, 1]]


def test_an_atomic_addition_is_made_alone() -> None:
    program = Program("adds", (Store(Global("y", 0, 32), X, atomic=FLOAT32),))
    assert cut(block(0, program), block(1, program)) == [[0], [1]]


def test_wide_operands_are_not_made_wider_than_the_cache() -> None:
    count = OPERAND_BYTES // 4 // 2
    program = Program("wide", (Duplicate(Local("ub", 0, FLOAT32, count), 1.0),))
    assert cut(*(block(core, program) for core in range(5))) == [[0, 1], [2, 3], [4]]


# ---- traps, registers and what a cast has in hand ----


def play(spec: DeviceSpec, *ops: MicroOp, x: np.ndarray, cores: int) -> np.ndarray:
    """The program on each of *cores*, which have equal shares of *x* and of the result."""
    y = np.zeros_like(x)
    share = x.nbytes // cores
    bound = [
        {"x": Binding("x", share * core), "y": Binding("y", share * core)} for core in range(cores)
    ]
    program = Program("kernel", tuple(part for op in ops for part in (op, Barrier())))
    blocks = tuple(Block(core + 3, "aiv", program, bound[core]) for core in range(cores))
    tensors = [
        GlobalTensor(n, a.nbytes, a.reshape(-1).view(np.uint8)) for n, a in (("x", x), ("y", y))
    ]
    chip.compute(blocks, tensors, spec, chip.verify(blocks, spec))
    return y


def test_the_first_core_that_traps_is_named(tiny: DeviceSpec) -> None:
    def check(element: int, reason: str) -> tuple[MicroOp, ...]:
        return ScalarLoad("bad", Local("ub", 4 * element, INT32, 1)), Trap("bad", reason)

    x = np.zeros((4, 8), np.int32)
    x[1, 5] = x[3, 0] = x[1, 6] = 1
    ops = (
        Load(ROW, Global("x", 0, 32)),
        *check(0, "first"),
        *check(5, "fifth"),
        *check(6, "sixth"),
    )
    with pytest.raises(TrapError, match=r"^fifth \(core 4\)$"):
        play(tiny, *ops, x=x, cores=4)


def test_the_first_core_is_named_whatever_is_computed_first(tiny: DeviceSpec) -> None:
    read = Load(ROW, Global("x", 0, 32)), Barrier(), ScalarLoad("bad", Local("ub", 0, INT32, 1))
    ends = Program("ends", (*read, Trap("bad", "must be zero")))
    copies = Program("copies", (*read, Trap("bad", "must be 0"), Barrier(), *COPY))
    x = np.zeros((4, 8), np.int32)
    tensors = [GlobalTensor("x", x.nbytes, x.reshape(-1).view(np.uint8))]
    tensors += [GlobalTensor("y", x.nbytes, np.zeros(x.nbytes, np.uint8))]
    blocks = tuple(
        Block(core, "aiv", program, {"x": Binding("x", 32 * core), "y": Binding("y", 32 * core)})
        for core, program in enumerate((ends, copies, copies, ends))
    )
    # Cores 0 and 3 lie side by side, and so do 1 and 2, which come after them.
    assert cut(*blocks) == [[0, 3], [1, 2]]
    for trapping, first in (
        ((3,), "must be zero"),
        ((3, 2), "must be 0"),
        ((0, 1), "must be zero"),
    ):
        x[:] = 0
        x[trapping, 0] = 1
        with pytest.raises(TrapError, match=rf"^{first} \(core {min(trapping)}\)$"):
            chip.compute(blocks, tensors, tiny, chip.verify(blocks, tiny))


def test_registers_that_are_set_again_before_anyone_reads_them_are_not_calculated() -> None:
    here = Local("ub", 0, INT32, 1)
    look = ScalarLoop(2, (ScalarLoad("end", here), ScalarAlu("lt", "inside", 0, "end")))
    used = ScalarLoop(1, (ScalarLoad("end", here), ScalarAlu("add", "inside", "inside", "end")))
    stops = ScalarLoop(1, (ScalarLoad("end", here), Trap("end", "never")))
    puts = ScalarLoop(1, (ScalarLoad("end", here), ScalarStore(here, "end")))
    ops = (look, look, stops, puts, look, used, Trap("inside", "never"), look)
    [kept] = facts_of(Program("looks", ops).calls[0].body).pieces
    # What the last one leaves may be read in the next body.
    assert kept == [stops, puts, look, used, Trap("inside", "never"), look]


def test_each_core_has_registers_of_its_own(tiny: DeviceSpec) -> None:
    x = np.arange(24, dtype=np.float32)
    loop = ScalarLoop(
        2,
        (
            ScalarLoad("bits", Local("ub", 4, FLOAT32, 1), 4),
            ScalarStore(Local("ub", 24, FLOAT32, 1), "bits", 4),
        ),
    )
    ops = (
        Load(ROW, Global("x", 0, 32)),
        ScalarLoad("r", Local("ub", 0, FLOAT32, 1)),
        ScalarAlu("max", "s", "r", 0),
        BinaryScalar("add", Local("ub", 0, FLOAT32, 6), Local("ub", 0, FLOAT32, 6), "s"),
        loop,
        Store(Global("y", 0, 32), ROW),
    )
    expected = x.reshape(3, 8) + 0
    expected[:, :6] += x.reshape(3, 8)[:, :1]
    expected[:, 6:] = expected[:, 1:3]
    np.testing.assert_array_equal(play(tiny, *ops, x=x, cores=3).reshape(3, 8), expected)


def test_the_last_core_may_load_past_the_end_of_its_tensor(tiny: DeviceSpec) -> None:
    x = np.arange(24, dtype=np.float32)
    ops = (Load(ROW, Global("x", 16, 32)), Store(Global("y", 0, 32), ROW))
    assert play(tiny, *ops, x=x, cores=3).tolist() == [*range(4, 24), 0, 0, 0, 0]


def test_a_reduction_and_a_duplicate_stay_in_their_lane(tiny: DeviceSpec) -> None:
    x = np.float32([[3, 9, 1, 4, 0, 0, 0, 0], [7, -2, 8, 5, 0, 0, 0, 0]])
    ops = (
        Load(ROW, Global("x", 0, 32)),
        Reduce("max", Local("ub", 32, FLOAT32, 1), Local("ub", 0, FLOAT32, 4)),
        ScalarLoad("r", Local("ub", 32, FLOAT32, 1)),
        Duplicate(Local("ub", 0, FLOAT32, 3), "r"),
        Store(Global("y", 0, 32), ROW),
    )
    found = play(tiny, *ops, x=x, cores=2)
    assert found.tolist() == [[9, 9, 9, 4, 0, 0, 0, 0], [8, 8, 8, 5, 0, 0, 0, 0]]


WHOLE, HALVES = Local("ub", 0, INT32, 8), Local("ub", 64, FLOAT16, 8)


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_cast_reads_what_lies_there(tiny: DeviceSpec, overwritten: bool) -> None:
    x = np.float32([[0.4, 1.5, -300.5, 2049, -0.2, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]])
    change = Duplicate(Local("ub", 0, INT32, 2), 5.0)
    ops: tuple[MicroOp, ...] = (
        Load(ROW, Global("x", 0, 32)),
        Cast(WHOLE, X, "rint"),
        *((change,) if overwritten else ()),
        # Elsewhere.
        Duplicate(Local("ub", 32, FLOAT32, 8), 0.0),
        Cast(HALVES, WHOLE, "none"),
        Cast(X, HALVES, "none"),
        Store(Global("y", 0, 32), ROW),
    )
    expected = np.rint(x).astype(np.float16).astype(np.float32) + 0
    if overwritten:
        expected[:, :2] = 5
    np.testing.assert_array_equal(play(tiny, *ops, x=x, cores=2), expected)


# ---- cores that meet ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
@pytest.mark.parametrize("shape", [(700, 300, 900), (130, 65, 257)], ids=str)
def test_mixed_cores_give_the_same(shape: tuple[int, int, int], device: str) -> None:
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    found, expected = (
        npusim.run(
            *("npu_quant_matmul", a, b, rng.random(n, np.float32)),
            pertoken_scale=np.linspace(0, 1, m, dtype=np.float32),
            output_dtype="bfloat16",
            device=device,
            timing=False,
            byte_exact=alone,
        ).output
        for alone, rng in ((False, np.random.default_rng(1)), (True, np.random.default_rng(1)))
    )
    assert found.tobytes() == expected.tobytes()


def test_lanes_pass_a_flag_together(tiny: DeviceSpec) -> None:
    program = Program(
        "turns",
        (
            Load(ROW, Global("x", 0, 32)),
            Barrier(),
            BinaryScalar("add", X, X, 1.0),
            Barrier(),
            Store(Global("y", 0, 32), ROW),
            Barrier(),
            CrossCoreSetFlag("all", "scalar", 1),
            CrossCoreWaitFlag("all", "scalar", 1),
        ),
    )
    x, y = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    blocks = tuple(
        Block(core, "aiv", program, {"x": Binding("x", 32 * core), "y": Binding("y", 32 * core)})
        for core in range(3)
    )
    tensors = [GlobalTensor("x", 96, x.view(np.uint8)), GlobalTensor("y", 96, y.view(np.uint8))]
    chip.compute(blocks, tensors, tiny, chip.verify(blocks, tiny))
    np.testing.assert_array_equal(y, x + 1)


def test_lanes_that_would_wait_for_each_other_are_found_beforehand() -> None:
    up, wait = CrossCoreSetFlag("group", "scalar", 0), CrossCoreWaitFlag("group", "scalar", 0)
    ahead, behind = Program("ahead", (up, wait)), Program("behind", (wait, up))
    vectors = [Block(core, "aiv", ahead, {}, core) for core in range(2)]
    cubes = [Block(2, "aic", behind, {}, 0), Block(3, "aic", behind, {}, 1)]
    flags = {"ahead": [up, wait], "behind": [wait, up], "stuck": [wait, up]}

    def meets(*batches: tuple[str, tuple[Block, ...]]) -> bool:
        counts = CrossCoreFlagCounts((*vectors, *cubes))
        return _meet({batch: iter(flags[name]) for name, batch in batches}, counts)

    assert meets(("ahead", tuple(vectors)), ("behind", tuple(cubes)))
    assert not meets(("stuck", tuple(vectors)), ("behind", tuple(cubes)))
