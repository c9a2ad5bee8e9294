// Functions of angles and their inverses, logarithms to other bases, signs, and what is left of erf.
#pragma once

#include "npusim_ascendc/mathematics.h"

namespace npusim {

constexpr float PI = 3.14159265358979f;
// Pi in parts of which whole multiples are exact: Cephes, single/sinf.c, four times DP1 to DP3.
constexpr float PARTS_OF_PI[] = {3.140625f, 9.67502593994140625e-4f, 1.50995799097837643e-7f};
// Of sin(x) / x, by x^2: its series.
constexpr float SINE_FACTORS[] = {-1.0f / 39916800, 1.0f / 362880, -1.0f / 5040, 1.0f / 120,
                                  -1.0f / 6, 1.0f};
// Of (asin(x) - x) / x^3 below 0.5, and of (atan(x) - x) / x^3 below tan(pi / 8), by x^2: Cephes,
// single/asinf.c and single/atanf.c.
constexpr float ASIN_FACTORS[] = {4.2163199048e-2f, 2.4181311049e-2f, 4.5470025998e-2f,
                                  7.4953002686e-2f, 1.6666752422e-1f};
constexpr float ATAN_FACTORS[] = {8.05374449538e-2f, -1.38776856032e-1f, 1.99777106478e-1f,
                                  -3.33329491539e-1f};
constexpr float TAN_OF_PI_BY_8 = 0.4142135623730950f, TAN_OF_3_PI_BY_8 = 2.414213562373095f;
// Of ln(erfc(x) / t) + x^2 with t = 1 / (1 + x / 2), by t: Press et al., Numerical Recipes, erfcc.
constexpr float ERFC_FACTORS[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                                  -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
constexpr float GREAT_FLOAT = 1.0e30f;

// -1, 0 or 1.
inline void sign_of_floats(const Floats& dst, const Floats& x, uint32_t count)
{
    // Twice, so that the smallest floats are great enough.
    steps::Muls(dst, x, HUGE_FLOAT, count);
    steps::Muls(dst, dst, HUGE_FLOAT, count);
    steps::Mins(dst, dst, 1.0f, count);
    steps::Maxs(dst, dst, -1.0f, count);
}

// 1 where x is above the bound, 0 elsewhere.
inline void is_above(const Floats& dst, const Floats& x, float bound, uint32_t count)
{
    steps::Adds(dst, x, -bound, count);
    steps::Muls(dst, dst, GREAT_FLOAT, count);
    steps::Maxs(dst, dst, 0.0f, count);
    steps::Mins(dst, dst, 1.0f, count);
}

// The series of x (1 + x^2 f(x^2)), whose factors f are.
template <size_t COUNT>
void odd_series(const Floats& dst, const Floats& x, const Floats& square,
                const float (&factors)[COUNT], uint32_t count)
{
    steps::Mul(square, x, x, count);
    polynomial(dst, square, factors, COUNT, count);
    steps::Mul(dst, dst, square, count);
    steps::Mul(dst, dst, x, count);
    steps::Add(dst, dst, x, count);
}

// sin(x + turn pi): of what x is away from the nearest multiple of pi, with the sign of that one.
inline void sine(const Floats& to, const Floats& x, float turn, Scratch room, uint32_t count)
{
    Floats whole = room.take(count), part = room.take(count), rest = room.take(count);
    steps::Muls(whole, x, 1 / PI, count);
    steps::Adds(whole, whole, turn, count);
    to_whole<AscendC::RoundMode::CAST_RINT>(whole, whole, count, room);
    steps::Adds(part, whole, -turn, count);
    steps::Adds(rest, x, 0.0f, count);
    for (float size : PARTS_OF_PI) {
        AscendC::Axpy(rest, part, -size, int32_t(count));
        step();
    }
    // 1 - 2 (whole - 2 floor(whole / 2)).
    steps::Muls(part, whole, 0.5f, count);
    to_whole<AscendC::RoundMode::CAST_FLOOR>(part, part, count, room);
    steps::Muls(part, part, -2.0f, count);
    steps::Add(whole, whole, part, count);
    steps::Muls(whole, whole, -2.0f, count);
    steps::Adds(whole, whole, 1.0f, count);
    steps::Mul(rest, rest, whole, count);
    steps::Mul(part, rest, rest, count);
    polynomial(whole, part, SINE_FACTORS, 6, count);
    AscendC::Mul(to, whole, rest, int32_t(count));
}

template <int HALF_TURNS, typename T>
void sine_or_cosine(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                    Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        sine(to, x, 0.5f * HALF_TURNS, room, count);
    });
}

template <typename T>
void tangent(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
             uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats above = room.take(count);
        sine(above, x, 0.0f, room, count);
        sine(to, x, 0.5f, room, count);
        step();
        AscendC::Div(to, above, to, int32_t(count));
    });
}

// asin and acos: of |x| up to 0.5, of sqrt((1 - |x|) / 2) beyond.
template <bool IS_COSINE, typename T>
void inverse_sine(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                  Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats sign = room.take(count), beyond = room.take(count);
        Floats angle = room.take(count), of = room.take(count);
        steps::Abs(sign, x, count);
        is_above(beyond, sign, 0.5f, count);
        steps::Muls(of, sign, -0.5f, count);
        steps::Adds(of, of, 0.5f, count);
        steps::Sqrt(of, of, count);
        steps::Mul(of, of, beyond, count);
        steps::Muls(angle, beyond, -1.0f, count);
        steps::Adds(angle, angle, 1.0f, count);
        steps::Mul(sign, sign, angle, count);
        steps::Add(of, of, sign, count);
        odd_series(angle, of, sign, ASIN_FACTORS, count);
        sign_of_floats(sign, x, count);
        if constexpr (IS_COSINE) {
            // pi / 2 - asin(x); beyond, 2 angle, or pi - 2 angle where x is negative.
            steps::Mul(of, beyond, sign, count);
            steps::Muls(of, of, -PI / 2, count);
            steps::Adds(of, of, PI / 2, count);
            steps::Muls(beyond, beyond, 3.0f, count);
            steps::Adds(beyond, beyond, -1.0f, count);
            steps::Mul(beyond, beyond, sign, count);
            steps::Mul(angle, angle, beyond, count);
            AscendC::Add(to, angle, of, int32_t(count));
        } else {
            // Beyond, pi / 2 - 2 angle.
            steps::Muls(of, beyond, -3.0f, count);
            steps::Adds(of, of, 1.0f, count);
            steps::Mul(angle, angle, of, count);
            steps::Muls(of, beyond, PI / 2, count);
            steps::Add(angle, angle, of, count);
            AscendC::Mul(to, angle, sign, int32_t(count));
        }
    });
}

// Of |x| up to tan(pi / 8), of (|x| - 1) / (|x| + 1) up to tan(3 pi / 8), of -1 / |x| beyond.
template <typename T>
void inverse_tangent(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                     Scratch scratch, uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats size = room.take(count), first = room.take(count);
        Floats within = room.take(count), of = room.take(count);
        steps::Abs(size, x, count);
        steps::Mins(size, size, GREAT_FLOAT, count);
        is_above(first, size, TAN_OF_PI_BY_8, count);
        is_above(within, size, TAN_OF_3_PI_BY_8, count);
        steps::Muls(within, within, -1.0f, count);
        steps::Adds(within, within, 1.0f, count);
        steps::Mul(of, size, within, count);
        steps::Sub(of, of, first, count);
        steps::Mul(size, size, first, count);
        steps::Add(size, size, within, count);
        steps::Div(of, of, size, count);
        // pi / 4 for each bound that is passed.
        steps::Sub(within, first, within, count);
        steps::Adds(within, within, 1.0f, count);
        steps::Muls(within, within, PI / 4, count);
        odd_series(first, of, size, ATAN_FACTORS, count);
        steps::Add(first, first, within, count);
        sign_of_floats(size, x, count);
        AscendC::Mul(to, first, size, int32_t(count));
    });
}

// ln(|x| + sqrt(x^2 + 1)), with the sign of x.
template <typename T>
void asinh(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
           uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats size = room.take(count), root = room.take(count);
        steps::Abs(size, x, count);
        steps::Mul(root, x, x, count);
        steps::Adds(root, root, 1.0f, count);
        steps::Sqrt(root, root, count);
        steps::Add(root, root, size, count);
        steps::Ln(root, root, count);
        sign_of_floats(size, x, count);
        AscendC::Mul(to, root, size, int32_t(count));
    });
}

// ln((1 + x) / (1 - x)) / 2.
template <typename T>
void atanh(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
           uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats above = room.take(count), below = room.take(count);
        steps::Adds(above, x, 1.0f, count);
        steps::Muls(below, x, -1.0f, count);
        steps::Adds(below, below, 1.0f, count);
        steps::Div(above, above, below, count);
        steps::Ln(above, above, count);
        AscendC::Muls(to, above, 0.5f, int32_t(count));
    });
}

template <typename T>
void erfc(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch& room, uint32_t count) {
        Floats size = room.take(count), t = room.take(count);
        Floats sum = room.take(count);
        steps::Abs(size, x, count);
        steps::Muls(sum, size, 0.5f, count);
        steps::Adds(sum, sum, 1.0f, count);
        steps::Duplicate(t, 1.0f, count);
        steps::Div(t, t, sum, count);
        polynomial(sum, t, ERFC_FACTORS, 10, count);
        steps::Mul(size, size, size, count);
        steps::Sub(sum, sum, size, count);
        steps::Exp(sum, sum, count);
        steps::Mul(sum, sum, t, count);
        // 2 - erfc(-x) where x is negative.
        sign_of_floats(size, x, count);
        steps::Mul(sum, sum, size, count);
        steps::Muls(size, size, -1.0f, count);
        steps::Adds(size, size, 1.0f, count);
        AscendC::Add(to, sum, size, int32_t(count));
    });
}

template <typename T>
void sign(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, Scratch scratch,
          uint32_t count)
{
    in_float(dst, src, scratch, count, [](auto& to, auto& x, Scratch&, uint32_t count) {
        sign_of_floats(to, x, count);
    });
}

// ln(x) / ln(BASE).
template <int BASE, typename T>
void logarithm(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               Scratch scratch, uint32_t count)
{
    const float by = BASE == 2 ? 1.44269504088896f : 0.434294481903252f;
    in_float(dst, src, scratch, count, [by](auto& to, auto& x, Scratch&, uint32_t count) {
        steps::Ln(to, x, count);
        AscendC::Muls(to, to, by, int32_t(count));
    });
}

}  // namespace npusim

namespace AscendC {

NPUSIM_FUNCTION(Sin, sine_or_cosine<0>)
NPUSIM_FUNCTION(Cos, sine_or_cosine<1>)
NPUSIM_FUNCTION(Tan, tangent)
NPUSIM_FUNCTION(Asin, inverse_sine<false>)
NPUSIM_FUNCTION(Acos, inverse_sine<true>)
NPUSIM_FUNCTION(Atan, inverse_tangent)
NPUSIM_FUNCTION(Asinh, asinh)
NPUSIM_FUNCTION(Atanh, atanh)
NPUSIM_FUNCTION(Erfc, erfc)
NPUSIM_FUNCTION(Sign, sign)
NPUSIM_FUNCTION(Log2, logarithm<2>)
NPUSIM_FUNCTION(Log10, logarithm<10>)

}  // namespace AscendC
