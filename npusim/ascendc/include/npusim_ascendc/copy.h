// Copies between global memory and the buffers of a core, and within them.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace AscendC {

struct DataCopyParams {
    DataCopyParams() = default;
    DataCopyParams(const uint16_t count, const uint16_t len, const uint16_t srcStrideIn,
                   const uint16_t dstStrideIn)
        : blockCount(count), blockLen(len), srcStride(srcStrideIn), dstStride(dstStrideIn)
    {}
    uint16_t blockCount = 1;
    uint16_t blockLen = 0;
    union {
        uint16_t srcGap;
        uint16_t srcStride = 0;
    };
    union {
        uint16_t dstGap;
        uint16_t dstStride = 0;
    };
};

struct DataCopyExtParams {
    DataCopyExtParams() = default;
    DataCopyExtParams(const uint16_t count, const uint32_t len, const int64_t srcStrideIn,
                      const int64_t dstStrideIn, const uint32_t rsvIn)
        : blockCount(count),
          blockLen(len),
          srcStride(srcStrideIn),
          dstStride(dstStrideIn),
          rsv(rsvIn)
    {}
    uint16_t blockCount = 1;
    uint32_t blockLen = 0;
    int64_t srcStride = 0;
    int64_t dstStride = 0;
    uint32_t rsv = 0;
};

struct DataCopyPadParams {
    DataCopyPadParams() = default;
    DataCopyPadParams(const bool isPadIn, const uint8_t leftPadIn, const uint8_t rightPadIn,
                      const uint64_t padValue)
        : isPad(isPadIn), leftPadding(leftPadIn), rightPadding(rightPadIn), paddingValue(padValue)
    {}
    bool isPad = false;
    uint8_t leftPadding = 0;
    uint8_t rightPadding = 0;
    uint64_t paddingValue = 0;
};

template <typename T>
struct DataCopyPadExtParams {
    using TYPE = PrimT<T>;
    DataCopyPadExtParams() = default;
    DataCopyPadExtParams(const bool isPadIn, const uint8_t leftPadIn, const uint8_t rightPadIn,
                         TYPE padValueIn)
        : isPad(isPadIn), leftPadding(leftPadIn), rightPadding(rightPadIn), paddingValue(padValueIn)
    {}
    bool isPad = false;
    uint8_t leftPadding = 0;
    uint8_t rightPadding = 0;
    TYPE paddingValue{};
};

}  // namespace AscendC

namespace npusim {

// What copies to global memory do with what is there, and the type in which they do.
struct AtomicMode {
    int32_t atomic;
    int32_t type;
};

inline AtomicMode atomic()
{
    return {npusim_core()->atomic, npusim_core()->atomic_type};
}

inline Words& operator<<(Words& words, const AtomicMode& mode)
{
    return words.integer(mode.atomic).integer(mode.type);
}

// Without a value of its own, and without SetPadValue, nobody knows what the padding is.
template <typename T, typename Copy, typename Pad>
void copy_padded(const AscendC::LocalTensor<T>& dst, const AscendC::GlobalTensor<T>& src,
                 const Copy& by, const Pad& padding)
{
    AscendC::PrimT<T> value;
    const Core* core = npusim_core();
    memcpy(&value, padding.isPad ? static_cast<const void*>(&padding.paddingValue) : &core->pad,
           sizeof(value));
    record("DataCopyPad", dst, src, by.blockCount, by.blockLen, by.srcStride, by.dstStride,
           padding.leftPadding, padding.rightPadding, padding.isPad || core->has_pad,
           scalar(value));
}

template <typename Dst, typename Src, typename... More>
void copy_blocks(const Dst& dst, const Src& src, const AscendC::DataCopyParams& by,
                 const More&... more)
{
    record("DataCopyBlocks", dst, src, by.blockCount, by.blockLen, by.srcStride, by.dstStride,
           more...);
}

}  // namespace npusim

namespace AscendC {

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const uint32_t count)
{
    npusim::record("DataCopy", dst, src, count);
}

template <typename T>
__aicore__ inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                const uint32_t count)
{
    npusim::record("DataCopy", dst, src, count, npusim::atomic());
}

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                const uint32_t count)
{
    npusim::record("DataCopy", dst, src, count);
}

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const DataCopyParams& repeatParams)
{
    npusim::copy_blocks(dst, src, repeatParams);
}

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                const DataCopyParams& repeatParams)
{
    npusim::copy_blocks(dst, src, repeatParams);
}

template <typename T>
__aicore__ inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                const DataCopyParams& repeatParams)
{
    npusim::copy_blocks(dst, src, repeatParams, npusim::atomic());
}

template <typename T>
__aicore__ inline void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                   const DataCopyExtParams& dataCopyParams,
                                   const DataCopyPadExtParams<T>& padParams)
{
    npusim::copy_padded(dst, src, dataCopyParams, padParams);
}

template <typename T>
__aicore__ inline void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                   const DataCopyParams& dataCopyParams,
                                   const DataCopyPadParams& padParams)
{
    npusim::copy_padded(dst, src, dataCopyParams, padParams);
}

template <typename T>
__aicore__ inline void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                   const DataCopyExtParams& dataCopyParams)
{
    npusim::record("DataCopyPadOut", dst, src, dataCopyParams.blockCount, dataCopyParams.blockLen,
                   dataCopyParams.srcStride, dataCopyParams.dstStride, npusim::atomic());
}

template <typename T>
__aicore__ inline void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                   const DataCopyParams& dataCopyParams)
{
    npusim::record("DataCopyPadOut", dst, src, dataCopyParams.blockCount, dataCopyParams.blockLen,
                   dataCopyParams.srcStride, dataCopyParams.dstStride, npusim::atomic());
}

}  // namespace AscendC

namespace npusim {

inline void set_atomic(Atomic atomic, int type)
{
    npusim_core()->atomic = atomic;
    npusim_core()->atomic_type = type;
}

}  // namespace npusim

namespace AscendC {

template <typename T, TPosition pos = TPosition::MAX>
__aicore__ inline void SetPadValue(T paddingValue)
{
    npusim_core()->has_pad = true;
    memcpy(&npusim_core()->pad, &paddingValue, sizeof(T));
}

template <typename T>
__aicore__ inline void SetAtomicAdd()
{
    npusim::set_atomic(npusim::SUM, npusim::TypeOf<T>::number);
}

template <typename T>
__aicore__ inline void SetAtomicMax()
{
    npusim::set_atomic(npusim::MAXIMUM, npusim::TypeOf<T>::number);
}

template <typename T>
__aicore__ inline void SetAtomicMin()
{
    npusim::set_atomic(npusim::MINIMUM, npusim::TypeOf<T>::number);
}

__aicore__ inline void SetAtomicNone()
{
    npusim::set_atomic(npusim::NONE, 0);
}

__aicore__ inline void DisableDmaAtomic()
{
    npusim::set_atomic(npusim::NONE, 0);
}

template <typename T>
__aicore__ inline void SetAtomicType()
{
    npusim_core()->atomic_type = npusim::TypeOf<T>::number;
}

}  // namespace AscendC

namespace AscendC {

constexpr uint32_t K_MAX_DIM = 8;

struct SliceInfo {
    uint32_t startIndex = 0;
    uint32_t endIndex = 0;
    uint32_t stride = 0;
    uint32_t burstLen = 0;
    uint32_t shapeValue = 0;
};

}  // namespace AscendC

namespace npusim {

// Where the slices of the innermost dimension begin, and how they lie.
struct Slices {
    uint32_t elements;  // of each
    uint32_t count;
    uint32_t pitch;     // elements from slice to slice
};

template <typename T>
Slices innermost(const AscendC::SliceInfo& info)
{
    uint32_t elements = info.burstLen * 32 / sizeof(T), pitch = elements + info.stride;
    return {elements, (info.endIndex - info.startIndex + 1 + info.stride) / pitch, pitch};
}

// Calls `copy(dst, src)` with the first elements of each row of slices, the outermost last.
template <typename Function>
void each_slice(const AscendC::SliceInfo dst[], const AscendC::SliceInfo src[], int dimension,
                uint64_t dst_at, uint64_t src_at, const Function& copy)
{
    uint64_t dst_row = 1, src_row = 1;
    for (int i = 0; i < dimension; ++i) {
        dst_row *= dst[i].shapeValue;
        src_row *= src[i].shapeValue;
    }
    if (dimension == 0) {
        copy(dst_at + dst[0].startIndex, src_at + src[0].startIndex);
        return;
    }
    const AscendC::SliceInfo &to = dst[dimension], &from = src[dimension];
    uint32_t place = to.startIndex;
    for (uint32_t i = from.startIndex; i <= from.endIndex; i += 1 + from.stride) {
        each_slice(dst, src, dimension - 1, dst_at + place * dst_row, src_at + i * src_row, copy);
        place += 1 + to.stride;
    }
}

}  // namespace npusim

namespace AscendC {

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const SliceInfo dstSliceInfo[], const SliceInfo srcSliceInfo[],
                                const uint32_t dimValue = 1)
{
    auto to = npusim::innermost<T>(dstSliceInfo[0]), from = npusim::innermost<T>(srcSliceInfo[0]);
    npusim::each_slice(dstSliceInfo, srcSliceInfo, int(dimValue) - 1, 0, 0,
                       [&](uint64_t dst_at, uint64_t src_at) {
                           DataCopyExtParams by(from.count, from.elements * sizeof(T),
                                                (from.pitch - from.elements) * sizeof(T),
                                                (to.pitch - to.elements) * sizeof(T) / 32, 0);
                           DataCopyPad(dst[dst_at], src[src_at], by, DataCopyPadExtParams<T>());
                       });
}

template <typename T>
__aicore__ inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src,
                                const SliceInfo dstSliceInfo[], const SliceInfo srcSliceInfo[],
                                const uint32_t dimValue = 1)
{
    auto to = npusim::innermost<T>(dstSliceInfo[0]), from = npusim::innermost<T>(srcSliceInfo[0]);
    npusim::each_slice(dstSliceInfo, srcSliceInfo, int(dimValue) - 1, 0, 0,
                       [&](uint64_t dst_at, uint64_t src_at) {
                           DataCopyExtParams by(from.count, from.elements * sizeof(T),
                                                (from.pitch - from.elements) * sizeof(T) / 32,
                                                (to.pitch - to.elements) * sizeof(T), 0);
                           DataCopyPad(dst[dst_at], src[src_at], by);
                       });
}

}  // namespace AscendC
