// Cores that wait by way of global memory, pools and lists of the user's, and the C API.
#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t N = 64;

// Each core adds its number and 1 to all of z, one after the other, and again.
extern "C" __global__ __aicore__ void in_order(GM_ADDR z, GM_ADDR flags)
{
    GlobalTensor<int32_t> zGm, room;
    zGm.SetGlobalBuffer((__gm__ int32_t*)z, N);
    room.SetGlobalBuffer((__gm__ int32_t*)flags, 8 * GetBlockNum());
    TPipe pipe;
    TBuf<> buffer, work;
    pipe.InitBuffer(buffer, N * sizeof(int32_t));
    pipe.InitBuffer(work, 32 * (GetBlockNum() + 1));
    LocalTensor<int32_t> tile = buffer.Get<int32_t>(), own = work.Get<int32_t>();
    InitDetermineComputeWorkspace(room, own);
    for (int i = 0; i < 2; ++i) {
        Duplicate(tile, int32_t(GetBlockIdx()) + 1, N);
        WaitPreBlock(room, own);
        SetAtomicAdd<int32_t>();
        DataCopy(zGm, tile, N);
        SetAtomicNone();
        NotifyNextBlock(room, own);
    }
}

// Cores from the second on take what the first one has left.
extern "C" __global__ __aicore__ void after_the_first(GM_ADDR x, GM_ADDR y, GM_ADDR z, GM_ADDR flags)
{
    GlobalTensor<int32_t> xGm, yGm, zGm;
    xGm.SetGlobalBuffer((__gm__ int32_t*)x, N);
    yGm.SetGlobalBuffer((__gm__ int32_t*)y, N);
    zGm.SetGlobalBuffer((__gm__ int32_t*)z + N * GetBlockIdx(), N);
    TPipe pipe;
    TBuf<> buffer;
    pipe.InitBuffer(buffer, N * sizeof(int32_t));
    LocalTensor<int32_t> tile = buffer.Get<int32_t>();
    uint32_t block = GetBlockIdx();
    GroupBarrier<PipeMode::MTE3_MODE> barrier(flags, 1, GetBlockNum() - 1);
    if (block == 0) {
        DataCopy(tile, xGm, N);
        PipeBarrier<PIPE_ALL>();
        DataCopy(yGm, tile, N);
        barrier.Arrive(0);
    } else {
        barrier.Wait(block - 1);
        DataCopy(tile, yGm, N);
        PipeBarrier<PIPE_ALL>();
        DataCopy(zGm, tile, N);
    }
}

// A pool that hands out its buffers one behind the other.
class Pool {
public:
    Pool()
    {
        Init();
    }
    template <class T>
    bool InitBuffer(T& que, uint8_t num, uint32_t len)
    {
        auto first = GetBufHandle(GetCurBufSize());
        que.InitStartBufHandle(first, num, len);
        for (uint32_t i = 0; i < num; ++i) {
            que.InitBufHandle(this, i, first, GetCurAddr() + i * len, len);
        }
        SetCurAddr(GetCurAddr() + num * len);
        SetCurBufSize(GetCurBufSize() + num);
        return true;
    }
    EXTERN_IMPL_BUFPOOL(Pool, TPosition::VECCALC, 8);
};

extern "C" __global__ __aicore__ void pooled(GM_ADDR x, GM_ADDR z, uint32_t each)
{
    GlobalTensor<float> xGm, zGm;
    xGm.SetGlobalBuffer((__gm__ float*)x, 4 * N);
    zGm.SetGlobalBuffer((__gm__ float*)z, 4 * N);
    TPipe pipe;
    Pool pool;
    TQue<TPosition::VECIN, 2> in;
    TQue<TPosition::VECOUT, 2> out;
    pipe.InitBufPool(pool, 2048);
    pool.InitBuffer(in, 2, each);
    pool.InitBuffer(out, 2, each);
    for (uint32_t i = 0; i < 4; ++i) {
        auto a = in.AllocTensor<float>();
        DataCopy(a, xGm[i * N], N);
        in.EnQue(a);
        a = in.DeQue<float>();
        auto b = out.AllocTensor<float>();
        b = a + a;
        in.FreeTensor(a);
        out.EnQue(b);
        b = out.DeQue<float>();
        DataCopy(zGm[i * N], b, N);
        out.FreeTensor(b);
    }
}
