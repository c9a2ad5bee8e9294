"""matmul and npu_quant_matmul in tiles: the bits of the reference, however a product is cut."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from matrix_calls import (
    CHIPS,
    COUPLED,
    SPLIT,
    bytes_,
    described,
    gm_matrix,
    halves,
    matmul_calls,
    quant_matmul_calls,
    turned,
)
from op_calls import BF16, DrawnCall, assert_as_reference, assert_same
from tiny import fewer_cores

from npusim import TensorSpec, run

MATMUL, QUANT = "matmul", "npu_quant_matmul"
KINDS = [
    *[(MATMUL, "float16"), (MATMUL, "bfloat16"), (QUANT, "int8"), (QUANT, "float16")],
    *[(QUANT, "bfloat16"), (QUANT, "int32")],
]
COMMON = [(MATMUL, "float16"), (QUANT, "int8"), (QUANT, "float16")]
"""Those that 310P has too."""
EACH = [
    case for kind in KINDS for case in every(CHIPS if kind in COMMON else SPLIT, *kind)
]  # chip, operator and type of the output


def operands(
    rng: np.random.Generator, op: str, output: str, a: tuple[int, ...], b: tuple[int, ...]
) -> tuple[Any, Any, dict[str, Any]]:
    """x1 and x2 of these shapes, and what the operator needs more."""
    if op == MATMUL:
        kind = BF16 if output == "bfloat16" else np.float16
        return halves(rng, a, kind), halves(rng, b, kind), {}
    scale = rng.normal(0, 1e-2, b[-1]).astype(np.float32)
    return bytes_(rng, *a), bytes_(rng, *b), {"scale": scale, "output_dtype": output}


# ---- where tiles end ----

SIZES = (
    *((1, 1, 1), (16, 16, 16), (17, 33, 15), (15, 300, 130), (130, 47, 300), (300, 130, 33)),
    (33, 65, 129),
)


@pytest.mark.sample(6)
@pytest.mark.parametrize(("device", "op", "output"), EACH)
def test_every_edge_may_be_ragged(
    rng: np.random.Generator, device: str, op: str, output: str, subtests: pytest.Subtests
) -> None:
    for m, k, n in SIZES:
        with subtests.test(m=m, k=k, n=n):
            x1, x2, more = operands(rng, op, output, (m, k), (k, n))
            assert_as_reference(op, x1, x2, device=device, **more)


@pytest.mark.parametrize(("op", "output"), KINDS)
def test_one_core_makes_many_blocks(rng: np.random.Generator, op: str, output: str) -> None:
    """Places in the workspace are used again and again."""
    m, k, n = (400, 90, 530) if op == MATMUL else (40, 256, 1100)
    for chip in (SPLIT[0], COUPLED) if (op, output) in COMMON else SPLIT[:1]:
        one = fewer_cores(chip, aic=1, aiv=2) if chip in SPLIT else fewer_cores(chip, ai_core=1)
        x1, x2, more = operands(rng, op, output, (m, k), (k, n))
        assert_as_reference(op, x1, x2, device=one, **more)
        if op == QUANT and chip in SPLIT:
            fractals = gm_matrix(x2, is_turned=False, layout="FRACTAL_NZ")
            assert_as_reference(op, x1, fractals, device=one, **more)
        if op == QUANT and output in ("float16", "bfloat16") and chip in SPLIT:
            token = np.ones(m, np.float32)
            assert_as_reference(op, x1, x2, device=one, pertoken_scale=token, **more)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("batch", "m", "n"),
    [
        *(((), 704, 1), ((), 704, 17), ((3,), 704, 75), ((3,), 947, 99), ((), 1792, 170)),
        *(((2,), 640, 195), ((), 574, 5), ((), 574, 64), ((), 16, 32), ((), 512, 143)),
        *(((), 300, 645), ((), 2, 1024), ((), 40, 48)),
    ],
)
def test_310p_stores_no_piece_below_a_block(
    rng: np.random.Generator, batch: tuple[int, ...], m: int, n: int
) -> None:
    """Columns that leave a rest below 32 bytes where L0C or the unified buffer cuts a block."""
    for op, output in COMMON:
        x1, x2, more = operands(rng, op, output, (m, 11), (*batch, 11, n))
        assert_as_reference(op, x1, turned(x2), device=COUPLED, **more)


# ---- how the matrices lie ----

BATCHES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)), ((3, 1), (2,)), ((2,), ()), ((), (2,)), ((1, 2), (2, 1)), ((30,), ()),
]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize(("device", "op", "output"), EACH)
def test_batches_broadcast(
    rng: np.random.Generator, device: str, op: str, output: str, subtests: pytest.Subtests
) -> None:
    for of_a, of_b in BATCHES:
        with subtests.test(of_a=of_a, of_b=of_b):
            x1, x2, more = operands(rng, op, output, (*of_a, 18, 40), (*of_b, 40, 35))
            if op == QUANT:
                batch = np.broadcast_shapes(of_a, of_b)
                shape = (35,) if len(batch) > 1 else (*batch, 1, 35)
                more["bias"] = rng.integers(-9999, 9999, shape).astype(np.int32)
            assert_as_reference(op, x1, turned(x2), device=device, **more)


@pytest.mark.sample(5)
@pytest.mark.parametrize(("device", "op", "output"), EACH)
def test_matrices_may_lie_in_any_way(
    rng: np.random.Generator, device: str, op: str, output: str
) -> None:
    a, b, more = operands(rng, op, output, (50, 210), (210, 70))
    plain = assert_as_reference(op, a, b, device=device, **more).output
    for x1, layout, is_turned in product((a, turned(a)), ("ND", "FRACTAL_NZ"), (False, True)):
        if op == QUANT and device == COUPLED and layout != "ND" and not is_turned:
            continue
        x2 = gm_matrix(b, is_turned, layout)
        assert_same(assert_as_reference(op, x1, x2, device=device, **more).output, plain)


# ---- switches ----


@pytest.mark.sample(6)
@pytest.mark.parametrize(("device", "op", "output"), EACH)
def test_switches_change_neither_values_nor_times(
    rng: np.random.Generator, device: str, op: str, output: str
) -> None:
    x1, x2, more = operands(rng, op, output, (2, 70, 130), (130, 290))
    call: dict[str, Any] = {"device": device, **more}
    whole = run(op, x1, turned(x2), **call)
    byte_exact = run(op, x1, turned(x2), byte_exact=True, every_core=True, **call)
    assert_same(byte_exact.output, whole.output)
    bare = {name: described(value) for name, value in call.items()}
    shapes = run(op, described(x1), described(turned(x2)), **bare)
    assert shapes.output == TensorSpec((2, 70, 290), output)
    assert whole.trace is not None
    for other in (byte_exact, shapes):
        assert other.trace is not None
        assert other.trace.to_text() == whole.trace.to_text()


# ---- anything ----

ANY = {MATMUL: matmul_calls, QUANT: quant_matmul_calls}


@pytest.mark.parametrize("op", ANY)
@draws(90)
@given(data=st.data())
def test_any_call(op: str, data: st.DataObject) -> None:
    call: DrawnCall = data.draw(ANY[op]())
    assert_as_reference(op, *call.args, device=call.device, **call.kwargs)


@pytest.mark.nightly
@pytest.mark.parametrize("op", ANY)
@pytest.mark.parametrize("byte_exact", [False, True])
@draws(100)
@given(data=st.data(), order=st.sampled_from(("k16", "k8", "k4", "k1")))
def test_any_larger_call(op: str, byte_exact: bool, data: st.DataObject, order: str) -> None:
    call: DrawnCall = data.draw(ANY[op](500))
    more = call.kwargs | ({"cube_order": order} if op == MATMUL else {})
    assert_as_reference(op, *call.args, device=call.device, byte_exact=byte_exact, **more)
