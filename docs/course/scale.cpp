// y = 2 x, tile by tile, on as many cores as are started.
#include "kernel_operator.h"

using namespace AscendC;

#ifndef BUFFERS
#define BUFFERS 2
#endif
constexpr uint32_t TILE = 4096;

extern "C" __global__ __aicore__ void scale(GM_ADDR x, GM_ADDR y, uint32_t total)
{
    uint32_t length = total / GetBlockNum();
    GlobalTensor<half> from, to;
    from.SetGlobalBuffer((__gm__ half*)x + length * GetBlockIdx(), length);
    to.SetGlobalBuffer((__gm__ half*)y + length * GetBlockIdx(), length);
    TPipe pipe;
    TQue<TPosition::VECIN, BUFFERS> in;
    TQue<TPosition::VECOUT, BUFFERS> out;
    pipe.InitBuffer(in, BUFFERS, TILE * sizeof(half));
    pipe.InitBuffer(out, BUFFERS, TILE * sizeof(half));
    for (uint32_t start = 0; start < length; start += TILE) {
        LocalTensor<half> loaded = in.AllocTensor<half>();
        DataCopy(loaded, from[start], TILE);
        in.EnQue(loaded);
        LocalTensor<half> tile = in.DeQue<half>();
        LocalTensor<half> result = out.AllocTensor<half>();
        Muls(result, tile, (half)2, TILE);
        in.FreeTensor(tile);
        out.EnQue(result);
        LocalTensor<half> done = out.DeQue<half>();
        DataCopy(to[start], done, TILE);
        out.FreeTensor(done);
    }
}
