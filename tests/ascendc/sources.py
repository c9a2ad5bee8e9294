"""Sources of kernels for tests: those of the folder, and short ones written on the spot."""

from __future__ import annotations

from pathlib import Path

import npusim.ascendc

KERNELS = Path(__file__).parent / "kernels"
CHIPS = ("Atlas A2", "Atlas A3", "ascend310p3")

BEFORE = """#include "kernel_operator.h"
using namespace AscendC;
constexpr uint32_t N = 1024;
extern "C" __global__ __aicore__ void probe(GM_ADDR x, GM_ADDR z)
{
    GlobalTensor<float> xGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, N);
    zGm.SetGlobalBuffer((__gm__ float*)z, N);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out;
    pipe.InitBuffer(in, 1, N * sizeof(float));
    pipe.InitBuffer(out, 1, N * sizeof(float));
    auto a = in.AllocTensor<float>();
    DataCopy(a, xGm, N);
    in.EnQue(a);
    a = in.DeQue<float>();
    auto b = out.AllocTensor<float>();
"""
"""A kernel of fp32 up to where it computes b from a, which begins in line 19."""
AFTER = """
    out.EnQue(b);
    b = out.DeQue<float>();
    DataCopy(zGm, b, N);
    out.FreeTensor(b);
    in.FreeTensor(a);
}
"""


def kernels(name: str) -> npusim.ascendc.Source:
    """The kernels of a file of the folder."""
    return npusim.ascendc.load(KERNELS / name)


def probe(folder: Path, lines: str) -> npusim.ascendc.SourceKernel:
    """A kernel that computes b from a, both fp32, in *lines*; the first is line 19 of probe.cpp."""
    file = folder / "probe.cpp"
    file.write_text(BEFORE + lines + AFTER)
    return npusim.ascendc.load(file).probe
