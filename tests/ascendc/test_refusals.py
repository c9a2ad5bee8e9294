"""What a kernel of C++ does wrong is refused with its line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sources import probe

import npusim
from npusim.ascendc import AscendCError, CompileError, CrashError, StuckError
from npusim.check.bounds import BoundsError
from npusim.check.hazards import RaceError

X = np.arange(1024, dtype=np.float32)


def refused(folder: Path, lines: str, error: type[Exception], x: np.ndarray = X) -> str:
    """What is said of a probe with these *lines*."""
    with pytest.raises(error) as caught:
        probe(folder, lines)[1](x, X.copy(), device="Atlas A2")
    return str(caught.value)


def test_race(tmp_path: Path) -> None:
    file = probe(tmp_path, "    Exp(b, a, N);\n    Abs(b, b, N);").file
    kernel = npusim.ascendc.load(file, auto_sync=False).probe
    with pytest.raises(RaceError) as caught:
        kernel[1](X, X.copy(), device="Atlas A2")
    assert str(caught.value) == (
        "probe: micro-ops that touch the same bytes must be ordered by a barrier, not "
        "#3 (line 19 of probe.cpp) vector: exp ub[4096:8192] float32 <- ub[0:4096] float32 and "
        "#4 (line 20 of probe.cpp) vector: abs ub[4096:8192] float32 <- ub[4096:8192] float32 at "
        "ub[4096:8192]; put a barrier of the vector pipe between them"
    )


def test_crash(tmp_path: Path) -> None:
    said = refused(tmp_path, "    Exp(b, a, N);\n    *(volatile int*)8 = 1;", CrashError)
    assert said == (
        "probe: the C++ of a kernel must run, but it stops with SIGSEGV at address 0x8 "
        "(line 20 of probe.cpp)"
    )


def test_buffer_that_does_not_fit(tmp_path: Path) -> None:
    said = refused(tmp_path, "    TBuf<> work;\n    pipe.InitBuffer(work, 200000);", AscendCError)
    assert said == (
        "probe: InitBuffer: a buffer must fit into the 188416 bytes of ub that are left, not need "
        "200000; use smaller tiles (line 20 of probe.cpp)"
    )


def test_beyond_a_tensor(tmp_path: Path) -> None:
    said = refused(tmp_path, "    Exp(b, a, N);", BoundsError, X[:512])
    assert said == (
        "probe: DataCopy must stay within the 2048 bytes of x, but core 0 touches [0:4096] "
        "(line 15 of probe.cpp); move less, or pass a larger tensor"
    )


def test_compiler(tmp_path: Path) -> None:
    said = refused(tmp_path, "    Exq(b, a, N);", CompileError)
    file = tmp_path / "probe.cpp"
    assert said.startswith(f"ascendc: {file} must compile, but g++ says:\n{file}: In function ")
    assert f"{file}:19:5: error: 'Exq' was not declared in this scope" in said


def test_kernel_without_end(tmp_path: Path) -> None:
    kernel = probe(tmp_path, "    for (volatile int i = 0; i >= 0;) {\n        i = 1;\n    }")
    with pytest.raises(StuckError) as caught:
        npusim.run(replace(kernel[1], timeout_s=0.5), X, X, device="Atlas A2")
    said = re.sub(r"line (19|20)", "line N", str(caught.value))
    assert said == (
        "probe: a kernel must end within 0.5 s, but is still at line N of probe.cpp; allow more by "
        "--timeout"
    )
