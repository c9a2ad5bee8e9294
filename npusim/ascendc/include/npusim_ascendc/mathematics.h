// Functions of each element that are computed from logarithms, powers and polynomials.
#pragma once

#include "npusim_ascendc/activations.h"
#include "npusim_ascendc/arranging.h"

namespace npusim {

// p[0] x^n + p[1] x^(n - 1) + ..., which begins with p[0] already multiplied out in `sum`.
inline void polynomial(const Floats& sum, const Floats& x, const float* factors, int count,
                       uint32_t elements)
{
    steps::Muls(sum, x, factors[0], elements);
    for (int i = 1; i < count - 1; ++i) {
        steps::Adds(sum, sum, factors[i], elements);
        steps::Mul(sum, sum, x, elements);
    }
    steps::Adds(sum, sum, factors[count - 1], elements);
}

// Of x with exp(-x^2): Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
constexpr float ERF_P = 0.3275911f;
constexpr float ERF_FACTORS[] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                                 0.254829592f};
// Below this the function is the first terms of its series.
constexpr float ERF_SMALL = 0.5f;
constexpr float ERF_SERIES[] = {-1.0f / 1320, 1.0f / 216, -1.0f / 42, 0.1f, -1.0f / 3, 1.0f};
constexpr float TWO_BY_ROOT_OF_PI = 1.1283791671f;

template <typename T>
void erf(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
         uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats square = room.take(count), t = room.take(count), sum = room.take(count);
        // The series of the part of x within its bounds.
        steps::Mins(t, x, ERF_SMALL, count);
        steps::Maxs(t, t, -ERF_SMALL, count);
        steps::Mul(square, t, t, count);
        polynomial(sum, square, ERF_SERIES, 6, count);
        steps::Mul(sum, sum, t, count);
        steps::Muls(sum, sum, TWO_BY_ROOT_OF_PI, count);
        // What is beyond: erf(|x|) - erf(ERF_SMALL), with the sign of x, from |x| >= ERF_SMALL.
        steps::Abs(square, x, count);
        steps::Maxs(square, square, ERF_SMALL, count);
        steps::Muls(t, square, ERF_P, count);
        steps::Adds(t, t, 1.0f, count);
        steps::Duplicate(to, 1.0f, count);
        steps::Div(t, to, t, count);
        polynomial(to, t, ERF_FACTORS, 5, count);
        steps::Mul(to, to, t, count);
        steps::Mul(square, square, square, count);
        steps::Muls(square, square, -1.0f, count);
        steps::Exp(square, square, count);
        steps::Mul(to, to, square, count);
        steps::Muls(to, to, -1.0f, count);
        steps::Adds(to, to, 1.0f - 0.5204998778f, count);
        steps::Maxs(to, to, 0.0f, count);
        steps::Muls(t, sum, 1 / 0.5204998778f, count);
        steps::Mul(to, to, t, count);
        AscendC::Add(to, to, sum, int32_t(count));
    });
}

// ln(x + sqrt(x^2 - 1)).
template <typename T>
void acosh(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
           uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats root = room.take(count);
        steps::Mul(root, x, x, count);
        steps::Adds(root, root, -1.0f, count);
        steps::Sqrt(root, root, count);
        steps::Add(root, root, x, count);
        AscendC::Ln(to, root, int32_t(count));
    });
}

// (exp(x) + exp(-x)) / 2, or with a minus between.
template <int SIGN, typename T>
void hyperbolic(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats grows = room.take(count), falls = room.take(count);
        steps::Exp(grows, x, count);
        steps::Muls(falls, x, -1.0f, count);
        steps::Exp(falls, falls, count);
        steps::Muls(falls, falls, float(SIGN), count);
        steps::Add(grows, grows, falls, count);
        AscendC::Muls(to, grows, 0.5f, int32_t(count));
    });
}

// x - trunc(x / y) y.
template <typename T>
void remainder(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
               const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count)
{
    in_float(dst, src0, src1, scratch, count,
             [](auto& to, auto& x, auto& y, Scratch& room, uint32_t count) {
                 Floats whole = room.take(count);
                 steps::Div(whole, x, y, count);
                 to_whole<AscendC::RoundMode::CAST_TRUNC>(whole, whole, count, room);
                 steps::Mul(whole, whole, y, count);
                 AscendC::Sub(to, x, whole, int32_t(count));
             });
}

constexpr float HUGE_FLOAT = 3.0e38f;

// exp(y ln |x|), negative where x is and y is odd, and no number where x is negative and y has a
// fraction.
template <typename T>
void power(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
           const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count)
{
    in_float(dst, src0, src1, scratch, count,
             [](auto& to, auto& x, auto& y, Scratch& room, uint32_t count) {
                 Floats negative = room.take(count), part = room.take(count);
                 // 1 where x is negative, 0 elsewhere.
                 steps::Muls(negative, x, -HUGE_FLOAT, count);
                 steps::Mins(negative, negative, 1.0f, count);
                 steps::Maxs(negative, negative, 0.0f, count);
                 // 1 where y has a fraction, 0 elsewhere; then ln 1, or that of a negative number.
                 to_whole<AscendC::RoundMode::CAST_FLOOR>(part, y, count, room);
                 steps::Sub(part, y, part, count);
                 steps::Muls(part, part, HUGE_FLOAT, count);
                 steps::Mins(part, part, 1.0f, count);
                 steps::Mul(part, part, negative, count);
                 steps::Muls(part, part, -2.0f, count);
                 steps::Adds(part, part, 1.0f, count);
                 steps::Ln(part, part, count);
                 Floats size = room.take(count);
                 steps::Abs(size, x, count);
                 steps::Ln(size, size, count);
                 steps::Maxs(size, size, -HUGE_FLOAT, count);
                 steps::Mins(size, size, HUGE_FLOAT, count);
                 steps::Mul(size, size, y, count);
                 steps::Exp(size, size, count);
                 steps::Add(size, size, part, count);
                 // 1 - 4 (y / 2 - floor(y / 2)): -1 where y is odd, 1 where it is even.
                 steps::Muls(part, y, 0.5f, count);
                 to_whole<AscendC::RoundMode::CAST_FLOOR>(to, part, count, room);
                 steps::Sub(part, part, to, count);
                 steps::Mul(part, part, negative, count);
                 steps::Muls(part, part, -4.0f, count);
                 steps::Adds(part, part, 1.0f, count);
                 AscendC::Mul(to, size, part, int32_t(count));
             });
}

template <typename T, typename A, typename B>
void power_of_number(const AscendC::LocalTensor<T>& dst, const A& a, const B& b, Scratch scratch,
                     uint32_t count)
{
    auto same = scratch.take<T>(count);
    if constexpr (std::is_same<A, T>::value) {
        AscendC::Duplicate(same, a, int32_t(count));
        step();
        power(dst, same, b, scratch, count);
    } else {
        AscendC::Duplicate(same, b, int32_t(count));
        step();
        power(dst, a, same, scratch, count);
    }
}

// dst = (a or b) and not (a and b).
template <typename T>
void exclusive_or(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
                  const AscendC::LocalTensor<T>& src1, Scratch scratch, uint32_t count)
{
    static_assert(sizeof(T) == 2, "npusim: Xor must be of int16_t or uint16_t");
    uint32_t most = scratch.most_elements();
    for (uint32_t done = 0; done < count; done += most) {
        int32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        auto both = room.take<T>(part);
        AscendC::And(both, src0[done], src1[done], part);
        AscendC::Or(dst[done], src0[done], src1[done], part);
        step();
        AscendC::Not(both, both, part);
        step();
        AscendC::And(dst[done], dst[done], both, part);
        step();
    }
}

// dst += src scalar, each of which is rounded.
template <typename T, typename U>
void multiply_add(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& src, U scalar,
                  Scratch scratch, uint32_t count)
{
    uint32_t most = scratch.most_elements();
    for (uint32_t done = 0; done < count; done += most) {
        uint32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        Floats sum = widened(dst[done], room, part), product = room.take(part);
        steps::Muls(product, widened(src[done], room, part), float(scalar), part);
        Floats result = computed_for(dst[done], room, part);
        steps::Add(result, sum, product, part);
        rounded_to(dst[done], result, part);
    }
}

template <typename T>
void exponential(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                 Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch&, uint32_t count) {
        AscendC::Exp(to, x, int32_t(count));
    });
}

}  // namespace npusim

namespace AscendC {

enum class FmodAlgo { NORMAL = 0, ITERATION_COMPENSATION = 1 };
constexpr uint32_t FMOD_ITERATION_NUM_MAX = 11;
struct FmodConfig {
    FmodAlgo algo = FmodAlgo::NORMAL;
    uint32_t iterationNum = FMOD_ITERATION_NUM_MAX;
};
enum class PowerAlgo { INTRINSIC = 0, DOUBLE_FLOAT_TECH };
struct PowerConfig {
    PowerAlgo algo = PowerAlgo::INTRINSIC;
};

NPUSIM_FUNCTION(Erf, erf)
NPUSIM_FUNCTION(Acosh, acosh)
NPUSIM_FUNCTION(Cosh, hyperbolic<1>)
NPUSIM_FUNCTION(Sinh, hyperbolic<-1>)
NPUSIM_FUNCTION_OF_TWO(Fmod, remainder)
NPUSIM_FUNCTION_OF_TWO(Power, power)
NPUSIM_FUNCTION_OF_TWO(Xor, exclusive_or)

// A power of numbers by a number, and the other way round.
#define NPUSIM_POWER(FIRST, SECOND, A, B)                                                     \
    template <typename T, bool isReuseSource = false, const auto&... config>                  \
    __aicore__ inline void Power(const LocalTensor<T>& dstTensor, FIRST, SECOND,              \
                                 const LocalTensor<uint8_t>& sharedTmpBuffer,                 \
                                 uint32_t calCount)                                           \
    {                                                                                         \
        npusim::Scratch room(sharedTmpBuffer);                                                \
        npusim::power_of_number(dstTensor, A, B, room, calCount);                             \
    }                                                                                         \
    template <typename T, bool isReuseSource = false, const auto&... config>                  \
    __aicore__ inline void Power(const LocalTensor<T>& dstTensor, FIRST, SECOND,              \
                                 const LocalTensor<uint8_t>& sharedTmpBuffer)                 \
    {                                                                                         \
        npusim::Scratch room(sharedTmpBuffer);                                                \
        npusim::power_of_number(dstTensor, A, B, room, dstTensor.GetSize());                  \
    }                                                                                         \
    template <typename T, bool isReuseSource = false, const auto&... config>                  \
    __aicore__ inline void Power(const LocalTensor<T>& dstTensor, FIRST, SECOND,              \
                                 uint32_t calCount)                                           \
    {                                                                                         \
        npusim::power_of_number(dstTensor, A, B, npusim::Scratch(), calCount);                \
    }                                                                                         \
    template <typename T, bool isReuseSource = false, const auto&... config>                  \
    __aicore__ inline void Power(const LocalTensor<T>& dstTensor, FIRST, SECOND)              \
    {                                                                                         \
        npusim::power_of_number(dstTensor, A, B, npusim::Scratch(), dstTensor.GetSize());     \
    }

NPUSIM_POWER(const LocalTensor<T>& src0Tensor, const T& src1Scalar, src0Tensor, src1Scalar)
NPUSIM_POWER(const T& src0Scalar, const LocalTensor<T>& src1Tensor, src0Scalar, src1Tensor)

// Exp in the accuracy of the vector unit, which is that of fp32 whatever taylorExpandLevel says.
template <typename T, uint8_t taylorExpandLevel, bool isReuseSource = false>
__aicore__ inline void Exp(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                           const LocalTensor<uint8_t>& sharedTmpBuffer, const uint32_t calCount)
{
    npusim::exponential(dstLocal, srcLocal, npusim::Scratch(sharedTmpBuffer), calCount);
}

template <typename T, uint8_t taylorExpandLevel, bool isReuseSource = false>
__aicore__ inline void Exp(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                           const uint32_t calCount)
{
    npusim::exponential(dstLocal, srcLocal, npusim::Scratch(), calCount);
}

template <typename T, typename U, bool isReuseSource = false>
__aicore__ inline void Axpy(const LocalTensor<T>& dstTensor, const LocalTensor<U>& srcTensor,
                            const U scalarValue, const LocalTensor<uint8_t>& sharedTmpBuffer,
                            const uint32_t calCount)
{
    npusim::multiply_add(dstTensor, srcTensor, scalarValue, npusim::Scratch(sharedTmpBuffer),
                         calCount);
}

// Numbers from firstValue on, diffValue apart: eight by the scalar unit, then by sums with these.
template <typename T>
__aicore__ inline void Arange(const LocalTensor<T>& dst, const T firstValue, const T diffValue,
                              const int32_t count)
{
    constexpr int32_t FIRST = 32 / sizeof(T), MOST = 8 * FIRST;
    for (int32_t i = 0; i < FIRST && i < count; ++i) {
        dst.SetValue(i, T(float(firstValue) + float(diffValue) * float(i)));
    }
    for (int32_t done = FIRST; done < count; done += FIRST) {
        int32_t by = done < MOST ? FIRST : MOST;
        int32_t part = count - done < by ? count - done : by;
        Adds(dst[done], dst[done - by], T(float(diffValue) * float(by)), part);
        npusim::step();
        done += by - FIRST;
    }
}

template <typename T>
__aicore__ inline void ArithProgression(const LocalTensor<T>& dstLocal, const T firstValue,
                                        const T diffValue, const int32_t count)
{
    Arange(dstLocal, firstValue, diffValue, count);
}

}  // namespace AscendC
