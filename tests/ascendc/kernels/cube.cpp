// Products of matrices on the cube, in the forms of its calls.
#include "kernel_operator.h"
using namespace AscendC;

constexpr uint32_t ROWS = 16;

template <typename T>
constexpr uint32_t WIDTH = 32 / sizeof(T);

constexpr uint32_t up(uint32_t value, uint32_t to)
{
    return (value + to - 1) / to * to;
}

// One product that fits into L0, its operands not turned: b comes as (n, k).
template <typename T, typename SUM>
struct Product {
    uint32_t m, n, k;
    LocalTensor<T> a1, b1, a2, b2;
    LocalTensor<SUM> sums;

    Product(uint32_t m, uint32_t n, uint32_t k) : m(m), n(n), k(k)
    {
        LocalMemAllocator<Hardware::L1> l1;
        a1 = l1.Alloc<TPosition::A1, T>(rows() * depth());
        b1 = l1.Alloc<TPosition::B1, T>(columns() * depth());
        a2 = LocalTensor<T>(TPosition::A2, 0, rows() * depth());
        b2 = LocalTensor<T>(TPosition::B2, 0, columns() * depth());
        sums = LocalTensor<SUM>(TPosition::CO1, 0, rows() * columns());
    }
    uint32_t rows() const { return up(m, ROWS); }
    uint32_t columns() const { return up(n, ROWS); }
    uint32_t depth() const { return up(k, WIDTH<T>); }

    void load(GM_ADDR a, GM_ADDR b)
    {
        GlobalTensor<T> aGm, bGm;
        aGm.SetGlobalBuffer((__gm__ T*)a);
        bGm.SetGlobalBuffer((__gm__ T*)b);
        DataCopy(a1, aGm, Nd2NzParams(1, m, k, 0, k, rows(), 1, 0));
        DataCopy(b1, bGm, Nd2NzParams(1, n, k, 0, k, columns(), 1, 0));
        SetFlag<HardEvent::MTE2_MTE1>(0);
        WaitFlag<HardEvent::MTE2_MTE1>(0);
        LoadData2DParams of;
        of.repeatTimes = depth() / WIDTH<T>;
        of.srcStride = rows() / ROWS;
        for (uint32_t row = 0; row < rows() / ROWS; ++row) {
            LoadData(a2[row * ROWS * depth()], a1[row * ROWS * WIDTH<T>], of);
        }
        of.repeatTimes = depth() / WIDTH<T> * (columns() / ROWS);
        of.srcStride = 1;
        LoadData(b2, b1, of);
        SetFlag<HardEvent::MTE1_M>(0);
        WaitFlag<HardEvent::MTE1_M>(0);
    }
    void finish()
    {
        SetFlag<HardEvent::M_FIX>(0);
        WaitFlag<HardEvent::M_FIX>(0);
    }
    FixpipeParamsV220 whole(QuantMode_t mode) const
    {
        return FixpipeParamsV220(n, m, rows(), n, false, mode, 0, 1, 0, 0, 0);
    }
};

template <typename T, typename SUM, typename OUT>
__global__ __cube__ void product(GM_ADDR a, GM_ADDR b, GM_ADDR c, uint32_t m, uint32_t n,
                                 uint32_t k, uint32_t mode)
{
    Product<T, SUM> by(m, n, k);
    by.load(a, b);
    Mmad(by.sums, by.a2, by.b2, MmadParams(m, n, k, 0, false, true));
    by.finish();
    GlobalTensor<OUT> cGm;
    cGm.SetGlobalBuffer((__gm__ OUT*)c);
    Fixpipe(cGm, by.sums, by.whole(QuantMode_t(mode)));
}

// Twice the product and a bias, without what is below zero.
extern "C" __global__ __cube__ void biased(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c,
                                           uint32_t m, uint32_t n, uint32_t k)
{
    Product<half, float> by(m, n, k);
    GlobalTensor<float> biasGm, cGm;
    biasGm.SetGlobalBuffer((__gm__ float*)bias);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    LocalTensor<float> bias1(TPosition::C1, 256 * 1024, n), table(TPosition::C2, 0, n);
    DataCopy(bias1, biasGm, n);
    by.load(a, b);
    DataCopy(table, bias1, DataCopyParams(1, n * sizeof(float) / 64, 0, 0));
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    Mmad(by.sums, by.a2, by.b2, table, MmadParams(m, n, k));
    PipeBarrier<PIPE_M>();
    MmadParams more(m, n, k);
    more.cmatrixInitVal = false;
    Mmad(by.sums, by.a2, by.b2, more);
    by.finish();
    auto out = by.whole(NoQuant);
    out.reluEn = true;
    Fixpipe(cGm, by.sums, out);
}

// int8 scaled for each column: the scales lie in L1 or are set before.
extern "C" __global__ __cube__ void quantised(GM_ADDR a, GM_ADDR b, GM_ADDR scales, GM_ADDR c,
                                              GM_ADDR d, uint32_t m, uint32_t n, uint32_t k)
{
    Product<int8_t, int32_t> by(m, n, k);
    GlobalTensor<uint64_t> scalesGm;
    GlobalTensor<half> cGm, dGm;
    scalesGm.SetGlobalBuffer((__gm__ uint64_t*)scales);
    cGm.SetGlobalBuffer((__gm__ half*)c);
    dGm.SetGlobalBuffer((__gm__ half*)d);
    LocalTensor<uint64_t> scales1(TPosition::C1, 256 * 1024, n);
    DataCopy(scales1, scalesGm, n);
    by.load(a, b);
    Mmad(by.sums, by.a2, by.b2, MmadParams(m, n, k));
    SetFlag<HardEvent::MTE2_FIX>(0);
    WaitFlag<HardEvent::MTE2_FIX>(0);
    by.finish();
    Fixpipe(cGm, by.sums, scales1, by.whole(VDEQF16));
    PipeBarrier<PIPE_FIX>();
    LocalTensor<uint64_t> table(TPosition::C2PIPE2GM, 0, n);
    DataCopy(table, scales1, DataCopyParams(1, n * sizeof(uint64_t) / 128, 0, 0));
    SetFixPipeConfig(table);
    SetFixpipeNz2ndFlag(1, 0, 0);
    PipeBarrier<PIPE_FIX>();
    DataCopy(dGm, by.sums, DataCopyCO12DstParams(n, m, n, by.rows(), VDEQF16, 0, false, true));
}

// As Nz, its operands turned on their way to L0: a comes as (k, m), b as (k, n).
extern "C" __global__ __cube__ void turned(GM_ADDR a, GM_ADDR b, GM_ADDR c, uint32_t m,
                                           uint32_t n, uint32_t k)
{
    Product<half, float> by(m, n, k);
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    DataCopy(by.a1, aGm, Nd2NzParams(1, k, m, 0, m, k, 1, 0));
    DataCopy(by.b1, bGm, Nd2NzParams(1, k, n, 0, n, k, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(0);
    WaitFlag<HardEvent::MTE2_MTE1>(0);
    LoadData3DParamsV2<half> of;
    of.l1H = 1;
    of.l1W = k;
    of.channelSize = m;
    of.mExtension = k;
    of.kExtension = m;
    of.enTranspose = true;
    LoadData(by.a2, by.a1, of);
    LoadData2dTransposeParams squares(0, n / ROWS, k / ROWS, 0, 0);
    for (uint32_t row = 0; row < k / ROWS; ++row) {
        LoadDataWithTranspose(by.b2[row * ROWS * n], by.b1[row * ROWS * ROWS], squares);
    }
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    Mmad(by.sums, by.a2, by.b2, MmadParams(m, n, k, 3, false, true));
    FixpipeParamsV220 out(n, m, m, m * 2, false, NoQuant, 0, 1, 0, 0, 3);
    Fixpipe<float, float, CFG_NZ>(cGm, by.sums, out);
}

// One row of a.
extern "C" __global__ __cube__ void row(GM_ADDR a, GM_ADDR b, GM_ADDR c, uint32_t n, uint32_t k)
{
    Product<half, float> by(1, n, k);
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    DataCopy(by.a1, aGm, k);
    DataCopy(by.b1, bGm, Nd2NzParams(1, n, k, 0, k, n, 1, 0));
    SetFlag<HardEvent::MTE2_MTE1>(0);
    WaitFlag<HardEvent::MTE2_MTE1>(0);
    LoadData2DParams of;
    of.repeatTimes = up(k, 256) / 256;
    of.srcStride = 1;
    LoadData(by.a2, by.a1, of);
    of.repeatTimes = k / ROWS * (n / ROWS);
    LoadData(by.b2, by.b1, of);
    SetFlag<HardEvent::MTE1_M>(0);
    WaitFlag<HardEvent::MTE1_M>(0);
    Mmad(by.sums, by.a2, by.b2, MmadParams(1, n, k));
    by.finish();
    Fixpipe(cGm, by.sums, FixpipeParamsV220(n, 1, ROWS, n, false));
}

// The cube multiplies, its two vector cores double half of the rows each.
extern "C" __global__ __mix__(1, 2) void doubled(GM_ADDR a, GM_ADDR b, GM_ADDR c, uint32_t m,
                                                 uint32_t n, uint32_t k)
{
    GlobalTensor<float> cGm;
    cGm.SetGlobalBuffer((__gm__ float*)c);
    if (ASCEND_IS_AIC) {
        Product<half, float> by(m, n, k);
        by.load(a, b);
        Mmad(by.sums, by.a2, by.b2, MmadParams(m, n, k));
        by.finish();
        Fixpipe(cGm, by.sums, by.whole(NoQuant));
        CrossCoreSetFlag<2, PIPE_FIX>(3);
    }
    if (ASCEND_IS_AIV) {
        uint32_t count = m * n / 2;
        TPipe pipe;
        TQue<TPosition::VECIN, 1> in;
        TQue<TPosition::VECOUT, 1> out;
        pipe.InitBuffer(in, 1, count * sizeof(float));
        pipe.InitBuffer(out, 1, count * sizeof(float));
        CrossCoreWaitFlag<2, PIPE_MTE2>(3);
        auto half_of_it = cGm[GetSubBlockIdx() * count];
        auto x = in.AllocTensor<float>();
        DataCopy(x, half_of_it, count);
        in.EnQue(x);
        x = in.DeQue<float>();
        auto y = out.AllocTensor<float>();
        Muls(y, x, 2.0f, count);
        out.EnQue(y);
        y = out.DeQue<float>();
        DataCopy(half_of_it, y, count);
        out.FreeTensor(y);
        in.FreeTensor(x);
    }
}
