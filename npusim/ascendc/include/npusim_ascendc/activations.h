// Functions of each element above the vector unit's own: activations, roundings, bounds.
#pragma once

#include "npusim_ascendc/scratch.h"

namespace npusim {

// Computes in float what comes in half, as many elements at once as the room is large enough for.
template <typename T, typename Function>
void in_float(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              const Scratch& scratch, uint32_t count, Function function)
{
    uint32_t most = scratch.most_elements();
    for (uint32_t done = 0; done < count; done += most) {
        uint32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        Floats x = widened(src[done], room, part), result = computed_for(dst[done], room, part);
        function(result, x, room, part);
        step();
        rounded_to(dst[done], result, part);
    }
}

// The same of two tensors.
template <typename T, typename Function>
void in_float(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
              const AscendC::LocalTensor<T>& src1, const Scratch& scratch, uint32_t count,
              Function function)
{
    uint32_t most = scratch.most_elements();
    for (uint32_t done = 0; done < count; done += most) {
        uint32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        Floats a = widened(src0[done], room, part), b = widened(src1[done], room, part);
        Floats result = computed_for(dst[done], room, part);
        function(result, a, b, room, part);
        step();
        rounded_to(dst[done], result, part);
    }
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
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
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
    in_float(dst, src, scratch, count, [beta](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats power = room.take(count);
        AscendC::Muls(power, x, -beta, int32_t(count));
        step();
        divide_by_one_and_exp(to, x, power, count);
    });
}

// x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) (asc-devkit, docs/zh/api, Gelu.md).
inline void gelu_of_floats(const Floats& dst, const Floats& x, const Floats& power, uint32_t count)
{
    steps::Mul(power, x, x, count);
    steps::Mul(power, power, x, count);
    steps::Muls(power, power, 0.044715f, count);
    steps::Add(power, power, x, count);
    steps::Muls(power, power, -1.5957691216f, count);
    divide_by_one_and_exp(dst, x, power, count);
}

template <typename T>
void gelu(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        gelu_of_floats(to, x, room.take(count), count);
    });
}

// 1 is as near as fp32 comes to the tanh of what is above this.
constexpr float TANH_BOUND = 8.8f;

template <typename T>
void tanh(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
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
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        to_whole<MODE>(to, x, count, room);
    });
}

template <typename T>
void fraction(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats whole = room.take(count);
        to_whole<AscendC::RoundMode::CAST_TRUNC>(whole, x, count, room);
        AscendC::Sub(to, x, whole, int32_t(count));
    });
}

// x exp(y beta) / (1 + exp(y beta)), or x gelu(y), or x relu(y): what gates x.
template <typename T>
void swish_gate(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
                const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count, float beta)
{
    in_float(dst, src0, src1, scratch, count,
             [beta](auto& to, auto& x, auto& y, Scratch& room, uint32_t count) {
                 Floats power = room.take(count);
                 steps::Muls(power, y, -beta, count);
                 divide_by_one_and_exp(power, y, power, count);
                 step();
                 AscendC::Mul(to, x, power, int32_t(count));
             });
}

template <typename T>
void gelu_gate(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
               const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count)
{
    in_float(dst, src0, src1, scratch, count,
             [](auto& to, auto& x, auto& y, Scratch& room, uint32_t count) {
                 Floats power = room.take(count);
                 gelu_of_floats(power, y, power, count);
                 step();
                 AscendC::Mul(to, x, power, int32_t(count));
             });
}

template <typename T>
void relu_gate(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
               const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count)
{
    in_float(dst, src0, src1, scratch, count,
             [](auto& to, auto& x, auto& y, Scratch& room, uint32_t count) {
                 Floats gate = room.take(count);
                 steps::Relu(gate, y, count);
                 AscendC::Mul(to, x, gate, int32_t(count));
             });
}

}  // namespace npusim

namespace AscendC {

// The forms of a function of each element: with room and without, of some elements and of all.
#define NPUSIM_FUNCTION(NAME, FUNCTION)                                                           \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                const uint32_t calCount)                                          \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, srcTensor, npusim::Scratch(sharedTmpBuffer), calCount);       \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const LocalTensor<uint8_t>& sharedTmpBuffer)                      \
    {                                                                                             \
        NAME<T, isReuseSource>(dstTensor, srcTensor, sharedTmpBuffer, srcTensor.GetSize());       \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor, \
                                const uint32_t calCount)                                          \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, srcTensor, npusim::Scratch(), calCount);              \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
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

// The same of two tensors, and of two and a number.
#define NPUSIM_FUNCTION_OF_TWO(NAME, FUNCTION)                                                    \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1,                                       \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                const uint32_t calCount)                                          \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, src0, src1, npusim::Scratch(sharedTmpBuffer), calCount);      \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1,                                       \
                                const LocalTensor<uint8_t>& sharedTmpBuffer)                      \
    {                                                                                             \
        NAME<T, isReuseSource>(dstTensor, src0, src1, sharedTmpBuffer, src0.GetSize());           \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1, const uint32_t calCount)              \
    {                                                                                             \
        npusim::FUNCTION(dstTensor, src0, src1, npusim::Scratch(), calCount);                     \
    }                                                                                             \
    template <typename T, bool isReuseSource = false, const auto&... config>                      \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1)                                       \
    {                                                                                             \
        NAME<T, isReuseSource>(dstTensor, src0, src1, src0.GetSize());                            \
    }

NPUSIM_FUNCTION_OF_TWO(GeGLU, gelu_gate)
NPUSIM_FUNCTION_OF_TWO(ReGlu, relu_gate)

template <typename T, bool isReuseSource = false>
__aicore__ inline void SwiGLU(LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor0,
                              const LocalTensor<T>& srcTensor1, const float& scalarValue,
                              const LocalTensor<uint8_t>& sharedTmpBuffer, const uint32_t calCount)
{
    npusim::swish_gate(dstTensor, srcTensor0, srcTensor1, npusim::Scratch(sharedTmpBuffer),
                       calCount, scalarValue);
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void SwiGLU(LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor0,
                              const LocalTensor<T>& srcTensor1, const float& scalarValue,
                              const LocalTensor<uint8_t>& sharedTmpBuffer)
{
    SwiGLU<T>(dstTensor, srcTensor0, srcTensor1, scalarValue, sharedTmpBuffer,
              srcTensor0.GetSize());
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void SwiGLU(LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor0,
                              const LocalTensor<T>& srcTensor1, const float& scalarValue,
                              const uint32_t calCount)
{
    npusim::swish_gate(dstTensor, srcTensor0, srcTensor1, npusim::Scratch(), calCount, scalarValue);
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void SwiGLU(LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor0,
                              const LocalTensor<T>& srcTensor1, const float& scalarValue)
{
    SwiGLU<T>(dstTensor, srcTensor0, srcTensor1, scalarValue, srcTensor0.GetSize());
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void Silu(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                            uint32_t dataSize)
{
    npusim::swish(dstLocal, srcLocal, npusim::Scratch(), dataSize, 1.0f);
}

template <typename T, bool isReuseSource = false>
__aicore__ inline void Swish(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                             uint32_t dataSize, const T scalarValue)
{
    npusim::swish(dstLocal, srcLocal, npusim::Scratch(), dataSize, float(scalarValue));
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
