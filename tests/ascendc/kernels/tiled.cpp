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

namespace parts {
constexpr uint32_t MOST = 4;
enum class Mode : uint8_t { PLAIN, SCALED };
struct Part {
    uint16_t length;
    half factor;
};
struct Whole {
    Mode mode = Mode::SCALED;
    int64_t starts[MOST] = {0}, count;
    Part parts[MOST];
    float bias;
    bool isNegative;
    __aicore__ inline float signedBias() const { return isNegative ? -bias : bias; }
};
}  // namespace parts

// Each part of x times its factor and with the bias.
extern "C" __global__ __aicore__ void in_parts(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    REGISTER_TILING_DEFAULT(parts::Whole);
    GET_TILING_DATA(whole, tiling);
    GlobalTensor<float> xGm, yGm;
    xGm.SetGlobalBuffer((__gm__ float*)x);
    yGm.SetGlobalBuffer((__gm__ float*)y);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1024 * sizeof(float));
    LocalTensor<float> a = buffer.Get<float>();
    for (int64_t i = 0; i < whole.count; ++i) {
        uint32_t length = whole.parts[i].length;
        DataCopy(a, xGm[whole.starts[i]], length);
        PipeBarrier<PIPE_ALL>();
        if (whole.mode == parts::Mode::SCALED) {
            Muls(a, a, float(whole.parts[i].factor), length);
        }
        Adds(a, a, whole.signedBias(), length);
        PipeBarrier<PIPE_ALL>();
        DataCopy(yGm[whole.starts[i]], a, length);
        PipeBarrier<PIPE_ALL>();
    }
}

// Reads one of two structures.
extern "C" __global__ __aicore__ void by_key(GM_ADDR x, GM_ADDR y, GM_ADDR tiling)
{
    if (TILING_KEY_IS(1)) {
        GET_TILING_DATA_WITH_STRUCT(parts::Part, data, tiling);
        magnitudes(x, y, {data.length, 64});
    } else {
        GET_TILING_DATA_WITH_STRUCT(Tiling, data, tiling);
        magnitudes(x, y, data);
    }
}

// Twice each tensor of a list, a core each.
extern "C" __global__ __aicore__ void each_twice(GM_ADDR x, GM_ADDR y)
{
    ListTensorDesc xs(x), ys(y);
    uint64_t lengths[8];
    TensorDesc<float> desc;
    desc.SetShapeAddr(lengths);
    TPipe pipe;
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1024 * sizeof(float));
    LocalTensor<float> a = buffer.Get<float>();
    for (uint32_t i = GetBlockIdx(); i < xs.GetSize(); i += GetBlockNum()) {
        xs.GetDesc(desc, i);
        uint64_t count = 1;
        for (uint64_t dim = 0; dim < desc.GetDim(); ++dim) {
            count *= desc.GetShape(dim);
        }
        GlobalTensor<float> yGm;
        yGm.SetGlobalBuffer(ys.GetDataPtr<float>(i));
        DataCopy(a, desc.GetDataObj(), count);
        PipeBarrier<PIPE_ALL>();
        Add(a, a, a, count);
        PipeBarrier<PIPE_ALL>();
        DataCopy(yGm, a, count);
        PipeBarrier<PIPE_ALL>();
    }
}
