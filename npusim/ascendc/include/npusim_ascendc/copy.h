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
