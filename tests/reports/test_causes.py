"""What is blamed is what moves the time: each cause provoked on each series, then made faster."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import pytest
from chips import THREE
from played import CHAIN, MUL, lane, trace
from tiny import play, tiny_spec

import npusim
from npusim import TensorSpec, devices, isa
from npusim.chip import Binding
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Program
from npusim.reports import bandwidth, bounds, roofline
from npusim.reports.causes import CAUSES, bound_by, causes, path_causes
from npusim.reports.critical_path import critical_path
from npusim.reports.trials import faster
from npusim.trace import Cause, Trace

KIB = 1024

# ---- kernels, each of which one thing holds up ----

Kernel = Callable[[DeviceSpec], Trace]


def on_each(
    spec: DeviceSpec, *ops: isa.MicroOp, l2: Any = "cold", cores: int | None = None
) -> Trace:
    """Time *ops* on every vector core, each with 256 KiB of x and y of its own."""
    kind = spec.vector_kinds[0]
    count = cores or spec.cores[kind].count
    size = 256 * KIB
    own = tuple({name: Binding(name, size * core) for name in "xy"} for core in range(count))
    sizes = {"x": size * count, "y": size * count}
    program = Program("kernel", ops)
    return play(
        spec, *[program] * count, sizes=sizes, bindings=own, l2=l2, every_core=False, kind=kind
    )


def cube_kind(spec: DeviceSpec) -> str:
    """The kind of core that has a cube."""
    return next(kind for kind, core in spec.cores.items() if "cube" in core.pipes)


def load(nbytes: int, start: int = 0) -> isa.Load:
    return isa.Load(isa.Local("ub", 0, UINT8, nbytes), isa.Global("x", start, nbytes))


def loads(nbytes: int, count: int) -> list[isa.MicroOp]:
    return [load(nbytes, nbytes * index) for index in range(count)]


def half_l2(spec: DeviceSpec) -> DeviceSpec:
    """Narrower links: those of real chips are nearly as wide as the ports of all cores."""
    l2 = spec.l2.model_copy(
        update={
            "read_bytes_per_s": spec.l2.read_bytes_per_s / 4,
            "write_bytes_per_s": spec.l2.write_bytes_per_s / 4,
        }
    )
    return spec.model_copy(update={"l2": l2})


def gm(spec: DeviceSpec) -> Trace:
    return on_each(spec, *loads(16 * KIB, 8))


def l2_reads(spec: DeviceSpec) -> Trace:
    return on_each(half_l2(spec), *loads(16 * KIB, 8), l2="warm")


def l2_writes(spec: DeviceSpec) -> Trace:
    stores = [
        isa.Store(isa.Global("y", 16 * KIB * index, 16 * KIB), isa.Local("ub", 0, UINT8, 16 * KIB))
        for index in range(8)
    ]
    return on_each(half_l2(spec), *stores)


def port(spec: DeviceSpec) -> Trace:
    return on_each(spec, *loads(32 * KIB, 8), cores=1)


def rows(spec: DeviceSpec) -> Trace:
    turns = (
        isa.LoadNd2Nz(
            isa.Local("l1", 0, UINT8, 32 * KIB), isa.Global("x", 256 * KIB * i, 64, 512, 512), 512
        )
        for i in range(4)
    )
    return play(spec, tuple(turns), sizes={"x": 1024 * KIB}, kind="aic")


def memory_latency(spec: DeviceSpec) -> Trace:
    alone = [op for each in loads(512, 16) for op in (each, isa.Barrier("mte2"))]
    return on_each(spec, *alone, cores=1)


def copy_issue(spec: DeviceSpec) -> Trace:
    # Handing out takes more than half as long on real chips.
    scalar = spec.scalar.model_copy(update={"dispatch_cycles": 1})
    return on_each(spec.model_copy(update={"scalar": scalar}), *loads(32, 64), l2="warm", cores=1)


def cube(spec: DeviceSpec) -> Trace:
    a, b = isa.Local("l0a", 0, FLOAT16, 128 * 128), isa.Local("l0b", 0, FLOAT16, 128 * 128)
    mmad = isa.Mmad(isa.Local("l0c", 0, FLOAT32, 128 * 128), a, b, 128, 128, 128)
    return play(spec, (mmad,) * 8, kind=cube_kind(spec))


def vector(spec: DeviceSpec) -> Trace:
    x, y = isa.Local("ub", 0, FLOAT32, 64 * 100), isa.Local("ub", 64 * KIB + 256, FLOAT32, 64 * 100)
    # One operand that is read: two of them would meet in a bank, which no number helps.
    return on_each(spec, *[isa.Unary("abs", y, x)] * 8, cores=1)


def buffers(spec: DeviceSpec) -> Trace:
    fill = isa.LoadData(
        *(isa.Local("l0a", 0, FLOAT16, 128 * 128), isa.Local("l1", 0, FLOAT16, 128 * 128)),
        *(128, 0, 0, 128, 128),
    )
    return play(spec, (fill,) * 8, kind=cube_kind(spec))


def scalar(spec: DeviceSpec) -> Trace:
    # An addition takes one cycle, which does not become half of one.
    return on_each(spec, *[isa.ScalarLoad("r", isa.Local("ub", 0, FLOAT32, 1))] * 64, cores=1)


def pipe_latency(spec: DeviceSpec) -> Trace:
    one = isa.Reduce("max", isa.Local("ub", 0, FLOAT32, 8), isa.Local("ub", 256, FLOAT32, 64))
    return on_each(spec, *[one, isa.Barrier("vector")] * 16, cores=1)


def hand_out(spec: DeviceSpec) -> Trace:
    ops = [isa.SetFlag("mte2", "mte3", 0), isa.WaitFlag("mte2", "mte3", 0)] * 60
    return on_each(spec, *ops, cores=1)


def flags(spec: DeviceSpec) -> Trace:
    return on_each(spec, *[isa.Barrier()] * 64, cores=1)


def cross_core_flags(spec: DeviceSpec) -> Trace:
    meet = isa.CrossCoreSetFlag("all", "mte2", 0), isa.CrossCoreWaitFlag("all", "mte2", 0)
    return on_each(spec, *meet * 8)


KERNELS: dict[Cause, Kernel] = {
    "gm": gm,
    "l2 reads": l2_reads,
    "l2 writes": l2_writes,
    "port": port,
    "rows": rows,
    "memory latency": memory_latency,
    "copy issue": copy_issue,
    "cube": cube,
    "vector": vector,
    "buffers": buffers,
    "scalar": scalar,
    "pipe latency": pipe_latency,
    "dispatch": hand_out,
    "flags": flags,
    "cross-core flags": cross_core_flags,
}
ABSENT = {("ascend310p3", "rows"), ("ascend310p3", "cross-core flags")}
"""Cores of the inference series turn no rows and have no flags between them."""
CASES = [
    pytest.param(device, cause, id=f"{device}-{cause}")
    for device in THREE
    for cause in KERNELS
    if (device, cause) not in ABSENT
]
FACTOR = 2


def test_the_docs_list_the_causes_and_what_each_depends_on() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf-8")
    table = text.partition("| cause | ")[2].partition("\n\n")[0].splitlines()[2:]
    told = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table]
    assert told == [
        (about.words, ", ".join(f"`{number}`" for number in about.numbers) or "of another kernel")
        for about in CAUSES.values()
    ]


@pytest.mark.parametrize("device", devices.names())
def test_every_number_that_a_cause_names_is_one_of_a_chip(device: str) -> None:
    spec = devices.load(device)
    keys = set(spec.sources)
    for cause, about in CAUSES.items():
        found = [number for number in about.numbers if fnmatch_any(keys, number)]
        needs = (device.startswith("ascend310p") and cause == "cross-core flags") or found
        assert needs or cause == "earlier", cause


def fnmatch_any(keys: set[str], number: str) -> bool:
    return any(fnmatchcase(key, number) for key in keys)


def test_busy_holds_what_works_and_results_on_their_way() -> None:
    own = lane((0,), *CHAIN)
    busy = {pipe: counter.busy_cycles for pipe, counter in own.counters().items()}
    # mte2: 0 to 10 and 51 to 60, results at 30 and 80; vector 31 to 40, 50; mte3 51 to 70, 100.
    assert own.work_cycles() == {"mte2": 19, "mte3": 19, "vector": 9}
    assert busy == {"mte2": 59, "mte3": 49, "vector": 19}
    rows = bounds.rows(trace(own))
    for pipe, cycles in own.work_cycles().items():
        parts_of = [row for row in rows if row.pipe == pipe]
        works = sum(row.us for row in parts_of if row.cause in bounds.WORKS)
        assert works == pytest.approx(cycles)
        assert sum(row.us for row in parts_of) == pytest.approx(100)


def test_every_cause_has_words_and_a_kernel_that_provokes_it() -> None:
    assert set(KERNELS) == set(get_args(Cause))
    assert set(CAUSES) == {*KERNELS, "launch", "earlier"}


@pytest.mark.sample(9)
@pytest.mark.parametrize(("device", "cause"), CASES)
def test_what_is_blamed_moves_the_time_and_nothing_else_does(device: str, cause: Cause) -> None:
    spec, kernel = devices.load(device), KERNELS[cause]
    slow = kernel(spec)
    first, *others = causes(slow)
    assert first.cause == cause
    assert first.share > 0.5
    assert all(other.share < first.share for other in others)

    saved = {
        other: 1 - kernel(faster(spec, other, FACTOR)).cycles / slow.cycles for other in KERNELS
    }
    # Half of its share, less where something else is next in line, and all of it where one cycle
    # becomes none.
    assert 0.7 * first.share / FACTOR < saved[cause] < first.share + 0.02
    assert [other for other in saved if saved[other] > 0.7 * saved[cause]] == [cause]


@pytest.mark.parametrize("device", THREE)
def test_a_small_kernel_is_bound_by_its_launch(device: str) -> None:
    def small(spec: DeviceSpec) -> npusim.Run:
        return npusim.run("npu_trans_quant_param", TensorSpec((5,), "float32"), device=spec)

    spec = devices.load(device)
    run = small(spec)
    first = bound_by(run)
    assert (first.cause, first.where) == ("launch", ())
    quick, other = (small(faster(spec, cause, 2)) for cause in ("launch", "memory latency"))
    assert run.time_us is not None
    assert quick.time_us == pytest.approx(run.time_us * (1 - first.share / 2))
    assert other.time_us is not None
    assert run.time_us - other.time_us < first.path_us / 2


# ---- what was said wrongly once ----

X1, SCALE = TensorSpec((16, 4096), "int8"), TensorSpec((11008,), "bfloat16")


def decode(spec: DeviceSpec, layout: str) -> npusim.Run:
    """Sixteen tokens times a weight of 4096 x 11008."""
    weight = TensorSpec((4096, 11008), "int8", layout)
    return npusim.run(
        *("npu_quant_matmul", X1, weight, SCALE),
        pertoken_scale=TensorSpec((16,), "float32"),
        output_dtype="bfloat16",
        device=spec,
    )


def test_rows_are_blamed_where_a_faster_memory_moves_nothing() -> None:
    def warm(spec: DeviceSpec) -> npusim.Run:
        """The weight of 16 MiB, rows of 4096 B, lies in the L2."""
        x, weight = TensorSpec((32, 4096), "float16"), TensorSpec((4096, 2048), "float16")
        return npusim.run("matmul", x, weight, device=spec, l2="warm")

    spec = devices.load("ascend910b2")
    run = warm(spec)
    first = bound_by(run)
    assert (first.cause, first.where[0]) == ("rows", ("aic", "mte2"))

    assert run.time_us is not None
    memory, rows = (warm(faster(spec, cause, 10)).time_us for cause in ("gm", "rows"))
    assert memory == pytest.approx(run.time_us, rel=1e-3)
    assert rows is not None
    assert rows < 0.9 * run.time_us


def test_memory_is_blamed_where_nothing_is_turned() -> None:
    spec = devices.load("ascend910b2")
    run = decode(spec, "FRACTAL_NZ")
    assert bound_by(run).cause == "gm"
    assert run.cycles is not None
    saved = {}
    for cause in ("gm", "l2 reads", "rows", "cube"):
        cycles = decode(faster(spec, cause, 2), "FRACTAL_NZ").cycles
        assert cycles is not None
        saved[cause] = 1 - cycles / run.cycles
    assert saved["gm"] > 0.3
    assert max(saved["l2 reads"], saved["rows"], saved["cube"]) < 0.05


def test_loads_and_stores_are_blamed_each_for_what_they_take_of_one_link() -> None:
    def written(spec: DeviceSpec) -> npusim.Run:
        """Twice as many bytes are stored as come in."""
        return npusim.run("cast", TensorSpec((4096, 4096), "float16"), "float32", device=spec)

    spec = devices.load("ascend910b2")
    run = written(spec)
    assert run.time_us is not None
    shares = {bound.cause: bound.share for bound in causes(run)}
    assert min(shares["gm"], shares["l2 writes"]) > 0.3
    for cause in ("gm", "l2 writes", "l2 reads", "vector"):
        quick = written(faster(spec, cause, 2)).time_us
        assert quick is not None
        assert 1 - quick / run.time_us == pytest.approx(shares.get(cause, 0) / 2, abs=0.01)


@pytest.mark.nightly
def test_the_l2_is_not_blamed_for_a_product_that_the_cube_bounds() -> None:
    def product(spec: DeviceSpec) -> npusim.Run:
        return npusim.run("matmul", *[TensorSpec((4096, 4096), "float16")] * 2, device=spec)

    # A cube of half the speed: on the chip itself mte2 takes nearly as long as the cube.
    spec = devices.load("ascend910b2")
    cube = spec.cube.model_copy(update={"tiles_per_cycle": 0.5})
    spec = spec.model_copy(update={"cube": cube})
    run = product(spec)
    assert causes(run)[0].cause == "cube"
    assert run.cycles is not None
    saved = {}
    for cause in ("cube", "rows", "l2 reads", "gm"):
        cycles = product(faster(spec, cause, 2)).cycles
        assert cycles is not None
        saved[cause] = 1 - cycles / run.cycles
    assert saved["cube"] > 0.3
    assert max(saved["rows"], saved["l2 reads"], saved["gm"]) < 0.03


BOUNDED: dict[str, tuple[str, tuple[Any, ...], Any, Cause]] = {
    "swiglu": ("npu_swiglu", (TensorSpec((64, 8192), "float16"),), "warm", "vector"),
    "product": (
        *("matmul", (TensorSpec((64, 4096), "float16"), TensorSpec((4096, 2048), "float16"))),
        *("cold", "rows"),
    ),
}


@pytest.mark.parametrize("call", BOUNDED)
def test_nothing_moves_the_time_by_more_than_its_share(call: str) -> None:
    op, args, l2, main = BOUNDED[call]

    def timed(spec: DeviceSpec) -> tuple[float, dict[str, float]]:
        run = npusim.run(op, *args, device=spec, l2=l2)
        assert run.time_us is not None
        return run.time_us, {bound.cause: bound.share for bound in causes(run)}

    spec = devices.load("ascend910b2")
    slow_us, shares = timed(spec)
    assert shares[main] > 0.08
    for cause in ("gm", "l2 reads", "port", "rows", "vector", "cube"):
        quick_us, left = timed(faster(spec, cause, 2))
        # What takes half as long gains half of what it took, and on the quicker chip it costs all
        # that it takes there to have it twice as long again.
        assert 1 - quick_us / slow_us < shares.get(cause, 0) / 2 + 0.01, cause
        assert slow_us / quick_us - 1 > left.get(cause, 0) - 0.02, cause


# ---- by hand ----


def parts(found: Trace) -> dict[str, int]:
    """Cause -> cycles on the path, and nothing left over."""
    path = critical_path(found)
    assert sum(held.cycles for held in path) == found.cycles
    told: dict[str, int] = {}
    for held in path:
        told[held.cause] = told.get(held.cause, 0) + held.cycles
    return told


def test_the_path_goes_through_whoever_raised_the_flag() -> None:
    # Load 10 + 20, flag 1, multiply 9 + 10, flag 1, store 19 + 30.
    assert parts(trace(lane((0,), *CHAIN))) == {
        "memory latency": 50,
        "port": 29,
        "vector": 9,
        "pipe latency": 10,
        "flags": 2,
    }


def test_rows_are_told_from_the_bytes_before_and_after() -> None:
    spec = tiny_spec(gm__row_ns=5.0)
    turn = isa.LoadNd2Nz(isa.Local("l1", 0, UINT8, 512), isa.Global("x", 0, 32, 8, 64), 16)
    found = play(
        spec,
        (turn, isa.Load(isa.Local("l1", 0, UINT8, 256), isa.Global("x", 4096, 256))),
        kind="aic",
    )
    # Four lines of two rows each take 20 cycles; the port would need 8 for their bytes.
    assert parts(found) == {"rows": 20, "port": 8, "memory latency": 10}


PAST = {"x": Binding("x", is_cached=False)}


@pytest.mark.parametrize(
    ("numbers", "programs", "options", "expected"),
    [
        # 8 cycles each behind each other; only the last one's latency is waited for.
        ({}, [[load(256, 256 * i) for i in range(4)]], {}, {"port": 32, "memory latency": 10}),
        # 16 cycles at half of 32, though the port could do it in 8.
        ({}, [[load(256)], [load(256, 4096)]], {}, {"gm": 16, "memory latency": 10}),
        # The rest of a longer one goes at the speed of its port.
        ({}, [[load(256)], [load(512, 4096)]], {}, {"gm": 16, "port": 8, "memory latency": 10}),
        # Out of the L2, whose link is half as wide as two ports.
        (
            {"l2__read_bytes_per_s": 64e9},
            [[load(256)], [load(256, 1024)]],
            {"sizes": {"x": 2048}, "l2": "warm"},
            {"l2 reads": 8, "memory latency": 2},
        ),
        # Past the L2 a line every 4 cycles is handed to two cores: 256 bytes for both in 16.
        (
            {"l2__same_line_ns": 4.0},
            [[load(256)]] * 2,
            {"bindings": (PAST, PAST)},
            {"gm": 16, "memory latency": 10},
        ),
        # An instruction that holds its pipe longer than its bytes.
        (
            {"transfer__issue_cycles": 30},
            [[load(32), load(32, 32)]],
            {"sizes": {"x": 64}, "l2": "warm"},
            {"copy issue": 60},
        ),
    ],
    ids=str,
)
def test_copies_are_held_up_by(
    numbers: Any, programs: list[list[isa.MicroOp]], options: Any, expected: dict[str, int]
) -> None:
    assert parts(play(tiny_spec(**numbers), *map(tuple, programs), **options)) == expected


def test_the_path_crosses_to_the_core_that_was_waited_for() -> None:
    give = isa.CrossCoreSetFlag("group", "vector", 3)
    take = isa.CrossCoreWaitFlag("group", "vector", 3)
    found = trace(
        lane((0,), (take, 0, 45, 45), (MUL, 45, 50, 60), kind="aic"),
        lane((1,), (MUL, 0, 20, 24), (give, 20, 21, 25)),
        lane((2,), (MUL, 0, 8, 12), (give, 8, 9, 13)),
    )
    # Multiply 20 and 4 until its result, set the flag 1; 20 on the way; then 15 on the cube core.
    path = critical_path(found)
    assert {(held.cause, held.kind): held.cycles for held in path} == {
        ("vector", "aiv"): 20,
        ("pipe latency", "aiv"): 4,
        ("flags", "aiv"): 1,
        ("cross-core flags", "aic"): 20,
        ("vector", "aic"): 5,
        ("pipe latency", "aic"): 10,
    }


def test_a_barrier_waits_for_the_last_of_all_pipes() -> None:
    found = trace(lane((0,), (MUL, 0, 10, 30), (isa.Barrier(), 1, 31, 31), (MUL, 31, 40, 45)))
    assert parts(found) == {"vector": 19, "pipe latency": 25, "flags": 1}


def test_micro_ops_that_wait_to_be_handed_out_are_told() -> None:
    found = trace(lane((0,), (isa.ScalarAlu("add", "r", 1, 1), 0, 4, 4), (MUL, 9, 20, 20)))
    assert parts(found) == {"scalar": 4, "dispatch": 5, "vector": 11}


F16 = "float16"
CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "vector": (
        "npu_quantize",
        (TensorSpec((300, 1000), F16), TensorSpec((1,), F16), None, "qint8", 1, False),
    ),
    "cube": ("matmul", (TensorSpec((96, 512), F16), TensorSpec((512, 768), F16))),
    "mix": (
        "npu_weight_quant_batchmatmul",
        (TensorSpec((16, 512), F16), TensorSpec((512, 512), "int8"), TensorSpec((512,), F16)),
    ),
}


@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("call", CALLS)
def test_every_cycle_of_an_operator_has_one_cause(call: str, device: str) -> None:
    op, args = CALLS[call]
    if (call, device) == ("mix", "ascend310p3"):
        args = (args[0], TensorSpec((512, 512), "int8", "FRACTAL_NZ", transposed=True), args[2])
    run = npusim.run(op, *args, device=device)
    assert run.trace is not None
    path = critical_path(run.trace)
    assert sum(held.cycles for held in path) == run.trace.cycles
    assert min(held.cycles for held in path) > 0
    assert sum(bound.path_us for bound in path_causes(run)) == pytest.approx(run.time_us)


@pytest.mark.parametrize("l2", ["cold", "warm"])
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize("call", ["vector", "cube"])
def test_limits_of_links_are_those_of_the_device_file(call: str, device: str, l2: Any) -> None:
    op, args = CALLS[call]
    run = npusim.run(op, *args, device=device, l2=l2)
    gm, near = run.device.gm, run.device.l2
    stated = {
        "GM": {gm.read_bytes_per_s},
        "L2 read": {near.read_bytes_per_s},
        "L2 write": {near.write_bytes_per_s},
        "L2": {near.read_bytes_per_s, near.write_bytes_per_s},
    }
    roofs = [row for row in roofline.rows(run) if row.title == "GM/L2"]
    lanes = [row for row in bandwidth.rows(run) if row.limit in ("GM", "L2")]
    assert roofs
    assert l2 == "warm" or "GM" in {row.limit for row in lanes}
    # The ports of the cube cores that this product takes are narrower than the links of the L2.
    has_narrow_ports = call == "cube" and device != "ascend310p3"
    assert ("L2" in {row.limit for row in lanes}) != has_narrow_ports
    assert all(row.bytes_per_s in stated[row.name] for row in roofs)
    assert all(row.limit_bytes_per_s in stated[row.limit] for row in lanes)
    # Nothing is more than what it is held against.
    assert all(0 < row.share <= 1 for row in roofs)
    assert all(row.bytes_per_s.max() <= 1.000001 * row.limit_bytes_per_s for row in lanes)  # type: ignore[operator]
    assert run.trace is not None
    (far, *_) = bandwidth.rows(run)
    if l2 == "cold":
        assert (far.path, far.nbytes) == ("from GM", run.trace.gm_read_bytes)
        carried = far.bytes_per_s.sum() / bandwidth.BINS * run.trace.cycles / run.trace.clock_hz
        assert carried == pytest.approx(far.nbytes)
    else:
        assert far.path == "gm_to_ub" if call == "vector" else "gm_to_l1"
