"""Names that a compiler does not find are named as what they are, with what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sources import probe

from npusim.ascendc import CompileError
from npusim.ascendc.missing import what_is_missing

X = np.arange(1024, dtype=np.float32)
SOURCE = Path("/kernels/add.cpp")
OF_THE_API = "of Ascend C that npusim does not have: use what docs/kernels.md lists in place of it"
SAID = {
    "function": (
        "/kernels/add.cpp:7:5: error: 'MmadWithSparse' is not a member of 'AscendC'; did you mean "
        "'Mmad'?",
        f"MmadWithSparse (line 7) is a name {OF_THE_API}",
    ),
    "clang": (
        "/kernels/add.cpp:7:14: error: no type named 'TransDataConfig' in namespace 'AscendC'\n"
        "/kernels/add.cpp:9:5: error: use of undeclared identifier 'BroadCastVecToMM'\n"
        "/kernels/add.cpp:12:5: error: use of undeclared identifier 'BroadCastVecToMM'",
        f"TransDataConfig (line 7) and BroadCastVecToMM (line 9) are names {OF_THE_API}",
    ),
    "member": (
        "/kernels/plan.h:3:9: error: 'class matmul_tiling::MultiCoreMatmulTiling' has no member "
        "named 'SetSparse'",
        f"SetSparse (line 3 of plan.h) is a name {OF_THE_API}",
    ),
    "no name of the documentation": (
        "/kernels/add.cpp:7:14: error: 'Secret' in namespace 'AscendC' does not name a template "
        "type",
        f"Secret (line 7) is a name {OF_THE_API}",
    ),
    "runtime": (
        "/kernels/add.cpp:7:5: error: 'aclmdlRICaptureBegin' was not declared in this scope",
        "aclmdlRICaptureBegin (line 7) is a name of the runtime's host API, of which npusim has "
        "memory, copies, streams and launches: launch the kernel by <<<...>>> alone",
    ),
    "header of g++": (
        "/kernels/add.cpp:1:10: fatal error: graph/operator_reg.h: No such file or directory",
        "graph/operator_reg.h (line 1) is a header of the graph engine, with which npusim compiles "
        "nothing: put the kernel into a source of its own, and name it, as in kernel.cpp:add",
    ),
    "header of clang": (
        "/kernels/add.cpp:1:10: fatal error: 'plan.h' file not found",
        "plan.h (line 1) is a header found neither in npusim nor in a folder that is given: pass "
        "the right folder by -I, or leave the #include out",
    ),
    "refusal of ours": (
        "/include/matmul.h:208:19: error: static assertion failed: npusim: a Matmul must be small",
        "a Matmul must be small",
    ),
    "name of nobody": (
        "/kernels/add.cpp:7:5: error: 'Exq' was not declared in this scope; did you mean 'Exp'?",
        "",
    ),
}


@pytest.mark.parametrize(("said", "meaning"), SAID.values(), ids=SAID)
def test_what_is_missing(said: str, meaning: str) -> None:
    assert what_is_missing(said, SOURCE) == meaning


def test_probe(tmp_path: Path) -> None:
    kernel = probe(tmp_path, "    Exp(b, a, N);\n    AscendC::MmadWithSparse(b, a);")
    with pytest.raises(CompileError) as caught:
        kernel[1](X, X.copy(), device="Atlas A2")
    assert str(caught.value).startswith(
        f"ascendc: {kernel.file} must compile, but MmadWithSparse (line 20) is a name "
        f"{OF_THE_API}; g++ says:\n{kernel.file}: In function "
    )
