"""Cores that wait by way of global memory, pools of the user's own, and the C API."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import npusim_says, refused
from sources import CHIPS, KERNELS, kernels, probe

from npusim.ascendc import AscendCError
from npusim.check.hazards import RaceError

DRAWS = np.random.default_rng(31)


@pytest.mark.parametrize("device", CHIPS[:2])
def test_cores_in_the_order_of_their_numbers(device: str) -> None:
    z, flags = np.ones(64, np.int32), np.zeros(8 * 5, np.int32)
    kernels("cores.cpp").in_order[5](z, flags, device=device)
    np.testing.assert_array_equal(z, np.full(64, 1 + 2 * (1 + 2 + 3 + 4 + 5)))


def test_flags_in_global_memory_order_no_cores() -> None:
    """What comes out is right, but npusim cannot say that it is so in every order."""
    x = DRAWS.integers(-99, 99, 64, np.int32)
    y, z, flags = np.zeros_like(x), np.zeros((4, 64), np.int32), np.zeros(3 * 128, np.int32)
    with pytest.raises(RaceError) as caught:
        kernels("cores.cpp").after_the_first[4](x, y, z, flags, device="Atlas A2")
    assert str(caught.value) == (
        "after_the_first: bytes that a core writes must be its own, but cores 0 and 1 both touch "
        "y[0:256]; give each core its own part, or order them by flags between cores"
    )


@pytest.mark.parametrize("device", CHIPS)
def test_a_pool_of_the_users_own(device: str) -> None:
    x = DRAWS.standard_normal(256).astype(np.float32)
    z = np.zeros_like(x)
    kernels("cores.cpp").pooled[1](x, z, 256, device=device)
    np.testing.assert_array_equal(z, x + x)


def test_a_pool_that_is_too_small() -> None:
    x = np.zeros(256, np.float32)
    with pytest.raises(AscendCError) as caught:
        kernels("cores.cpp").pooled[1](x, x.copy(), 768, device="Atlas A2")
    assert str(caught.value).startswith(
        "pooled: SetCurAddr: buffers of a pool must fit into its 2048 bytes, not need 3072; make "
        "it larger (line "
    )


@pytest.mark.parametrize("device", CHIPS)
def test_a_kernel_of_the_c_api(device: str) -> None:
    x, y = DRAWS.standard_normal((2, 1024)).astype(np.float32)
    z = np.zeros_like(x)
    kernels("c_api.cpp").scaled_sum[4](x, y, z, device=device)
    np.testing.assert_array_equal(z, (x + y) * x)


def test_a_program_of_two_sources(capfd: pytest.CaptureFixture[str]) -> None:
    words = "-d", "A2", "--source", KERNELS / "helpers.cpp"
    assert npusim_says("run", KERNELS / "listed.asc", *words).code == 0
    assert "2 tensors of 2 dimensions, number 1 is 4 x 64" in capfd.readouterr().out


def test_watch_prints_a_tensor_behind_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = f"{KERNELS / 'cores.cpp'}:pooled"
    given = "-i", "x=arange:256:float32", "-i", "z=like:x", "-a", "each=256", "-d", "A2"
    given += "--blocks", "1"
    before, _, _ = (KERNELS / "cores.cpp").read_text().partition("b = a + a")
    line = 1 + before.count("\n")
    assert npusim_says("run", kernel, *given, "--watch", f"{line}:b").code == 0
    printed = capfd.readouterr().out
    assert f"line {line}, block 0: b[64] in ub = [0.000000, 2.000000, 4.000000, " in printed
    assert printed.count(f"line {line}, block 0: b[64] in ub = ") == 4
    refused(
        1,
        "ascendc: --watch 2:b must name a line in which a statement ends, but line 2 has none; "
        "name the line of its semicolon",
        *("run", kernel, *given, "--watch", "2:b"),
    )


def test_a_source_without_kernels(tmp_path: Path) -> None:
    file = tmp_path / "bare.cpp"
    file.write_text("int nothing;\n")
    refused(
        1,
        f"ascendc: {file} must have the kernel add, but has none; mark a function of it as "
        f"__global__ __aicore__, or name another file",
        *("run", f"{file}:add", "-d", "A2"),
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "    LocalTensor<float> none;\n    SoftMaxShapeInfo shape{8, 4096, 8, 4096};\n"
            "    SoftMax<float>(b, a, LocalTensor<uint8_t>(TPosition::VECCALC, 0, 64), {}, shape);",
            "the room of a function must have 19520 bytes for 1 rows, not the 64 that are left in "
            "sharedTmpBuffer, or behind the buffers of the pipe; give it as much as its "
            "Get...TmpSize says",
        ),
        (
            "    SoftMax<float, false, false, true>(b, a, a, a, SoftMaxTiling(), {8, 64, 8, 64});",
            "SoftMax: isDataFormatNZ must be false, since npusim reduces rows of ND alone; leave "
            "it out",
        ),
        (
            "    float sum = GetReduceRepeatSumSpr<float>();\n    Duplicate(b, sum, N);",
            "GetReduceRepeatSumSpr: a ReduceSum of count elements must come before; call it first",
        ),
        (
            "    const uint32_t shape[] = {16, 64};\n"
            "    ReduceMax<float, Pattern::Reduce::AR>(b, a, shape, false);",
            "ReduceMax: srcInnerPad must be true, since npusim reduces rows of whole blocks alone; "
            "pad the inner axis",
        ),
    ],
)
def test_what_functions_of_the_advanced_api_refuse(
    tmp_path: Path, lines: str, message: str
) -> None:
    x = np.ones(1024, np.float32)
    with pytest.raises(AscendCError) as caught:
        probe(tmp_path, lines)[1](x, np.zeros_like(x), device="Atlas A2")
    assert str(caught.value).startswith(f"probe: {message} (")
