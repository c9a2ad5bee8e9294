"""What times must never do: shrink when there is more to do, or count bytes that nobody moved."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import fewer_cores, log, play, tiny_spec

from npusim import TensorSpec, devices, isa, ops, run
from npusim.chip import Binding, Block, L2State
from npusim.data.dtypes import FLOAT32, UINT8
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Program
from npusim.timing.cost import charge

A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"
STATES: tuple[L2State, ...] = ("cold", "warm", "repeat")


# ---- one kernel, larger or smaller ----


def tiles(count: int, nbytes: int, repeats: int) -> Program:
    """Load, compute and store *count* tiles of *nbytes*, one after the other."""
    ops: list[isa.MicroOp] = []
    for tile in range(count):
        ops += [
            isa.Load(isa.Local("ub", 0, UINT8, nbytes), isa.Global("x", 1024 * tile, nbytes)),
            *(isa.SetFlag("mte2", "vector", 0), isa.WaitFlag("mte2", "vector", 0)),
            isa.BinaryScalar("add", *[isa.Local("ub", 0, FLOAT32, 64 * repeats)] * 2, 1.0),
            *(isa.SetFlag("vector", "mte3", 0), isa.WaitFlag("vector", "mte3", 0)),
            isa.Store(isa.Global("y", 1024 * tile, nbytes), isa.Local("ub", 0, UINT8, nbytes)),
            *(isa.SetFlag("mte3", "mte2", 0), isa.WaitFlag("mte3", "mte2", 0)),
        ]
    return Program("tiles", tuple(ops))


def cycles(spec: DeviceSpec, program: Program, cores: int, l2: L2State) -> int:
    """Every core has its own rows."""
    own = tuple({name: Binding(name, 4096 * core) for name in "xy"} for core in range(cores))
    size = 4096 * cores
    sizes = {"x": size, "y": size}
    return play(spec, *[program] * cores, sizes=sizes, bindings=own, l2=l2, every_core=False).cycles


SPECS = st.builds(
    tiny_spec,
    l2__same_line_ns=st.sampled_from([0.0, 1.0, 8.0]),
    l2__capacity_bytes=st.sampled_from([2048, 8192, 1 << 20]),
    # On a bus of their own: whether write-backs come in the way of a load or just after the last
    # one is a matter of luck, and a little more to do can have better luck.
    gm__bus=st.just("separate"),
    gm__run_bytes=st.sampled_from([0, 50]),
    gm__read_bytes_per_s=st.sampled_from([32e9, 50e9, 100e9]),
)
NBYTES = st.integers(1, 32).map(lambda sectors: 32 * sectors)


@given(SPECS, st.lists(NBYTES, min_size=2, max_size=2), st.integers(1, 4), st.sampled_from(STATES))
@draws(60)
def test_more_bytes_are_slower(spec: DeviceSpec, sizes: list[int], cores: int, l2: L2State) -> None:
    less, more = (cycles(spec, tiles(3, nbytes, 4), cores, l2) for nbytes in sorted(sizes))
    assert less <= more


@given(SPECS, st.integers(1, 3), st.integers(1, 8), NBYTES, st.sampled_from(STATES))
@draws(60)
def test_more_work_is_slower(
    spec: DeviceSpec, count: int, repeats: int, nbytes: int, l2: L2State
) -> None:
    base = cycles(spec, tiles(count, nbytes, repeats), 2, l2)
    assert base < cycles(spec, tiles(count, nbytes, repeats + 1), 2, l2)
    assert base < cycles(spec, tiles(count + 1, nbytes, repeats), 2, l2)


@given(SPECS, NBYTES, st.integers(1, 4), st.sampled_from(STATES))
@draws(60)
def test_more_cores_are_no_faster(spec: DeviceSpec, nbytes: int, cores: int, l2: L2State) -> None:
    program = tiles(3, nbytes, 4)
    assert cycles(spec, program, cores, l2) <= cycles(spec, program, cores + 1, l2)


@given(SPECS, NBYTES, st.integers(1, 4))
@draws(60)
def test_a_warmer_l2_is_never_slower(spec: DeviceSpec, nbytes: int, cores: int) -> None:
    program = tiles(3, nbytes, 4)
    warm, half, cold = (cycles(spec, program, cores, l2) for l2 in ("warm", ("x",), ()))
    assert max(warm, half) <= cold == cycles(spec, program, cores, "cold")
    if spec.l2.capacity_bytes == 1 << 20:
        assert warm <= half


def test_the_order_of_cores_makes_no_difference() -> None:
    spec = tiny_spec(l2__same_line_ns=4.0, gm__run_bytes=50)
    programs = [tiles(2, 256, 1), tiles(3, 512, 2), tiles(1, 992, 8)]
    # All read the same rows, and each writes its own.
    own = [{"x": Binding("x"), "y": Binding("y", 4096 * core)} for core in range(3)]
    found = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]):
        trace = play(
            spec,
            *(programs[which] for which in order),
            sizes={"x": 4096, "y": 12288},
            bindings=tuple(own[which] for which in order),
        )
        found.append({which: log(trace, core) for core, which in enumerate(order)})
    assert all(each == found[0] for each in found)


# ---- operators ----

WEIGHT = TensorSpec((512, 768), "int8")
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "npu_quantize": (
        "npu_quantize",
        (
            TensorSpec((300, 1000), "float16"),
            *[TensorSpec((1000,), "float16")] * 2,
            *("qint8", -1, False),
        ),
        {},
    ),
    "matmul": ("matmul", (TensorSpec((96, 512), "float16"), TensorSpec((512, 768), "float16")), {}),
    "npu_quant_matmul": (
        "npu_quant_matmul",
        (TensorSpec((96, 512), "int8"), WEIGHT, TensorSpec((768,), "float32")),
        {"output_dtype": "bfloat16"},
    ),
    "npu_dynamic_quant": ("npu_dynamic_quant", (TensorSpec((200, 640), "float16"),), {}),
}


def built(call: str, device: str) -> tuple[DeviceSpec, tuple[Block, ...]]:
    """The blocks that `run` times."""
    op, args, kwargs = CALLS[call]
    operator, spec = ops.load(op), devices.load(device)
    bound = ops.signature(operator).bind(*args, **kwargs)
    bound.apply_defaults()
    problem = operator.check(spec, **bound.arguments)
    return spec, operator.build(spec, problem, operator.tile(spec, problem))


def timed(call: str, device: str | DeviceSpec, **kwargs: Any) -> Any:
    op, args, options = CALLS[call]
    return run(op, *args, device=device, **options, **kwargs)


@pytest.mark.parametrize("l2", STATES)
@pytest.mark.parametrize("call", CALLS)
def test_what_moved_is_what_the_programs_ask_for(call: str, l2: L2State) -> None:
    spec, blocks = built(call, A2)
    asked = 0
    for block in blocks:
        for op in block.program.ops:
            place = isa.global_operand(op)
            if place is None:
                continue
            bound = block.bindings[place.name]
            if bound.is_cached or isa.writes_global(op):
                asked += charge(op, bound.base_bytes, spec).nbytes  # type: ignore[arg-type]
    told = timed(call, A2, l2=l2).to_json()
    assert told["l2_bytes"] == asked > 0
    assert told["l2_hit_bytes"] <= asked


# ---- what comes from global memory ----


class Reads(NamedTuple):
    """What the programs of a call read from global memory, if each line comes in once."""

    least_bytes: int
    """Lines of tensors that are only read, and bytes that bypass the L2."""
    stored_bytes: int
    """Lines that are stored as well: read after that, they need not come from global memory."""
    odd_bytes: int
    """Lines at the ends of bursts that begin within a sector: they come once for each burst."""


def distinct_reads(spec: DeviceSpec, blocks: tuple[Block, ...]) -> Reads:
    """Counted from the micro-ops, burst by burst."""
    line = spec.l2.line_bytes
    lines: dict[str, set[int]] = {}
    stored: set[str] = set()
    past = odd = 0
    for block in blocks:
        for op, place in ((op, isa.global_operand(op)) for op in block.program.ops):
            if place is None:
                continue
            bound = block.bindings[place.name]
            if isa.writes_global(op):
                stored.add(bound.tensor)
                continue
            for burst in range(place.bursts):
                first = bound.base_bytes + place.offset_bytes + burst * place.stride_bytes
                last = first + place.burst_bytes - 1
                odd += 2 * line if first % spec.transfer.sector_bytes else 0
                if bound.is_cached:
                    touched = lines.setdefault(bound.tensor, set())
                    touched.update(range(first // line, last // line + 1))
                else:
                    past += place.burst_bytes
    only = sum(len(found) for tensor, found in lines.items() if tensor not in stored)
    both = sum(len(found) for tensor, found in lines.items() if tensor in stored)
    return Reads(past + line * only, line * both, odd)


OFFERED = [
    *((call, device) for device in (A2, A3) for call in CALLS),
    *(("npu_quantize", INFERENCE), ("matmul", INFERENCE)),
]


@pytest.mark.parametrize(("call", "device"), OFFERED)
def test_each_line_comes_from_global_memory_once_where_all_fits(call: str, device: str) -> None:
    spec, blocks = built(call, device)
    reads = distinct_reads(spec, blocks)
    trace = timed(call, device).trace
    assert reads.least_bytes <= trace.gm_read_bytes <= sum(reads)
    assert trace.gm_bytes == trace.gm_read_bytes, "nothing has to leave"


SHAPES = st.tuples(st.integers(1, 130), st.integers(1, 6).map(lambda c0: 16 * c0 + 16))


@given(SHAPES, st.sampled_from(["matmul", "npu_quantize", "w8a16"]), st.sampled_from([A2, A3]))
@draws(40)
def test_a_cold_l2_reads_enough(shape: tuple[int, int], op: str, device: str) -> None:
    (m, k), n = shape, 16 * shape[1]
    x = TensorSpec((m, k), "float16")
    arguments: dict[str, tuple[Any, ...]] = {
        "matmul": ("matmul", x, TensorSpec((k, n), "float16")),
        "npu_quantize": ("npu_quantize", x, TensorSpec((1,), "float16"), None, "qint8", 1, False),
        "w8a16": (
            "npu_weight_quant_batchmatmul",
            *(x, TensorSpec((k, n), "int8"), TensorSpec((n,), "float16")),
        ),
    }
    name, *args = arguments[op]
    # Little enough of it that lines leave it and come again.
    spec = devices.load(device)
    small = spec.model_copy(update={"l2": spec.l2.model_copy(update={"capacity_bytes": 1 << 15})})
    operator = ops.load(name)
    bound = ops.signature(operator).bind(*args)
    bound.apply_defaults()
    problem = operator.check(spec, **bound.arguments)
    plan = operator.plan(spec, problem)
    assert plan is not None
    blocks = operator.build(spec, problem, plan)
    least = distinct_reads(spec, blocks).least_bytes
    for chip in (spec, small):
        trace = run(name, *args, device=chip).trace
        assert trace is not None
        assert least <= trace.gm_read_bytes
        # Nor is it more than the memory can read in the time.
        assert trace.gm_read_bytes <= chip.gm.read_bytes_per_s * trace.cycles / trace.clock_hz


@pytest.mark.parametrize("m", [16, 32])
def test_a_weight_comes_past_the_l2_whole(m: int) -> None:
    x, weight = TensorSpec((m, 4096), "float16"), TensorSpec((4096, 11008), "int8")
    scales = TensorSpec((11008,), "float16")
    found = run("npu_weight_quant_batchmatmul", x, weight, scales, device=A2).to_json()
    assert found["gm_bytes"] >= 4096 * 11008


@pytest.mark.parametrize("device", [A2, A3, INFERENCE])
@pytest.mark.parametrize("call", ["npu_quantize", "matmul"])
def test_no_pipe_is_busy_longer_than_the_run(call: str, device: str) -> None:
    found = timed(call, device)
    for pipes in found.counters.values():
        for counter in pipes.values():
            assert 0 <= counter.busy_cycles <= found.cycles


@pytest.mark.parametrize("l2", STATES)
@pytest.mark.parametrize("call", CALLS)
def test_folding_changes_no_time(call: str, l2: L2State) -> None:
    folded, apart = (timed(call, A2, l2=l2, every_core=each) for each in (False, True))
    assert folded.to_json() == apart.to_json()


@pytest.mark.parametrize("call", CALLS)
def test_a_colder_l2_is_never_faster(call: str) -> None:
    cold, warm = (timed(call, A2, l2=l2).cycles for l2 in ("cold", "warm"))
    assert warm <= cold


@pytest.mark.parametrize("call", ["npu_quantize", "npu_dynamic_quant"])
def test_fewer_cores_are_never_faster(call: str) -> None:
    found = [timed(call, fewer_cores(A2, aiv=count, aic=count)).cycles for count in (4, 8, 16)]
    assert found == sorted(found, reverse=True)
