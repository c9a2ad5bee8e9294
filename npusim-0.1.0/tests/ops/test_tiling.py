"""How operators are split over cores and buffers: the vendor's plans, and what no plan may do.

Sources: ops-nn, ascend_quant_v2_tiling.cpp and its unit test, group_quant_tiling.cpp,
quant/dynamic_quant/op_host and trans_quant_param_v2.h.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import A2, A3, FLOATS, INFERENCE

from npusim import TensorSpec, devices, ops
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block


class Tiled(NamedTuple):
    """An operator's problem, plan and programs, without a run."""

    spec: DeviceSpec
    problem: Any
    plan: Any
    blocks: tuple[Block, ...]

    @property
    def grid(self) -> tuple[int, int, int]:
        """Cores at work, rows of each, columns of each."""
        return len(self.blocks), self.plan.rows_per_core, self.plan.columns_per_core

    @property
    def piece(self) -> tuple[int, int]:
        return self.plan.row_step, self.plan.column_step


def tiled(op: str, device: str, *args: Any, **kwargs: Any) -> Tiled:
    operator, spec = ops.load(op), devices.load(device)
    problem = operator.check(spec, *args, **kwargs)
    plan = operator.tile(spec, problem)
    return Tiled(spec, problem, plan, operator.build(spec, problem, plan))


def quantize(
    device: str, shape: tuple[int, ...], dtype: str, form: str = "column", *, offset: bool = False
) -> Tiled:
    """npu_quantize with div_mode=False."""
    scales = TensorSpec((1,) if form == "tensor" else shape[-1:], dtype)
    points = scales if offset else None
    args = (TensorSpec(shape, dtype), scales, points, "qint8", -1, False)
    return tiled("npu_quantize", device, *args)


def divide(device: str, shape: tuple[int, ...], form: str = "tensor") -> Tiled:
    """npu_quantize of float32 with div_mode=True."""
    scales = TensorSpec((1,) if form == "tensor" else shape[-1:], "float32")
    args = (TensorSpec(shape, "float32"), scales, None, "qint8", -1)
    return tiled("npu_quantize", device, *args)


def last_rows(plan: Tiled) -> int:
    return plan.problem.rows - (-(-plan.problem.rows // plan.plan.rows_per_core) - 1) * (
        plan.plan.rows_per_core
    )


# ---- npu_quantize, div_mode=False: the vendor's own examples, 48 vector cores ----


def test_the_unit_test_of_the_vendor() -> None:
    """ops-nn, test_ascend_quant_v2_tiling: 10240 x 1023 float16."""
    plan = quantize("ascend910b2", (10240, 1023), "float16")
    assert plan.grid == (48, 214, 1023)
    assert last_rows(plan) == 182


@pytest.mark.parametrize(
    ("shape", "grid", "last", "piece"),
    [
        # 3 rows, each over 16 cores.
        ((3, 4096), (48, 1, 256), 1, (1, 256)),
        ((256, 6144), (43, 6, 6144), 4, (1, 6144)),
        # 57 + 29 rows.
        ((4096, 1024), (48, 86, 1024), 54, (57, 1024)),
        ((8192, 8192), (48, 171, 8192), 155, (1, 8192)),
    ],
)
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_bfloat16_by_channel_with_offset(
    device: str,
    shape: tuple[int, int],
    grid: tuple[int, int, int],
    last: int,
    piece: tuple[int, int],
) -> None:
    plan = quantize(device, shape, "bfloat16", offset=True)
    assert (plan.grid, last_rows(plan), plan.piece) == (grid, last, piece)


def test_a_whole_tensor_is_one_row() -> None:
    plan = quantize("ascend910b2", (8192, 8192), "bfloat16", "tensor")
    assert (plan.problem.rows, len(plan.blocks)) == (1, 48)
    assert plan.piece == (1, 27648)


@pytest.mark.parametrize(
    ("shape", "grid", "piece"),
    [
        # 3 rows, each over 5 of the 15 cores with a vector pipe.
        ((3, 4096), (15, 1, 896), (1, 896)),
        ((256, 6144), (15, 18, 6144), (8, 6144)),
        ((8192, 8192), (15, 547, 8192), (1, 8192)),
    ],
)
def test_float16_by_channel_with_offset_on_310p(
    shape: tuple[int, int], grid: tuple[int, int, int], piece: tuple[int, int]
) -> None:
    plan = quantize("ascend310p3", shape, "float16", offset=True)
    assert (plan.grid, plan.piece) == (grid, piece)


@pytest.mark.parametrize("device", every(A2 + A3 + INFERENCE))
def test_all_vector_cores_are_launched_even_to_idle(device: str) -> None:
    plan = quantize(device, (2, 40), "float16")
    assert len(plan.blocks) == 2
    assert plan.plan.block_dim == len(plan.spec.vector_cores)


def test_310p_gives_rows_narrower_than_a_store_to_one_core() -> None:
    assert len(quantize("ascend310p3", (100, 31), "float16").blocks) == 1
    assert len(quantize("ascend310p3", (100, 32), "float16").blocks) == 15
    assert len(quantize("ascend910b2", (100, 31), "float16").blocks) == 34


def test_buffers_are_double_with_div_mode_true() -> None:
    assert quantize("ascend910b2", (64, 64), "float32").plan.depth == 1
    assert divide("ascend910b2", (64, 64)).plan.depth == 2


@pytest.mark.parametrize(
    ("count", "cores"),
    [(1, 1), (1024, 1), (1025, 2), (10240, 10), (48 * 1024, 48), (10**7, 48)],
)
def test_div_mode_true_starts_a_core_for_each_4_kib(count: int, cores: int) -> None:
    plan = divide("ascend910b2", (count,))
    assert plan.plan.block_dim == len(plan.blocks) == cores


# ---- npu_group_quant, npu_trans_quant_param ----


@pytest.mark.parametrize(
    ("rows", "of_core"),
    [(1, (1,)), (47, (1,) * 47), (48, (1,) * 48), (49, (2,) + (1,) * 47),
     (100, (3,) * 4 + (2,) * 44), (960, (20,) * 48)],
)  # fmt: skip
def test_group_quant_deals_rows_out(rows: int, of_core: tuple[int, ...]) -> None:
    x, scale = TensorSpec((rows, 64), "float16"), TensorSpec((4, 64), "float32")
    plan = tiled("npu_group_quant", "ascend910b2", x, scale, TensorSpec((4,), "int32"))
    assert plan.plan.rows_of_core == of_core
    assert plan.plan.block_dim == len(plan.blocks) == len(of_core)


@pytest.mark.parametrize(("columns", "step"), [(7, 7), (8192, 8192), (8193, 8192), (20000, 8192)])
def test_group_quant_takes_8192_columns_at_a_time(columns: int, step: int) -> None:
    x, scale = TensorSpec((2, columns), "float16"), TensorSpec((1, columns), "float32")
    plan = tiled("npu_group_quant", "ascend910b2", x, scale, TensorSpec((1,), "int64"))
    assert plan.plan.column_step == step


def test_dynamic_quant_deals_out_rows(subtests: pytest.Subtests) -> None:
    for shape, template, cores, rows, piece in [
        # Long enough for each core: all are started, the first ones take a row more.
        ((256, 6144), "multi_row", 48, {5, 6}, 2),
        ((4096, 1024), "multi_row", 48, {85, 86}, 15),
        ((4096, 6144), "multi_row", 48, {85, 86}, 2),
        ((8192, 8192), "multi_row", 48, {170, 171}, 1),
        ((1024, 1024), "multi_row", 48, {21, 22}, 15),
        # A core for each whole piece, and at least one.
        ((3, 4096), "multi_row", 1, {3}, 3),
        ((3, 6144), "multi_row", 1, {3}, 2),
        ((12, 6144), "multi_row", 6, {2}, 2),
        ((44, 1024), "multi_row", 2, {22}, 15),
        ((7, 3, 3072), "multi_row", 4, {5, 6}, 5),
        # Rows in fours, threes or ones: as many cores as have a piece, all with as many pieces.
        ((4, 4096), "single_row", 1, {4}, 4),
        ((16, 4096), "single_row", 4, {4}, 4),
        ((100, 4096), "single_row", 25, {4}, 4),
        ((384, 4096), "single_row", 48, {8}, 4),
        ((200, 5120), "single_row", 34, {6, 2}, 3),
        ((96, 10240), "single_row", 48, {2}, 1),
        # As many rows as fit, but one by one.
        ((3, 100), "db", 3, {1}, 1),
        ((133221, 373), "db", 48, {2775, 2776}, 46),
        ((1023, 1023), "db", 48, {21, 22}, 17),
        ((255, 8193), "db", 48, {5, 6}, 2),
        # A row at a time.
        ((8192, 16384), "base", 48, {170, 171}, 1),
        ((49, 20000), "large", 48, {1, 2}, 1),
    ]:
        with subtests.test(shape=shape):
            plan = tiled("npu_dynamic_quant", "ascend910b2", TensorSpec(shape, "bfloat16"))
            assert plan.plan.template == template
            assert plan.plan.block_dim == len(plan.blocks) == len(plan.plan.rows_of_core) == cores
            assert set(plan.plan.rows_of_core) == rows
            assert sum(plan.plan.rows_of_core) == prod(shape[:-1])
            assert plan.plan.row_step == piece
            assert plan.plan.depth == 1 + (template in ("db", "large"))


@pytest.mark.parametrize(("smooth", "columns"), [(False, 17745), (False, 40000), (True, 11489)])
def test_dynamic_quant_takes_long_rows_in_parts(smooth: bool, columns: int) -> None:
    scales = TensorSpec((columns,), "float16") if smooth else None
    x = TensorSpec((5, columns), "float16")
    plan = tiled("npu_dynamic_quant", "ascend910b2", x, smooth_scales=scales)
    assert (plan.plan.template, plan.plan.column_step) == ("large", 10240)


@pytest.mark.parametrize("device", every(devices.names()))
def test_trans_quant_param_takes_chunks_of_8192(device: str) -> None:
    for count, chunk, stores in ((5, 5, 1), (8192, 8192, 1), (20001, 8192, 3)):
        scale = TensorSpec((count,), "float32")
        plan = tiled("npu_trans_quant_param", device, scale, scale)
        assert (len(plan.blocks), plan.plan.block_dim, plan.plan.chunk) == (1, 1, chunk)
        granule = plan.spec.transfer.store_granule_bytes
        tails = int(count * 8 % granule > 0 and count * 8 > granule)
        copies = [op for op in plan.blocks[0].program.ops if type(op).__name__ == "Store"]
        assert len(copies) == stores + tails


# ---- what holds for every plan ----


def assert_fits(plan: Tiled) -> None:
    """No core is used twice, no buffer overrun; a program that asked for more would raise."""
    cores = [block.core for block in plan.blocks]
    # On 310P a core before the last may have nothing to do.
    first = cores if plan.spec.arch == "2002" else range(len(cores))
    assert cores == sorted(set(cores)) == list(first)
    assert len(cores) <= plan.plan.block_dim <= len(plan.spec.vector_cores)
    for block in plan.blocks:
        assert block.kind == plan.spec.vector_cores[block.core]
        core = plan.spec.cores[block.kind]
        assert core.ub_bytes is not None
        room = core.ub_bytes - core.ub_reserved_bytes
        assert block.program.claimed_bytes["ub"] <= room


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    """Rows and columns: narrow, around what fits a piece, or long; never so many as to be slow."""
    columns = draw(
        st.integers(1, 300) | st.integers(1, 40000) | st.integers(4000, 10500) | st.just(10**6)
    )
    return draw(st.integers(1, max(1, min(3000, 3_000_000 // columns)))), columns


@st.composite
def quantize_plans(draw: st.DrawFn) -> Tiled:
    (rows, columns), device, divides = draw(sizes()), draw(CHIPS), draw(st.booleans())
    is_old = device in INFERENCE
    kinds = [np.dtype(kind).name for kind in FLOATS[devices.load(device).series]]
    dtype = draw(st.sampled_from(kinds))
    axis = draw(st.sampled_from((-1,) if is_old and not divides else (-1, -2)))
    if divides:
        target = draw(st.sampled_from(("qint8", "quint8", "int32")))
        point = draw(st.sampled_from(("int8", "uint8", "int32")))
        scale = "float32"
        if dtype == "bfloat16" and draw(st.booleans()):
            scale = point = "bfloat16"
    else:
        target = draw(st.sampled_from(("qint8",) if is_old else ("qint8", "quint4x2")))
        columns += -columns % 8
        scale = point = draw(st.sampled_from(kinds)) if dtype == "float32" else dtype
    count = draw(st.sampled_from((1, (rows, columns)[axis])))
    points = TensorSpec((count,), point) if draw(st.booleans()) else None
    x, scales = TensorSpec((rows, columns), dtype), TensorSpec((count,), scale)
    plan = tiled("npu_quantize", device, x, scales, points, target, axis, divides)
    # Each element is written by some core, in order.
    starts = [block.bindings["output"].base_bytes for block in plan.blocks]
    assert starts[0] == 0
    assert all(a < b for a, b in pairwise(starts))
    return plan


@st.composite
def group_plans(draw: st.DrawFn) -> Tiled:
    rows, columns = draw(sizes())
    columns += -columns % 8
    x_type, scale_type = (draw(st.sampled_from(("float32", "float16", "bfloat16"))) for _ in "12")
    groups = draw(st.sampled_from((1, 3, 255, 256, 257, 700)))
    ends = TensorSpec((groups,), draw(st.sampled_from(("int32", "int64"))))
    x, scale = (
        TensorSpec((min(rows, 300), columns), x_type),
        TensorSpec((groups, columns), scale_type),
    )
    offset = TensorSpec((1,), scale_type) if draw(st.booleans()) else None
    more = {"offset": offset, "dst_dtype": draw(st.sampled_from(("int8", "quint4x2")))}
    return tiled("npu_group_quant", draw(NEW_CHIPS), x, scale, ends, **more)


@st.composite
def dynamic_plans(draw: st.DrawFn) -> Tiled:
    """Without smooth scales, with one row of them, and with one for each group; and on 310P."""
    if draw(st.integers(0, 2)) == 0:
        shape = draw(st.integers(1, 3000)), 32 * draw(st.integers(1, 160) | st.integers(1, 1000))
        device = draw(st.sampled_from(("ascend310p3", "ascend310p1")))
        return tiled("npu_dynamic_quant", device, TensorSpec(shape, "float16"))
    usual = st.sampled_from((4096, 5120, 10240, 128, 136, 12736))
    rows, columns = draw(sizes() | st.tuples(st.integers(1, 400), usual))
    dtype, groups = draw(st.sampled_from(("float16", "bfloat16"))), draw(GROUPS)
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more, columns = {"dst_type": "quint4x2"}, columns + -columns % 8
    if groups is not None:
        more["smooth_scales"] = TensorSpec((*([groups] if groups else []), columns), dtype)
    if groups:
        more["group_index"] = TensorSpec((groups,), "int32")
    x = TensorSpec((rows, columns), dtype)
    return tiled("npu_dynamic_quant", draw(NEW_CHIPS), x, **more)


@st.composite
def word_plans(draw: st.DrawFn) -> Tiled:
    scale = TensorSpec((draw(st.integers(1, 100000)),), "float32")
    offset = draw(st.sampled_from((scale, None)))
    return tiled("npu_trans_quant_param", draw(CHIPS), scale, offset, draw(st.integers(0, 1)))


CHIPS, NEW_CHIPS = st.sampled_from(devices.names()), st.sampled_from(A2 + A3)
GROUPS = st.sampled_from((None, 0, 1, 7, 1024))
PLANS = {
    "npu_quantize": quantize_plans,
    "npu_group_quant": group_plans,
    "npu_dynamic_quant": dynamic_plans,
    "npu_trans_quant_param": word_plans,
}


@pytest.mark.parametrize("op", PLANS)
@draws(60)
@given(data=st.data())
def test_every_plan_fits(op: str, data: st.DataObject) -> None:
    assert_fits(data.draw(PLANS[op]()))


def test_dynamic_quant_on_310p_deals_out_patches(subtests: pytest.Subtests) -> None:
    """Eight AI cores, all of them started; the last one takes the rows that are left."""
    for shape, template, patch, rows in [
        # As many rows as the buffer holds, where each core has more than that.
        ((16000, 32), "unaligned", 192, {0: 2112, 3: 1920, 7: 1920 + 64}),
        ((15360, 64), "aligned", 192, {0: 1920, 7: 1920}),
        ((8 * 136 * 3, 256), "aligned", 136, {0: 408, 7: 408}),
        ((8 * 64 * 2, 512), "aligned", 64, {0: 128, 7: 128}),
        ((8 * 48, 1024), "aligned", 48, {0: 48, 7: 48}),
        ((8 * 24, 2048), "aligned", 24, {0: 24, 7: 24}),
        ((8 * 16, 4096), "aligned", 8, {0: 16, 7: 16}),
        # No more than a core needs, in steps of eight.
        ((8, 1024), "aligned", 8, {0: 8, 1: 0, 7: 0}),
        ((3, 1024), "unaligned", 8, {0: 0, 7: 3}),
        ((100, 512), "unaligned", 16, {0: 16, 5: 16, 6: 0, 7: 4}),
        # Long rows in eights.
        ((20, 4128), "unaligned_large", 8, {0: 8, 1: 8, 2: 0, 7: 4}),
    ]:
        with subtests.test(shape=shape):
            plan = tiled("npu_dynamic_quant", "ascend310p3", TensorSpec(shape, "float16")).plan
            assert (plan.template, plan.row_step) == (template, patch)
            assert (plan.block_dim, len(plan.rows_of_core), plan.depth) == (8, 8, 2)
            assert sum(plan.rows_of_core) == shape[0]
            assert {core: plan.rows_of_core[core] for core in rows} == rows
            assert plan.column_step == min(shape[1], 4096)


def test_dynamic_quant_with_groups(subtests: pytest.Subtests) -> None:
    for shape, groups, template, piece in [
        ((128, 1024), 8, "moe", 3), ((960, 1024), 8, "moe", 11), ((128, 15000), 8, "moe_large", 1),
        ((9600, 16), 4, "moe", 200), ((48 * 300, 16), 4, "moe", 255), ((5, 11488), 1, "moe", 1),
        ((5, 11488), 64, "moe_large", 1),
    ]:  # fmt: skip
        with subtests.test(shape=shape):
            x, index = TensorSpec(shape, "bfloat16"), TensorSpec((groups,), "int32")
            smooth = TensorSpec((groups, shape[1]), "bfloat16")
            more = {"smooth_scales": smooth, "group_index": index}
            plan = tiled("npu_dynamic_quant", "ascend910b2", x, **more).plan
            assert (plan.template, plan.row_step) == (template, piece)
            assert plan.block_dim == min(48, shape[0])


def test_int4_leaves_out_the_template_single_row() -> None:
    for rows, columns in ((4, 4096), (384, 5120)):
        x = TensorSpec((rows, columns), "float16")
        plan = tiled("npu_dynamic_quant", "ascend910b2", x, dst_type="quint4x2").plan
        assert plan.template == "multi_row"
