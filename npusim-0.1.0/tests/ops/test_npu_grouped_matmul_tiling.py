"""How npu_grouped_matmul is split: tiles and their order, cores, chunks, and who reads what.

Source: ops-transformer@c29bc10 gmm/grouped_matmul, op_host/op_tiling/grouped_matmul_tiling.cpp and
op_kernel/grouped_matmul.h.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest

from npusim import Tensor, TensorSpec, devices, ops, run
from npusim.isa import LoadNd2Nz, ScalarLoadGlobal
from npusim.ops.npu_grouped_matmul.parts import ONCE, Parts

OP = "npu_grouped_matmul"
A2 = devices.load("ascend910b2")


def problem(
    rows: Any, k: int, n: int, dtype: str = "float16", layout: str = "ND", **other: Any
) -> Any:
    """A call with so many *rows* in each group."""
    groups = np.array(rows)
    given = {"x": TensorSpec((int(groups.sum()), k), dtype), "group_list": groups}
    given |= {"weight": TensorSpec((len(rows), k, n), dtype, layout), "group_list_type": 1}
    return ops.load(OP).check(A2, **given, group_type=0, split_item=3, **other)


def half_of(rows: Any, k: int, n: int, layout: str = "ND", **other: Any) -> Any:
    """One of int8 whose output is float16."""
    scale = TensorSpec((len(rows), n), "float32")
    tokens = TensorSpec((sum(rows),), "float32")
    return problem(
        *(rows, k, n, "int8", layout),
        **{"scale": scale, "per_token_scale": tokens, "output_dtype": "float16"} | other,
    )


def plan(p: Any) -> Any:
    return ops.load(OP).plan(A2, p)


def blocks_of(parts: Parts, core: int) -> list[tuple[int, int]]:
    """First row and column of the blocks of a core, in order."""
    own = parts.select(parts.core == core)
    return [*zip(own.row.tolist(), own.column.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("rows", "dtype", "wanted"),
    [
        (200, "int8", (128, 256, 128, 4, 4)),
        (64, "int8", (64, 256, 128, 12, 4)),
        (16, "int8", (16, 256, 128, 60, 4)),
        (200, "float16", (128, 256, 64, 8, 4)),
        (64, "bfloat16", (64, 256, 64, 16, 4)),
        (3, "float16", (16, 256, 64, 64, 4)),
    ],
)
def test_a_tile_fills_l0c_and_its_loads_fill_l1(rows: int, dtype: str, wanted: Any) -> None:
    p = half_of([rows], 512, 512) if dtype == "int8" else problem([rows], 512, 512, dtype)
    found = plan(p).tile
    assert (found.m, found.n, found.k, found.steps_a, found.steps_b) == wanted
    # The rows are those of x in all: what groups have the host does not know.
    many = half_of([1, rows - 1], 512, 512) if dtype == "int8" else problem([1, rows - 1], 512, 512)
    assert plan(many).tile.m == found.m


@pytest.mark.parametrize(
    ("tuning", "output", "sizes", "wanted"),
    [
        (128, "float16", (512, 512), (128, 256, 128, 4, 4)),
        (129, "float16", (512, 512), (256, 128, 128, 4, 4)),
        (256, "float16", (512, 512), (256, 128, 128, 4, 4)),
        (257, "float16", (512, 512), (128, 256, 128, 4, 4)),
        (128, "int32", (7168, 2048), (256, 128, 128, 4, 4)),
        (128, "int32", (7168, 512), (128, 256, 128, 4, 4)),
    ],
)
def test_tiles_are_high_for_the_rows_of_tuning_config(
    tuning: int, output: str, sizes: tuple[int, int], wanted: Any
) -> None:
    given: dict[str, Any] = {"tuning_config": [tuning], "output_dtype": output}
    if output == "int32":
        p = problem([300, 300], *sizes, "int8", **given)
    else:
        p = half_of([300, 300], *sizes, **given)
    found = plan(p).tile
    assert (found.m, found.n, found.k, found.steps_a, found.steps_b) == wanted


def test_one_group_of_few_rows_starts_few_cores() -> None:
    """30 blocks of columns take two waves, with 15 cores as with 24."""
    cores = [plan(half_of(rows, 512, 256 * 30, tuning_config=tuning)).block_dim
             for rows, tuning in (([300], [256]), ([300], [257]), ([300], None), ([9, 9], [9]))
             ]  # fmt: skip
    assert cores == [15, 24, 24, 24]


def test_310p_takes_larger_tiles_row_after_row() -> None:
    chip = devices.load("ascend310p3")
    groups = np.array([1600, 10])
    given = {"x": TensorSpec((1610, 512), "float16"), "group_list": groups, "group_list_type": 1}
    given["weight"] = TensorSpec((2, 512, 512), "float16", "FRACTAL_NZ")
    operator = ops.load(OP)
    p = operator.check(chip, **given, group_type=0, split_item=3)
    found = operator.plan(chip, p)
    tile = found.tile
    assert (tile.m, tile.n, tile.k, tile.steps_a, tile.steps_b) == (256, 256, 64, 2, 4)
    assert (found.template, found.block_dim) == ("coupled", chip.cores["ai_core"].count)
    parts = Parts.dealt(p, tile.m, tile.n, 4, by_row=True)
    wanted = [*((256 * i, 256) for i in (1, 3, 5)), (0, 256)]
    assert blocks_of(parts, 3) == wanted


def test_blocks_are_numbered_through_all_groups() -> None:
    p = problem([130, 0, 10, 300], 64, 600)
    parts = Parts.dealt(p, 128, 256, 4)
    # (group, first row, first column): three blocks of columns, row after row.
    numbered = [
        *((0, i * 128, j * 256) for i in range(2) for j in range(3)),
        *((2, 0, j * 256) for j in range(3)),
        *((3, i * 128, j * 256) for i in range(3) for j in range(3)),
    ]
    for core in range(4):
        own = parts.select(parts.core == core)
        pairs = zip(own.group.tolist(), blocks_of(own, core), strict=True)
        assert [(group, *block) for group, block in pairs] == numbered[core::4]
        assert own.turn.tolist() == list(range(own.core.size))
    assert {*parts.rows.tolist()} == {128, 2, 10, 44}
    assert {*parts.columns.tolist()} == {256, 88}


@pytest.mark.parametrize("rows", [6 * 128, 11 * 128, 16 * 128])
def test_many_rows_of_blocks_go_by_windows_of_eight(rows: int) -> None:
    p = problem([rows], 64, 10 * 256)
    parts = Parts.dealt(p, 128, 256, 1)
    blocks = [(row // 128, column // 256) for row, column in blocks_of(parts, 0)]
    assert sorted(blocks) == [(i, j) for i in range(rows // 128) for j in range(10)]
    height = min(8, rows // 128)
    first = blocks[: height * 8]
    assert {i for i, _ in first} == set(range(height))
    assert {j for _, j in first} == set(range(8))
    # Down a diagonal, and one column further where it would meet itself.
    assert first[:height] == [(i, i) for i in range(height)]
    assert first[height] == (0, (height + (height == 8)) % 8)


def test_every_cube_core_starts_and_reads_the_whole_list() -> None:
    p = problem([3] + [0] * 19, 64, 64)
    assert plan(p).block_dim == 24
    for block in ops.load(OP).build(A2, p, plan(p)):
        reads = [op for op in block.program.ops if isinstance(op, ScalarLoadGlobal)]
        assert [op.src.offset_bytes for op in reads] == [8 * entry for entry in range(20)]
        assert [op.is_cached for op in reads] == [entry % 8 != 0 for entry in range(20)]


def test_weights_read_once_pass_the_l2_by() -> None:
    p = problem([128, 129], 64, 64)
    block, *_ = ops.load(OP).build(A2, p, plan(p))
    names = {
        op.src.name
        for each in ops.load(OP).build(A2, p, plan(p))
        for op in each.program.ops
        if isinstance(op, LoadNd2Nz)
    }
    assert names == {"x", "weight", ONCE}
    assert not block.bindings[ONCE].is_cached
    assert block.bindings["weight"].is_cached


@pytest.mark.parametrize(
    ("k", "act_type", "tuning", "cores"),
    [
        (512, 0, None, 1), (512, 2, None, 2), (512, 4, None, 1), (1024, 0, [128], 2),
        (1024, 0, [127], 1), (1536, 0, [128], 1), (2048, 0, [128], 2),
    ],
)  # fmt: skip
def test_vector_cores_beside_a_cube_core(k: int, act_type: int, tuning: Any, cores: int) -> None:
    p = half_of([200], k, 512, act_type=act_type, tuning_config=tuning)
    assert plan(p).vector_cores == cores


@pytest.mark.parametrize(
    ("output", "scale", "tokens", "act_type", "rows"),
    [
        ("float16", "float32", True, 0, 24), ("bfloat16", "bfloat16", True, 0, 24),
        ("float16", "float32", False, 0, 24), ("bfloat16", "bfloat16", False, 0, 32),
        ("bfloat16", "bfloat16", False, 1, 24),
    ],
)  # fmt: skip
def test_chunks_fill_the_unified_buffer(
    output: str, scale: str, tokens: bool, act_type: int, rows: int
) -> None:
    given = {"scale": TensorSpec((1, 512), scale), "output_dtype": output, "act_type": act_type}
    p = half_of([200], 512, 512, **given, **({} if tokens else {"per_token_scale": None}))
    assert plan(p).chunk_rows == rows


@pytest.mark.parametrize(
    ("experts", "rows", "n", "layout", "tuning", "columns"),
    [
        (8, 16, 4096, "ND", None, 256), (8, 16, 4096, "FRACTAL_NZ", None, 1024),
        (8, 33, 4096, "FRACTAL_NZ", None, 256), (8, 16, 1536, "FRACTAL_NZ", None, 512),
        (2, 16, 1536, "FRACTAL_NZ", None, 256), (8, 1024, 8192, "FRACTAL_NZ", [1024], 2048),
    ],
)  # fmt: skip
def test_blocks_in_fractals_are_wider_than_a_tile(
    experts: int, rows: int, n: int, layout: str, tuning: Any, columns: int
) -> None:
    p = half_of([rows] * experts, 512, n, layout, tuning_config=tuning)
    found = plan(p)
    assert found.single_n == columns
    blocks = Parts.dealt(p, found.tile.m, found.single_n, found.block_dim)
    assert blocks.core.size == experts * ceil(rows / found.tile.m) * ceil(n / columns)
    tiles = Parts.dealt(p, found.tile.m, found.single_n, found.block_dim, found.tile.n)
    assert tiles.core.size == experts * ceil(rows / found.tile.m) * ceil(n / found.tile.n)


def test_wider_blocks_compute_the_same() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (40, 64)).astype(np.int8)
    weight = Tensor.of(rng.integers(-128, 128, (2, 64, 2080)).astype(np.int8), "FRACTAL_NZ")
    call: dict[str, Any] = {"group_list": np.array([5, 40]), "group_type": 0, "split_item": 3}
    for output in ("int32", "float16"):
        call["output_dtype"] = output
        if output == "float16":
            call["scale"] = rng.random((2, 2080), np.float32)
        found = run(OP, x, weight, device="ascend910b2", timing=False, **call)
        wanted = ops.load(OP).reference(x, weight, **call)
        np.testing.assert_array_equal(found.output, wanted)


@pytest.mark.parametrize("engine", ["compiled"])
def test_a_layer_of_many_experts_is_timed_in_little_time(engine: Any) -> None:
    call: dict[str, Any] = {"scale": TensorSpec((64, 1024), "bfloat16"), "output_dtype": "bfloat16"}
    call |= {"per_token_scale": TensorSpec((1024,), "float32"), "group_type": 0, "split_item": 3}
    x, weight = TensorSpec((1024, 1024), "int8"), TensorSpec((64, 1024, 1024), "int8")
    groups = TensorSpec((64,), "int64")
    found = run(OP, x, weight, group_list=groups, device="ascend910b2", engine=engine, **call)
    assert found.trace is not None
    # Blocks that differ in their places alone share what is written for them.
    bodies = {body for lane in found.trace.lanes for body in lane.program.bodies}
    assert len(bodies) < 100
    assert found.trace.micro_ops > 100 * len(bodies)
