// Magnitudes of a vector on one core, cut up as a tiling says, which comes in two ways.
#include "kernel_operator.h"

using namespace AscendC;

struct Tiling {
    uint32_t length;
    uint32_t tile;
};

__aicore__ inline void magnitudes(GM_ADDR x, GM_ADDR y, const Tiling& tiling)
{
    GlobalTensor<float> xGm, yGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, tiling.length);
    yGm.SetGlobalBuffer((__gm__ float*)y, tiling.length);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out;
    pipe.InitBuffer(in, 1, tiling.tile * sizeof(float));
    pipe.InitBuffer(out, 1, tiling.tile * sizeof(float));
    for (uint32_t start = 0; start < tiling.length; start += tiling.tile) {
        LocalTensor<float> a = in.AllocTensor<float>();
        DataCopy(a, xGm[start], tiling.tile);
        in.EnQue(a);
        a = in.DeQue<float>();
        LocalTensor<float> b = out.AllocTensor<float>();
        Abs(b, a, tiling.tile);
        out.EnQue(b);
        b = out.DeQue<float>();
        DataCopy(yGm[start], b, tiling.tile);
        out.FreeTensor(b);
        in.FreeTensor(a);
    }
}

extern "C" __global__ __aicore__ void by_pointer(GM_ADDR x, GM_ADDR y, GM_ADDR workspace,
                                                 GM_ADDR tiling)
{
    GET_TILING_DATA_WITH_STRUCT(Tiling, data, tiling);
    magnitudes(x, y, data);
}

extern "C" __global__ __aicore__ void by_value(GM_ADDR x, GM_ADDR y, Tiling tiling)
{
    magnitudes(x, y, tiling);
}

extern "C" __global__ __aicore__ void in_place(GM_ADDR x, GM_ADDR y)
{
    magnitudes(x, x, {64, 64});
}
