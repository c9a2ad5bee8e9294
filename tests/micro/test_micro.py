"""Small kernels: what they compute, what they move, and which variant is the faster one."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tiny import tiny_spec

from npusim import devices
from npusim.data.dtypes import BFLOAT16, FLOAT32, INT8, INT32, DType
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Load, LoadNd2Nz, Store, global_operand
from npusim.kernel.matmul import BaseTile
from npusim.kernel.queues import ProgramError
from npusim.micro import Kernel, compute, task_us, time
from npusim.micro.add import add
from npusim.micro.copies import To, read, read_alike
from npusim.micro.elementwise import elementwise
from npusim.micro.product import Plan, product
from npusim.micro.reorder import reorder
from npusim.micro.shares import cores_of, shares
from npusim.trace import Trace

ROOT = Path(__file__).parents[2]


def says(text: str) -> str:
    return f"^{re.escape(text)}$"


@pytest.fixture(scope="module")
def a2() -> DeviceSpec:
    return devices.load("ascend910b1")


# ---- values ----


@pytest.mark.parametrize(
    ("tile", "options"),
    [
        (256, {"cores": 1, "scalar": True}),
        (256, {"cores": 1}),
        (512, {}),
        (512, {"double_buffered": True}),
        (512, {"double_buffered": True, "bypass": True}),
        (640, {"double_buffered": True, "scalar": True}),
    ],
    ids=str,
)
def test_every_variant_of_add_adds(
    tile: int, options: dict[str, Any], tiny: DeviceSpec, rng: np.random.Generator
) -> None:
    x, y = (rng.uniform(-40000, 40000, 2777).astype(np.float16) for _ in range(2))
    kernel = add(tiny, 2777, tile, **options)
    assert len(kernel.blocks) == options.get("cores", 2)
    with np.errstate(over="ignore"):
        expected = x + y
    assert np.isinf(expected).any()
    np.testing.assert_array_equal(compute(kernel, tiny, x=x, y=y)["z"], expected)


@pytest.mark.parametrize(("tile_rows", "stride"), [(16, 16), (16, 17), (24, 31)])
def test_reorder_makes_fractals(
    tile_rows: int, stride: int, a2: DeviceSpec, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 1000, (80, 384)).astype(np.float16)
    found = compute(reorder(a2, 80, 384, tile_rows, stride), a2, x=x)["y"]
    expected = np.stack([x[:, start : start + 16] for start in range(0, 384, 16)])
    np.testing.assert_array_equal(found, expected.reshape(24, 5, 16, 16))


@pytest.mark.parametrize(("shape", "grid"), [((64, 96, 80), (1, 2)), ((50, 70, 33), (2, 1))])
@pytest.mark.parametrize("depth", [1, 2])
def test_product_multiplies_by_the_transpose(
    shape: tuple[int, int, int],
    grid: tuple[int, int],
    depth: int,
    tiny: DeviceSpec,
    rng: np.random.Generator,
) -> None:
    m, n, k = shape
    x, y = (rng.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (m, n))
    tile = BaseTile(32, 32, 16, 2, 1, depth_a=depth, depth_b=depth)
    kernel = product(tiny, shape, Plan(tile=tile, grid=grid))
    assert len(kernel.blocks) == 2
    found = compute(kernel, tiny, x1=x, x2=y)["y"]
    expected = x.astype(np.float32) @ y.astype(np.float32).T
    np.testing.assert_array_equal(found, expected.astype(np.float16))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "options",
    [
        {"l2_tiles": (2, 2)},
        {"l2_tiles": (1, 2), "unit_flag": True},
        {"unit_flag": True, "staggered": True},
        {"dtype": FLOAT32, "transposed_b": False, "staggered": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(64, 160, 80), (70, 190, 50)], ids=str)
def test_every_variant_of_product_multiplies(
    shape: tuple[int, int, int], options: dict[str, Any], tiny: DeviceSpec, rng: np.random.Generator
) -> None:
    m, n, k = shape
    x, y = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    given = y if options.get("transposed_b") is False else y.T
    inputs = {"x1": x.astype(np.float16), "x2": given.astype(np.float16)}
    kernel = product(tiny, shape, Plan(tile=BaseTile(32, 32, 16, 1, 1), grid=(1, 2), **options))
    assert len(kernel.blocks) == 2
    # Small integers, so that the order of sums makes no difference.
    np.testing.assert_array_equal(compute(kernel, tiny, **inputs)["y"], x @ y)


def test_inputs_that_do_not_fit_are_refused(tiny: DeviceSpec) -> None:
    kernel = cast(tiny, 8)
    given = {"x": np.zeros(4, np.float32), "y": np.zeros(8, ml_dtypes.bfloat16)}
    text = (
        "cast: inputs must be x bfloat16 (8,), not x float32 (4,), y bfloat16 (8,); "
        "pass these arrays"
    )
    with pytest.raises(ValueError, match=says(text)):
        compute(kernel, tiny, **given)


def cast(spec: DeviceSpec, count: int) -> Kernel:
    return elementwise(spec, "cast", TensorSpec((count,), "bfloat16"), "float32")


# ---- what is moved ----


def moved(trace: Trace) -> tuple[int, int]:
    """Bytes from global memory, and those that the L2 had or took, of all cores."""
    return trace.gm_bytes, trace.l2_hit_bytes


@pytest.mark.parametrize("to", ["ub", "l1"])
def test_a_matrix_beyond_the_l2_comes_from_memory(to: To, tiny: DeviceSpec) -> None:
    # 32 KiB, four times the L2.
    whole = 64 * 256 * 2
    once = time(read(tiny, (64, 256), (16, 64), to), tiny)
    assert moved(once) == (whole, 0)
    read_bytes, hit_bytes = moved(time(read(tiny, (64, 256), (16, 64), to, times=4), tiny))
    assert read_bytes + hit_bytes == pytest.approx(4 * whole, abs=64)  # rounded for each copy
    assert hit_bytes == 0


@pytest.mark.parametrize("to", ["ub", "l1"])
def test_slices_that_the_l2_can_hold_come_from_memory_once(to: To, tiny: DeviceSpec) -> None:
    whole = 64 * 256 * 2
    sliced = time(read(tiny, (64, 256), (16, 64), to, times=4, slices=4), tiny)
    # Each slice is 8 KiB, as much as the L2 holds.
    assert moved(sliced) == (whole, 3 * whole)


@pytest.mark.parametrize("to", ["ub", "l1"])
@pytest.mark.parametrize("shape", [(64, 256), (50, 200), (17, 65)], ids=str)
def test_every_element_is_read_once(shape: tuple[int, int], to: To, tiny: DeviceSpec) -> None:
    kernel = read(tiny, shape, (16, 64), to)
    seen = np.zeros(shape[0] * shape[1] * 2, np.int64)
    for block in kernel.blocks:
        for op in block.program.ops:
            place = global_operand(op)
            if place is not None:
                assert isinstance(op, Load if to == "ub" else LoadNd2Nz)
                first = block.bindings["x"].base_bytes + place.offset_bytes
                for burst in range(place.bursts):
                    start = first + burst * place.stride_bytes
                    seen[start : start + place.burst_bytes] += 1
    assert (seen == 1).all()
    assert time(kernel, tiny).cycles > 0


@pytest.mark.parametrize("staggered", [False, True])
def test_staggered_cores_read_in_their_own_order(staggered: bool, tiny: DeviceSpec) -> None:
    kernel = read_alike(tiny, (64, 128), (16, 64), staggered=staggered)
    orders = [
        [
            place.offset_bytes
            for op in block.program.ops
            if (place := global_operand(op)) is not None
        ]
        for block in kernel.blocks
    ]
    tiles = [row * 256 + column for row in (0, 16, 32, 48) for column in (0, 128)]
    assert orders == [tiles, tiles[4:] + tiles[:4] if staggered else tiles]
    assert time(kernel, tiny).l2_bytes == 2 * 64 * 128 * 2


def test_all_cores_read_the_same_past_the_l2_if_told_to(tiny: DeviceSpec) -> None:
    # 4 KiB, half of the L2, for each of two cores.
    nbytes = 2 * 16 * 128 * 2
    kernel = read_alike(tiny, (16, 128), (16, 64))
    assert moved(time(kernel, tiny, "warm")) == (0, nbytes)
    past = read_alike(tiny, (16, 128), (16, 64), bypass=True)
    assert moved(time(past, tiny, "warm")) == (nbytes, 0)


def test_what_goes_past_the_l2_is_read_from_memory_even_if_it_lies_there(tiny: DeviceSpec) -> None:
    kernel = add(tiny, 512, 256)
    assert moved(time(kernel, tiny, "warm")) == (0, 3 * 1024)
    past = add(tiny, 512, 256, bypass=True)
    assert moved(time(past, tiny, "warm")) == (2 * 1024, 1024)


@pytest.mark.parametrize(
    ("count", "cores"),
    [(8, 1), (384, 1), (256, 1), (4096, 4), (14592, 15), (32768, 32), (154880, 44)],
)
def test_a_core_gets_at_least_four_kibibytes(count: int, cores: int, a2: DeviceSpec) -> None:
    """Of the wider type; shares are whole 512 elements, so some come to rest."""
    kernel = cast(a2, count)
    assert len(kernel.blocks) == cores
    assert sum(_stored(block.program.ops) for block in kernel.blocks) == 4 * count


@pytest.mark.parametrize(
    ("shape", "other", "dtype", "cores"),
    [
        # 31 rows of 520 fit three times into 192 KiB less 256 B: 67 tiles in runs of two.
        ((2049, 513), (513,), FLOAT32, 34),
        # 63 rows and what Brcb takes: 30 matrices of 17 tiles in runs of 11.
        ((30, 1024, 256), (1024, 1), INT32, 47),
    ],
    ids=str,
)
def test_a_core_gets_whole_tiles_of_what_is_broadcast(
    shape: tuple[int, ...], other: tuple[int, ...], dtype: DType, cores: int, a2: DeviceSpec
) -> None:
    operands = (TensorSpec(size, dtype.name) for size in (shape, other))
    kernel = elementwise(a2, "maximum", *operands)
    assert len(kernel.blocks) == cores
    assert sum(_stored(block.program.ops) for block in kernel.blocks) == 4 * prod(shape)


@pytest.mark.parametrize(
    ("dtype", "count", "loads"),
    [
        # 196352 B hold three tiles of 16362 fp32, or six of 8064, which is whole 128.
        (FLOAT32, 48 * 15872, 2 * 1),
        (FLOAT32, 48 * 16384, 2 * 3),
        # Four of bf16, which count as fp32: 12272, or eight of 6016.
        (BFLOAT16, 48 * 11776, 2 * 1),
        (BFLOAT16, 48 * 12288, 2 * 3),
        # Four of int8, which count as fp16: 24544, or eight of 12160.
        (INT8, 48 * 24576, 2 * 3),
    ],
    ids=str,
)
def test_a_share_is_one_tile(dtype: DType, count: int, loads: int, a2: DeviceSpec) -> None:
    x = TensorSpec((count,), dtype.name)
    kernel = elementwise(a2, "maximum", x, x)
    assert len(kernel.blocks) == 48
    assert sum(isinstance(op, Load) for op in kernel.blocks[0].program.ops) == loads


def test_one_tile_is_loaded_compared_and_stored_in_turn(a2: DeviceSpec) -> None:
    x = TensorSpec((4096,), "float32")
    trace = time(elementwise(a2, "maximum", x, x), a2)
    spans = [span for span in trace.spans() if span.core == 0]
    work = [span for span in spans if isinstance(span.op, Load | Binary | Store)]
    assert [type(span.op) for span in work] == [Load, Load, Binary, Store]
    assert all(before.end <= after.start for before, after in pairwise(work[1:]))


def _stored(ops: Any) -> int:
    return sum(
        place.nbytes for op in ops if (place := global_operand(op)) and place.name == "output"
    )


# ---- which is faster ----

MANY = 2**22

ADDS: list[Callable[[DeviceSpec], Kernel]] = [
    lambda s: add(s, MANY, 4096, cores=1, scalar=True),
    lambda s: add(s, MANY, 4096, cores=1),
    lambda s: add(s, MANY, 4096),
    lambda s: add(s, MANY, 16384),
    lambda s: add(s, MANY, 16384, double_buffered=True),
]


def test_each_step_makes_add_faster(a2: DeviceSpec) -> None:
    """asc-devkit, add_high_performance: the order of its cases 0 to 4."""
    times = [time(write(a2), a2).cycles for write in ADDS]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


def vector_cycles(kernel: Kernel, spec: DeviceSpec) -> int:
    return time(kernel, spec).counters()[0]["vector"].busy_cycles


def test_tiles_of_16256_do_not_meet_in_the_banks(a2: DeviceSpec) -> None:
    """asc-devkit, add_high_performance: 2 cycles a repeat for 128 repeats, 1 for 127."""
    conflicting = add(a2, 16384, 16384, cores=1, double_buffered=True)
    assert vector_cycles(conflicting, a2) == 2 * 128 + 22
    apart = add(a2, 16256, 16256, cores=1, double_buffered=True)
    assert vector_cycles(apart, a2) == 127 + 22


def test_columns_of_145_blocks_do_not_meet_in_the_banks(a2: DeviceSpec) -> None:
    """asc-devkit, bank_conflict_nd2nz: eight blocks of a row in one group of banks, or in eight."""
    in_one, in_eight = (reorder(a2, 144, 48 * 128, 144, stride) for stride in (144, 145))
    body = vector_cycles(in_one, a2) - vector_cycles(in_eight, a2)
    assert body == 144 * 8 - 144
    assert time(in_one, a2).cycles > time(in_eight, a2).cycles


def test_big_packets_and_two_pieces_in_l1_make_a_product_faster(a2: DeviceSpec) -> None:
    """asc-devkit, matmul_high_performance: the order of its cases 1 and 3 to 5."""
    shape = 1024, 1536, 1024
    tiles = [BaseTile(128, 256, 64, depth_a=1, depth_b=1), BaseTile(128, 256, 64, 8, 4)]
    writes = [(tiles[0], (1, 1)), (tiles[0], (4, 6)), (tiles[1], (4, 6))]
    plans = (Plan(tile=tile, grid=grid) for tile, grid in writes)
    times = [time(product(a2, shape, plan), a2).cycles for plan in plans]
    assert times[0] > times[1] > times[2]


def test_a_load_of_b_does_not_wait_for_that_of_a(a2: DeviceSpec) -> None:
    """With one piece of each in L1, too: two flags, a cycle each, lie between them."""
    kernel = product(a2, (64, 64, 256), Plan(tile=BaseTile(64, 64, 64, depth_a=1, depth_b=1)))
    loads = [span for span in time(kernel, a2).spans() if isinstance(span.op, LoadNd2Nz)]
    assert [span.op.src.name for span in loads] == ["x1", "x2"] * 4
    for a, b in zip(loads[::2], loads[1::2], strict=True):
        assert b.start <= a.free + 2
        assert b.start < a.end


@pytest.mark.parametrize("to", ["ub", "l1"])
def test_small_tiles_and_rows_off_a_line_are_slower(to: To, a2: DeviceSpec) -> None:
    aligned = time(read(a2, (3072, 1024), (64, 512), to), a2).cycles
    assert time(read(a2, (3072, 1024), (64, 64), to), a2).cycles > aligned
    assert time(read(a2, (3072, 1024), (1, 64), to), a2).cycles > aligned
    assert time(read(a2, (3072, 1023), (64, 512), to), a2).cycles > aligned


# ---- what is refused, and the rest ----


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda s: read(s, (64, 256), (16, 64), slices=3),
            "copies.read: slices must be whole tiles of 64 columns, not 3 slices of 256 columns; "
            "change one of them",
        ),
        (
            lambda s: read(s, (64, 256), (16, 96), slices=2),
            "copies.read: slices must be whole tiles of 96 columns, not 2 slices of 256 columns; "
            "change one of them",
        ),
        (
            lambda s: read_alike(s, (64, 256), (24, 64)),
            "copies.read_alike: the matrix must be whole tiles of (24, 64), not (64, 256); "
            "change one",
        ),
        (
            lambda s: reorder(s, 32, 128, 16, 15),
            "reorder: a matrix must be rows of 16 by columns of 128, and the stride at least the "
            "16 rows of a tile, not 32 x 128 and 15; pad them",
        ),
        (
            lambda s: reorder(s, 32, 192, 16, 16),
            "reorder: a matrix must be rows of 16 by columns of 128, and the stride at least the "
            "16 rows of a tile, not 32 x 192 and 16; pad them",
        ),
        (
            lambda s: add(s, 512, 256, cores=3),
            "micro: cores must lie in [1, 2] on tiny, not 3; use fewer",
        ),
    ],
)
def test_bad_calls_fail(write: Callable[[DeviceSpec], Kernel], text: str, tiny: DeviceSpec) -> None:
    with pytest.raises(ValueError, match=says(text)):
        write(tiny)


def test_tiles_that_do_not_fit_are_refused(tiny: DeviceSpec) -> None:
    text = (
        "add: a claim must fit into the 0 bytes of ub that are left, not need 8192; "
        "use smaller tiles"
    )
    with pytest.raises(ProgramError, match=says(text)):
        add(tiny, 4096, 4096)


def test_shares_are_even_and_whole_steps() -> None:
    assert shares(7, 3) == [(0, 3), (3, 2), (5, 2)]
    assert shares(33, 4, 16) == [(0, 16), (16, 16), (32, 1)]


def test_cores_are_those_of_the_first_kind_with_the_pipe(tiny: DeviceSpec) -> None:
    assert cores_of(tiny, "cube") == ("aic", 2)
    assert cores_of(tiny, "vector", 1) == ("aiv", 1)


def test_a_task_takes_its_launch_and_its_slowest_core() -> None:
    spec = tiny_spec(
        launch__base_us=1.0,
        launch__start_us=0.25,
        launch__mix_us=3.0,
        launch__completion_us=0.25,
        cores__aiv__code__kernel_bytes=1000,
        cores__aiv__code__line_bytes=10,
        cores__aiv__code__micro_op_bytes=0,
        cores__aiv__code__line_ns=1.0,
        cores__aiv__code__turn_ns=2.0,
    )
    kernel = cast(spec, 4096)
    trace = time(kernel, spec)
    # Two cores at one gigahertz.
    assert task_us(kernel, spec, trace) == pytest.approx(1.75 + trace.cycles / 1000)
    cold_us = task_us(kernel, spec, trace, icache="cold")
    assert cold_us == pytest.approx(2.25 + trace.cycles / 1000)
    mixed = Kernel(kernel.name, kernel.blocks, kernel.inputs, kernel.outputs, is_mix=True)
    # One group of three cores.
    assert task_us(mixed, spec, trace) == pytest.approx(5.0 + trace.cycles / 1000)


def _example() -> Any:
    path = ROOT / "examples" / "micro.py"
    found = importlib.util.spec_from_file_location("micro_example", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_example_prints_both_times(capsys: pytest.CaptureFixture[str]) -> None:
    example = _example()
    example.main(["3 x 128"], False)
    title, head, row, end = capsys.readouterr().out.split("\n")[:4]
    assert title == "Cast of bfloat16 to float32 (aiconfigurator-npu), Atlas A3, L2 repeat"
    assert head.split() == ["variant", "measured", "us", "simulated", "us", "error"]
    assert re.fullmatch(r"  3 x 128 +1\.19 +\d\.\d\d +[+-]\d+\.\d%", row)
    assert end == ""


def test_the_example_reads_its_rows_from_kernels_of_their_size(a2: DeviceSpec) -> None:
    for table in _example().TABLES:
        for row in table.rows:
            sizes = re.findall(r"\d+(?: x \d+)+", row.variant)
            if table.device != "ascend910b1" and sizes:
                shape = next(iter(row.write(a2).outputs.values())).shape
                assert prod(shape) == prod(int(size) for size in sizes[0].split(" x "))
