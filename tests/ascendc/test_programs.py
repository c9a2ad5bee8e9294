"""Programs with host code: what they launch is simulated, and what they print is passed on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import entries, npusim_says, refused
from sources import KERNELS


def test_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = npusim_says("run", KERNELS / "scale.asc", "-d", "A2", "-o", tmp_path / "out")
    assert said.code == 0
    assert capfd.readouterr().out == "0 of 2048 are wrong\n"
    assert said.out.count("operator  scale") == 2
    assert entries(tmp_path / "out") == ["1_scale", "2_scale"]
    first = np.load(tmp_path / "out/1_scale/y.npy")
    second = np.load(tmp_path / "out/2_scale/y.npy")
    np.testing.assert_array_equal(first, 3 * np.arange(2048, dtype=np.float32))
    np.testing.assert_array_equal(second, first / 2)


def test_exit_code_of_a_program_is_passed_on() -> None:
    assert npusim_says("run", KERNELS / "scale.asc", "more", "-d", "A2").code == 7


def test_source_without_a_program(tmp_path: Path) -> None:
    file = KERNELS / "add.cpp"
    refused(
        1,
        f"ascendc: {file} must have a main that launches kernels, but has none; add one, or name a "
        f"kernel, as in {file}:add",
        *("run", file, "-d", "A2"),
    )
    missing = tmp_path / "no.asc"
    refused(
        1,
        f"ascendc: {missing} must be a source of C++, but there is no such file; check the path",
        *("run", missing, "-d", "A2"),
    )


def test_kernel_alone(tmp_path: Path) -> None:
    words = [
        *("-i", "x=arange:4096:float16", "-i", "y=ones:4096:float16", "-i", "z=like:x"),
        *("-a", "totalLength=4096", "--blocks", 2, "-o", tmp_path / "out"),
    ]
    said = npusim_says("run", f"{KERNELS / 'add.cpp'}:add_custom", "-d", "A2", *words)
    assert said.code == 0
    x = np.arange(4096).astype(np.float16)
    np.testing.assert_array_equal(np.load(tmp_path / "out/z.npy"), x + np.float16(1))


def test_what_a_kernel_alone_must_be_given() -> None:
    kernel = f"{KERNELS / 'add.cpp'}:add_custom"
    refused(
        1,
        f"add_custom: it must be said on how many blocks a kernel runs, as in {kernel}[8]; add "
        f"them, or --blocks 8",
        *("run", kernel, "-d", "A2"),
    )
    tensors = [word for name in "xyz" for word in ("-i", f"{name}=zeros:4096:float16")]
    refused(
        1,
        "add_custom: totalLength must lie in [0, 4294967296), not be -1; pass what fits",
        *("run", f"{kernel}[2]", "-d", "A2", *tensors, "-a", "totalLength=-1"),
    )
    refused(
        2,
        "run: --blocks must come with a kernel of C++, such as add.cpp:add, not with abs; leave it "
        "out",
        *("run", "abs", "-d", "A2", "--blocks", "2"),
    )


def test_json_of_each_launch(capfd: pytest.CaptureFixture[str]) -> None:
    said = npusim_says("run", KERNELS / "scale.asc", "-d", "A2", "--json")
    printed = capfd.readouterr()
    assert (said.code, printed.out, printed.err) == (0, "", "0 of 2048 are wrong\n")
    decoder, left, found = json.JSONDecoder(), said.out.strip(), []
    while left:
        launch, end = decoder.raw_decode(left)
        found.append(launch["op"])
        left = left[end:].strip()
    assert found == ["scale", "scale"]


HOST = """#include "acl/acl.h"
int main()
{
    %s
    return 0;
}
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "*(volatile int*)8 = 1;",
            "host.cpp: the program must run to its end, but stops with SIGSEGV outside of any "
            "kernel; fix its host code",
        ),
        (
            "for (volatile int i = 0; i >= 0;) { i = 1; }",
            "host.cpp: the program must end within 0.5 s, but runs on outside of any kernel; allow "
            "more by --timeout",
        ),
    ],
)
def test_host_code_that_does_not_end_well(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "host.cpp"
    file.write_text(HOST % line)
    refused(1, message, "run", file, "-d", "A2", "--timeout", "0.5")


def test_launch_of_no_blocks(tmp_path: Path) -> None:
    file = tmp_path / "host.cpp"
    text = (KERNELS / "scale.asc").read_text()
    file.write_text(re.sub(r"<<<[^,]+,", "<<<0,", text))
    refused(
        1,
        "scale: a launch must be of at least 1 block, not of 0; see why the host code counts none, "
        "such as a GetTiling that returns -1",
        *("run", file, "-d", "A2"),
    )


def test_a_shape_of_the_whole_matrices(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "host.cpp"
    file.write_text(TILING)
    assert npusim_says("run", file, "-d", "A2").code == 0
    assert capfd.readouterr().out == "96 64 32, 0\n"


TILING = """#include <cstdio>
#include "acl/acl.h"
#include "tiling/tiling_api.h"
int main()
{
    platform_ascendc::PlatformAscendC* chip =
        platform_ascendc::PlatformAscendCManager::GetInstance();
    matmul_tiling::MultiCoreMatmulTiling asked(*chip);
    asked.SetDim(1);
    asked.SetOrgShape(96, 64, 48);
    asked.SetShape(-1, -1, 32);
    TCubeTiling tiling;
    int failed = int(asked.GetTiling(tiling));
    printf("%d %d %d, %d\\n", tiling.singleCoreM, tiling.singleCoreN, tiling.singleCoreK, failed);
    fflush(stdout);
    return 0;
}
"""
