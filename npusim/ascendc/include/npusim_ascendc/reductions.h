// The vector unit: many elements become one.
#pragma once

#include "npusim_ascendc/vector.h"

namespace AscendC {

enum class ReduceOrder {
    ORDER_VALUE_INDEX,
    ORDER_INDEX_VALUE,
    ORDER_ONLY_VALUE,
    ORDER_ONLY_INDEX,
};
enum class ReduceType { SUM = 0, MAX, MIN };

constexpr int32_t MASK_PLACEHOLDER = 0;

}  // namespace AscendC

namespace npusim {

template <typename T, typename U, typename... More>
void reduce(const char* name, AscendC::ReduceType type, const AscendC::LocalTensor<T>& dst,
            const AscendC::LocalTensor<U>& src, const Lanes& lanes, int32_t dst_stride,
            int32_t block_stride, int32_t repeat_stride, const More&... more)
{
    record(name, type, dst, strided(src, block_stride, repeat_stride), lanes, dst_stride, more...);
}

// All of a tensor, of which the order is that of the library.
template <typename T>
void reduce_all(AscendC::ReduceType type, const AscendC::LocalTensor<T>& dst,
                const AscendC::LocalTensor<T>& src, const AscendC::LocalTensor<T>& work,
                const Lanes& lanes, int32_t repeat_stride, bool with_index)
{
    record("ReduceAll", type, dst, strided(src, 1, repeat_stride), work, lanes, with_index);
}

}  // namespace npusim

namespace AscendC {

#define NPUSIM_REDUCTION(NAME)                                                                \
    template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>           \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src,         \
                                const uint64_t mask[], const int32_t repeatTime,              \
                                const int32_t dstRepStride, const int32_t srcBlkStride,       \
                                const int32_t srcRepStride)                                   \
    {                                                                                         \
        npusim::reduce(#NAME, reduceType, dst, src, npusim::lanes<isSetMask>(mask, repeatTime), \
                       dstRepStride, srcBlkStride, srcRepStride);                             \
    }                                                                                         \
    template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>           \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src,         \
                                const int32_t mask, const int32_t repeatTime,                 \
                                const int32_t dstRepStride, const int32_t srcBlkStride,       \
                                const int32_t srcRepStride)                                   \
    {                                                                                         \
        npusim::reduce(#NAME, reduceType, dst, src,                                           \
                       npusim::lanes<isSetMask>(uint64_t(mask), repeatTime), dstRepStride,    \
                       srcBlkStride, srcRepStride);                                           \
    }
NPUSIM_REDUCTION(ReduceDataBlock)
NPUSIM_REDUCTION(ReducePairElem)
#undef NPUSIM_REDUCTION

template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
__aicore__ inline void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                                    const uint64_t mask[], const int32_t repeatTime,
                                    const int32_t dstRepStride, const int32_t srcBlkStride,
                                    const int32_t srcRepStride,
                                    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX)
{
    npusim::reduce("ReduceRepeat", reduceType, dst, src, npusim::lanes<isSetMask>(mask, repeatTime),
                   dstRepStride, srcBlkStride, srcRepStride, order);
}

template <ReduceType reduceType, typename T, typename U, bool isSetMask = true>
__aicore__ inline void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                                    const int32_t mask, const int32_t repeatTime,
                                    const int32_t dstRepStride, const int32_t srcBlkStride,
                                    const int32_t srcRepStride,
                                    ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX)
{
    npusim::reduce("ReduceRepeat", reduceType, dst, src,
                   npusim::lanes<isSetMask>(uint64_t(mask), repeatTime), dstRepStride, srcBlkStride,
                   srcRepStride, order);
}

// The older names of the same.
#define NPUSIM_OLD_REDUCTION(NAME, NEW, TYPE)                                                    \
    template <typename T, bool isSetMask = true>                                                 \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                                const uint64_t mask[], const int32_t repeatTime,                 \
                                const int32_t dstRepStride, const int32_t srcBlkStride,          \
                                const int32_t srcRepStride)                                      \
    {                                                                                            \
        NEW<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride,         \
                                               srcBlkStride, srcRepStride);                      \
    }                                                                                            \
    template <typename T, bool isSetMask = true>                                                 \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                                const int32_t mask, const int32_t repeatTime,                    \
                                const int32_t dstRepStride, const int32_t srcBlkStride,          \
                                const int32_t srcRepStride)                                      \
    {                                                                                            \
        NEW<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride,         \
                                               srcBlkStride, srcRepStride);                      \
    }
NPUSIM_OLD_REDUCTION(WholeReduceSum, ReduceRepeat, SUM)
#undef NPUSIM_OLD_REDUCTION

// These take the repeats first.
#define NPUSIM_OLD_REPEATS_FIRST(NAME, NEW, TYPE)                                             \
    template <typename T, bool isSetMask = true>                                              \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,         \
                                const int32_t repeatTime, const uint64_t mask[],              \
                                const int32_t dstRepStride, const int32_t srcBlkStride,       \
                                const int32_t srcRepStride)                                   \
    {                                                                                         \
        NEW<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride,      \
                                               srcBlkStride, srcRepStride);                   \
    }                                                                                         \
    template <typename T, bool isSetMask = true>                                              \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,         \
                                const int32_t repeatTime, const int32_t mask,                 \
                                const int32_t dstRepStride, const int32_t srcBlkStride,       \
                                const int32_t srcRepStride)                                   \
    {                                                                                         \
        NEW<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride,      \
                                               srcBlkStride, srcRepStride);                   \
    }
NPUSIM_OLD_REPEATS_FIRST(BlockReduceSum, ReduceDataBlock, SUM)
NPUSIM_OLD_REPEATS_FIRST(BlockReduceMax, ReduceDataBlock, MAX)
NPUSIM_OLD_REPEATS_FIRST(BlockReduceMin, ReduceDataBlock, MIN)
NPUSIM_OLD_REPEATS_FIRST(PairReduceSum, ReducePairElem, SUM)
#undef NPUSIM_OLD_REPEATS_FIRST

// dstBlkStride is nothing: a repeat leaves one element.
template <typename T, bool isSetMask = true>
__aicore__ inline void RepeatReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                       const int32_t repeatTime, const int32_t mask,
                                       const int32_t dstBlkStride, const int32_t srcBlkStride,
                                       const int32_t dstRepStride, const int32_t srcRepStride)
{
    ReduceRepeat<ReduceType::SUM, T, T, isSetMask>(dst, src, mask, repeatTime, dstRepStride,
                                                   srcBlkStride, srcRepStride);
}

#define NPUSIM_EXTREME(NAME, TYPE, ALL)                                                         \
    template <typename T, bool isSetMask = true>                                                \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,           \
                                const uint64_t mask[], const int32_t repeatTime,                \
                                const int32_t dstRepStride, const int32_t srcBlkStride,         \
                                const int32_t srcRepStride,                                     \
                                ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX)             \
    {                                                                                           \
        ReduceRepeat<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime,             \
                                                        dstRepStride, srcBlkStride,             \
                                                        srcRepStride, order);                   \
    }                                                                                           \
    template <typename T, bool isSetMask = true>                                                \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,           \
                                const int32_t mask, const int32_t repeatTime,                   \
                                const int32_t dstRepStride, const int32_t srcBlkStride,         \
                                const int32_t srcRepStride,                                     \
                                ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX)             \
    {                                                                                           \
        ReduceRepeat<ReduceType::TYPE, T, T, isSetMask>(dst, src, mask, repeatTime,             \
                                                        dstRepStride, srcBlkStride,             \
                                                        srcRepStride, order);                   \
    }                                                                                           \
    template <typename T>                                                                       \
    __aicore__ inline void ALL(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                               const LocalTensor<T>& sharedTmpBuffer, const int32_t count,      \
                               bool calIndex = 0)                                               \
    {                                                                                           \
        npusim::reduce_all(ReduceType::TYPE, dst, src, sharedTmpBuffer, npusim::first(count), 8, \
                           calIndex);                                                           \
    }                                                                                           \
    template <typename T>                                                                       \
    __aicore__ inline void ALL(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                               const LocalTensor<T>& sharedTmpBuffer, const uint64_t mask[],    \
                               const int32_t repeatTime, const int32_t srcRepStride,            \
                               bool calIndex = 0)                                               \
    {                                                                                           \
        npusim::reduce_all(ReduceType::TYPE, dst, src, sharedTmpBuffer,                         \
                           npusim::lanes<true>(mask, repeatTime), srcRepStride, calIndex);      \
    }                                                                                           \
    template <typename T>                                                                       \
    __aicore__ inline void ALL(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                               const LocalTensor<T>& sharedTmpBuffer, const int32_t mask,       \
                               const int32_t repeatTime, const int32_t srcRepStride,            \
                               bool calIndex = 0)                                               \
    {                                                                                           \
        npusim::reduce_all(ReduceType::TYPE, dst, src, sharedTmpBuffer,                         \
                           npusim::lanes<true>(uint64_t(mask), repeatTime), srcRepStride,       \
                           calIndex);                                                           \
    }
NPUSIM_EXTREME(WholeReduceMax, MAX, ReduceMax)
NPUSIM_EXTREME(WholeReduceMin, MIN, ReduceMin)
#undef NPUSIM_EXTREME

template <typename T, bool isSetMask = true>
__aicore__ inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                 const LocalTensor<T>& sharedTmpBuffer, const int32_t count)
{
    npusim::Lanes lanes = isSetMask ? npusim::first(count) : npusim::set_before(1);
    npusim_core()->summed = dst.GetPhyAddr() + 1;
    npusim::reduce_all(ReduceType::SUM, dst, src, sharedTmpBuffer, lanes, 8, false);
}

template <typename T>
__aicore__ inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                 const LocalTensor<T>& sharedTmpBuffer, const uint64_t mask[],
                                 const int32_t repeatTime, const int32_t srcRepStride)
{
    npusim::reduce_all(ReduceType::SUM, dst, src, sharedTmpBuffer,
                       npusim::lanes<true>(mask, repeatTime), srcRepStride, false);
}

template <typename T>
__aicore__ inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                 const LocalTensor<T>& sharedTmpBuffer, const int32_t mask,
                                 const int32_t repeatTime, const int32_t srcRepStride)
{
    npusim::reduce_all(ReduceType::SUM, dst, src, sharedTmpBuffer,
                       npusim::lanes<true>(uint64_t(mask), repeatTime), srcRepStride, false);
}

// What the last ReduceSum of elements one behind the other left.
template <typename T>
__aicore__ inline T GetReduceRepeatSumSpr()
{
    T value{};
    npusim::Core* core = npusim_core();
    if (core->summed == 0) {
        npusim_refuse("GetReduceRepeatSumSpr: a ReduceSum of count elements must come before; call "
                      "it first");
    }
    npusim_read_local(int32_t(TPosition::VECCALC), core->summed - 1, &value, sizeof(T));
    return value;
}

// The same under its older name; without a type the bits of a float.
template <typename T = uint64_t>
__aicore__ inline T GetAccVal()
{
    using Summed = std::conditional_t<std::is_same<T, uint64_t>::value, uint32_t, T>;
    return GetReduceRepeatSumSpr<Summed>();
}

}  // namespace AscendC
