"""What a kernel of C++ does wrong is refused with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sources import kernels, probe

import npusim
from npusim.ascendc import AscendCError, CompileError, CrashError, StuckError, compiler
from npusim.check.bounds import BoundsError
from npusim.check.hazards import DeadlockError, RaceError
from npusim.check.rules import RuleError
from npusim.data.errors import HazardWarning

X = np.arange(1024, dtype=np.float32)


def refused(folder: Path, lines: str, error: type[Exception], x: np.ndarray = X) -> str:
    """What is said of a probe with these *lines*."""
    with pytest.raises(error) as caught:
        probe(folder, lines)[1](x, X.copy(), device="Atlas A2")
    return str(caught.value)


REFUSED = {
    "crash": (
        "    Exp(b, a, N);\n    *(volatile int*)8 = 1;",
        CrashError,
        "probe: the C++ of a kernel must run, but it stops with SIGSEGV at address 0x8 "
        "(line 20 of probe.cpp)",
    ),
    "buffer that does not fit": (
        "    TBuf<> work;\n    pipe.InitBuffer(work, 200000);",
        AscendCError,
        "probe: InitBuffer: a buffer must fit into the 188416 bytes of ub that are left, not need "
        "200000; use smaller tiles (line 20 of probe.cpp)",
    ),
    "missing flag between pipes": (
        "    Exp(b, a, N);\n    DataCopy(zGm, b, N);",
        RaceError,
        "probe: micro-ops that touch the same bytes must be ordered by a flag, not #3 (line 19 of "
        "probe.cpp) vector: exp ub[4096:8192] float32 <- ub[0:4096] float32 and #4 (line 20 of "
        "probe.cpp) mte3: store z+0 4096 B <- ub[4096:8192] float32 at ub[4096:8192]; set a flag "
        "from vector to mte3 after the first and await it before the second",
    ),
    "call that is not there": (
        "    SetDeqScale(1.0f, 0, true);",
        AscendCError,
        "probe: SetDeqScale must be a call that npusim simulates; it is not yet (line 19 of "
        "probe.cpp)",
    ),
    "pairs that are not summed up": (
        "    ReducePairElem<ReduceType::MAX>(b, a, 64, 1, 1, 1, 8);",
        AscendCError,
        "probe: ReducePairElem: reduceType must be SUM, the one that pairs have, not 1; take "
        "WholeReduceMax or WholeReduceMin (line 19 of probe.cpp)",
    ),
    "assertion": (
        "    Exp(b, a, N);\n    assert(N < 100);",
        AscendCError,
        "probe: assert: N < 100 must hold, but does not; see the line (line 20 of probe.cpp)",
    ),
    "queue that is used wrongly": (
        "    auto c = in.AllocTensor<float>();",
        AscendCError,
        "probe: AllocTensor: one of 1 buffers must be free; free a tensor first, or give the queue "
        "more (line 19 of probe.cpp)",
    ),
    "kernel that ends its process": (
        "    std::_Exit(3);",
        CrashError,
        "probe: a kernel must run to its end, but its process ended with code 3 before; take out "
        "what ends it",
    ),
    "kernel that stores nothing": (
        "    return;",
        AscendCError,
        "probe: a kernel must store something, but it leaves all tensors as they are; pass its "
        "outputs too, and sizes that leave it work",
    ),
    "beyond a buffer": (
        "    Exp(b, a[8], N);",
        AscendCError,
        "probe: Exp must stay within the 4064 bytes of its tensor from byte 32 of ub on, not touch "
        "4096; pass a larger one, or fewer elements (line 19 of probe.cpp)",
    ),
}


@pytest.mark.parametrize(("lines", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_probe(tmp_path: Path, lines: str, error: type[Exception], message: str) -> None:
    assert refused(tmp_path, lines, error) == message


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


SAME_BYTES = """#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __aicore__ void probe(GM_ADDR x, GM_ADDR z, uint32_t differs)
{
    GlobalTensor<float> zGm;
    zGm.SetGlobalBuffer((__gm__ float*)z, 64);
    TPipe pipe;
    TQue<TPosition::VECOUT, 1> out;
    pipe.InitBuffer(out, 1, 256);
    auto b = out.AllocTensor<float>();
    Duplicate(b, float(differs * GetBlockIdx()), 64);
    out.EnQue(b);
    b = out.DeQue<float>();
    DataCopy(zGm, b, 64);
    out.FreeTensor(b);
}
"""
BOTH_TOUCH = (
    "probe: bytes that a core writes must be its own, but cores 0 and 1 both touch z[0:256]; give "
    "each core its own part, or order them by flags between cores"
)


def test_the_same_bytes_of_two_cores_are_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "probe.cpp"
    file.write_text(SAME_BYTES)
    kernel = npusim.ascendc.load(file).probe[2]
    with pytest.warns(HazardWarning) as caught:
        kernel(X, X[:64].copy(), 0, device="Atlas A2")
    assert [str(each.message) for each in caught] == [
        f"{BOTH_TOUCH}; the run goes on, since the same bytes come out"
    ]
    with pytest.raises(RaceError) as refused:
        kernel(X, X[:64].copy(), 1, device="Atlas A2")
    assert str(refused.value) == BOTH_TOUCH
    strict = npusim.ascendc.load(file, strict=True).probe[2]
    with pytest.raises(RaceError) as refused:
        strict(X, X[:64].copy(), 0, device="Atlas A2")
    assert str(refused.value) == BOTH_TOUCH


def test_flag_that_is_set_twice_is_a_warning(tmp_path: Path) -> None:
    lines = """
    for (int i = 0; i < 2; ++i) {
        SetFlag<HardEvent::V_MTE2>(3);
    }
    WaitFlag<HardEvent::V_MTE2>(3);
    WaitFlag<HardEvent::V_MTE2>(3);
    Exp(b, a, N);"""
    kernel = probe(tmp_path, lines)[1]
    with pytest.warns(HazardWarning) as caught:
        kernel(X, X.copy(), device="Atlas A2")
    assert [str(each.message) for each in caught] == [
        "probe: a flag that is set must be awaited before it is set again, but #4 (line 21 of "
        "probe.cpp) vector: set_flag vector->mte2 3 comes before a wait for #3 (line 21 of "
        "probe.cpp); await it in between, or use another event; the run goes on, since the same "
        "bytes come out"
    ]


def test_flags_between_cores_of_a_chip_without_them() -> None:
    x = np.zeros((2, 64), np.int32)
    with pytest.raises(RuleError) as caught:
        kernels("values.cpp").rotate[2](x, x.copy(), x.copy(), device="ascend310p3")
    assert str(caught.value) == (
        "rotate #4 (line 60 of values.cpp): cross_core_set_flag all 10: the arch must have flags "
        "between cores, as 2201 has, not be 2002; give each core its own work"
    )


def test_cores_that_wait_for_ever(tmp_path: Path) -> None:
    lines = "    if (GetBlockIdx() == 0) {\n        CrossCoreWaitFlag(3);\n    }\n    Exp(b, a, N);"
    kernel = probe(tmp_path, lines)[2]
    with pytest.raises(DeadlockError) as caught:
        kernel(np.resize(X, 2048), np.resize(X, 2048), device="Atlas A2")
    assert str(caught.value) == (
        "probe: cores must be able to go on, but these wait for flags between cores that nobody "
        "sets: core 0 for flag 3; set them, or start as many blocks as are waited for"
    )


@pytest.fixture
def compiler_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Names a compiler, and forgets it behind the test."""

    def name(command: str) -> None:
        monkeypatch.setenv("CXX", command)
        compiler._compiler.cache_clear()

    yield name
    compiler._compiler.cache_clear()


def test_no_compiler(tmp_path: Path, compiler_named: Callable[[str], None]) -> None:
    compiler_named("no-such-compiler")
    said = refused(tmp_path, "    Exp(b, a, N);", CompileError)
    assert said == (
        "ascendc: a C++ compiler must be there to compile kernels, but there is no "
        "no-such-compiler; install g++ 12 or newer, or clang, for example by apt install g++, or "
        "name one in CXX"
    )


def test_compiler_that_is_too_old(tmp_path: Path, compiler_named: Callable[[str], None]) -> None:
    old = tmp_path / "g++-9"
    old.write_text("#!/bin/sh\necho 'g++ (GCC) 9.4.0'\n")
    old.chmod(0o755)
    compiler_named(str(old))
    said = refused(tmp_path, "    Exp(b, a, N);", CompileError)
    assert said == (
        f"ascendc: g++ must be 12 or newer, not 9.4 ({old}); install a newer one, or clang, and "
        f"name it in CXX"
    )
