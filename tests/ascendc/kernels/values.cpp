// Kernels that look at values, and cores that wait for each other.
#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t N = 64;

// z is x divided by its largest element, by way of the scalar unit.
extern "C" __global__ __aicore__ void by_largest(GM_ADDR x, GM_ADDR z)
{
    GlobalTensor<float> xGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x + N * GetBlockIdx(), N);
    zGm.SetGlobalBuffer((__gm__ float*)z + N * GetBlockIdx(), N);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out;
    pipe.InitBuffer(in, 1, N * sizeof(float));
    pipe.InitBuffer(out, 1, N * sizeof(float));
    LocalTensor<float> a = in.AllocTensor<float>();
    DataCopy(a, xGm, N);
    in.EnQue(a);
    a = in.DeQue<float>();
    LocalTensor<float> b = out.AllocTensor<float>();
    float largest = a.GetValue(0);
    for (uint32_t i = 1; i < N; ++i) {
        float value = a.GetValue(i);
        largest = value > largest ? value : largest;
    }
    if (largest == 0) {
        Duplicate(b, 1.0f, N);
    } else {
        Muls(b, a, 1 / largest, N);
    }
    b.SetValue(0, largest);
    out.EnQue(b);
    b = out.DeQue<float>();
    SetFlag<HardEvent::S_MTE3>(0);
    WaitFlag<HardEvent::S_MTE3>(0);
    DataCopy(zGm, b, N);
    out.FreeTensor(b);
    in.FreeTensor(a);
}

// Each core leaves its x in y, and then takes what the next one left.
extern "C" __global__ __aicore__ void rotate(GM_ADDR x, GM_ADDR y, GM_ADDR z)
{
    int64_t block = GetBlockIdx(), blocks = GetBlockNum();
    GlobalTensor<int32_t> xGm, yGm, zGm, nextGm;
    xGm.SetGlobalBuffer((__gm__ int32_t*)x + N * block, N);
    yGm.SetGlobalBuffer((__gm__ int32_t*)y + N * block, N);
    nextGm.SetGlobalBuffer((__gm__ int32_t*)y + N * ((block + 1) % blocks), N);
    zGm.SetGlobalBuffer((__gm__ int32_t*)z + N * block, N);
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, N * sizeof(int32_t));
    LocalTensor<int32_t> tile = buffer.Get<int32_t>();
    DataCopy(tile, xGm, N);
    PipeBarrier<PIPE_ALL>();
    DataCopy(yGm, tile, N);
    SyncAll();
    DataCopy(tile, nextGm, N);
    PipeBarrier<PIPE_ALL>();
    DataCopy(zGm, tile, N);
}

struct Sizes {
    uint32_t rows;
    uint32_t columns;
    float scale;
};

// The tiling lies in global memory; the scalar unit stores the rows.
extern "C" __global__ __aicore__ void by_tiling(GM_ADDR z, GM_ADDR tiling)
{
    REGISTER_TILING_DEFAULT(Sizes);
    GET_TILING_DATA(sizes, tiling);
    GlobalTensor<float> zGm;
    zGm.SetGlobalBuffer((__gm__ float*)z, sizes.rows * sizes.columns);
    for (uint32_t row = GetBlockIdx(); row < sizes.rows; row += GetBlockNum()) {
        zGm.SetValue(row * sizes.columns, sizes.scale * float(row));
    }
    AscendC::printf("core %d of %d\n", int(GetBlockIdx()), int(GetBlockNum()));
}

__global__ __aicore__ void by_structure(__gm__ int32_t* z, Sizes sizes, half scale)
{
    GlobalTensor<int32_t> zGm;
    zGm.SetGlobalBuffer(z);
    zGm.SetValue(0, int32_t(sizes.rows * sizes.columns));
    zGm.SetValue(1, int32_t(float(scale) * sizes.scale));
}

// What one core stores, it reads back; rows of both halves are rounds of a loop.
extern "C" __global__ __aicore__ void read_back(GM_ADDR x, GM_ADDR z, uint32_t rows)
{
    GlobalTensor<float> xGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, rows * N);
    zGm.SetGlobalBuffer((__gm__ float*)z, rows * N);
    TPipe pipe;
    TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
    pipe.InitBuffer(queue, 2, N * sizeof(float));
    for (uint32_t row = 0; row < rows; ++row) {
        LocalTensor<float> tile = queue.AllocTensor<float>();
        DataCopy(tile, xGm[row * N], N);
        queue.EnQue(tile);
        tile = queue.DeQue<float>();
        DataCopy(zGm[row * N], tile, N);
        queue.FreeTensor(tile);
    }
    PipeBarrier<PIPE_ALL>();
    float sum = 0;
    for (uint32_t row = 0; row < rows; ++row) {
        sum += zGm.GetValue(row * N);
    }
    zGm.SetValue(1, sum);
}
