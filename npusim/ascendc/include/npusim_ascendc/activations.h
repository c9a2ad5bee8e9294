// Functions of each element above the vector unit's own: activations, roundings, bounds.
#pragma once

#include "npusim_ascendc/buffers.h"
#include "npusim_ascendc/vector.h"

namespace npusim {

// Room in the unified buffer that a function may use, up to its end where none is given.
class Scratch {
public:
    static constexpr uint32_t TENSORS = 4;

    Scratch(const AscendC::LocalTensor<uint8_t>& given) : next_(given.GetPhyAddr()) {}
    explicit Scratch(uint32_t count) : next_(NPUSIM_UB_BYTES - needed_bytes(count)) {}

    static constexpr uint32_t needed_bytes(uint32_t count)
    {
        return TENSORS * whole_blocks(count * sizeof(float));
    }
    AscendC::LocalTensor<float> take(uint32_t count)
    {
        AscendC::LocalTensor<float> found(AscendC::TPosition::VECCALC, next_, count);
        next_ += whole_blocks(count * sizeof(float));
        return found;
    }

private:
    uint32_t next_;
};

inline void step()
{
    record("PipeBarrier", PIPE_V);
}

using Floats = AscendC::LocalTensor<float>;

// Computes in float what comes in half.
template <typename T, typename Function>
void in_float(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              Scratch scratch, uint32_t count, Function function)
{
    if constexpr (std::is_same<T, float>::value) {
        function(dst, src, scratch);
    } else {
        Floats wide = scratch.take(count), result = scratch.take(count);
        AscendC::Cast(wide, src, AscendC::RoundMode::CAST_NONE, count);
        step();
        function(result, wide, scratch);
        step();
        AscendC::Cast(dst, result, AscendC::RoundMode::CAST_RINT, count);
    }
    step();
}

// x / (1 + exp(x by)), in which x by is in `power` already.
inline void divide_by_one_and_exp(const Floats& dst, const Floats& x, const Floats& power,
                                  uint32_t count)
{
    AscendC::Exp(power, power, int32_t(count));
    step();
    AscendC::Adds(power, power, 1.0f, int32_t(count));
    step();
    AscendC::Div(dst, x, power, int32_t(count));
}

template <typename T>
void sigmoid(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
             Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [count](auto& to, auto& x, Scratch& room) {
        Floats power = room.take(count), one = room.take(count);
        AscendC::Muls(power, x, -1.0f, int32_t(count));
        AscendC::Duplicate(one, 1.0f, int32_t(count));
        step();
        divide_by_one_and_exp(to, one, power, count);
    });
}

template <typename T>
void swish(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
           Scratch scratch, uint32_t count, float beta)
{
    in_float(dst, src, scratch, count, [count, beta](auto& to, auto& x, Scratch& room) {
        Floats power = room.take(count);
        AscendC::Muls(power, x, -beta, int32_t(count));
        step();
        divide_by_one_and_exp(to, x, power, count);
    });
}

// x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) (asc-devkit, docs/zh/api, Gelu.md).
template <typename T>
void gelu(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [count](auto& to, auto& x, Scratch& room) {
        Floats power = room.take(count);
        AscendC::Mul(power, x, x, int32_t(count));
        step();
        AscendC::Mul(power, power, x, int32_t(count));
        step();
        AscendC::Muls(power, power, 0.044715f, int32_t(count));
        step();
        AscendC::Add(power, power, x, int32_t(count));
        step();
        AscendC::Muls(power, power, -1.5957691216f, int32_t(count));
        step();
        divide_by_one_and_exp(to, x, power, count);
    });
}

// 1 is as near as fp32 comes to the tanh of what is above this.
constexpr float TANH_BOUND = 8.8f;

template <typename T>
void tanh(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [count](auto& to, auto& x, Scratch& room) {
        Floats power = room.take(count), less = room.take(count);
        AscendC::Mins(power, x, TANH_BOUND, int32_t(count));
        step();
        AscendC::Maxs(power, power, -TANH_BOUND, int32_t(count));
        step();
        AscendC::Muls(power, power, 2.0f, int32_t(count));
        step();
        AscendC::Exp(power, power, int32_t(count));
        step();
        AscendC::Adds(less, power, -1.0f, int32_t(count));
        AscendC::Adds(power, power, 1.0f, int32_t(count));
        step();
        AscendC::Div(to, less, power, int32_t(count));
    });
}

template <AscendC::RoundMode MODE, typename T>
void round(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
           Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [count](auto& to, auto& x, Scratch&) {
        AscendC::Cast(to, x, MODE, count);
    });
}

template <typename T>
void fraction(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [count](auto& to, auto& x, Scratch& room) {
        Floats whole = room.take(count);
        AscendC::Cast(whole, x, AscendC::RoundMode::CAST_TRUNC, count);
        step();
        AscendC::Sub(to, x, whole, int32_t(count));
    });
}

}  // namespace npusim

namespace AscendC {

// The forms of a function of each element: with room and without, of some elements and of all.
#define NPUSIM_FUNCTION(NAME, FUNCTION)                                                           \
    template <typename T, bool isReuseSource = false>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                const uint32_t calCount)                                          \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, srcTensor, npusim::Scratch(sharedTmpBuffer), calCount);       \
    }                                                                                             \
    template <typename T, bool isReuseSource = false>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const LocalTensor<uint8_t>& sharedTmpBuffer)                      \
    {                                                                                             \
        NAME<T, isReuseSource>(dstTensor, srcTensor, sharedTmpBuffer, srcTensor.GetSize());       \
    }                                                                                             \
    template <typename T, bool isReuseSource = false>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const uint32_t calCount)                                          \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, srcTensor, npusim::Scratch(calCount), calCount);              \
    }                                                                                             \
    template <typename T, bool isReuseSource = false>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor) \
    {                                                                                             \
        NAME<T, isReuseSource>(dstTensor, srcTensor, srcTensor.GetSize());                        \
    }

NPUSIM_FUNCTION(Sigmoid, sigmoid)
NPUSIM_FUNCTION(Tanh, tanh)
NPUSIM_FUNCTION(Gelu, gelu)
NPUSIM_FUNCTION(Ceil, round<RoundMode::CAST_CEIL>)
NPUSIM_FUNCTION(Floor, round<RoundMode::CAST_FLOOR>)
NPUSIM_FUNCTION(Rint, round<RoundMode::CAST_RINT>)
NPUSIM_FUNCTION(Trunc, round<RoundMode::CAST_TRUNC>)
NPUSIM_FUNCTION(Frac, fraction)

template <typename T, bool isReuseSource = false>
__aicore__ inline void Silu(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                            uint32_t dataSize)
{
    npusim::swish(dstLocal, srcLocal, npusim::Scratch(dataSize), dataSize, 1.0f);
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void Swish(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                             uint32_t dataSize, const T scalarValue)
{
    npusim::swish(dstLocal, srcLocal, npusim::Scratch(dataSize), dataSize, float(scalarValue));
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void Log(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                           uint32_t calCount)
{
    Ln(dstTensor, srcTensor, int32_t(calCount));
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void Log(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor)
{
    Log<T, isReuseSource>(dstTensor, srcTensor, srcTensor.GetSize());
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void ClampMax(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                                const T scalar, const uint32_t calCount)
{
    Mins(dstTensor, srcTensor, scalar, int32_t(calCount));
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void ClampMax(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                                const LocalTensor<uint8_t>&, const T scalar,
                                const uint32_t calCount)
{
    ClampMax<T, isReuseSource>(dstTensor, srcTensor, scalar, calCount);
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void ClampMin(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                                const T scalar, const uint32_t calCount)
{
    Maxs(dstTensor, srcTensor, scalar, int32_t(calCount));
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void ClampMin(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                                const LocalTensor<uint8_t>&, const T scalar,
                                const uint32_t calCount)
{
    ClampMin<T, isReuseSource>(dstTensor, srcTensor, scalar, calCount);
}

}  // namespace AscendC
