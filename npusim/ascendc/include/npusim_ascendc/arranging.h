// The vector unit: sorting, transposing, closing up, counting.
#pragma once

#include "npusim_ascendc/vector.h"

namespace AscendC {

// ---- sorting ----

struct MrgSort4Info {
    MrgSort4Info() = default;
    MrgSort4Info(const uint16_t elementLengthsIn[4], const bool ifExhaustedSuspensionIn,
                 const uint16_t validBitIn, const uint16_t repeatTimesIn)
        : ifExhaustedSuspension(ifExhaustedSuspensionIn),
          validBit(validBitIn),
          repeatTimes(repeatTimesIn)
    {
        for (int i = 0; i < 4; ++i) {
            elementLengths[i] = elementLengthsIn[i];
        }
    }
    uint16_t elementLengths[4] = {};
    bool ifExhaustedSuspension = false;
    uint16_t validBit = 0;
    uint8_t repeatTimes = 1;
};

template <typename T>
struct MrgSortSrcList {
    MrgSortSrcList() = default;
    MrgSortSrcList(const LocalTensor<T>& src1In, const LocalTensor<T>& src2In,
                   const LocalTensor<T>& src3In, const LocalTensor<T>& src4In)
        : src1(src1In), src2(src2In), src3(src3In), src4(src4In)
    {}
    LocalTensor<T> src1;
    LocalTensor<T> src2;
    LocalTensor<T> src3;
    LocalTensor<T> src4;
};

template <typename T>
__aicore__ inline void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                              const LocalTensor<uint32_t>& src1, const int32_t repeatTime)
{
    npusim::record("Sort32", dst, src0, src1, repeatTime);
}

template <typename T>
__aicore__ inline void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& src,
                               const MrgSort4Info& params)
{
    npusim::record("MrgSort", dst, src.src1, src.src2, src.src3, src.src4,
                   params.elementLengths[0], params.elementLengths[1], params.elementLengths[2],
                   params.elementLengths[3], params.ifExhaustedSuspension, params.validBit,
                   params.repeatTimes);
}

template <typename T>
__aicore__ inline void MrgSort4(const LocalTensor<T>& dst, const MrgSortSrcList<T>& src,
                                const MrgSort4Info& params)
{
    npusim::record("MrgSort4", dst, src.src1, src.src2, src.src3, src.src4,
                   params.elementLengths[0], params.elementLengths[1], params.elementLengths[2],
                   params.elementLengths[3], params.ifExhaustedSuspension, params.validBit,
                   params.repeatTimes);
}

template <typename T>
__aicore__ inline void RpSort16(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                const int32_t repeatTime)
{
    npusim::record("RpSort16", dst, src, repeatTime);
}

template <typename T>
__aicore__ inline void ProposalConcat(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                      const int32_t repeatTime, const int32_t modeNumber)
{
    npusim::record("ProposalConcat", dst, src, repeatTime, modeNumber);
}

template <typename T>
__aicore__ inline void ProposalExtract(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                       const int32_t repeatTime, const int32_t modeNumber)
{
    npusim::record("ProposalExtract", dst, src, repeatTime, modeNumber);
}

// ---- closing up ----

struct GatherMaskParams {
    GatherMaskParams() = default;
    GatherMaskParams(const uint8_t src0BlockStrideIn, const uint16_t repeatTimesIn,
                     const uint16_t src0RepeatStrideIn, const uint8_t src1RepeatStrideIn)
        : src0BlockStride(src0BlockStrideIn),
          repeatTimes(repeatTimesIn),
          src0RepeatStride(src0RepeatStrideIn),
          src1RepeatStride(src1RepeatStrideIn)
    {}
    uint8_t src0BlockStride = DEFAULT_BLK_STRIDE;
    uint16_t repeatTimes = 0;
    uint16_t src0RepeatStride = DEFAULT_REPEAT_STRIDE;
    uint8_t src1RepeatStride = DEFAULT_REPEAT_STRIDE;
};

enum class GatherMaskMode : uint8_t { MODE0 = 0, MODE1 = 1 };
constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::MODE0;

}  // namespace AscendC

namespace npusim {

// Elements of each repeat that take part, and how many repeats there are.
template <typename T>
Lanes gathered(bool counts, uint32_t mask, uint16_t repeats)
{
    if (!counts) {
        return {Lanes::FIRST, 256 * 8 / TypeOf<T>::bits, 0, repeats};
    }
    if (__NPU_ARCH__ == 2002) {
        return {Lanes::COUNTER, mask, 0, 1};
    }
    return {Lanes::FIRST, mask, 0, repeats};
}

inline bool is_kept(uint8_t pattern, uint64_t index)
{
    return pattern == 7 || (pattern > 2 ? index % 4 == uint64_t(pattern - 3)
                                        : index % 2 == uint64_t(pattern - 1));
}

}  // namespace npusim

namespace AscendC {

template <typename T, GatherMaskMode mode = defaultGatherMaskMode>
__aicore__ inline void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                                  const uint8_t src1Pattern, const bool reduceMode,
                                  const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                                  uint64_t& rsvdCnt)
{
    npusim::Lanes lanes =
        npusim::gathered<T>(reduceMode, mask, gatherMaskParams.repeatTimes);
    npusim::record("GatherMask", dst,
                   npusim::strided(src0, gatherMaskParams.src0BlockStride,
                                   gatherMaskParams.src0RepeatStride),
                   src1Pattern, lanes);
    rsvdCnt = 0;
    for (uint64_t index = 0; index < lanes.low; ++index) {
        rsvdCnt += npusim::is_kept(src1Pattern, index);
    }
    rsvdCnt *= lanes.repeats;
}

template <typename T, typename U, GatherMaskMode mode = defaultGatherMaskMode>
__aicore__ inline void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                                  const LocalTensor<U>& src1Pattern, const bool reduceMode,
                                  const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                                  uint64_t& rsvdCnt)
{
    npusim::Lanes lanes =
        npusim::gathered<T>(reduceMode, mask, gatherMaskParams.repeatTimes);
    npusim::record("GatherMaskByTensor", dst,
                   npusim::strided(src0, gatherMaskParams.src0BlockStride,
                                   gatherMaskParams.src0RepeatStride),
                   npusim::strided(src1Pattern, 1, gatherMaskParams.src1RepeatStride), lanes);
    rsvdCnt = 0;
    uint8_t bits[npusim::Words::MOST * 8];
    uint64_t nbytes = (lanes.low + 7) / 8;
    for (uint64_t repeat = 0; repeat < lanes.repeats; ++repeat) {
        uint64_t place = src1Pattern.GetPhyAddr() + repeat * gatherMaskParams.src1RepeatStride * 32;
        npusim_read_local(src1Pattern.GetPosition(), place, bits,
                          nbytes < sizeof(bits) ? nbytes : sizeof(bits));
        for (uint64_t index = 0; index < lanes.low; ++index) {
            rsvdCnt += bits[index / 8] >> (index % 8) & 1;
        }
    }
}

// ---- transposing ----

constexpr int32_t NCHW_CONV_ADDR_LIST_SIZE = 16;

struct TransDataTo5HDParams {
    TransDataTo5HDParams() = default;
    TransDataTo5HDParams(const bool dstHighHalfIn, const bool srcHighHalfIn,
                         const uint8_t repeatTimesIn, const uint16_t dstRepStrideIn,
                         const uint16_t srcRepStrideIn)
        : dstHighHalf(dstHighHalfIn),
          srcHighHalf(srcHighHalfIn),
          repeatTimes(repeatTimesIn),
          dstRepStride(dstRepStrideIn),
          srcRepStride(srcRepStrideIn)
    {}
    bool dstHighHalf = false;
    bool srcHighHalf = false;
    uint8_t repeatTimes = 1;
    uint16_t dstRepStride = 0;
    uint16_t srcRepStride = 0;
};

template <typename T>
__aicore__ inline void TransDataTo5HD(uint64_t dstList[NCHW_CONV_ADDR_LIST_SIZE],
                                      uint64_t srcList[NCHW_CONV_ADDR_LIST_SIZE],
                                      const TransDataTo5HDParams& nchwconvParams)
{
    npusim::Words words;
    words.integer(npusim::TypeOf<T>::number);
    words.integer(nchwconvParams.dstHighHalf).integer(nchwconvParams.srcHighHalf);
    words.integer(nchwconvParams.repeatTimes);
    words.integer(nchwconvParams.dstRepStride).integer(nchwconvParams.srcRepStride);
    for (int i = 0; i < NCHW_CONV_ADDR_LIST_SIZE; ++i) {
        words.integer(dstList[i]);
    }
    for (int i = 0; i < NCHW_CONV_ADDR_LIST_SIZE; ++i) {
        words.integer(srcList[i]);
    }
    words.record("TransDataTo5HD");
}

template <typename T>
__aicore__ inline void TransDataTo5HD(
    const LocalTensor<T> (&dstList)[NCHW_CONV_ADDR_LIST_SIZE],
    const LocalTensor<T> (&srcList)[NCHW_CONV_ADDR_LIST_SIZE],
    const TransDataTo5HDParams& nchwconvParams)
{
    uint64_t dst[NCHW_CONV_ADDR_LIST_SIZE], src[NCHW_CONV_ADDR_LIST_SIZE];
    for (int i = 0; i < NCHW_CONV_ADDR_LIST_SIZE; ++i) {
        dst[i] = dstList[i].GetPhyAddr();
        src[i] = srcList[i].GetPhyAddr();
    }
    TransDataTo5HD<T>(dst, src, nchwconvParams);
}

template <typename T>
__aicore__ inline void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src)
{
    npusim::record("Transpose", dst, src);
}

// ---- counting ----

}  // namespace AscendC

namespace npusim {

// The first block is written by the scalar unit, the others are sums of what is there (assumed).
template <typename T>
void count_up(const AscendC::LocalTensor<T>& dst, T first, uint32_t count)
{
    constexpr uint32_t BLOCK = 32 / sizeof(T);
    for (uint32_t index = 0; index < BLOCK && index < count; ++index) {
        dst.SetValue(index, T(float(first) + float(index)));
    }
    record("SetFlag", AscendC::HardEvent::S_V, 0);
    record("WaitFlag", AscendC::HardEvent::S_V, 0);
    for (uint32_t done = BLOCK; done < count; done *= 2) {
        uint32_t more = count - done < done ? count - done : done;
        AscendC::Adds(dst[done], dst, T(float(done)), int32_t(more));
        record("PipeBarrier", PIPE_V);
    }
}

}  // namespace npusim

namespace AscendC {

template <typename T>
__aicore__ inline void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count)
{
    npusim::count_up(dst, firstValue, count);
}

}  // namespace AscendC
