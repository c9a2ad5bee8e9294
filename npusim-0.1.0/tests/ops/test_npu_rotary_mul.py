"""npu_rotary_mul: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, NEW, OLD, Row, assert_as_reference, assert_same, constraints

from npusim import Code, TensorSpec, ops, run

OP = "npu_rotary_mul"
A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"


def rotary_mul(x: Any, cos: Any, sin: Any, device: str = A2) -> Any:
    return run(OP, x, cos, sin, device=device, timing=False).output


# ---- values ----


def bf16(*words: int) -> Any:
    return np.array(words, np.uint16).view(BF16).reshape(1, 1, 1, -1)


def test_a_vector_worked_out_apart() -> None:
    x = bf16(0x3F80, 0xC020, 0x3EAB, 0x40E0, 0x3F81, 0xBBE5, 0x4053, 0x42C8)
    cos = bf16(*[0x3F75, 0x3F0A, 0xBE04, 0xBF3D] * 2)
    sin = bf16(*[0x3E97, 0x3F57, 0x3F7E, 0x3F2D] * 2)
    y = rotary_mul(x, cos, sin)
    words = [f"{word:04x}" for word in y.view(np.uint16).ravel()]
    assert words == ["3f29", "bfac", "c054", "c291", "3fa1", "c007", "bdc0", "c28a"]


def test_float16_is_calculated_in_float16_on_atlas_inference() -> None:
    """The same vector, its halves apart in one of 64, is turned by each product line's kernel."""
    words = {
        "x": [0x3C00, 0xC100, 0x3555, 0x4700, 0x3C0A, 0x9F2B, 0x429A, 0x5640],
        "cos": [0x3BA5, 0x3853, 0xB01F, 0xB9E6] * 2,
        "sin": [0x34BA, 0x3ABB, 0x3BEF, 0x3967] * 2,
    }
    places = [0, 1, 2, 3, 32, 33, 34, 35]
    tensors = []
    for each in words.values():
        tensors.append(np.zeros((1, 1, 1, 64), np.float16))
        tensors[-1][..., places] = np.array(each, np.uint16).view(np.float16)
    found = {
        device: [f"{word:04x}" for word in rotary_mul(*tensors, device).view(np.uint16)[0, 0, 0]]
        for device in (A2, INFERENCE)
    }
    # Worked out apart: in float32 with one rounding, and with one for each step.
    turned = {
        A2: ["3942", "bd62", "c2a2", "d48b", "3d0b", "c037", "ae0e", "d450"],
        INFERENCE: ["3942", "bd62", "c2a2", "d48b", "3d0a", "c037", "ae0c", "d450"],
    }
    assert {device: [row[place] for place in places] for device, row in found.items()} == turned


def test_atlas_inference_has_no_infinities_in_float16() -> None:
    x, cos, sin = (np.full((1, 1, 1, 64), each, np.float16) for each in (300, 300, 0))
    x[..., 1] = np.nan
    y = rotary_mul(x, cos, sin, INFERENCE).ravel()
    assert (y[0], y[1], y[33]) == (65504, 0, 65504)


def test_the_halves_of_cosines_and_sines_may_differ() -> None:
    x, cos, sin = (np.float32([[[row]]]) for row in ([3, 5], [2, 7], [1, 4]))
    # 3 * 2 - 5 * 1, 5 * 7 + 3 * 4
    assert rotary_mul(x, cos, sin).ravel().tolist() == [1, 47]


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_turning_keeps_lengths_as_well_as_the_vendor_asks(dtype: Any) -> None:
    """Against float64, within the tolerance of torch_npu's own test of the operator."""
    rng = np.random.default_rng(1)
    x, angle = rng.standard_normal((2, 4, 9, 128)), rng.uniform(-7, 7, (1, 1, 9, 64))
    angles = np.concatenate((angle, angle), axis=-1)
    x, cos, sin = (each.astype(dtype) for each in (x, np.cos(angles), np.sin(angles)))
    y = rotary_mul(x, cos, sin).astype(np.float64)
    wide = [each.astype(np.float64) for each in (x, cos, sin)]
    exact = wide[0] * wide[1] + np.roll(wide[0], 64, -1) * wide[2] * np.repeat([-1.0, 1.0], 64)
    tolerance = {np.float16: 1e-3, BF16: 4e-3, np.float32: 1e-4}[dtype]
    assert np.all(np.abs(y - exact) <= tolerance * (1 + np.abs(exact)))


LAYOUTS = st.sampled_from([
    "11SD", "B1SD", "1S1D", "BS1D", "S11D", "T1D", "as x", "one line",
])  # fmt: skip


def shapes(layout: str, a: int, b: int, c: int, width: int) -> tuple[Any, Any]:
    """Shapes of x and of r1."""
    if layout == "T1D":
        return (a, b, width), (a, 1, width)
    lines = {
        "11SD": (1, 1, c), "B1SD": (a, 1, c), "1S1D": (1, b, 1), "BS1D": (a, b, 1),
        "S11D": (a, 1, 1), "as x": (a, b, c), "one line": (1, 1, 1),
    }  # fmt: skip
    return (a, b, c, width), (*lines[layout], width)


@draws(40)
@given(
    device=st.sampled_from([A2, A3]),
    layout=LAYOUTS,
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 7, 50])] * 3),
    half=st.sampled_from([1, 3, 8, 16, 20, 64, 72, 448]),
    dtype=st.sampled_from([np.float16, BF16, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str, layout: str, sizes: tuple[int, int, int], half: int, dtype: Any, seed: int
) -> None:
    a, b, c = sizes
    c = min(c, 2) if a * b > 400 else c
    x_shape, r_shape = shapes(layout, a, b, c, 2 * half)
    rng = np.random.default_rng(seed)
    x, cos, sin = (
        (rng.standard_normal(shape) * 10).astype(dtype) for shape in (x_shape, r_shape, r_shape)
    )
    for array in (x, cos):
        array.reshape(-1)[:: max(1, array.size // 5)] = np.array(
            [np.nan, np.inf, -np.inf, -0.0, 6e4][seed % 5], dtype
        )
    assert_same(rotary_mul(x, cos, sin, device), ops.load(OP).reference(x, cos, sin))


@draws(30)
@given(
    layout=st.sampled_from(["11SD", "B1SD", "1S1D", "BS1D", "S11D", "as x", "one line"]),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 7, 50, 300])] * 3),
    width=st.sampled_from([64, 128, 192, 448, 896]),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_of_atlas_inference_equals_the_reference(
    layout: str, sizes: tuple[int, int, int], width: int, dtype: Any, seed: int
) -> None:
    a, b, c = sizes
    a, b = (min(a, 7), min(b, 7)) if a * b * c > 5000 else (a, b)
    x_shape, r_shape = shapes(layout, a, b, c, width)
    rng = np.random.default_rng(seed)
    x, cos, sin = (
        (rng.standard_normal(shape) * 10).astype(dtype) for shape in (x_shape, r_shape, r_shape)
    )
    for array in (x, cos, sin):
        array.reshape(-1)[:: max(1, array.size // 5)] = np.array(
            [np.nan, np.inf, -np.inf, -0.0, 6e4][seed % 5], dtype
        )
    assert_as_reference(OP, x, cos, sin, device=INFERENCE)


@pytest.mark.parametrize(("device", "kernel"),
    [(A2, "RotaryPositionEmbedding"), (INFERENCE, "RotaryMul")])  # fmt: skip
def test_each_product_line_has_its_kernel(device: str, kernel: str) -> None:
    x = TensorSpec((1, 2, 40, 64), "float16")
    line = TensorSpec((1, 1, 40, 64), "float16")
    assert run(OP, x, line, line, device=device).kernel_type == kernel


def test_neighbours_turn_too() -> None:
    x, cos, sin = (np.float32([[[row]]]) for row in ([3, 5], [2, 7], [1, 4]))
    # 3 * 2 - 5 * 1, 5 * 7 + 3 * 4
    y = run(OP, x, cos, sin, rotary_mode="interleave", device=A2).output
    assert np.ravel(y).tolist() == [1, 47]


INTERLEAVED = {
    "split_s": ((7, 2, 3, 10), (7, 1, 1, 10)),
    "split_bs": ((20, 40, 1, 128), (1, 1, 1, 128)),
    "split_bsn": ((1, 3, 300, 300), (1, 3, 1, 300)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("template", INTERLEAVED)
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_each_template_of_interleave_equals_the_reference(template: str, dtype: Any) -> None:
    shapes = INTERLEAVED[template]
    rng = np.random.default_rng(2)
    x, cos, sin = (
        (rng.standard_normal(shape) * 10).astype(dtype)
        for shape in (shapes[0], shapes[1], shapes[1])
    )
    x.reshape(-1)[:3] = np.array([np.nan, np.inf, -0.0], dtype)
    for device in (A2, A3):
        found = assert_as_reference(OP, x, cos, sin, rotary_mode="interleave", device=device)
        assert found.template == template


@draws(25)
@given(
    layout=st.sampled_from(["11SD", "1S1D", "S11D", "T1D"]),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 7, 50])] * 3),
    half=st.sampled_from([1, 3, 8, 20, 64]),
    dtype=st.sampled_from([np.float16, BF16, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_of_interleave_equals_the_reference(
    layout: str, sizes: tuple[int, int, int], half: int, dtype: Any, seed: int
) -> None:
    a, b, c = sizes
    c = min(c, 2) if a * b > 400 else c
    x_shape, r_shape = shapes(layout, a, b, c, 2 * half)
    heads = a * b * c // max(r_shape[:-1])
    if heads >= 1000:
        return
    rng = np.random.default_rng(seed)
    x, cos, sin = (rng.standard_normal(shape) for shape in (x_shape, r_shape, r_shape))
    x, cos, sin = (each.astype(dtype) for each in (x, cos, sin))
    assert_as_reference(OP, x, cos, sin, rotary_mode="interleave", device=A2)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_float32_angles_are_cast_by_kernels_of_their_own(mode: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 5, 16)).astype(BF16)
    cos, sin = rng.standard_normal((2, 1, 1, 5, 16)).astype(np.float32)
    found = run(OP, x, cos, sin, rotary_mode=mode, device=A2)
    plain = run(OP, x, cos.astype(BF16), sin.astype(BF16), rotary_mode=mode, device=A2)
    assert_same(found.output, plain.output)
    assert (len(found.earlier), len(plain.earlier)) == (2, 0)
    assert all(each.time_us is not None and each.time_us > 1 for each in found.earlier)


# ---- what is refused ----


BASE = {"self": ones(2, 3, 5, 8), "r1": ones(1, 1, 5, 8), "r2": ones(1, 1, 5, 8)}
ON_64 = {"self": ones(2, 3, 5, 64), "r1": ones(1, 1, 5, 64), "r2": ones(1, 1, 5, 64)}
WIDE = {name: ones(1, 1, 1, 898) for name in BASE}
WIDEST = {name: ones(1, 1, 1, 896) for name in BASE}
CUT = "cut vectors into parts that turn by themselves"
FITS = (
    "r1 must have the last dimension of self and, of the others, 1 in place of those that turn "
    "alike, in a layout of the document, not shape {} for (2, 3, 5, 8); reshape it"
)

ROWS = [
    Row({"rotary_mode": "interleave", "r1": ones(2, 1, 5, 8), "r2": ones(2, 1, 5, 8)},
        FITS.format((2, 1, 5, 8)).replace("a layout of the document", "11SD, 1S1D, S11D or T1D"),
        {"rotary_mode": "half", "r1": ones(2, 1, 5, 8), "r2": ones(2, 1, 5, 8)}),
    Row({"rotary_mode": "interleave", "self": ones(50, 20, 5, 8)},
        "self must have fewer than 1000 vectors a line, of fewer than 896 elements, for "
        "rotary_mode 'interleave', not 1000 of 8; cut it into parts",
        {"rotary_mode": "interleave", "self": ones(27, 37, 5, 8)}),
    Row({"self": ones(5, 8)},
        "self must have three or four dimensions, not 2; reshape it"),
    Row({"self": ones(0, 3, 5, 8)},
        "self must have elements, not shape (0, 3, 5, 8); leave it out"),
    Row(WIDE, f"self must have an even last dimension of at most 896, not 898; {CUT}", WIDEST),
    Row({"self": ones(2, 3, 5, 7)},
        f"self must have an even last dimension of at most 896, not 7; {CUT}"),
    Row({"r2": ones(1, 1, 1, 8)},
        "r2 must have shape (1, 1, 5, 8) like r1, not (1, 1, 1, 8); pass one of that shape"),
    *(
        Row({"r1": ones(*shape), "r2": ones(*shape)}, FITS.format(shape))
        for shape in ((1, 1, 4, 8), (1, 3, 5, 8), (1, 1, 5, 4), (5, 8))
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS, NEW)
ROWS_310P = [
    Row({name: ones(5, 1, 64) for name in BASE},
        "self must have four dimensions on {series}, not 3; reshape it"),
    Row({name: ones(1, 1, 1, 960) for name in BASE},
        f"self must have an even last dimension of at most 896, not 960; {CUT}", WIDEST),
    Row(BASE, "self must have a last dimension that is a multiple of 64 on {series}, not 8, which "
        "torch_npu turns by several kernels there; run mul, concat and add one by one",
        code=Code.UNSUPPORTED),
]  # fmt: skip
test_each_constraint_of_310p = constraints(OP, ON_64, ROWS_310P, OLD)
