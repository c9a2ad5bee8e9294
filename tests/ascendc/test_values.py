"""Kernels that look at values, that wait for other cores, and that read their tiling."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from sources import CHIPS, kernels

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
