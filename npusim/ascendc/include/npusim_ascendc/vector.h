// The vector unit: arithmetic element by element, casts, and fills.
#pragma once

#include "npusim_ascendc/mask.h"

namespace AscendC {

struct BinaryRepeatParams {
    BinaryRepeatParams() = default;
    BinaryRepeatParams(const uint8_t dstBlkStrideIn, const uint8_t src0BlkStrideIn,
                       const uint8_t src1BlkStrideIn, const uint8_t dstRepStrideIn,
                       const uint8_t src0RepStrideIn, const uint8_t src1RepStrideIn)
        : dstBlkStride(dstBlkStrideIn),
          src0BlkStride(src0BlkStrideIn),
          src1BlkStride(src1BlkStrideIn),
          dstRepStride(dstRepStrideIn),
          src0RepStride(src0RepStrideIn),
          src1RepStride(src1RepStrideIn)
    {}
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint8_t dstBlkStride = DEFAULT_BLK_STRIDE;
    uint8_t src0BlkStride = DEFAULT_BLK_STRIDE;
    uint8_t src1BlkStride = DEFAULT_BLK_STRIDE;
    uint8_t dstRepStride = DEFAULT_REPEAT_STRIDE;
    uint8_t src0RepStride = DEFAULT_REPEAT_STRIDE;
    uint8_t src1RepStride = DEFAULT_REPEAT_STRIDE;
    bool repeatStrideMode = false;
    bool strideSizeMode = false;
};

struct UnaryRepeatParams {
    UnaryRepeatParams() = default;
    UnaryRepeatParams(const uint16_t dstBlkStrideIn, const uint16_t srcBlkStrideIn,
                      const uint8_t dstRepStrideIn, const uint8_t srcRepStrideIn)
        : dstBlkStride(dstBlkStrideIn),
          srcBlkStride(srcBlkStrideIn),
          dstRepStride(dstRepStrideIn),
          srcRepStride(srcRepStrideIn)
    {}
    UnaryRepeatParams(const uint16_t dstBlkStrideIn, const uint16_t srcBlkStrideIn,
                      const uint8_t dstRepStrideIn, const uint8_t srcRepStrideIn,
                      const bool halfBlockIn)
        : dstBlkStride(dstBlkStrideIn),
          srcBlkStride(srcBlkStrideIn),
          dstRepStride(dstRepStrideIn),
          srcRepStride(srcRepStrideIn),
          halfBlock(halfBlockIn)
    {}
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint16_t dstBlkStride = DEFAULT_BLK_STRIDE;
    uint16_t srcBlkStride = DEFAULT_BLK_STRIDE;
    uint8_t dstRepStride = DEFAULT_REPEAT_STRIDE;
    uint8_t srcRepStride = DEFAULT_REPEAT_STRIDE;
    bool repeatStrideMode = false;
    bool strideSizeMode = false;
    bool halfBlock = false;
};

struct CopyRepeatParams {
    CopyRepeatParams() = default;
    CopyRepeatParams(const uint16_t dstStrideIn, const uint16_t srcStrideIn,
                     uint16_t dstRepeatSizeIn, uint16_t srcRepeatSizeIn)
        : dstStride(dstStrideIn),
          srcStride(srcStrideIn),
          dstRepeatSize(dstRepeatSizeIn),
          srcRepeatSize(srcRepeatSizeIn)
    {}
    uint16_t dstStride = DEFAULT_BLK_STRIDE;
    uint16_t srcStride = DEFAULT_BLK_STRIDE;
    uint16_t dstRepeatSize = DEFAULT_REPEAT_STRIDE;
    uint16_t srcRepeatSize = DEFAULT_REPEAT_STRIDE;
};

struct BrcbRepeatParams {
    BrcbRepeatParams() = default;
    BrcbRepeatParams(const uint16_t dstBlkStrideIn, const uint16_t dstRepStrideIn)
        : dstBlkStride(dstBlkStrideIn), dstRepStride(dstRepStrideIn)
    {}
    uint32_t blockNumber = DEFAULT_BLK_NUM;
    uint16_t dstBlkStride = DEFAULT_BLK_STRIDE;
    uint16_t dstRepStride = DEFAULT_REPEAT_STRIDE;
};

}  // namespace AscendC

namespace npusim {

// The type of elements, which a number becomes that is given with them.
template <typename T>
using Own = std::common_type_t<T>;

template <typename T, typename U, typename V>
void binary(const char* name, const AscendC::LocalTensor<T>& dst,
            const AscendC::LocalTensor<U>& src0, const AscendC::LocalTensor<V>& src1,
            const Lanes& lanes, const AscendC::BinaryRepeatParams& by = {})
{
    record(name, strided(dst, by.dstBlkStride, by.dstRepStride),
           strided(src0, by.src0BlkStride, by.src0RepStride),
           strided(src1, by.src1BlkStride, by.src1RepStride), lanes);
}

// `more` is what else the instruction is given: a number, a rounding.
template <typename T, typename U, typename... More>
void unary(const char* name, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& src,
           const Lanes& lanes, const AscendC::UnaryRepeatParams& by, const More&... more)
{
    record(name, strided(dst, by.dstBlkStride, by.dstRepStride),
           strided(src, by.srcBlkStride, by.srcRepStride), lanes, more...);
}

// The strides of operands that lie without gaps, where one is narrower than the other.
template <typename T, typename U>
AscendC::UnaryRepeatParams without_gaps()
{
    constexpr uint32_t wider =
        TypeOf<T>::bits > TypeOf<U>::bits ? TypeOf<T>::bits : TypeOf<U>::bits;
    return {1, 1, uint8_t(8 * TypeOf<T>::bits / wider), uint8_t(8 * TypeOf<U>::bits / wider)};
}

}  // namespace npusim

namespace AscendC {

#define NPUSIM_UNARY(NAME)                                                                       \
    template <typename T>                                                                        \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                                const int32_t& count)                                            \
    {                                                                                            \
        npusim::unary(#NAME, dst, src, npusim::first(count), {});                                \
    }                                                                                            \
    template <typename T, bool isSetMask = true>                                                 \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                                uint64_t mask[], const uint8_t repeatTime,                       \
                                const UnaryRepeatParams& repeatParams)                           \
    {                                                                                            \
        npusim::unary(#NAME, dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams); \
    }                                                                                            \
    template <typename T, bool isSetMask = true>                                                 \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,            \
                                uint64_t mask, const uint8_t repeatTime,                         \
                                const UnaryRepeatParams& repeatParams)                           \
    {                                                                                            \
        npusim::unary(#NAME, dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams); \
    }

NPUSIM_UNARY(Abs)
NPUSIM_UNARY(Exp)
NPUSIM_UNARY(Ln)
NPUSIM_UNARY(Not)
NPUSIM_UNARY(Reciprocal)
NPUSIM_UNARY(Relu)
NPUSIM_UNARY(Rsqrt)
NPUSIM_UNARY(Sqrt)
#undef NPUSIM_UNARY

#define NPUSIM_BINARY(NAME)                                                                 \
    template <typename T>                                                                   \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1, const int32_t& count)           \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::first(count));                       \
    }                                                                                       \
    template <typename T, bool isSetMask = true>                                            \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1, uint64_t mask[],                \
                                const uint8_t repeatTime,                                   \
                                const BinaryRepeatParams& repeatParams)                     \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::lanes<isSetMask>(mask, repeatTime),  \
                       repeatParams);                                                       \
    }                                                                                       \
    template <typename T, bool isSetMask = true>                                            \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0,      \
                                const LocalTensor<T>& src1, uint64_t mask,                  \
                                const uint8_t repeatTime,                                   \
                                const BinaryRepeatParams& repeatParams)                     \
    {                                                                                       \
        npusim::binary(#NAME, dst, src0, src1, npusim::lanes<isSetMask>(mask, repeatTime),  \
                       repeatParams);                                                       \
    }

NPUSIM_BINARY(Add)
NPUSIM_BINARY(Sub)
NPUSIM_BINARY(Mul)
NPUSIM_BINARY(Div)
NPUSIM_BINARY(Max)
NPUSIM_BINARY(Min)
NPUSIM_BINARY(And)
NPUSIM_BINARY(Or)
NPUSIM_BINARY(AddRelu)
NPUSIM_BINARY(SubRelu)
NPUSIM_BINARY(FusedMulAdd)
NPUSIM_BINARY(FusedMulAddRelu)
NPUSIM_BINARY(MulAddRelu)
#undef NPUSIM_BINARY

enum class DivAlgo {
    INTRINSIC = 0,
    DIFF_COMPENSATION,
    PRECISION_1ULP_FTZ_TRUE,
    PRECISION_0ULP_FTZ_TRUE,
    PRECISION_0ULP_FTZ_FALSE,
    PRECISION_1ULP_FTZ_FALSE
};
struct DivConfig {
    DivAlgo algo = DivAlgo::INTRINSIC;
};
constexpr DivConfig DEFAULT_DIV_CONFIG = {DivAlgo::INTRINSIC};

// Quotients are the nearest whatever the algorithm is.
template <typename T, const DivConfig& config>
__aicore__ inline void Div(const LocalTensor<T>& dst, const LocalTensor<T>& src0,
                           const LocalTensor<T>& src1, const int32_t& count)
{
    npusim::binary("Div", dst, src0, src1, npusim::first(count));
}

#define NPUSIM_WITH_SCALAR(NAME)                                                             \
    template <typename T, bool isSetMask = true>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,        \
                                const npusim::Own<T>& scalarValue, const int32_t& count)     \
    {                                                                                        \
        npusim::unary(#NAME, dst, src, npusim::first(count), {}, npusim::scalar(scalarValue)); \
    }                                                                                        \
    template <typename T, bool isSetMask = true>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,        \
                                const npusim::Own<T>& scalarValue, uint64_t mask[],          \
                                const uint8_t repeatTime,                                    \
                                const UnaryRepeatParams& repeatParams)                       \
    {                                                                                        \
        npusim::unary(#NAME, dst, src, npusim::lanes<isSetMask>(mask, repeatTime),           \
                      repeatParams, npusim::scalar(scalarValue));                            \
    }                                                                                        \
    template <typename T, bool isSetMask = true>                                             \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,        \
                                const npusim::Own<T>& scalarValue, uint64_t mask,            \
                                const uint8_t repeatTime,                                    \
                                const UnaryRepeatParams& repeatParams)                       \
    {                                                                                        \
        npusim::unary(#NAME, dst, src, npusim::lanes<isSetMask>(mask, repeatTime),           \
                      repeatParams, npusim::scalar(scalarValue));                            \
    }

NPUSIM_WITH_SCALAR(Adds)
NPUSIM_WITH_SCALAR(Muls)
NPUSIM_WITH_SCALAR(Maxs)
NPUSIM_WITH_SCALAR(Mins)
NPUSIM_WITH_SCALAR(LeakyRelu)
NPUSIM_WITH_SCALAR(ShiftLeft)
#undef NPUSIM_WITH_SCALAR

template <typename T, bool isSetMask = true>
__aicore__ inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                  const T& scalarValue, const int32_t& count)
{
    npusim::unary("ShiftRight", dst, src, npusim::first(count), {}, npusim::scalar(scalarValue), 0);
}

template <typename T, bool isSetMask = true>
__aicore__ inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                  const T& scalarValue, uint64_t mask[], const uint8_t repeatTime,
                                  const UnaryRepeatParams& repeatParams, bool roundEn = false)
{
    npusim::unary("ShiftRight", dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams,
                  npusim::scalar(scalarValue), roundEn);
}

template <typename T, bool isSetMask = true>
__aicore__ inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                  const T& scalarValue, uint64_t mask, const uint8_t repeatTime,
                                  const UnaryRepeatParams& repeatParams, bool roundEn = false)
{
    npusim::unary("ShiftRight", dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams,
                  npusim::scalar(scalarValue), roundEn);
}

template <typename T, typename U>
__aicore__ inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const RoundMode& roundMode, const uint32_t count)
{
    npusim::unary("Cast", dst, src, npusim::first(count), npusim::without_gaps<T, U>(), roundMode,
                  npusim::scalar(npusim_core()->deq_scale));
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const RoundMode& roundMode, const uint64_t mask[],
                            const uint8_t repeatTime, const UnaryRepeatParams& repeatParams)
{
    npusim::unary("Cast", dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams,
                  roundMode, npusim::scalar(npusim_core()->deq_scale));
}

template <typename T, typename U, bool isSetMask = true>
__aicore__ inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                            const RoundMode& roundMode, const uint64_t mask,
                            const uint8_t repeatTime, const UnaryRepeatParams& repeatParams)
{
    npusim::unary("Cast", dst, src, npusim::lanes<isSetMask>(mask, repeatTime), repeatParams,
                  roundMode, npusim::scalar(npusim_core()->deq_scale));
}

template <typename T>
__aicore__ inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue,
                                 const int32_t& count)
{
    npusim::record("Duplicate", dst, npusim::first(count), npusim::scalar(scalarValue));
}

template <typename T, bool isSetMask = true>
__aicore__ inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask[],
                                 const uint8_t repeatTime, const uint16_t dstBlockStride,
                                 const uint8_t dstRepeatStride)
{
    npusim::record("Duplicate", npusim::strided(dst, dstBlockStride, dstRepeatStride),
                   npusim::lanes<isSetMask>(mask, repeatTime), npusim::scalar(scalarValue));
}

template <typename T, bool isSetMask = true>
__aicore__ inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask,
                                 const uint8_t repeatTime, const uint16_t dstBlockStride,
                                 const uint8_t dstRepeatStride)
{
    npusim::record("Duplicate", npusim::strided(dst, dstBlockStride, dstRepeatStride),
                   npusim::lanes<isSetMask>(mask, repeatTime), npusim::scalar(scalarValue));
}

template <typename T>
__aicore__ inline void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                            const uint8_t repeatTime, const BrcbRepeatParams& repeatParams)
{
    npusim::record("Brcb", npusim::strided(dst, repeatParams.dstBlkStride,
                                           repeatParams.dstRepStride),
                   src, repeatTime);
}

template <typename T>
__aicore__ inline void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                            const uint32_t count)
{
    npusim::record("Copy", dst, src, npusim::first(count));
}

template <typename T, bool isSetMask = true>
__aicore__ inline void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                            const uint64_t mask[], const uint8_t repeatTime,
                            const CopyRepeatParams& repeatParams)
{
    npusim::Lanes lanes = npusim::lanes<isSetMask>(mask, repeatTime);
    lanes.repeats = repeatTime;
    npusim::record("Copy", npusim::strided(dst, repeatParams.dstStride, repeatParams.dstRepeatSize),
                   npusim::strided(src, repeatParams.srcStride, repeatParams.srcRepeatSize), lanes);
}

template <typename T, bool isSetMask = true>
__aicore__ inline void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                            const uint64_t mask, const uint8_t repeatTime,
                            const CopyRepeatParams& repeatParams)
{
    npusim::Lanes lanes = npusim::lanes<isSetMask>(mask, repeatTime);
    // Unlike other calls, in counter mode this one counts the elements of each repeat.
    lanes.repeats = repeatTime;
    npusim::record("Copy", npusim::strided(dst, repeatParams.dstStride, repeatParams.dstRepeatSize),
                   npusim::strided(src, repeatParams.srcStride, repeatParams.srcRepeatSize), lanes);
}

#define NPUSIM_OPERATOR(SIGN, NAME)                                                              \
    template <typename T>                                                                        \
    npusim::Operation<T> operator SIGN(const LocalTensor<T>& src0, const LocalTensor<T>& src1)   \
    {                                                                                            \
        return {NAME, src0, src1};                                                               \
    }
NPUSIM_OPERATOR(+, "Add")
NPUSIM_OPERATOR(-, "Sub")
NPUSIM_OPERATOR(*, "Mul")
NPUSIM_OPERATOR(/, "Div")
NPUSIM_OPERATOR(&, "And")
NPUSIM_OPERATOR(|, "Or")
#undef NPUSIM_OPERATOR

template <typename T>
void LocalTensor<T>::operator=(const npusim::Operation<T>& of)
{
    npusim::binary(of.name, *this, of.a, of.b, npusim::first(size_));
}

}  // namespace AscendC
