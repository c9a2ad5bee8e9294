// Adds vectors tile by tile, with two buffers of each queue.
#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t TILE = 2048;

template <typename T>
class Adder {
public:
    __aicore__ inline Adder(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t total)
    {
        length = total / GetBlockNum();
        uint64_t start = length * GetBlockIdx();
        xGm.SetGlobalBuffer((__gm__ T*)x + start, length);
        yGm.SetGlobalBuffer((__gm__ T*)y + start, length);
        zGm.SetGlobalBuffer((__gm__ T*)z + start, length);
        pipe.InitBuffer(xQueue, 2, TILE * sizeof(T));
        pipe.InitBuffer(yQueue, 2, TILE * sizeof(T));
        pipe.InitBuffer(zQueue, 2, TILE * sizeof(T));
    }

    __aicore__ inline void Process()
    {
        for (uint32_t tile = 0; tile < length / TILE; ++tile) {
            CopyIn(tile);
            Compute();
            CopyOut(tile);
        }
    }

private:
    __aicore__ inline void CopyIn(uint32_t tile)
    {
        LocalTensor<T> x = xQueue.template AllocTensor<T>();
        LocalTensor<T> y = yQueue.template AllocTensor<T>();
        DataCopy(x, xGm[tile * TILE], TILE);
        DataCopy(y, yGm[tile * TILE], TILE);
        xQueue.EnQue(x);
        yQueue.EnQue(y);
    }

    __aicore__ inline void Compute()
    {
        LocalTensor<T> x = xQueue.template DeQue<T>();
        LocalTensor<T> y = yQueue.template DeQue<T>();
        LocalTensor<T> z = zQueue.template AllocTensor<T>();
        Add(z, x, y, TILE);
        zQueue.template EnQue<T>(z);
        xQueue.FreeTensor(x);
        yQueue.FreeTensor(y);
    }

    __aicore__ inline void CopyOut(uint32_t tile)
    {
        LocalTensor<T> z = zQueue.template DeQue<T>();
        DataCopy(zGm[tile * TILE], z, TILE);
        zQueue.FreeTensor(z);
    }

    TPipe pipe;
    TQue<TPosition::VECIN, 2> xQueue, yQueue;
    TQue<TPosition::VECOUT, 2> zQueue;
    GlobalTensor<T> xGm, yGm, zGm;
    uint32_t length;
};

template <typename T>
__global__ __aicore__ void add_any(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t totalLength)
{
    Adder<T> adder(x, y, z, totalLength);
    adder.Process();
}

extern "C" __global__ __aicore__ void add_custom(GM_ADDR x, GM_ADDR y, GM_ADDR z,
                                                 uint32_t totalLength)
{
    Adder<half> adder(x, y, z, totalLength);
    adder.Process();
}
