// Every line of a switch is a call of the vector unit, on one tile of x and y.
#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t N = 512;

template <typename T>
__aicore__ inline void apply(uint32_t which, const LocalTensor<T>& z, const LocalTensor<T>& x,
                             const LocalTensor<T>& y, const LocalTensor<T>& work)
{
    constexpr uint32_t LANES = 256 / sizeof(T);
    constexpr uint8_t REPEATS = N / LANES;
    uint64_t odd[2] = {0xaaaaaaaaaaaaaaaa, 0xaaaaaaaaaaaaaaaa}, some[2] = {0x7000000000000007, 0};
    Duplicate(z, T(0), N);
    PipeBarrier<PIPE_V>();
    switch (which) {
        case 0:
            Sub(z, x, y, N);
            break;
        case 1:
            Mul(z, x, y, LANES / 2, REPEATS, {1, 1, 1, 8, 8, 8});
            break;
        case 2:
            Max(z, x, y, odd, REPEATS, {1, 1, 1, 8, 8, 8});
            break;
        case 3:
            Adds(z, x, T(1.5), 100);
            break;
        case 4:
            Muls(z, x, T(-2), LANES, 2, {1, 1, 8, 8});
            break;
        case 5:
            Abs(z, x, N);
            break;
        case 6:
            SetMaskCount();
            SetVectorMask<T>(0, 100);
            Add<T, false>(z, x, y, MASK_PLACEHOLDER, 1, {1, 1, 1, 8, 8, 8});
            SetMaskNorm();
            ResetMask();
            break;
        case 7:
            // Each repeat is added to the first.
            Add(z, z, x, LANES, REPEATS, {1, 1, 1, 0, 0, 8});
            break;
        case 8:
            ReduceMax(z, x, work, N, true);
            break;
        case 9:
            ReduceSum(z, x, work, N);
            break;
        case 10:
            WholeReduceSum(z, x, int32_t(LANES), REPEATS, 1, 1, 8);
            break;
        case 11:
            BlockReduceMin(z, x, REPEATS, int32_t(LANES), 1, 1, 8);
            break;
        case 12:
            Compare(work.template ReinterpretCast<uint8_t>(), x, y, CMPMODE::LT, N);
            PipeBarrier<PIPE_V>();
            Select(z, work.template ReinterpretCast<uint8_t>(), x, y,
                   SELMODE::VSEL_TENSOR_TENSOR_MODE, N);
            break;
        case 13:
            Compares(work.template ReinterpretCast<uint8_t>(), x, T(0), CMPMODE::GE, N);
            PipeBarrier<PIPE_V>();
            Select(z, work.template ReinterpretCast<uint8_t>(), x, T(-1),
                   SELMODE::VSEL_TENSOR_SCALAR_MODE, N);
            break;
        case 14:
            Brcb(z, x, 1, {1, 8});
            break;
        case 15:
            Copy(z, x, LANES, REPEATS / 2, {1, 1, 16, 8});
            break;
        case 16:
            DataCopy(z, x, DataCopyParams(4, 2, 2, 0));
            break;
        case 17:
            Axpy(z, x, T(3), N);
            break;
        case 18:
            MulAddDst(z, x, y, N);
            break;
        case 19:
            Duplicate(z, T(7), 5);
            break;
        case 20:
            PairReduceSum(z, x, REPEATS, int32_t(LANES), 1, 1, 8);
            break;
        case 21:
            // Of pairs without any lane the result stays as it was.
            ReducePairElem<ReduceType::SUM>(z, x, some, 2, 2, 1, 8);
            break;
        case 23:
            // In counter mode a copy counts the elements of each repeat.
            SetMaskCount();
            SetVectorMask<T>(0, 32 / sizeof(T));
            Copy<T, false>(z, x, MASK_PLACEHOLDER, 5, {1, 1, 1, 2});
            SetMaskNorm();
            ResetMask();
            break;
        case 22:
            RepeatReduceSum(z, x, REPEATS, int32_t(LANES), 0, 1, 1, 8);
            break;
    }
}

template <typename T>
__global__ __aicore__ void vector_calls(__gm__ T* x, __gm__ T* y, __gm__ T* z, uint32_t which)
{
    GlobalTensor<T> xGm, yGm, zGm;
    xGm.SetGlobalBuffer(x, N);
    yGm.SetGlobalBuffer(y, N);
    zGm.SetGlobalBuffer(z, N);
    TPipe pipe;
    TQue<TPosition::VECIN, 1> in;
    TQue<TPosition::VECOUT, 1> out;
    TBuf<> buffer;
    pipe.InitBuffer(in, 1, 2 * N * sizeof(T));
    pipe.InitBuffer(out, 1, N * sizeof(T));
    pipe.InitBuffer(buffer, N * sizeof(T));
    LocalTensor<T> loaded = in.AllocTensor<T>();
    DataCopy(loaded, xGm, N);
    DataCopy(loaded[N], yGm, N);
    in.EnQue(loaded);
    loaded = in.DeQue<T>();
    LocalTensor<T> result = out.AllocTensor<T>();
    apply(which, result, loaded, loaded[N], buffer.Get<T>());
    in.FreeTensor(loaded);
    out.EnQue(result);
    result = out.DeQue<T>();
    DataCopy(zGm, result, N);
    out.FreeTensor(result);
}
