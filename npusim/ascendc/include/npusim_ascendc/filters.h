// Elements left out by a mask of bytes or bits.
#pragma once

#include "npusim_ascendc/scratch.h"
#include "npusim_ascendc/selection.h"

namespace AscendC {

struct DropOutShapeInfo {
    DropOutShapeInfo() {}
    uint32_t firstAxis = 0;
    uint32_t srcLastAxis = 0;
    uint32_t maskLastAxis = 0;
};
struct SelectWithBytesMaskShapeInfo {
    SelectWithBytesMaskShapeInfo() {}
    uint32_t firstAxis = 0;
    uint32_t srcLastAxis = 0;
    uint32_t maskLastAxis = 0;
};

}  // namespace AscendC

namespace npusim {

constexpr uint32_t COMPARED = 128;  // halves of a repeat, of which comparisons take whole ones
constexpr uint32_t MASK_BYTES_AT_ONCE = 2048;

// A bit for each mask that is not 0, and at least as many as whole repeats have.
template <typename U>
AscendC::LocalTensor<uint8_t> bits_of_masks(const AscendC::LocalTensor<U>& masks, uint32_t count,
                                            Scratch& scratch)
{
    uint32_t whole = (count + COMPARED - 1) / COMPARED * COMPARED;
    auto wide = scratch.take<half>(whole);
    AscendC::Duplicate(wide, half(0.0f), int32_t(whole));
    step();
    if constexpr (sizeof(U) == 1) {
        auto bytes = masks.template ReinterpretCast<uint8_t>();
        AscendC::Cast(wide, bytes, AscendC::RoundMode::CAST_NONE, count);
    } else if constexpr (sizeof(U) == 2) {
        auto shorts = masks.template ReinterpretCast<int16_t>();
        AscendC::Cast(wide, shorts, AscendC::RoundMode::CAST_NONE, count);
    } else {
        Floats floats = scratch.take(count);
        auto words = masks.template ReinterpretCast<int32_t>();
        AscendC::Cast(floats, words, AscendC::RoundMode::CAST_NONE, count);
        step();
        AscendC::Cast(wide, floats, AscendC::RoundMode::CAST_NONE, count);
    }
    step();
    auto bits = scratch.take<uint8_t>(whole / 8);
    AscendC::CompareScalar(bits, wide, half(0.0f), AscendC::CMPMODE::NE, whole);
    step();
    return bits;
}

// Elements where the mask is 0 (or is not, if `of_set`), and the number elsewhere.
template <typename T, typename U>
void select_by_masks(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                     T other, const AscendC::LocalTensor<U>& masks, bool of_set, uint32_t rows,
                     uint32_t columns, uint32_t mask_columns, const Scratch& scratch)
{
    for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t done = 0; done < columns; done += MASK_BYTES_AT_ONCE) {
            uint32_t count = columns - done < MASK_BYTES_AT_ONCE ? columns - done
                                                                 : MASK_BYTES_AT_ONCE;
            Scratch room = scratch;
            auto bits = bits_of_masks(masks[row * mask_columns + done], count, room);
            if (!of_set) {
                auto pairs = bits.template ReinterpretCast<int16_t>();
                AscendC::Not(pairs, pairs, int32_t(pairs.GetSize()));
                step();
            }
            uint32_t start = row * columns + done;
            AscendC::Select(dst[start], bits, src[start], other,
                            AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
            step();
        }
    }
}

// src / keep where the mask says so, 0 elsewhere.
template <uint32_t MODE, typename T>
void drop_out(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              const AscendC::LocalTensor<uint8_t>& masks, float keep,
              const AscendC::DropOutShapeInfo& of, const Scratch& scratch)
{
    uint32_t rows = of.firstAxis, columns = of.srcLastAxis;
    bool is_bits = MODE >= 3 || (MODE == 0 && of.maskLastAxis < columns);
    if (!is_bits) {
        select_by_masks(dst, src, T(0.0f), masks, true, rows, columns, of.maskLastAxis, scratch);
    } else {
        for (uint32_t row = 0; row < rows; ++row) {
            Scratch room = scratch;
            auto bits = room.take<uint8_t>(of.maskLastAxis);
            auto own = masks[row * of.maskLastAxis];
            if (own.GetPhyAddr() % BLOCK_BYTES) {
                npusim_refuse("DropOut: rows of a mask of bits must begin at a multiple of 32 "
                              "bytes; pad maskLastAxis");
            }
            AscendC::Select(dst[row * columns], own, src[row * columns], T(0.0f),
                            AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE, columns);
            step();
        }
    }
    AscendC::Muls(dst, dst, T(1.0f / keep), int32_t(rows * columns));
    step();
}

}  // namespace npusim

namespace AscendC {

template <typename T, bool isInitBitMode = false, uint32_t dropOutMode = 0>
__aicore__ inline void DropOut(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                               const LocalTensor<uint8_t>& maskLocal,
                               const LocalTensor<uint8_t>& sharedTmpBuffer, const float keepProb,
                               const DropOutShapeInfo& info)
{
    npusim::drop_out<dropOutMode>(dstLocal, srcLocal, maskLocal, keepProb, info,
                                  npusim::Scratch(sharedTmpBuffer));
}

template <typename T, bool isInitBitMode = false, uint32_t dropOutMode = 0>
__aicore__ inline void DropOut(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
                               const LocalTensor<uint8_t>& maskLocal, const float keepProb,
                               const DropOutShapeInfo& info)
{
    npusim::drop_out<dropOutMode>(dstLocal, srcLocal, maskLocal, keepProb, info, npusim::Scratch());
}

#define NPUSIM_SELECT(NAME)                                                                       \
    template <typename T, typename U, bool isReuseMask = true>                                    \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, T src1,    \
                                const LocalTensor<U>& mask,                                       \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                const SelectWithBytesMaskShapeInfo& info)                         \
    {                                                                                             \
        npusim::select_by_masks(dst, src0, src1, mask, false, info.firstAxis, info.srcLastAxis,   \
                                info.maskLastAxis, npusim::Scratch(sharedTmpBuffer));             \
    }                                                                                             \
    template <typename T, typename U, bool isReuseMask = true>                                    \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, T src0, const LocalTensor<T>& src1,    \
                                const LocalTensor<U>& mask,                                       \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                const SelectWithBytesMaskShapeInfo& info)                         \
    {                                                                                             \
        npusim::select_by_masks(dst, src1, src0, mask, true, info.firstAxis, info.srcLastAxis,    \
                                info.maskLastAxis, npusim::Scratch(sharedTmpBuffer));             \
    }
NPUSIM_SELECT(Select)
NPUSIM_SELECT(SelectWithBytesMask)
#undef NPUSIM_SELECT

}  // namespace AscendC
