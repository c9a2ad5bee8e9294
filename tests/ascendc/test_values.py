"""Kernels that look at values, that wait for other cores, and that read their tiling."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from sources import CHIPS, kernels, probe

from npusim.ascendc import AscendCError

N = 64
DRAWS = np.random.default_rng(11)


@pytest.mark.parametrize("device", CHIPS)
def test_branches_follow_values(device: str) -> None:
    x = DRAWS.standard_normal((2, N)).astype(np.float32)
    x[1] = -np.abs(x[1])
    x[1, 5] = 0
    z = np.zeros_like(x)
    kernels("values.cpp").by_largest[2](x, z, device=device)
    expected = np.stack([x[0] * (np.float32(1) / x[0].max()), np.ones(N, np.float32)])
    expected[:, 0] = x.max(axis=1)
    np.testing.assert_array_equal(z, expected)


def test_elements_by_parentheses(tmp_path: Path) -> None:
    x, z = DRAWS.standard_normal((2, 1024)).astype(np.float32)
    lines = """
    Adds(b, a, 0.0f, N);
    float first = b(0);
    b(1) = b(2);
    b(2) = first + b[8](1);
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    expected = x.copy()
    expected[1], expected[2] = x[2], x[0] + x[9]
    np.testing.assert_array_equal(z, expected)


def test_short_floats_with_whole_numbers_and_floats(tmp_path: Path) -> None:
    """A half takes a whole number in, and is taken in by a float."""
    x, z = np.zeros((2, 1024), np.float32)
    lines = """
    half third = half(1) / 3;
    uint64_t n = 2049;
    float values[] = {float(third + 1), float(2 * third), float(third * n), third + 1.0f,
                      0.5f - third, Cast(Cast(1.01f))};
    Duplicate(b, 0.0f, N);
    for (int i = 0; i < 6; ++i) {
        b(i) = values[i];
    }
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    third = np.float16(1) / np.float16(3)
    exact = np.float32(third)
    expected = [third + np.float16(1), 2 * third, third * np.float16(2048), exact + 1, 0.5 - exact]
    assert z[:6].tolist() == [*map(float, expected), 1.0078125]


def test_the_sum_that_the_vector_unit_left(tmp_path: Path) -> None:
    x, z = np.arange(2048, dtype=np.float32).reshape(2, 1024)
    lines = """
    ReduceSum(b, a, b, 64);
    uint64_t bits = GetAccVal();
    Duplicate(b, GetAccVal<float>() + *reinterpret_cast<float*>(&bits), N);
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    np.testing.assert_array_equal(z, 64 * 63)


def test_flags_by_the_names_of_pipes(tmp_path: Path) -> None:
    x, z = DRAWS.standard_normal((2, 1024)).astype(np.float32)
    lines = """
    TQueSync<PIPE_V, PIPE_S> ready;
    static constexpr TQueConfig config = {.bufferNumber = 1};
    static constexpr DivConfig nearest = {DivAlgo::INTRINSIC};
    TQue<TPosition::VECCALC, 1, &config> queue;
    pipe.InitBuffer(queue, 1, N * sizeof(float));
    auto c = queue.AllocTensor<float>();
    Duplicate(c, 3.0f, N);
    PipeBarrier<PIPE_V>();
    Div<float, nearest>(b, a, c, N);
    ready.SetFlag(0);
    ready.WaitFlag(0);
    assert(c.GetValue(0) == 3, "not %f", c.GetValue(0));
    queue.FreeTensor(c);
    """
    probe(tmp_path, lines)[1](x, z, device="Atlas A2")
    np.testing.assert_array_equal(z, x / np.float32(3))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Trap();", "Trap: a kernel must not come to a Trap, but stops itself here; see the line"),
        ('assert(N == 1, "%u", N);', "assert: N == 1 must hold, but does not; see the line"),
    ],
)
def test_a_kernel_that_stops_itself(tmp_path: Path, line: str, message: str) -> None:
    x, z = np.zeros((2, 1024), np.float32)
    with pytest.raises(AscendCError) as caught:
        probe(tmp_path, f"    {line}")[1](x, z, device="Atlas A2")
    assert str(caught.value) == f"probe: {message} (line 19 of probe.cpp)"


@pytest.mark.parametrize("device", ["Atlas A2", "Atlas A3"])
def test_cores_wait_for_each_other(device: str) -> None:
    x = DRAWS.integers(-9, 9, (4, N)).astype(np.int32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    kernels("values.cpp").rotate[4](x, y, z, device=device)
    np.testing.assert_array_equal(z, np.roll(x, -1, axis=0))


def test_tiling_and_print(capfd: pytest.CaptureFixture[str]) -> None:
    z = np.zeros((6, 8), np.float32)
    tiling = np.frombuffer(struct.pack("<IIf", 6, 8, 0.5), np.uint8)
    kernels("values.cpp").by_tiling[2](z, tiling, device="Atlas A2")
    np.testing.assert_array_equal(z[:, 0], np.arange(6) * 0.5)
    assert not z[:, 1:].any()
    assert capfd.readouterr().out == "core 0 of 2\ncore 1 of 2\n"


def test_structures_and_short_floats_are_arguments() -> None:
    z = np.zeros(16, np.int32)
    sizes = struct.pack("<IIf", 6, 8, 4)
    kernel = kernels("values.cpp").by_structure[1]
    kernel(z, sizes, 2.5, device="Atlas A2")
    np.testing.assert_array_equal(z[:3], [48, 10, 0])
    with pytest.raises(AscendCError) as caught:
        kernel(z, sizes[1:], 2.5, device="Atlas A2")
    assert str(caught.value) == (
        f"by_structure: sizes must be 12 bytes, not {sizes[1:]!r}; pass one"
    )


@pytest.mark.parametrize("device", CHIPS)
def test_a_core_reads_what_it_stored(device: str) -> None:
    x = DRAWS.integers(-9, 9, (7, N)).astype(np.float32)
    z = np.zeros_like(x)
    run = kernels("values.cpp").read_back[1](x, z, 7, device=device)
    expected = x.copy()
    expected[0, 1] = x[:, 0].sum()
    np.testing.assert_array_equal(z, expected)
    (lane,) = run.trace.lanes
    # Two buffers take turns: two bodies for the rounds in between, and the first and last ones.
    assert len(lane.program.calls) > len(lane.program.bodies)
