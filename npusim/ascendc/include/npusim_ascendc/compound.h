// The vector unit: several steps of arithmetic in one instruction, and types that differ.
#pragma once

#include "npusim_ascendc/vector.h"

namespace AscendC {

#define NPUSIM_MIXED(NAME, COUNT, MASK)                                                     \
    template <typename T, typename U>                                                       \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0,      \
                                const LocalTensor<U>& src1, COUNT count)                    \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::first(count));                       \
    }                                                                                       \
    template <typename T, typename U, bool isSetMask = true>                                \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0,      \
                                const LocalTensor<U>& src1, MASK mask[],                    \
                                const uint8_t repeatTime,                                   \
                                const BinaryRepeatParams& repeatParams)                     \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::lanes<isSetMask>(mask, repeatTime),  \
                       repeatParams);                                                       \
    }                                                                                       \
    template <typename T, typename U, bool isSetMask = true>                                \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0,      \
                                const LocalTensor<U>& src1, uint64_t mask,                  \
                                const uint8_t repeatTime,                                   \
                                const BinaryRepeatParams& repeatParams)                     \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::lanes<isSetMask>(mask, repeatTime),  \
                       repeatParams);                                                       \
    }

NPUSIM_MIXED(MulAddDst, const int32_t&, const uint64_t)
NPUSIM_MIXED(AddReluCast, const uint32_t, uint64_t)
NPUSIM_MIXED(SubReluCast, const uint32_t, uint64_t)
NPUSIM_MIXED(MulCast, uint32_t, uint64_t)
NPUSIM_MIXED(AddDeqRelu, const int32_t&, uint64_t)
#undef NPUSIM_MIXED

template <typename T, typename U>
__aicore__ inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const U& scalarValue, const int32_t& count)
{
    npusim::unary("Axpy", dst, src, npusim::first(count), npusim::without_gaps<T, U>(),
                  npusim::scalar(scalarValue));
}

template <typename T, typename U>
__aicore__ inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const U& scalarValue, uint64_t mask[], const uint8_t repeatTime,
                            const UnaryRepeatParams& repeatParams)
{
    npusim::unary("Axpy", dst, src, npusim::lanes<true>(mask, repeatTime), repeatParams,
                  npusim::scalar(scalarValue));
}

template <typename T, typename U>
__aicore__ inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const U& scalarValue, uint64_t mask, const uint8_t repeatTime,
                            const UnaryRepeatParams& repeatParams)
{
    npusim::unary("Axpy", dst, src, npusim::lanes<true>(mask, repeatTime), repeatParams,
                  npusim::scalar(scalarValue));
}

struct VdeqInfo {
    VdeqInfo() = default;
    VdeqInfo(const float vdeqScaleIn[16], const int16_t vdeqOffsetIn[16],
             const bool vdeqSignModeIn[16])
    {
        for (int i = 0; i < 16; ++i) {
            vdeqScale[i] = vdeqScaleIn[i];
            vdeqOffset[i] = vdeqOffsetIn[i];
            vdeqSignMode[i] = vdeqSignModeIn[i];
        }
    }
    float vdeqScale[16] = {};
    int16_t vdeqOffset[16] = {};
    bool vdeqSignMode[16] = {};
};

// What the cast of int32_t to half multiplies by is written into each such cast.
__aicore__ inline void SetDeqScale(half scale)
{
    npusim_core()->deq_scale = scale;
}

__aicore__ inline void SetDeqScale(float scale, int16_t offset, bool signMode)
{
    npusim::record("SetDeqScale", npusim::scalar(scale), offset, signMode);
}

}  // namespace AscendC
