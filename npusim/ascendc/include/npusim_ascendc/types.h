// The short floats, and the enumerations of the API.
#pragma once

#include <math.h>  // sqrt and its like of a float, without std::, are of floats

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "npusim_ascendc/qualifiers.h"
#include "npusim_ascendc/recorder.h"

#define __inline__ inline
#define __BLOCK_LOCAL__
#define __WORKGROUP_LOCAL__
#define __kfc_workspace__
#define __sync_alias__
#define __sync_noalias__
#define __noinline__ __attribute__((noinline))
using GM_ADDR = uint8_t*;

// What a condition is expected to be is nothing to this compiler.
#define likely(CONDITION) (CONDITION)
#define unlikely(CONDITION) (CONDITION)

namespace npusim {

constexpr uint32_t bits_of(float value)
{
    return __builtin_bit_cast(uint32_t, value);
}

constexpr float float_of(uint32_t bits)
{
    return __builtin_bit_cast(float, bits);
}

// Shifts right, to nearest, ties to even.
constexpr uint32_t rounded_shift(uint32_t value, int by)
{
    if (by > 31) {
        return 0;
    }
    uint32_t half = (1u << by) >> 1;
    uint32_t rest = value & ((1u << by) - 1);
    uint32_t found = value >> by;
    return found + (rest > half || (rest == half && half != 0 && (found & 1)));
}

constexpr uint16_t half_bits(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (magnitude >= 0x47800000) {
        return sign | 0x7c00;
    }
    int exponent = int(magnitude >> 23) - 127 + 15;
    uint32_t mantissa = (magnitude & 0x7fffff) | (magnitude >> 23 ? 0x800000 : 0);
    if (exponent <= 0) {
        return sign | uint16_t(rounded_shift(mantissa, 14 - exponent));
    }
    return sign | uint16_t(rounded_shift(mantissa & 0x7fffff, 13) + (uint32_t(exponent) << 10));
}

constexpr float half_value(uint16_t bits)
{
    uint32_t sign = uint32_t(bits & 0x8000) << 16;
    uint32_t exponent = (bits >> 10) & 31;
    uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0) {
        float value = float(mantissa) * 0x1p-24f;
        return sign ? -value : value;
    }
    if (exponent == 31) {
        return float_of(sign | 0x7f800000 | (mantissa << 13));
    }
    return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr uint16_t bfloat16_bits(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return uint16_t((bits >> 16) | 0x40);
    }
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float bfloat16_value(uint16_t bits)
{
    return float_of(uint32_t(bits) << 16);
}

// A float of 16 bits, which computes in 32 bits and rounds.
template <uint16_t (*ROUND)(float), float (*WIDEN)(uint16_t)>
struct ShortFloat {
    uint16_t bits;

    ShortFloat() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>>
    constexpr ShortFloat(T value) : bits(ROUND(float(value)))
    {}
    constexpr operator float() const
    {
        return WIDEN(bits);
    }
#define NPUSIM_ASSIGN(SIGN)                                 \
    constexpr ShortFloat& operator SIGN##=(float other)     \
    {                                                       \
        return *this = ShortFloat(WIDEN(bits) SIGN other);  \
    }
    NPUSIM_ASSIGN(+)
    NPUSIM_ASSIGN(-)
    NPUSIM_ASSIGN(*)
    NPUSIM_ASSIGN(/)
#undef NPUSIM_ASSIGN
#define NPUSIM_OPERATOR(SIGN)                                                 \
    friend constexpr ShortFloat operator SIGN(ShortFloat a, ShortFloat b)     \
    {                                                                         \
        return ShortFloat(WIDEN(a.bits) SIGN WIDEN(b.bits));                  \
    }
    NPUSIM_OPERATOR(+)
    NPUSIM_OPERATOR(-)
    NPUSIM_OPERATOR(*)
    NPUSIM_OPERATOR(/)
#undef NPUSIM_OPERATOR
// A whole number becomes such a float; with a wider float, the wider one is computed in.
#define NPUSIM_OPERATOR(SIGN)                                              \
    template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>> \
    friend constexpr auto operator SIGN(ShortFloat a, T b)                 \
    {                                                                      \
        if constexpr (std::is_integral<T>::value) {                        \
            return a SIGN ShortFloat(b);                                   \
        } else {                                                           \
            return WIDEN(a.bits) SIGN b;                                   \
        }                                                                  \
    }                                                                      \
    template <typename T, typename = std::enable_if_t<std::is_arithmetic<T>::value>> \
    friend constexpr auto operator SIGN(T a, ShortFloat b)                 \
    {                                                                      \
        if constexpr (std::is_integral<T>::value) {                        \
            return ShortFloat(a) SIGN b;                                   \
        } else {                                                           \
            return a SIGN WIDEN(b.bits);                                   \
        }                                                                  \
    }
    NPUSIM_OPERATOR(+)
    NPUSIM_OPERATOR(-)
    NPUSIM_OPERATOR(*)
    NPUSIM_OPERATOR(/)
#undef NPUSIM_OPERATOR
    constexpr ShortFloat operator-() const
    {
        ShortFloat negative = *this;
        negative.bits ^= 0x8000;
        return negative;
    }
};

}  // namespace npusim

using half = npusim::ShortFloat<npusim::half_bits, npusim::half_value>;
using bfloat16_t = npusim::ShortFloat<npusim::bfloat16_bits, npusim::bfloat16_value>;

// Two of them are a byte of memory.
struct int4b_t {
    uint8_t bits;
};

namespace npusim {
NPUSIM_TYPE(half, 8, 16)
NPUSIM_TYPE(bfloat16_t, 9, 16)
NPUSIM_TYPE(int4b_t, 11, 4)

template <typename T>
constexpr uint32_t elements_in(uint32_t nbytes)
{
    return nbytes * 8 / TypeOf<T>::bits;
}

}  // namespace npusim

// The lesser and the greater of two numbers, which the compiler of kernels knows without a header.
template <typename T, typename U,
          typename = std::enable_if_t<std::is_arithmetic<T>::value && std::is_arithmetic<U>::value>>
constexpr auto min(T a, U b) -> std::common_type_t<T, U>
{
    return b < a ? b : a;
}
template <typename T, typename U,
          typename = std::enable_if_t<std::is_arithmetic<T>::value && std::is_arithmetic<U>::value>>
constexpr auto max(T a, U b) -> std::common_type_t<T, U>
{
    return a < b ? b : a;
}

enum pipe_t : uint8_t {
    PIPE_S = 0,
    PIPE_V,
    PIPE_M,
    PIPE_MTE1,
    PIPE_MTE2,
    PIPE_MTE3,
    PIPE_ALL,
    PIPE_MTE4,
    PIPE_MTE5,
    PIPE_V2,
    PIPE_FIX,
};

using event_t = int32_t;
constexpr event_t EVENT_ID0 = 0, EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4,
                  EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;

namespace AscendC {

using ::int4b_t;
using TEventID = int8_t;
using TTagType = int32_t;

enum class TPosition : uint8_t {
    GM,
    A1,
    A2,
    B1,
    B2,
    C1,
    C2,
    CO1,
    CO2,
    VECIN,
    VECOUT,
    VECCALC,
    LCM = VECCALC,
    SPM,
    SHM = SPM,
    TSCM,
    C2PIPE2GM,
    C2PIPE2LOCAL,
    MAX,
};
using QuePosition = TPosition;

enum class Hardware : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };

// Every pair of pipes, the one that sets the flag first.
enum class HardEvent : uint8_t {
    MTE2_MTE1,
    MTE1_MTE2,
    MTE1_M,
    M_MTE1,
    MTE2_V,
    V_MTE2,
    MTE3_V,
    V_MTE3,
    M_V,
    V_M,
    V_V,
    MTE3_MTE1,
    MTE1_MTE3,
    MTE1_V,
    MTE2_M,
    M_MTE2,
    V_MTE1,
    M_FIX,
    FIX_M,
    MTE3_MTE2,
    MTE2_MTE3,
    S_V,
    V_S,
    S_MTE2,
    MTE2_S,
    S_MTE3,
    MTE3_S,
    MTE2_FIX,
    FIX_MTE2,
    FIX_S,
    M_S,
    FIX_MTE3,
    MTE1_FIX,
    FIX_MTE1,
    FIX_FIX,
    FIX_V,
    V_FIX,
    S_FIX,
    S_M,
    S_MTE1,
    MTE1_S,
    MAX,
};

enum class RoundMode {
    CAST_NONE = 0,
    CAST_RINT,
    CAST_FLOOR,
    CAST_CEIL,
    CAST_ROUND,
    CAST_TRUNC,
    CAST_ODD,
    CAST_HYBRID,
};
enum class CMPMODE { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
enum class CacheMode { CACHE_MODE_DISABLE = 0, CACHE_MODE_NORMAL = 1 };
enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };

template <typename T>
using PrimT = T;

template <typename T, typename U>
struct IsSameType {
    static constexpr bool value = std::is_same<T, U>::value;
};

template <bool condition, typename T, typename U>
struct Conditional : std::conditional<condition, T, U> {};

const int32_t DEFAULT_BLK_NUM = 8;
const int32_t DEFAULT_BLK_STRIDE = 1;
const uint8_t DEFAULT_REPEAT_STRIDE = 8;

}  // namespace AscendC
