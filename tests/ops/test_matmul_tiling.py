"""How products are split over cube cores: the vendor's published choices, and what none may do.

Sources: ops-nn, matmul/quant_batch_matmul_v3 and matmul/mat_mul_v3, their tilings and the golden
tiling strings of their unit tests (910B2, 24 cores).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

import npusim
from npusim import TensorSpec, devices, ops
from npusim.devices.schema import DeviceSpec
from npusim.kernel.product import Product
from npusim.kernel.tiles import CubeTiles, Piece, work
from npusim.ops.npu_quant_matmul import Problem

B2 = devices.load("ascend910b2")
KIB = 1024
MATMUL, QUANT_MATMUL = ops.load("matmul"), ops.load("npu_quant_matmul")


class Tiled(NamedTuple):
    """A problem and its plan."""

    spec: DeviceSpec
    problem: Any
    plan: Any

    @property
    def cube(self) -> CubeTiles:
        assert isinstance(self.plan.cube, CubeTiles)
        return self.plan.cube

    @property
    def base(self) -> tuple[int, int, int]:
        return self.cube.base_m, self.cube.base_n, self.cube.base_k

    @property
    def steps(self) -> tuple[int, int, int, int]:
        cube = self.cube
        return cube.step_ka, cube.step_kb, cube.depth_a, cube.depth_b

    @property
    def grid(self) -> tuple[int, int]:
        return self.cube.cores_m, self.cube.cores_n

    @property
    def l1_kib(self) -> float:
        return self.cube.l1_bytes(self.problem.product) / KIB

    @property
    def blocks(self) -> list[int]:
        """How many blocks each core makes."""
        return [len(share) for share in work(self.cube, self.problem.product)]


def quantised(spec: DeviceSpec, m: int, k: int, n: int, kind: str = "nd", **more: Any) -> Tiled:
    """npu_quant_matmul of int8: "nd" to float16 by the fixpipe, "nz" a token to bfloat16."""
    call: dict[str, Any] = {"scale": TensorSpec((n,), "float32"), "output_dtype": "float16"}
    weight = TensorSpec((k, n), "int8")
    if kind == "nz":
        weight = TensorSpec((k, n), "int8", "FRACTAL_NZ")
        call |= {"pertoken_scale": TensorSpec((m,), "float32"), "output_dtype": "bfloat16"}
    call = {"x1": TensorSpec((m, k), "int8"), "x2": weight} | call | more
    problem = QUANT_MATMUL.check(spec, **call)
    return Tiled(spec, problem, QUANT_MATMUL.tile(spec, problem))


def halves(spec: DeviceSpec, m: int, k: int, n: int, turned: bool = False, **more: Any) -> Tiled:
    """matmul of float16."""
    b = TensorSpec((n, k), "float16").T if turned else TensorSpec((k, n), "float16")
    problem = MATMUL.check(spec, TensorSpec((m, k), "float16"), b, **more)
    return Tiled(spec, problem, MATMUL.tile(spec, problem))


# ---- npu_quant_matmul: published choices ----

BOTH = ("nd", "nz")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("shape", "grid", "base", "steps", "l1_kib", "l0c_depth", "blocks"),
    [
        ((1, 4096, 4096), (1, 16), (16, 256, 128), (32, 2, 32, 4), 192, 2, [1] * 16),
        ((16, 7168, 2048), (1, 8), (16, 256, 128), (56, 2, 56, 4), 240, 2, [1] * 8),
        ((128, 2048, 16384), (1, 22), (128, 256, 128), (16, 2, 16, 4), 384, 1, [3] * 21 + [1]),
        ((8192, 320, 256), (22, 1), (128, 256, 64), (5, 5, 10, 5), 160, 1, [3] * 21 + [1]),
    ],
)  # fmt: skip
def test_grids_of_the_older_library(
    kind: str,
    shape: Any,
    grid: Any,
    base: Any,
    steps: Any,
    l1_kib: int,
    l0c_depth: int,
    blocks: Any,
) -> None:
    tiled = quantised(B2, *shape, kind)
    assert tiled.plan.template in ("tbe", "tbe_opt")
    assert (tiled.grid, tiled.base, tiled.steps) == (grid, base, steps)
    assert (tiled.l1_kib, tiled.cube.l0c_depth) == (l1_kib, l0c_depth)
    assert tiled.blocks == blocks


@pytest.mark.parametrize(
    ("shape", "kind", "base", "steps", "blocks"),
    [
        ((1024, 4096, 4096), "nd", (128, 256, 128), (6, 2, 12, 4), [6] * 8 + [5] * 16),
        ((1024, 4096, 4096), "nz", (256, 128, 128), (2, 6, 4, 12), [6] * 8 + [5] * 16),
        ((4096, 4096, 4096), "nd", (128, 256, 128), (6, 2, 12, 4), [22] * 8 + [21] * 16),
        ((4096, 4096, 4096), "nz", (128, 256, 128), (6, 2, 12, 4), [22] * 8 + [21] * 16),
    ],
)
def test_runs_of_the_basic_template(
    shape: Any, kind: str, base: Any, steps: Any, blocks: Any
) -> None:
    tiled = quantised(B2, *shape, kind)
    assert (tiled.plan.template, tiled.base, tiled.steps) == ("basic", base, steps)
    assert (tiled.l1_kib, tiled.cube.l0c_depth, tiled.cube.order) == (320, 1, "row")
    assert tiled.blocks == blocks


@pytest.mark.parametrize(
    ("shape", "template", "piece", "workspace_kib"),
    [
        ((1, 4096, 4096), "tbe_opt", (1, 256), 256),
        ((16, 7168, 2048), "tbe_opt", (16, 256), 128),
        ((128, 2048, 16384), "tbe_opt", (14, 256), 8448),
        ((1024, 4096, 4096), "basic", (40, 128), 6144),
        ((4096, 4096, 4096), "basic", (20, 256), 6144),
        ((8192, 320, 256), "tbe", (20, 256), 2816),
    ],
)
def test_pieces_of_the_vector_epilogue(
    shape: Any, template: str, piece: Any, workspace_kib: int
) -> None:
    plan = quantised(B2, *shape, "nz").plan
    assert (plan.template, plan.epilogue_rows, plan.epilogue_columns) == (template, *piece)
    # A message of 64 bytes for each of 22 cube cores.
    messages = {"messages": 22 * 64} if template == "tbe" else {}
    assert plan.workspaces == {"workspace": workspace_kib * KIB} | messages
    plain = quantised(B2, *shape, "nd").plan
    assert (plain.epilogue_rows, plain.workspaces) == (0, {})


@pytest.mark.parametrize(
    ("shape", "more", "cores"),
    [
        # 768 blocks of 128 x 256, and 360.
        ((4096, 768, 6144), {}, 1),
        ((1824, 768, 6144), {}, 2),
        ((4096, 768, 6144), {"output_dtype": "float16"}, 2),
        ((4096, 768, 6144), {"x2": TensorSpec((768, 6144), "int8")}, 2),
        ((4096, 768, 6144), {"pertoken_scale": None}, 2),
        # Longer sums, which need more rows.
        ((4096, 1184, 6144), {}, 2),
        ((12544, 1536, 1280), {}, 1),
        ((12528, 1536, 1280), {}, 2),
        # tbe_opt.
        ((16, 64, 64), {}, 1),
        ((16, 64, 64), {"pertoken_scale": None}, 2),
    ],
)
def test_where_one_vector_core_makes_the_output(
    shape: Any, more: dict[str, Any], cores: int
) -> None:
    tiled = quantised(B2, *shape, "nz", **more)
    assert tiled.plan.vector_cores == cores


@pytest.mark.parametrize(
    ("chip", "shape", "template"),
    [
        # Few rows and very long sums: on A2 only.
        ("ascend910b2", (16, 16384, 2048), "basic"),
        ("ascend910_9391", (16, 16384, 2048), "tbe"),
        ("ascend910b2", (16, 12999, 2048), "tbe"),
        # Short sums whose tensors lie in the L2, and those that do not.
        ("ascend910b2", (4096, 992, 4096), "tbe"),
        ("ascend910b2", (16384, 992, 16384), "basic"),
        # 300 columns stay in L1: taken only if their rows are whole lines, or if they do not fit.
        ("ascend910b2", (1200, 2048, 300), "tbe"),
        ("ascend910b2", (1200, 2048, 384), "basic"),
        ("ascend910b2", (1200, 3616, 300), "basic"),
    ],
)
def test_which_template_is_taken(chip: str, shape: Any, template: str) -> None:
    assert quantised(devices.load(chip), *shape).plan.template == template


def test_few_rows_with_tokens_are_those_of_one_block() -> None:
    # Sums that are no multiple of 64 long, so that only few rows have their own workspace.
    one, two = (quantised(B2, m, 100, 330, "nz").plan for m in (16, 272))
    assert (one.template, one.cube.base_m) == ("tbe_opt", 16)
    assert two.template == "tbe"


def test_a_cube_core_is_fifteen_blocks_ahead_at_most() -> None:
    plan = quantised(B2, 256, 64, 65472, "nz").plan
    assert (plan.template, plan.workspace_blocks) == ("tbe_opt", 15)


def test_int4_always_takes_the_basic_template() -> None:
    x1, x2 = TensorSpec((1, 512), "int32"), TensorSpec((4096, 512), "int32")
    tiled = quantised(B2, 1, 4096, 4096, x1=x1, x2=x2)
    assert (tiled.plan.template, tiled.problem.product.element.name) == ("basic", "int4")


def test_large_products_are_walked_in_l2_tiles() -> None:
    assert quantised(B2, 8192, 8192, 8192).cube.l2_m == 32
    assert quantised(B2, 8192, 8192, 8192).cube.l2_n == 16
    assert quantised(B2, 4096, 4096, 4096).cube.l2_m == 32


@pytest.mark.parametrize(
    ("shape", "base", "grid"),
    [
        # Bytes a number of k: 384 for each of 16 cores take 3 cycles, 320 for each of 24 with
        # 192 x 128 as long, 7680 / 2550.
        ((512, 4096, 1024), (256, 128), (2, 8)),
        ((1024, 4096, 512), (256, 128), (4, 4)),
        # 288 take 2.25; 224 with 32 x 192 for each of 22 cores take 1.93.
        ((32, 4096, 4096), (32, 256), (1, 16)),
        # 160 with 64 x 96 take 1.25, and 128 take 1: a quarter more, which is too much.
        ((64, 4096, 1024), (64, 64), (1, 16)),
        ((512, 4096, 256), (128, 64), (4, 4)),
    ],
)
def test_larger_blocks_win_over_loads_a_fifth_longer(shape: Any, base: Any, grid: Any) -> None:
    tiled = quantised(B2, *shape, "nz")
    assert (tiled.base[:2], tiled.grid) == (base, grid)


def test_few_rows_of_tokens_have_a_rule_of_their_own() -> None:
    tiled = quantised(B2, 96, 7168, 7168, "nz")
    assert (tiled.base, tiled.cube.cores) == ((96, 320, 96), 23)


@pytest.mark.parametrize(
    ("m", "n", "template", "base", "cores"),
    [
        # A share of the columns a core, as whole blocks of 32.
        (16, 7168, "basic", (16, 320, 64), 23),
        (32, 4096, "basic", (32, 192, 128), 22),
        # More than 16 rows: 512 columns make 24 blocks.
        (64, 12288, "basic", (64, 512, 64), 24),
        # Too many columns for one block a core.
        (33, 20000, "basic", (48, 256, 128), 24),
        # Small products never take this template.
        (16, 1024, "tbe", (16, 64, 512), 16),
    ],
)
def test_few_rows_and_fractal_weights_without_tokens(
    m: int, n: int, template: str, base: Any, cores: int
) -> None:
    tiled = quantised(B2, m, 4096, n, x2=TensorSpec((4096, n), "int8", "FRACTAL_NZ"))
    assert (tiled.plan.template, tiled.base, tiled.cube.cores) == (template, base, cores)


# ---- matmul: published choices ----


@pytest.mark.parametrize(
    ("shape", "turned", "base", "steps", "l1_kib", "cores", "l2_tile"),
    [
        ((1, 4096, 4096), False, (16, 256, 64), (64, 4), 512, 16, (1, 6)),
        ((1, 4096, 4096), True, (16, 176, 64), (64, 4), 432, 24, (1, 6)),
        ((128, 4096, 4096), False, (128, 256, 64), (8, 4), 512, 16, (1, 6)),
        ((128, 4096, 4096), True, (128, 176, 64), (8, 4), 432, 24, (1, 6)),
        ((4096, 4096, 4096), False, (128, 256, 64), (8, 4), 512, 24, (4, 6)),
        ((4096, 4096, 4096), True, (128, 256, 64), (8, 4), 512, 24, (4, 6)),
        ((8192, 8192, 8192), False, (128, 256, 64), (8, 4), 512, 24, (8, 16)),
        ((8192, 8192, 8192), True, (128, 256, 64), (8, 4), 512, 24, (8, 16)),
    ],
)
def test_base_tiles_of_halves(
    shape: Any, turned: bool, base: Any, steps: Any, l1_kib: int, cores: int, l2_tile: Any
) -> None:
    tiled = halves(B2, *shape, turned, template="base")
    assert (tiled.base, tiled.steps[:2]) == (base, steps)
    assert (tiled.l1_kib, tiled.cube.cores) == (l1_kib, cores)
    assert (tiled.cube.l2_m, tiled.cube.l2_n) == l2_tile
    assert sum(tiled.blocks) == -(-shape[0] // base[0]) * -(-shape[2] // base[1])


def test_whole_waves_where_there_are_few() -> None:
    # 5 x 8 blocks of 128 x 256 are 1.7 waves of 24 cores; in two, 6 rows of blocks fit.
    assert halves(B2, 640, 1024, 2048).base == (112, 256, 64)


def test_few_rows_of_many_blocks_are_shared_out_evenly() -> None:
    # 5 rows of 32 blocks are 6.7 waves; no fewer rows would do.
    assert halves(B2, 520, 1024, 8192).base == (112, 256, 64)
    assert halves(B2, 680, 1024, 8192).base == (128, 256, 64)


def test_shares_of_few_blocks_are_rounded_down_first() -> None:
    # 24 cores over 8 columns of blocks: 145 // 3 = 48 rows, and not 49, which would be 64.
    assert halves(B2, 145, 1024, 2048).base == (128, 128, 64)


@pytest.mark.parametrize(
    ("m", "n", "base"),
    [
        # 256 x 128: 32 * 3200 + 25 * 8192 rows are loaded; 128 x 256: 64 * 3200 + 13 * 8192.
        (8192, 3200, (256, 128)),
        (8192, 4096, (128, 256)),
        (4096, 1024, (256, 128)),
        (1024, 4096, (128, 256)),
        (2048, 1024, (256, 128)),
    ],
)
def test_a_matrix_that_lies_the_other_way_turns_the_block(m: int, n: int, base: Any) -> None:
    assert halves(B2, m, 1024, n, turned=True, template="base").base[:2] == base
    fractal = TensorSpec((1024, n), "float16", "FRACTAL_NZ")
    x1 = TensorSpec((1024, m), "float16").T
    problem = MATMUL.check(B2, x1, fractal, template="base")
    assert Tiled(B2, problem, MATMUL.tile(B2, problem)).base[:2] == (128, 256)


def test_middling_sizes_take_shorter_loads() -> None:
    assert halves(B2, 1024, 4096, 4096).steps[:2] == (8, 4)
    assert halves(B2, 1024, 4352, 4096).steps[:2] == (4, 4)
    # One wave of 128 x 256, exactly.
    assert halves(B2, 768, 4352, 1024).steps[:2] == (8, 4)


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (8192, 1024, 8192), (20000, 6000, 7000)])
def test_l2_tiles_fit_and_the_last_ones_keep_cores_busy(shape: tuple[int, int, int]) -> None:
    cube, (m, k, n) = halves(B2, *shape).cube, shape
    rows, columns = cube.l2_m * cube.base_m, cube.l2_n * cube.base_n
    assert 2 * (rows * k + k * columns + rows * columns) <= 100 * 2**20
    for extent, base, step in ((m, cube.base_m, cube.l2_m), (n, cube.base_n, cube.l2_n)):
        assert (-(-extent // base) % step or step) >= 4


@pytest.mark.parametrize(
    ("m", "k", "n", "past"),
    [
        (512, 4096, 4096, ()),
        (4096, 1024, 1024, ()),
        # x2 stays if there are blocks below one another, x1 if next to each other.
        (64, 64, 64, ("x1",)),
        (256, 1024, 768, ()),
        (1, 64, 768, ("x2",)),
    ],
)
def test_what_base_keeps_in_l2(m: int, k: int, n: int, past: Any) -> None:
    assert halves(B2, m, k, n).plan.past_l2 == past


# ---- matmul: what was read off ----


@pytest.mark.parametrize(
    ("m", "n", "base", "grid", "blocks"),
    [
        # An even share for each of half of the cores.
        (1, 256, (16, 32), (1, 8), 1),
        (32, 512, (32, 48), (1, 11), 1),
        # Blocks of 256 columns: one each, two each for 16 or 24, else three each for 12 and fewer.
        (1, 1024, (16, 256), (1, 4), 1),
        (2, 4096, (16, 256), (1, 16), 1),
        (8, 8192, (16, 256), (1, 16), 2),
        (4, 12288, (16, 256), (1, 24), 2),
        (1, 7168, (16, 256), (1, 10), 3),
        # 16 cores and the squarest blocks.
        (16, 2048, (16, 128), (1, 16), 1),
        (32, 1024, (32, 64), (1, 16), 1),
        (64, 2048, (64, 128), (1, 16), 1),
        (128, 1024, (64, 128), (2, 8), 1),
        (256, 256, (64, 64), (4, 4), 1),
        (512, 256, (64, 128), (8, 2), 1),
        (256, 2048, (128, 256), (2, 8), 1),
        (2048, 256, (128, 256), (16, 1), 1),
        # More blocks than that.
        (64, 7168, (64, 256), (1, 14), 2),
        (200, 7168, (112, 256), (2, 10), 3),
        # Thirds of the rows.
        (512, 1024, (176, 128), (3, 8), 1),
        (608, 9680, (208, 128), (3, 8), 10),
        # Even rectangles: 6 x 15 x 8 pairs of fractals, not 6 x 8 x 16 of base.
        (8192, 512, (240, 128), (6, 4), 6),
        # 2 x 11 x 8: the columns of 8 x 3 cores, 171, would take three sectors each, 2 x 8 x 12.
        (2048, 512, (176, 128), (6, 4), 2),
    ],
)
def test_tiles_of_matmul_v2(m: int, n: int, base: Any, grid: Any, blocks: int) -> None:
    tiled = halves(B2, m, 4096, n, turned=True)
    assert (tiled.plan.template, tiled.base[:2], tiled.grid) == ("v2", base, grid)
    assert max(tiled.blocks) == blocks


@pytest.mark.parametrize(
    ("m", "k", "n", "base", "cores"),
    [
        # 16 rows of 16384 in 16 bits fill L1, of less they do not.
        (1, 16384, 512, (16, 128), 4),
        (1, 16384 - 256, 512, (16, 48), 11),
        (8, 16384, 256, (16, 128), 2),
        # From 16 rows on 8 cores, or 4 for 32 rows, narrow the blocks.
        (16, 16384, 512, (16, 64), 8),
        (16, 16384, 1024, (16, 128), 8),
        (32, 8192, 256, (32, 64), 4),
        (32, 8192, 1024, (32, 128), 8),
        (64, 4096, 256, (32, 128), 4),
        # Wider ones are as with less k.
        (8, 16384, 1024, (16, 256), 4),
        (64, 8192, 512, (32, 64), 16),
    ],
)
def test_matmul_v2_cuts_few_long_rows(m: int, k: int, n: int, base: Any, cores: int) -> None:
    tiled = halves(B2, m, k, n, turned=True)
    assert (tiled.base[:2], tiled.cube.cores) == (base, cores)


def test_loads_of_matmul_v2() -> None:
    # 524288 bytes hold twice 431 of k of 176 and 128 rows: one line. 64 of k in L0.
    tiled = halves(B2, 512, 4096, 1024, turned=True)
    assert (tiled.base[2], tiled.steps) == (64, (4, 4, 8, 8))
    # Twice 1365 of k of 32 and 64 rows: five lines. 256 of k in L0.
    tiled = halves(B2, 32, 4096, 1024, turned=True)
    assert (tiled.base[2], tiled.steps) == (256, (5, 5, 10, 10))


def test_many_rows_are_split_by_base() -> None:
    usual, read_off = (
        halves(B2, 1024, 1024, 4096, turned=True, template=name) for name in ("base", "v2")
    )
    assert read_off.cube == usual.cube


@pytest.mark.parametrize(
    ("m", "k", "n", "past"),
    [
        (256, 4096, 4096, ()),
        (256, 4096, 4112, ("x2",)),
        (128, 7168, 7168, ()),
        (768, 7168, 7168, ("x2",)),
        (769, 7168, 7168, ()),
    ],
)
def test_matmul_v2_reads_a_large_x2_past_the_l2(m: int, k: int, n: int, past: Any) -> None:
    assert halves(B2, m, k, n, turned=True).plan.past_l2 == past


# ---- 310P ----


def test_a_wide_bias_leaves_room_for_one_block_of_sums() -> None:
    # Two blocks of 16 x 256 fit into L0C, but the table of biases holds one row of 256.
    plain = halves(B2, 16, 512, 8192, template="v2")
    biased = halves(B2, 16, 512, 8192, template="v2", bias=TensorSpec((8192,), "float32"))
    assert (plain.cube.base_n, biased.cube.base_n) == (256, 256)
    assert (plain.cube.l0c_depth, biased.cube.l0c_depth) == (2, 1)


def test_pp_takes_powers_of_two_with_the_least_traffic() -> None:
    spec = devices.load("ascend310p3")
    bias = TensorSpec((4096,), "int32")
    tiled = quantised(spec, 1024, 4096, 4096, bias=bias)
    assert (tiled.plan.template, tiled.base, tiled.steps) == ("pp", (256, 256, 128), (2, 2, 4, 4))
    assert quantised(spec, 1024, 4096, 4096).plan.template == "coupled"
    turned = TensorSpec((4096, 1024), "int8").T
    assert quantised(spec, 1024, 4096, 4096, bias=bias, x1=turned).plan.template == "coupled"
    # One row of blocks, and a last wave of four: columns are shared out anew.
    assert quantised(spec, 16, 4096, 3072).base[:2] == (16, 192)


# ---- what holds for every shape ----


def assert_fits(tiled: Tiled) -> None:
    """Everything a core needs at a time lies in its buffers."""
    spec, cube, product = tiled.spec, tiled.cube, tiled.problem.product
    core = spec.cores["ai_core" if spec.arch == "2002" else "aic"]
    c0 = 256 // product.element.bits
    m, n, k = tiled.base
    assert (m % 16, n % 16, k % (16 if c0 == 16 else 32)) == (0, 0, 0)
    high = -(-m // c0) * c0 if product.transposed_a else m
    wide = n if product.transposed_b else -(-n // c0) * c0
    deep = -(-k // c0) * c0
    assert 2 * product.element.nbytes(high * deep) <= core.l0a_bytes
    assert 2 * product.element.nbytes(wide * deep) <= core.l0b_bytes
    assert 4 * cube.l0c_depth * m * n <= core.l0c_bytes
    strips = cube.depth_a * high + cube.depth_b * wide
    start = getattr(tiled.problem, "start", tiled.problem.bias)
    parameters = n * start.element.bits // 8 if start else 0
    if isinstance(tiled.problem, Problem) and tiled.problem.epilogue == "fixpipe":
        parameters += 8 * n
    assert product.element.nbytes(strips * deep) + parameters <= core.l1_bytes
    if start and spec.arch == "2201":
        assert 4 * n * cube.l0c_depth <= core.bt_bytes
    for step, depth in ((cube.step_ka, cube.depth_a), (cube.step_kb, cube.depth_b)):
        assert 1 <= step <= depth
        assert depth == 2 * step or step * k >= product.k
    assert min(cube.l2_m, cube.l2_n) >= 1


def assert_covers(tiled: Tiled) -> None:
    """Every block is made once, and every core that is started has one."""
    cube, product = tiled.cube, tiled.problem.product
    shares = work(cube, product)
    assert len(shares) == cube.cores == tiled.plan.block_dim
    assert all(shares)
    pieces = [piece for share in shares for piece in share]
    assert len({piece[:3] for piece in pieces}) == len(pieces)
    area = sum(piece.rows * piece.columns for piece in pieces)
    assert area == product.m * product.n * product.matrices
    assert all(piece.row % cube.base_m == piece.column % cube.base_n == 0 for piece in pieces)


SIZES = st.integers(1, 40) | st.integers(1, 700) | st.integers(1, 6000)
DEEP = SIZES | st.integers(1, 65535)
CHIPS = [devices.load(name) for name in ("ascend910b2", "ascend910b4", "ascend310p3")]
BATCHES = st.sampled_from([(), (3,), (15,), (2, 20)])


def flipped(shape: tuple[int, ...], dtype: str, turned: bool, layout: str = "ND") -> TensorSpec:
    if not turned:
        return TensorSpec(shape, dtype, layout)
    return TensorSpec((*shape[:-2], shape[-1], shape[-2]), dtype, layout).T


@st.composite
def halves_calls(draw: st.DrawFn) -> Tiled:
    """Any matmul that is split into blocks of all of k."""
    spec, batch = draw(st.sampled_from(CHIPS)), draw(BATCHES)
    m, k, n = draw(SIZES), draw(DEEP), draw(SIZES)
    layout = draw(st.sampled_from(["ND", "FRACTAL_NZ"]))
    x1 = flipped((*batch, m, k), "float16", draw(st.booleans()))
    x2 = flipped((k, n), "float16", draw(st.booleans()), layout)
    bias = draw(st.sampled_from([None, TensorSpec((n,), "float16"), TensorSpec((n,), "float32")]))
    template = draw(st.sampled_from(["v2", "base"])) if spec.arch == "2201" else "base"
    problem = MATMUL.check(spec, x1, x2, bias, template=template)
    return Tiled(spec, problem, MATMUL.tile(spec, problem))


@st.composite
def quantised_calls(draw: st.DrawFn) -> Tiled:
    """Any npu_quant_matmul."""
    spec, batch = draw(st.sampled_from(CHIPS)), draw(BATCHES)
    is_310p = spec.arch == "2002"
    m, k, n = draw(SIZES), draw(DEEP), draw(SIZES)
    turned, layout = draw(st.booleans()), draw(st.sampled_from(["ND", "FRACTAL_NZ"]))
    outputs = ["int8", "float16"] if is_310p else ["int8", "float16", "bfloat16", "int32"]
    call: dict[str, Any] = {"output_dtype": draw(st.sampled_from(outputs))}
    if not is_310p and draw(st.integers(0, 3)) == 0:
        k, n = -(-k // 8) * 8 % 65536 or 8, -(-n // 8) * 8
        x1 = TensorSpec((*batch, m, k // 8), "int32")
        rows, columns = (k, n // 8) if not turned else (k // 8, n)
        x2 = flipped((rows, columns), "int32", turned)
        call["output_dtype"] = draw(st.sampled_from(["float16", "bfloat16"]))
    else:
        x1 = flipped((*batch, m, k), "int8", draw(st.booleans()))
        turned = turned or (is_310p and layout != "ND")
        x2 = flipped((k, n), "int8", turned, layout)
    call["scale"] = TensorSpec((draw(st.sampled_from([1, n])),), "float32")
    if draw(st.booleans()):
        call["bias"] = TensorSpec((n,), "int32")
    if not is_310p and call["output_dtype"] in ("float16", "bfloat16") and draw(st.booleans()):
        call["pertoken_scale"] = TensorSpec((m,), "float32")
    problem = QUANT_MATMUL.check(spec, x1, x2, **call)
    return Tiled(spec, problem, QUANT_MATMUL.tile(spec, problem))


@draws(300)
@given(halves_calls())
def test_any_product_of_halves_fits_and_is_covered(tiled: Tiled) -> None:
    assert_fits(tiled)
    assert_covers(tiled)


@draws(400)
@given(quantised_calls())
def test_any_quantised_product_fits_and_is_covered(tiled: Tiled) -> None:
    assert_fits(tiled)
    assert_covers(tiled)
    if tiled.problem.epilogue == "vector":
        assert 1 <= tiled.plan.epilogue_rows <= tiled.cube.base_m
        assert tiled.plan.workspace_blocks >= 1


# ---- orders ----

ORDERED = replace(
    halves(B2, 64, 64, 64).cube,
    base_m=16, base_n=16, cores=3, schedule="round_robin", l2_m=2, l2_n=3,
)  # fmt: skip
SMALL = halves(B2, 32, 16, 48).problem.product


def places(cube: CubeTiles, product: Product) -> list[list[tuple[int, int]]]:
    """Row and column of blocks that each core makes."""

    def place(piece: Piece) -> tuple[int, int]:
        return piece.row // cube.base_m, piece.column // cube.base_n

    return [[place(piece) for piece in share] for share in work(cube, product)]


@pytest.mark.parametrize(
    ("order", "schedule", "expected"),
    [
        ("row", "round_robin", [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2)]]),
        ("row", "contiguous", [[(0, 0), (0, 1)], [(0, 2), (1, 0)], [(1, 1), (1, 2)]]),
        ("column", "contiguous", [[(0, 0), (1, 0)], [(0, 1), (1, 1)], [(0, 2), (1, 2)]]),
        ("diagonal", "round_robin", [[(0, 0), (1, 0)], [(1, 1), (0, 1)], [(0, 2), (1, 2)]]),
    ],
)
def test_blocks_are_dealt_in_order(order: Any, schedule: Any, expected: Any) -> None:
    assert places(replace(ORDERED, order=order, schedule=schedule), SMALL) == expected


def test_an_l2_tile_begins_with_the_idle_core() -> None:
    cube = replace(ORDERED, order="row", cores=4, l2_m=1, l2_n=3)
    # Tiles of three blocks: the second one begins with core 3; its columns go on from the left,
    # since there is one tile across.
    expected = [[(0, 0), (1, 1)], [(0, 1), (1, 2)], [(0, 2)], [(1, 0)]]
    assert places(cube, SMALL) == expected


def test_columns_of_l2_tiles_go_back_and_forth() -> None:
    cube = replace(ORDERED, order="row", cores=1, l2_m=1, l2_n=2)
    assert places(cube, SMALL) == [[(0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (1, 1)]]


@pytest.mark.parametrize(("n", "cores", "columns"), [(4096, 16, 256), (1000, 21, 48)])
def test_few_rows_of_float32_by_a_turned_x2_come_piece_by_piece(
    n: int, cores: int, columns: int
) -> None:
    x1, x2 = TensorSpec((32, 512), "float32"), TensorSpec((n, 512), "float32").T
    plan: Any = npusim.run("matmul", x1, x2, device="ascend910b2", values=False).plan
    cube: CubeTiles = plan.cube
    assert (cube.cores, cube.base_n, cube.step_ka, cube.step_kb) == (cores, columns, 1, 1)
