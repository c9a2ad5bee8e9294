// The scalar unit: small sums, caches, and values that go past them.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace AscendC {

constexpr int32_t ONE_BLK_SIZE = 32;
constexpr int32_t ONE_REPEAT_BYTE_SIZE = 256;
constexpr int32_t DEFAULT_C0_SIZE = 32;

__aicore__ constexpr inline int32_t CeilDivision(int32_t num1, int32_t num2)
{
    return num2 == 0 ? 0 : (num1 + num2 - 1) / num2;
}

__aicore__ constexpr inline uint32_t DivCeil(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

__aicore__ constexpr inline uint32_t AlignUp(uint32_t a, uint32_t b)
{
    return DivCeil(a, b) * b;
}

// Of whole numbers, unlike the Ceil of tensors.
template <typename T, typename U,
          typename = std::enable_if_t<std::is_integral<T>::value && std::is_integral<U>::value>>
__aicore__ constexpr inline auto Ceil(T num1, U num2)
{
    return (num1 + num2 - 1) / num2;
}

__aicore__ inline int64_t CountLeadingZero(uint64_t valueIn)
{
    return valueIn == 0 ? 64 : __builtin_clzll(valueIn);
}

__aicore__ inline int64_t CountBitsCntSameAsSignBit(int64_t valueIn)
{
    uint64_t differing = uint64_t(valueIn < 0 ? ~valueIn : valueIn);
    return CountLeadingZero(differing) - 1;
}

template <int countValue>
__aicore__ inline int64_t GetBitCount(uint64_t valueIn)
{
    int ones = __builtin_popcountll(valueIn);
    return countValue ? ones : 64 - ones;
}

template <int countValue>
__aicore__ inline int64_t GetSFFValue(uint64_t valueIn)
{
    uint64_t wanted = countValue ? valueIn : ~valueIn;
    return wanted == 0 ? -1 : __builtin_ctzll(wanted);
}

template <int countValue>
__aicore__ inline int64_t ScalarGetCountOfValue(uint64_t valueIn)
{
    return GetBitCount<countValue>(valueIn);
}

template <int countValue>
__aicore__ inline int64_t ScalarGetSFFValue(uint64_t valueIn)
{
    return GetSFFValue<countValue>(valueIn);
}

__aicore__ inline float ToFloat(const bfloat16_t& bVal)
{
    return float(bVal);
}

__aicore__ inline bfloat16_t ToBfloat16(const float& fVal)
{
    return bfloat16_t(fVal);
}

// The same as Cast.
__aicore__ inline float Cast(const bfloat16_t& bVal)
{
    return ToFloat(bVal);
}

__aicore__ inline bfloat16_t Cast(const float& fVal)
{
    return ToBfloat16(fVal);
}

template <int count = 1>
__aicore__ inline void Nop()
{}

// A float as half or int32_t.
template <typename T, typename U, RoundMode roundMode>
__aicore__ inline U ScalarCast(T valueIn)
{
    if constexpr (std::is_same<U, half>::value) {
        return half(valueIn);
    } else if (roundMode == RoundMode::CAST_FLOOR) {
        return U(std::floor(valueIn));
    } else if (roundMode == RoundMode::CAST_CEIL) {
        return U(std::ceil(valueIn));
    } else if (roundMode == RoundMode::CAST_ROUND) {
        return U(std::round(valueIn));
    } else {
        return U(std::nearbyint(valueIn));
    }
}

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

// What the scalar unit reads and writes is in global memory at once.
template <typename T, CacheLine entireType, DcciDst dcciDst>
__aicore__ inline void DataCacheCleanAndInvalid(const GlobalTensor<T>&)
{}

template <typename T, CacheLine entireType, DcciDst dcciDst>
__aicore__ inline void DataCacheCleanAndInvalid(const LocalTensor<T>&)
{}

template <typename T, CacheLine entireType>
__aicore__ inline void DataCacheCleanAndInvalid(const GlobalTensor<T>&)
{}

template <typename T>
__aicore__ inline void DataCachePreload(const GlobalTensor<uint64_t>&, const T)
{}

__aicore__ inline void ICachePreLoad(const int64_t)
{}

__aicore__ inline int64_t GetICachePreloadStatus()
{
    return 0;
}

template <typename T>
__aicore__ inline T ReadGmByPassDCache(__gm__ T* addr)
{
    GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(addr);
    return tensor.GetValue(0);
}

template <typename T>
__aicore__ inline void WriteGmByPassDCache(__gm__ T* addr, T value)
{
    GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(addr);
    tensor.SetValue(0, value);
}

__aicore__ inline GM_ADDR GetUserWorkspace(GM_ADDR workspace)
{
    return workspace;
}

__aicore__ inline void SetSysWorkspace(GM_ADDR workspace)
{
    npusim_core()->workspace = workspace;
}

__aicore__ inline GM_ADDR GetSysWorkSpacePtr()
{
    return static_cast<GM_ADDR>(npusim_core()->workspace);
}

}  // namespace AscendC

using AscendC::GetUserWorkspace;
