// The vector unit: comparing, selecting, gathering.
#pragma once

#include "npusim_ascendc/vector.h"

namespace AscendC {

template <typename T, typename U>
__aicore__ inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0,
                               const LocalTensor<T>& src1, CMPMODE cmpMode, uint32_t count)
{
    npusim::record("Compare", dst, src0, src1, cmpMode, npusim::first(count));
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0,
                               const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask[],
                               uint8_t repeatTime, const BinaryRepeatParams& repeatParams)
{
    npusim::record("Compare", dst,
                   npusim::strided(src0, repeatParams.src0BlkStride, repeatParams.src0RepStride),
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   cmpMode, npusim::lanes<isSetMask>(mask, repeatTime));
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0,
                               const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask,
                               uint8_t repeatTime, const BinaryRepeatParams& repeatParams)
{
    npusim::record("Compare", dst,
                   npusim::strided(src0, repeatParams.src0BlkStride, repeatParams.src0RepStride),
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   cmpMode, npusim::lanes<isSetMask>(mask, repeatTime));
}

// The result goes to the register that Select reads in mode 0.
template <typename T, bool isSetMask = true>
__aicore__ inline void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                               CMPMODE cmpMode, const uint64_t mask[],
                               const BinaryRepeatParams& repeatParams)
{
    npusim::record("CompareToRegister",
                   npusim::strided(src0, repeatParams.src0BlkStride, repeatParams.src0RepStride),
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   cmpMode, npusim::lanes<isSetMask>(mask, 1));
}

template <typename T, bool isSetMask = true>
__aicore__ inline void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                               CMPMODE cmpMode, const uint64_t mask,
                               const BinaryRepeatParams& repeatParams)
{
    npusim::record("CompareToRegister",
                   npusim::strided(src0, repeatParams.src0BlkStride, repeatParams.src0RepStride),
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   cmpMode, npusim::lanes<isSetMask>(mask, 1));
}

template <typename T>
__aicore__ inline void GetCmpMask(const LocalTensor<T>& dst)
{
    npusim::record("GetCmpMask", dst);
}

template <typename T>
__aicore__ inline void SetCmpMask(const LocalTensor<T>& src)
{
    npusim::record("SetCmpMask", src);
}

#define NPUSIM_COMPARE_SCALAR(NAME)                                                              \
    template <typename T, typename U>                                                            \
    __aicore__ inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0,           \
                                const T src1Scalar, CMPMODE cmpMode, uint32_t count)             \
    {                                                                                            \
        npusim::record("Compares", dst, src0, npusim::scalar(src1Scalar), cmpMode,               \
                       npusim::first(count));                                                    \
    }                                                                                            \
    template <typename T, typename U, bool isSetMask = true>                                     \
    __aicore__ inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0,           \
                                const T src1Scalar, CMPMODE cmpMode, const uint64_t mask[],      \
                                uint8_t repeatTime, const UnaryRepeatParams& repeatParams)       \
    {                                                                                            \
        npusim::record("Compares", dst,                                                          \
                       npusim::strided(src0, repeatParams.srcBlkStride, repeatParams.srcRepStride), \
                       npusim::scalar(src1Scalar), cmpMode,                                      \
                       npusim::lanes<isSetMask>(mask, repeatTime));                              \
    }                                                                                            \
    template <typename T, typename U, bool isSetMask = true>                                     \
    __aicore__ inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0,           \
                                const T src1Scalar, CMPMODE cmpMode, const uint64_t mask,        \
                                uint8_t repeatTime, const UnaryRepeatParams& repeatParams)       \
    {                                                                                            \
        npusim::record("Compares", dst,                                                          \
                       npusim::strided(src0, repeatParams.srcBlkStride, repeatParams.srcRepStride), \
                       npusim::scalar(src1Scalar), cmpMode,                                      \
                       npusim::lanes<isSetMask>(mask, repeatTime));                              \
    }
NPUSIM_COMPARE_SCALAR(Compares)
NPUSIM_COMPARE_SCALAR(CompareScalar)
#undef NPUSIM_COMPARE_SCALAR

}  // namespace AscendC

namespace npusim {

template <typename T, typename U, typename Other>
void select(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& mask,
            const AscendC::LocalTensor<T>& src0, const Other& src1, AscendC::SELMODE mode,
            const Lanes& lanes, const AscendC::BinaryRepeatParams& by = {})
{
    record("Select", strided(dst, by.dstBlkStride, by.dstRepStride), mask,
           strided(src0, by.src0BlkStride, by.src0RepStride), src1, mode, lanes);
}

}  // namespace npusim

namespace AscendC {

template <typename T, typename U>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, T src1, SELMODE selMode, uint32_t count)
{
    npusim::select(dst, selMask, src0, npusim::scalar(src1), selMode, npusim::first(count));
}

template <typename T, typename U>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                              SELMODE selMode, uint32_t count)
{
    npusim::select(dst, selMask, src0, src1, selMode, npusim::first(count));
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, T src1, SELMODE selMode, uint64_t mask[],
                              uint8_t repeatTime, const BinaryRepeatParams& repeatParams)
{
    npusim::select(dst, selMask, src0, npusim::scalar(src1), selMode,
                   npusim::lanes<isSetMask>(mask, repeatTime), repeatParams);
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, T src1, SELMODE selMode, uint64_t mask,
                              uint8_t repeatTime, const BinaryRepeatParams& repeatParams)
{
    npusim::select(dst, selMask, src0, npusim::scalar(src1), selMode,
                   npusim::lanes<isSetMask>(mask, repeatTime), repeatParams);
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                              SELMODE selMode, uint64_t mask[], uint8_t repeatTime,
                              const BinaryRepeatParams& repeatParams)
{
    npusim::select(dst, selMask, src0,
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   selMode, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams);
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask,
                              const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                              SELMODE selMode, uint64_t mask, uint8_t repeatTime,
                              const BinaryRepeatParams& repeatParams)
{
    npusim::select(dst, selMask, src0,
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   selMode, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams);
}

template <typename T, SELMODE selMode>
__aicore__ inline void Select(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                              const LocalTensor<T>& src1, uint8_t repeatTime,
                              const BinaryRepeatParams& repeatParams)
{
    npusim::record("SelectByRegister",
                   npusim::strided(dst, repeatParams.dstBlkStride, repeatParams.dstRepStride),
                   npusim::strided(src0, repeatParams.src0BlkStride, repeatParams.src0RepStride),
                   npusim::strided(src1, repeatParams.src1BlkStride, repeatParams.src1RepStride),
                   selMode, npusim::set_before(repeatTime));
}

template <typename T>
__aicore__ inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                              const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr,
                              const uint32_t count)
{
    npusim::record("Gather", dst, src, srcOffset, srcBaseAddr, npusim::first(count));
}

template <typename T>
__aicore__ inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                              const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr,
                              const uint64_t mask[], const uint8_t repeatTime,
                              const uint16_t dstRepStride)
{
    npusim::record("Gather", npusim::strided(dst, 1, dstRepStride), src, srcOffset, srcBaseAddr,
                   npusim::lanes<true>(mask, repeatTime));
}

template <typename T>
__aicore__ inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                              const LocalTensor<uint32_t>& srcOffset, const uint32_t srcBaseAddr,
                              const uint64_t mask, const uint8_t repeatTime,
                              const uint16_t dstRepStride)
{
    npusim::record("Gather", npusim::strided(dst, 1, dstRepStride), src, srcOffset, srcBaseAddr,
                   npusim::lanes<true>(mask, repeatTime));
}

struct GatherRepeatParams {
    GatherRepeatParams() = default;
    GatherRepeatParams(const uint8_t dstBlkStrideIn, const uint8_t dstRepStrideIn)
        : dstBlkStride(dstBlkStrideIn), dstRepStride(dstRepStrideIn)
    {}
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint16_t dstBlkStride = DEFAULT_BLK_STRIDE;
    uint16_t dstRepStride = DEFAULT_REPEAT_STRIDE;
    bool repeatStrideMode = false;
    bool strideSizeMode = false;
};

template <typename T>
__aicore__ inline void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                               const LocalTensor<uint32_t>& offset, const uint8_t repeatTime,
                               const GatherRepeatParams& repeatParams)
{
    npusim::record("Gatherb",
                   npusim::strided(dst, repeatParams.dstBlkStride, repeatParams.dstRepStride), src,
                   offset, repeatTime);
}

template <typename T>
__aicore__ inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                               const LocalTensor<uint32_t>& dstOffset, const uint32_t dstBaseAddr,
                               const uint32_t count)
{
    npusim::record("Scatter", dst, src, dstOffset, dstBaseAddr, npusim::first(count));
}

template <typename T>
__aicore__ inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                               const LocalTensor<uint32_t>& dstOffset, const uint32_t dstBaseAddr,
                               const uint64_t mask[], const uint8_t repeatTime,
                               const uint8_t srcRepStride)
{
    npusim::record("Scatter", dst, npusim::strided(src, 1, srcRepStride), dstOffset, dstBaseAddr,
                   npusim::lanes<true>(mask, repeatTime));
}

template <typename T>
__aicore__ inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                               const LocalTensor<uint32_t>& dstOffset, const uint32_t dstBaseAddr,
                               const uint64_t mask, const uint8_t repeatTime,
                               const uint8_t srcRepStride)
{
    npusim::record("Scatter", dst, npusim::strided(src, 1, srcRepStride), dstOffset, dstBaseAddr,
                   npusim::lanes<true>(mask, repeatTime));
}

}  // namespace AscendC
