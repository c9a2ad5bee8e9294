// Functions of the advanced API, each on tensors that lie in the unified buffer as a whole.
#include "kernel_operator.h"

using namespace AscendC;

constexpr uint32_t ROWS = 24, COLUMNS = 144, SIZE = ROWS * COLUMNS;

// Tensors of global memory, and buffers for them.
class Tensors {
public:
    template <typename T>
    LocalTensor<T> make(uint32_t count)
    {
        TBuf<> buffer;
        pipe_.InitBuffer(buffer, count * sizeof(T));
        return buffer.Get<T>(count);
    }
    template <typename T>
    LocalTensor<T> load(GM_ADDR from, uint32_t count)
    {
        LocalTensor<T> tensor = make<T>(count);
        GlobalTensor<T> gm;
        gm.SetGlobalBuffer((__gm__ T*)from, count);
        DataCopy(tensor, gm, count);
        PipeBarrier<PIPE_ALL>();
        return tensor;
    }
    template <typename T>
    void store(GM_ADDR to, const LocalTensor<T>& tensor, uint32_t count)
    {
        GlobalTensor<T> gm;
        gm.SetGlobalBuffer((__gm__ T*)to, count);
        PipeBarrier<PIPE_ALL>();
        DataCopy(gm, tensor, count);
        PipeBarrier<PIPE_ALL>();
    }

private:
    TPipe pipe_;
};

template <typename T>
__global__ __aicore__ void elements(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t count)
{
    Tensors tensors;
    auto a = tensors.load<T>(x, count), b = tensors.load<T>(y, count), c = tensors.make<T>(count);
    auto put = [&] {
        tensors.store(z, c, count);
        z += count * sizeof(T);
    };
    Erf(c, a, count);
    put();
    Acosh(c, b, count);
    put();
    Cosh(c, a, count);
    put();
    Fmod(c, a, b, count);
    put();
    Power(c, b, a, count);
    put();
    Power(c, a, T(3.0f), count);
    put();
    GeGLU(c, a, b, count);
    put();
    ReGlu(c, a, b, count);
    put();
    SwiGLU(c, a, b, 1.5f, count);
    put();
    Exp<T, 5, false>(c, a, count);
    put();
}

template <typename T>
__global__ __aicore__ void angles(GM_ADDR x, GM_ADDR y, GM_ADDR z, uint32_t count)
{
    Tensors tensors;
    auto a = tensors.load<T>(x, count), b = tensors.load<T>(y, count), c = tensors.make<T>(count);
    auto put = [&] {
        tensors.store(z, c, count);
        z += count * sizeof(T);
    };
    Sin(c, a, count);
    put();
    Cos(c, a, count);
    put();
    Tan(c, a, count);
    put();
    Asin(c, b, count);
    put();
    Acos(c, b, count);
    put();
    Atan(c, a, count);
    put();
    Asinh(c, a, count);
    put();
    Atanh(c, b, count);
    put();
    Erfc(c, a, count);
    put();
    Sign(c, a, count);
    put();
    Abs(a, a, count);
    PipeBarrier<PIPE_V>();
    Log2(c, a, count);
    put();
    Log10(c, a, count);
    put();
}

extern "C" __global__ __aicore__ void softmaxes(GM_ADDR x, GM_ADDR y, GM_ADDR sums, GM_ADDR most,
                                                GM_ADDR slope, uint32_t counted)
{
    Tensors tensors;
    auto a = tensors.load<float>(x, SIZE), b = tensors.make<float>(SIZE);
    auto sum = tensors.make<float>(ROWS * 8), greatest = tensors.make<float>(ROWS * 8);
    SoftMaxShapeInfo shape{ROWS, COLUMNS, ROWS, counted};
    SoftMaxTiling tiling;
    SoftMax<float>(b, sum, greatest, a, tiling, shape);
    tensors.store(y, b, SIZE);
    tensors.store(sums, sum, ROWS * 8);
    tensors.store(most, greatest, ROWS * 8);
    SoftmaxGrad<float>(a, a, b, tiling, false, shape);
    tensors.store(slope, a, SIZE);
}

// A softmax of two halves of each row, one after the other.
template <typename T>
__global__ __aicore__ void flash(GM_ADDR first, GM_ADDR second, GM_ADDR y, GM_ADDR factors,
                                 GM_ADDR sums, GM_ADDR most)
{
    Tensors tensors;
    constexpr uint32_t own = 32 / sizeof(T);
    auto a = tensors.load<T>(first, SIZE), b = tensors.load<T>(second, SIZE);
    auto sum = tensors.make<T>(ROWS * own), greatest = tensors.make<T>(ROWS * own);
    auto factor = tensors.make<T>(ROWS * own);
    SoftMaxShapeInfo shape{ROWS, COLUMNS, ROWS, COLUMNS};
    SoftMaxTiling tiling;
    SoftmaxFlashV2<T, false>(a, sum, greatest, a, factor, sum, greatest, tiling, shape);
    SoftmaxFlashV2<T, true>(b, sum, greatest, b, factor, sum, greatest, tiling, shape);
    tensors.store(y, b, SIZE);
    tensors.store(factors, factor, ROWS * own);
    tensors.store(sums, sum, ROWS * own);
    tensors.store(most, greatest, ROWS * own);
}

template <typename T>
__global__ __aicore__ void norms(GM_ADDR x, GM_ADDR gammas, GM_ADDR betas, GM_ADDR y, GM_ADDR means,
                                 GM_ADDR variances, GM_ADDR rms, GM_ADDR deep)
{
    Tensors tensors;
    auto a = tensors.load<T>(x, SIZE), b = tensors.make<T>(SIZE);
    auto gamma = tensors.load<T>(gammas, COLUMNS), beta = tensors.load<T>(betas, COLUMNS);
    auto mean = tensors.make<T>(2 * ROWS), variance = tensors.make<T>(2 * ROWS);
    tiling::LayerNormTiling of;
    of.bLength = 2;
    of.sLength = ROWS / 2;
    of.hLength = COLUMNS;
    LayerNorm<T>(b, mean, variance, a, gamma, beta, T(1e-5f), of);
    tensors.store(y, b, SIZE);
    tensors.store(means, mean, 2 * ROWS);
    tensors.store(variances, variance, 2 * ROWS);
    tiling::RmsNormTiling rows;
    rows.bLength = 2;
    rows.sLength = ROWS / 2;
    rows.hLength = COLUMNS;
    RmsNorm<T>(b, a, gamma, T(1e-5f), rows);
    tensors.store(rms, b, SIZE);
    tiling::DeepNormTiling deeper;
    deeper.bLength = 2;
    deeper.sLength = ROWS / 2;
    deeper.hLength = COLUMNS;
    DeepNorm<T>(b, mean, variance, a, a, beta, gamma, T(0.5f), T(1e-5f), deeper);
    tensors.store(deep, b, SIZE);
}

extern "C" __global__ __aicore__ void norm_gradients(GM_ADDR x, GM_ADDR dy, GM_ADDR gammas,
                                                     GM_ADDR dx, GM_ADDR dgamma, GM_ADDR dbeta)
{
    Tensors tensors;
    auto a = tensors.load<float>(x, SIZE), slope = tensors.load<float>(dy, SIZE);
    auto gamma = tensors.load<float>(gammas, COLUMNS), work = tensors.make<float>(SIZE);
    auto mean = tensors.make<float>(ROWS), variance = tensors.make<float>(ROWS);
    tiling::LayerNormTiling of;
    of.bLength = 1;
    of.sLength = ROWS;
    of.hLength = COLUMNS;
    LayerNorm<float>(work, mean, variance, a, gamma, gamma, 1e-5f, of);
    tiling::LayerNormGradTiling back;
    tiling::LayerNormGradBetaTiling sums;
    back.bLength = sums.bLength = 1;
    back.sLength = sums.sLength = ROWS;
    back.hLength = sums.hLength = COLUMNS;
    LayerNormGrad<float>(a, work, slope, a, variance, mean, gamma, 1e-5f, back);
    tensors.store(dx, a, SIZE);
    auto of_gamma = tensors.make<float>(COLUMNS), of_beta = tensors.make<float>(COLUMNS);
    LayerNormGradBeta<float>(of_gamma, of_beta, work, slope, sums);
    tensors.store(dgamma, of_gamma, COLUMNS);
    tensors.store(dbeta, of_beta, COLUMNS);
}

extern "C" __global__ __aicore__ void quants(GM_ADDR x, GM_ADDR q, GM_ADDR sums, GM_ADDR scales,
                                             GM_ADDR wide, GM_ADDR again)
{
    Tensors tensors;
    auto a = tensors.load<float>(x, SIZE);
    auto narrow = tensors.make<int8_t>(SIZE);
    AscendQuant<float>(narrow, a, 8.0f, 0.5f, SIZE);
    tensors.store(q, narrow, SIZE);
    auto sum = tensors.load<int32_t>(sums, SIZE);
    auto scale = tensors.load<float>(scales, COLUMNS);
    AscendDequant(a, sum, scale, {ROWS, COLUMNS, COLUMNS});
    tensors.store(wide, a, SIZE);
    auto back = tensors.make<half>(SIZE);
    AscendAntiQuant<int8_t, half, false>(back, narrow, half(-0.5f), half(0.125f), ROWS);
    tensors.store(again, back, SIZE);
}

extern "C" __global__ __aicore__ void shapes(GM_ADDR x, GM_ADDR wide, GM_ADDR padded, GM_ADDR cut,
                                             GM_ADDR turned, GM_ADDR sums, GM_ADDR most,
                                             GM_ADDR so_far)
{
    Tensors tensors;
    auto a = tensors.load<float>(x, SIZE), b = tensors.make<float>(SIZE);
    const uint32_t column[] = {ROWS, 1}, matrix[] = {ROWS, COLUMNS};
    Broadcast<float, 2, 1>(b, a, matrix, column);
    tensors.store(wide, b, SIZE);
    // The same elements as rows of 5, padded to 8: one to the left, and one to the right.
    PadParams pads{1, 1, 7};
    tiling::PadTiling of{16, 5, 5};
    Pad(b, a, pads, of);
    tensors.store(padded, b, 16 * 8);
    UnPadParams cuts{0, 3};
    tiling::UnPadTiling from{ROWS, COLUMNS};
    UnPad(b, a, cuts, from);
    tensors.store(cut, b, ROWS * (COLUMNS - 3) / 8 * 8);
    tiling::ConfusionTransposeTiling lengths{{1, 1, ROWS, COLUMNS}};
    Transpose(b, a, TransposeType::TRANSPOSE_ND2ND_ONLY, lengths);
    tensors.store(turned, b, SIZE);
    Sum(b, a, {ROWS, COLUMNS, COLUMNS - 1});
    tensors.store(sums, b, ROWS);
    ReduceMax<float, Pattern::Reduce::RA>(b, a, matrix, true);
    tensors.store(most, b, COLUMNS);
    static constexpr CumSumConfig along = {true, false, false};
    CumSum<float, along>(b, a, a, {ROWS, COLUMNS});
    tensors.store(so_far, b, SIZE);
}

extern "C" __global__ __aicore__ void filters(GM_ADDR x, GM_ADDR masks, GM_ADDR bits, GM_ADDR y,
                                              GM_ADDR kept, GM_ADDR dropped)
{
    Tensors tensors;
    auto a = tensors.load<float>(x, SIZE), b = tensors.make<float>(SIZE);
    auto mask = tensors.load<uint8_t>(masks, ROWS * 160);
    auto room = tensors.make<uint8_t>(16384);
    SelectWithBytesMaskShapeInfo shape;
    shape.firstAxis = ROWS;
    shape.srcLastAxis = COLUMNS;
    shape.maskLastAxis = 160;
    Select(b, a, -1.0f, mask, room, shape);
    tensors.store(y, b, SIZE);
    DropOutShapeInfo drop;
    drop.firstAxis = ROWS;
    drop.srcLastAxis = COLUMNS;
    drop.maskLastAxis = 160;
    DropOut(b, a, mask, room, 0.5f, drop);
    tensors.store(kept, b, SIZE);
    auto packed = tensors.load<uint8_t>(bits, ROWS * 32);
    drop.maskLastAxis = 32;
    DropOut<float, false, 3>(b, a, packed, 0.25f, drop);
    tensors.store(dropped, b, SIZE);
}

template <typename T>
__global__ __aicore__ void sorted(GM_ADDR x, GM_ADDR values, GM_ADDR indices, GM_ADDR top,
                                  GM_ADDR places, uint32_t count)
{
    Tensors tensors;
    auto a = tensors.load<T>(x, count);
    auto index = tensors.make<uint32_t>(count);
    CreateVecIndex(index.ReinterpretCast<int32_t>(), 0, count);
    auto pairs = tensors.make<T>(count * 8 / sizeof(T)), work = tensors.make<T>(count * 8 / sizeof(T));
    LocalTensor<T> joined;
    Concat(joined, a, work, count / 16);
    Sort<T, true>(pairs, joined, index, work, count / 32);
    auto value = tensors.make<T>(count);
    Extract(value, index, pairs, count / 32);
    tensors.store(values, value, count);
    tensors.store(indices, index, count);
    // The 16 least of each of two rows.
    LocalTensor<bool> finished;
    LocalTensor<int32_t> given;
    auto found = index.ReinterpretCast<int32_t>();
    TopkTiling tiling;
    TopKInfo of{2, int32_t(count / 2), int32_t(count / 2)};
    TopK<T>(value, found, a, given, finished, 16, tiling, of, false);
    tensors.store(top, value, 32);
    tensors.store(places, found, 32);
}

// The second and third columns of blocks of rows 1 and 2.
extern "C" __global__ __aicore__ void slices(GM_ADDR x, GM_ADDR y, GM_ADDR same)
{
    Tensors tensors;
    GlobalTensor<float> from, to, filled;
    from.SetGlobalBuffer((__gm__ float*)x, SIZE);
    to.SetGlobalBuffer((__gm__ float*)y, 32);
    filled.SetGlobalBuffer((__gm__ float*)same, 1000);
    auto tile = tensors.make<float>(32);
    SliceInfo src[] = {{8, 23, 0, 2, COLUMNS}, {1, 2, 0, 1, ROWS}};
    SliceInfo dst[] = {{0, 15, 0, 2, 16}, {0, 1, 0, 1, 2}};
    DataCopy(tile, from, dst, src, 2);
    PipeBarrier<PIPE_ALL>();
    DataCopy(to, tile, dst, dst, 2);
    Fill(filled, 1000, 2.5f);
}
