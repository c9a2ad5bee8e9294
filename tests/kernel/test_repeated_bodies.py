"""What a key of `Builder.call` forgets: no body is reused where it would be written otherwise.

Every call is built twice, once as it is and once with each body written anew, also where one of
its key is known. Both must give the same micro-ops for every block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from attention_calls import OP as FUSED_ATTENTION
from attention_calls import attention_call, specs_of
from attention_layouts import layout_call
from tiny import fewer_cores
from weight_calls import HALF, Kind, weight_call

from npusim import TensorSpec, devices, ops
from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Load, Local
from npusim.kernel.builder import Builder
from npusim.kernel.matmul import Matmul
from npusim.kernel.program import Block, Body, Program
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.oracle import TEMPLATES

SPLIT = fewer_cores("ascend910b2", aic=2, aiv=4)
"""So few cores that each has several pieces of small tensors."""
COUPLED = fewer_cores("ascend310p3", ai_core=2)
BF16: Any = TensorSpec((1,), "bfloat16").element.numpy


def spec(dtype: str, *shape: int, layout: str = "ND", turned: bool = False) -> TensorSpec:
    found = TensorSpec(shape, dtype, layout)
    return found.T if turned else found


Case = tuple[str, DeviceSpec, dict[str, Any]]

MATMULS: list[Case] = [
    ("matmul", SPLIT, {"x1": spec("float16", 3, 200, 96), "x2": spec("float16", 96, 700)}),
    (
        "matmul", SPLIT,
        {"x1": spec("bfloat16", 80, 300, turned=True), "x2": spec("bfloat16", 600, 80, turned=True),
         "bias": spec("float32", 600)},
    ),
    (
        "matmul", COUPLED,
        {"x1": spec("float16", 200, 80), "x2": spec("float16", 80, 520),
         "bias": spec("float16", 520)},
    ),
    ("matmul", COUPLED, {"x1": spec("float16", 2, 70, 40), "x2": spec("float16", 2, 40, 300)}),
]  # fmt: skip
QUANT_MATMULS: list[Case] = [
    (
        "npu_quant_matmul", chip,
        {"x1": spec("int8", *batch, 300, 128), "x2": spec("int8", 128, 1000, layout=layout),
         "scale": spec(kind, count), "bias": spec("int32", 1000), "output_dtype": target},
    )
    for chip, batch, layout, kind, count, target in (
        (SPLIT, (), "ND", "float32", 1, "int8"),
        (SPLIT, (2,), "FRACTAL_NZ", "float32", 1000, "float16"),
        (SPLIT, (3,), "ND", "bfloat16", 1000, "bfloat16"),
        (SPLIT, (), "ND", "float32", 1, "bfloat16"),
        (COUPLED, (), "ND", "float32", 1000, "int8"),
        (COUPLED, (2,), "ND", "float32", 1, "float16"),
    )
]  # fmt: skip
QUANT_MATMULS += [
    (
        "npu_quant_matmul", SPLIT,
        {"x1": spec("int8", 300, 64), "x2": spec("int8", 64, 1000), "scale": spec("float32", 1000),
         "pertoken_scale": spec("float32", 300), "output_dtype": "float16", "bias": bias},
    )
    for bias in (None, spec("float16", 1000), spec("int32", 1000))
]  # fmt: skip
DYNAMIC: list[Case] = [
    ("npu_dynamic_quant", SPLIT, {"x": x, "smooth_scales": smooth})
    for x in (
        spec("float16", 100, 4096), spec("bfloat16", 3000, 136), spec("float16", 43, 15000),
        spec("bfloat16", 9, 17001), spec("float16", 9, 20000),
    )
    for smooth in (None, spec(x.dtype, x.shape[-1]))
]  # fmt: skip
DYNAMIC.append(("npu_dynamic_quant", COUPLED, {"x": spec("float16", 200, 9984)}))
QUANTIZE: list[Case] = [
    (
        "npu_quantize", chip,
        {"input": spec("float16", *shape), "scales": spec(dtype, count), "zero_points": None,
         "dtype": "qint8", "axis": axis, "div_mode": div_mode},
    )
    for chip, shape, dtype, count, axis, div_mode in (
        (SPLIT, (90, 20000), "float16", 20000, -1, False),
        (SPLIT, (90000, 7), "float32", 1, -1, True),
        (SPLIT, (9000, 33), "float32", 9000, 0, True),
        (COUPLED, (9000, 12), "float16", 12, -1, False),
    )
]  # fmt: skip
ANTI_QUANT: list[Case] = [
    ("npu_anti_quant", SPLIT, {"x": spec("int8", 900, 40), "scale": spec("float32", 40)}),
    ("npu_anti_quant", COUPLED, {"x": spec("int8", 900, 40), "scale": spec("float32", 1)}),
]
SWIGLU: list[Case] = [
    ("npu_swiglu", chip, {"x": spec(dtype, *shape)})
    for chip, dtype, shape in (
        (SPLIT, "float16", (100, 30000)), (SPLIT, "bfloat16", (5000, 34)),
        (SPLIT, "float32", (33, 9001 * 2)), (COUPLED, "float16", (3000, 320)),
    )
]  # fmt: skip
GROUPS: list[Case] = [
    (
        "npu_group_quant", SPLIT,
        {"x": spec("float16", rows, columns), "scale": spec(dtype, groups, columns),
         "group_index": spec("int32", groups), "offset": offset, "dst_dtype": "int8"},
    )
    for rows, columns, dtype, groups, offset in (
        (800, 64, "float32", 3, spec("float32", 1)),
        (1000, 1001, "float16", 70, None),
        (300, 16500, "float16", 40, None),
    )
]  # fmt: skip
FORMATS: list[Case] = [
    ("npu_format_cast", chip, {"x": x, "acl_format": to})
    for chip in (SPLIT, COUPLED)
    for x, to in (
        (spec("int8", 5, 800, 4000), 29),
        (spec("float16", 700, 6001), 29),
        (spec("int8", 3000, 6000, layout="FRACTAL_NZ"), 2),
    )
]
RNG = np.random.default_rng(0)
ATTENTION: list[Case] = [
    (FUSED_ATTENTION, SPLIT, specs_of(call))
    for call in (
        attention_call(RNG, (200, 5, 1), (900, 5, 700), (4, 2), 64, np.float16, 48),
        attention_call(RNG, (3, 1), (1500, 2100), (4, 2), 256, np.float16, 128, template="FAI-FD"),
        layout_call(RNG, "NTD", ((70, 3), (1100, 30)), (4, 2), 64, np.float16, sparse_mode=3)[0],
        layout_call(RNG, "BSH", ((1, 1), (9000, 20)), (8, 2), 64, np.float16, block_size=128)[0],
        {
            "query": np.ones((3, 1, 256), np.float16), "num_heads": 8, "num_key_value_heads": 4,
            "key": np.ones((3, 700, 128), np.int8), "value": np.ones((3, 700, 128), np.int8),
            "antiquant_scale": np.ones(2, np.float16), "actual_seq_lengths_kv": [700, 650, 33],
        },
    )
]  # fmt: skip
WEIGHTS: list[tuple[DeviceSpec, tuple[int, int, int], Kind, dict[str, Any]]] = [
    (SPLIT, (16, 128, 600), Kind(layout="NDT", bias=True, offset=True), {}),
    (SPLIT, (16, 128, 640), Kind(), {}),
    (SPLIT, (36, 8192, 1280), Kind(layout="NDT", offset=True), {}),
    (SPLIT, (64, 160, 544), Kind(BF16, layout="NDT", bias=True), {}),
    (SPLIT, (7, 96, 160), Kind(weight="int4", layout="NDT", bias=True), {}),
    (SPLIT, (9, 256, 1024), Kind(BF16, layout="NZ", offset=True), {}),
    (SPLIT, (4, 256, 1088), Kind(BF16, "int4", size=64, offset=True), {}),
    (SPLIT, (4, 256, 1088), Kind(BF16, "int4", size=64, bias=True), {"inner_precise": 1}),
    (SPLIT, (1, 384, 1024), Kind(weight="int8", size=64, offset=True), {"inner_precise": 1}),
    (SPLIT, (16, 256, 1088), Kind(BF16, "int4", size=128, offset=True), {"template": "msd"}),
    (SPLIT, (2, 384, 192), Kind(HALF, "int4", size=128, bias=True), {"template": "msd"}),
    (SPLIT, (24, 256, 640), Kind(BF16, size=64, offset=True), {"template": "split_k"}),
    (SPLIT, (80, 192, 640), Kind(layout="NZT", offset=True), {"template": "nz_splitk"}),
    (SPLIT, (200, 192, 600), Kind(BF16, layout="NZT"), {"template": "nz_splitk"}),
    (SPLIT, (200, 100, 600), Kind(weight="int4", offset=True, quant=600), {}),
    (SPLIT, (300, 96, 640), Kind(layout="NZ", bias=True), {"template": "custom"}),
    (SPLIT, (100, 96, 700), Kind(layout="NDT", single=True, bias=True, quant=1), {}),
    (COUPLED, (300, 200, 3000), Kind(layout="NDT", offset=True, bias=True), {}),
    (COUPLED, (17, 144, 4000), Kind(), {}),
]
FIXPIPE: Case = (
    "npu_weight_quant_batchmatmul", SPLIT,
    {"x": spec("float16", 90, 640), "weight": spec("int8", 1024, 640).T,
     "antiquant_scale": spec("int64", 1024), "antiquant_offset": spec("int32", 1024),
     "bias": spec("float16", 1024)},
)  # fmt: skip
UNROLLED: list[Case] = [("npu_trans_quant_param", SPLIT, {"scale": spec("float32", 9000)})]
"""These write no calls: there is nothing to be forgotten."""


LONG_K: list[Case] = [
    ("matmul", chip, {"x1": x1, "x2": x2})
    for chip, x1, x2 in (
        (SPLIT, spec("bfloat16", 300, 4100), spec("bfloat16", 4100, 600)),
        (SPLIT, spec("float16", 3000, 300, turned=True),
         spec("float16", 3000, 600, layout="FRACTAL_NZ")),
        (COUPLED, spec("float16", 300, 2500), spec("float16", 2500, 600, layout="FRACTAL_NZ")),
        (COUPLED, spec("float16", 200, 3000), spec("float16", 3000, 300)),
    )
] + [
    (
        "npu_quant_matmul", SPLIT,
        {"x1": spec("int8", m, k), "x2": spec("int8", k, n), "scale": spec("float32", 1),
         "output_dtype": target, "bias": bias},
    )
    for m, k, n, target, bias in (
        (900, 8000, 800, "int8", spec("int32", 800)),
        (900, 8192, 800, "int8", None),
        (700, 5000, 1300, "bfloat16", None),
    )
]  # fmt: skip
"""Whose products have several turns, in the body of a block."""


def weights() -> list[Case]:
    rng = np.random.default_rng(0)
    op = "npu_weight_quant_batchmatmul"
    return [
        (op, chip, weight_call(rng, *shape, kind) | more) for chip, shape, kind, more in WEIGHTS
    ] + [FIXPIPE]


CASES = [
    *(
        *MATMULS,
        *LONG_K,
        *QUANT_MATMULS,
        *DYNAMIC,
        *QUANTIZE,
        *ANTI_QUANT,
        *SWIGLU,
        *GROUPS,
        *FORMATS,
        *ATTENTION,
    ),
    *weights(),
]


def blocks_of(op: str, chip: DeviceSpec, arguments: dict[str, Any]) -> tuple[Block, ...]:
    operator = ops.load(op)
    problem = operator.check(chip, **arguments)
    plan = operator.tile(chip, problem)
    return operator.build(chip, problem, plan)


@contextmanager
def every_body_written_anew() -> Iterator[None]:
    """Let builders forget the bodies that they know before each call, and steps what is alike."""
    plain = Builder.body

    def anew(
        self: Builder, key: Hashable, write: Callable[[], None], *, is_whole: bool = True
    ) -> Body:
        self._bodies.clear()
        return plain(self, key, write, is_whole=is_whole)

    each = property(lambda step: np.arange(step.core.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "body", anew)
        patch.setattr(Step, "shape", each)
        patch.setattr(Step, "examples", each)
        yield


def same_programs(write: Callable[[], list[Program]]) -> bool:
    """Whether *write* gives the same micro-ops with bodies that are reused and with new ones."""
    reused = write()
    with every_body_written_anew():
        anew = write()
    return [program.ops for program in reused] == [program.ops for program in anew]


def repeats(blocks: tuple[Block, ...]) -> int:
    """How many calls reuse a body, of the same program or another one."""
    calls = [call for program in {block.program for block in blocks} for call in program.calls]
    return len(calls) - len({call.body for call in calls})


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_bodies_are_reused_only_where_they_are_the_same(case: Case) -> None:
    assert repeats(blocks_of(*case)) > 0
    assert same_programs(lambda: [block.program for block in blocks_of(*case)])


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", LONG_K, ids=lambda case: case[0])
def test_turns_are_a_loop_over_k(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of(*case)
    bodies = {body for block in blocks for body in block.program.bodies}
    called = [call.body for body in bodies for call in body.calls]
    assert len(called) > len(set(called))
    monkeypatch.setattr(Matmul, "_turns", lambda _, first_k, k: [(first_k, k)])
    for block, plain in zip(blocks, blocks_of(*case), strict=True):
        assert not any(body.calls for body in plain.program.bodies)
        assert block.program.ops == plain.program.ops


@pytest.mark.parametrize("case", UNROLLED, ids=lambda case: case[0])
def test_some_kernels_are_written_out(case: Case) -> None:
    assert repeats(blocks_of(*case)) == 0


def test_every_kernel_for_weights_is_among_them() -> None:
    found = set()
    for op, chip, arguments in weights():
        operator = ops.load(op)
        plan = operator.tile(chip, operator.check(chip, **arguments))
        found.add((plan.template, plan.form))
    assert found == set(TEMPLATES)


def forgetful(tiny: DeviceSpec, sizes: tuple[int, ...], *, is_told: bool) -> list[Program]:
    """Loads of these *sizes*; the key distinguishes them, or does not."""
    builder = Builder("forgetful", tiny.cores["aiv"], tiny.sync)
    for size in sizes:
        load = Load(Local("ub", 0, FLOAT32, size), GmView.vector("x", FLOAT32, size).operand)
        key = ("load", size) if is_told else "load"
        builder.call(key, {}, lambda load=load: builder.emit(load))  # type: ignore[misc]
    return [builder.build()]


def test_a_key_that_forgets_a_size_is_seen(tiny: DeviceSpec) -> None:
    assert same_programs(lambda: forgetful(tiny, (8, 4, 8), is_told=True))
    assert not same_programs(lambda: forgetful(tiny, (8, 4, 8), is_told=False))


def test_a_stage_that_depends_on_what_another_left_behind_is_seen(tiny: DeviceSpec) -> None:
    def write() -> list[Program]:
        builder = Builder("leaves", tiny.cores["aiv"], tiny.sync)
        left = []

        def leave(size: int) -> None:
            left.append(size)
            builder.barrier("vector")

        def use(x: GmView) -> None:
            builder.emit(Load(Local("ub", 0, FLOAT16, left[-1]), x.operand))

        x = GmView.of("x", FLOAT16, 4, 16)
        for row, size in enumerate((16, 8, 16)):
            repeat(builder, leave, size)
            repeat(builder, use, x[row : row + 1, :])
        return [builder.build()]

    assert not same_programs(write)


def test_views_in_tuples_move_the_call(tiny: DeviceSpec) -> None:
    builder = Builder("tuples", tiny.cores["aiv"], tiny.sync)
    x, y = (GmView.of(name, FLOAT16, 8, 16) for name in "xy")

    def stage(parts: tuple[tuple[int, GmView], ...], other: GmView) -> None:
        for size, part in parts:
            builder.emit(Load(Local("ub", 0, FLOAT16, size), part.operand))
        builder.emit(Load(Local("ub", 0, FLOAT16, 16), other.operand))

    for row in (0, 4):
        views = ((16, x[row : row + 1, :]), (8, x[row + 2 : row + 3, :8]))
        repeat(builder, stage, views, y[row : row + 1, :])
    program = builder.build()
    first, second, _ = program.calls
    assert first.body is second.body
    assert (first.shifts, second.shifts) == ({"x": 0, "y": 0}, {"x": 128, "y": 128})
    places = [op.src.offset_bytes for op in program.ops if isinstance(op, Load)]
    assert places == [0, 64, 0, 128, 192, 128]


def drawn(rng: np.random.Generator) -> Case:
    """A product of any size on one of the chips."""
    m, k, n = (int(np.exp(rng.uniform(0, np.log(most)))) for most in (600, 900, 2500))
    chip = (SPLIT, COUPLED)[rng.integers(2)]
    if rng.integers(2):
        x2 = spec("float16", n, k).T if rng.integers(2) else spec("float16", k, n)
        return "matmul", chip, {"x1": spec("float16", m, k), "x2": x2}
    x2 = spec("int8", n, k).T if rng.integers(2) else spec("int8", k, n)
    call = {"x1": spec("int8", m, k), "x2": x2, "scale": spec("float32", n)}
    target = ("int8", "float16")[rng.integers(2)] if chip is COUPLED else "bfloat16"
    if target == "bfloat16" and rng.integers(2):
        call["pertoken_scale"] = spec("float32", m)
    return "npu_quant_matmul", chip, {**call, "output_dtype": target}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30))
def test_bodies_of_any_product_are_the_same(seed: int) -> None:
    case = drawn(np.random.default_rng(seed))
    assert same_programs(lambda: [block.program for block in blocks_of(*case)])


ON_EVERY_CHIP = [
    (name, case)
    for case in (*MATMULS, *DYNAMIC, *FORMATS)
    for name in devices.names()
    if (devices.load(name).arch == "2002") == (case[1] is COUPLED)
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "case"), ON_EVERY_CHIP, ids=[f"{case[0]}-{name}" for name, case in ON_EVERY_CHIP]
)
def test_bodies_are_the_same_on_every_chip(name: str, case: Case) -> None:
    op, _, arguments = case
    assert same_programs(
        lambda: [block.program for block in blocks_of(op, devices.load(name), arguments)]
    )
