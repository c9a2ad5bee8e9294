// Matrices in the unified buffer turned, and axes of tensors exchanged.
#pragma once

#include "npusim_ascendc/shaping.h"

namespace AscendC {

enum class TransposeType : uint8_t {
    TRANSPOSE_TYPE_NONE,
    TRANSPOSE_NZ2ND_0213,
    TRANSPOSE_NZ2NZ_0213,
    TRANSPOSE_NZ2NZ_012_WITH_N,
    TRANSPOSE_NZ2ND_012_WITH_N,
    TRANSPOSE_NZ2ND_012_WITHOUT_N,
    TRANSPOSE_NZ2NZ_012_WITHOUT_N,
    TRANSPOSE_ND2ND_ONLY,
    TRANSPOSE_ND_UB_GM,
    TRANSPOSE_GRAD_ND_UB_GM,
    TRANSPOSE_ND2ND_B16,
    TRANSPOSE_NCHW2NHWC,
    TRANSPOSE_NHWC2NCHW,
    TRANSPOSE_ND2ND_021,
    TRANSPOSE_ND2ND_102,
    TRANSPOSE_ND2ND_210,
    TRANSPOSE_ND2NZ_WITH_INTLV,
};

struct TransposeParamsExt {
    TransposeParamsExt() = default;
    TransposeParamsExt(const uint16_t nSizeIn, const uint16_t cSizeIn, const uint16_t hSizeIn,
                       const uint16_t wSizeIn, const TransposeType transposeTypeIn)
        : nSize(nSizeIn),
          cSize(cSizeIn),
          hSize(hSizeIn),
          wSize(wSizeIn),
          transposeType(transposeTypeIn)
    {}
    uint16_t nSize = 0;
    uint16_t cSize = 0;
    uint16_t hSize = 0;
    uint16_t wSize = 0;
    TransposeType transposeType = TransposeType::TRANSPOSE_ND2ND_B16;
};

namespace tiling {

// No page gives its fields: the lengths that npusim reads, the outermost first.
struct ConfusionTransposeTiling {
    uint32_t lengths[4] = {};
};

}  // namespace tiling

}  // namespace AscendC

using ConfusionTransposeTiling = AscendC::tiling::ConfusionTransposeTiling;

namespace npusim {

// A matrix of rows x columns, its columns as rows.
template <typename T>
void turn(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src, uint32_t rows,
          uint32_t columns, Scratch scratch)
{
    uint32_t size = rows * columns;
    if constexpr (sizeof(T) == 1) {
        auto wide = scratch.take<half>(size), turned = scratch.take<half>(size);
        AscendC::Cast(wide, src, AscendC::RoundMode::CAST_NONE, size);
        step();
        turn(turned, wide, rows, columns, scratch);
        AscendC::Cast(dst, turned, AscendC::RoundMode::CAST_NONE, size);
        step();
    } else {
        int32_t own = sizeof(T);
        gather(dst, src, {rows, own, own * int32_t(columns), 0, own * int32_t(size - 1)}, size,
               scratch);
    }
}

// Fractals of [B, N, H / N / 16, S / 16, 16, 16] with N and S exchanged, as rows or as fractals.
template <typename T>
void exchange(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              const uint32_t lengths[4], bool to_rows)
{
    constexpr uint32_t own = BLOCK_BYTES / sizeof(T), side = 16;
    uint32_t b = lengths[0], n = lengths[1], s = lengths[2], h = lengths[3];
    uint32_t rows = (n + side - 1) / side * side;
    for (uint32_t i = 0; i < b * n * h / side; ++i) {
        uint32_t column = i % (h / side), head = i / (h / side) % n, batch = i / (h / side) / n;
        uint32_t pitch = to_rows ? n * h : rows * h;
        uint32_t at = batch * s * pitch + (to_rows ? head * h + column * side
                                                   : column * rows * side + head * side);
        AscendC::DataCopy(dst[at], src[i * s * side],
                          {uint16_t(s), uint16_t(side / own), 0, uint16_t((pitch - side) / own)});
    }
    step();
}

template <typename T>
void transpose(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               AscendC::TransposeType type, const ConfusionTransposeTiling& of,
               const Scratch& scratch)
{
    using Type = AscendC::TransposeType;
    if (type == Type::TRANSPOSE_NZ2ND_0213 || type == Type::TRANSPOSE_NZ2NZ_0213) {
        exchange(dst, src, of.lengths, type == Type::TRANSPOSE_NZ2ND_0213);
    } else if (type == Type::TRANSPOSE_ND2ND_ONLY) {
        turn(dst, src, of.lengths[2], of.lengths[3], scratch);
    } else {
        npusim_refuse("Transpose: transposeType must be TRANSPOSE_NZ2ND_0213, "
                      "TRANSPOSE_NZ2NZ_0213 or TRANSPOSE_ND2ND_ONLY, not number %d; use one of "
                      "these",
                      int(type));
    }
}

template <typename T>
void transpose(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               const AscendC::TransposeParamsExt& by, const Scratch& scratch)
{
    using Type = AscendC::TransposeType;
    uint32_t plane = by.hSize * by.wSize, size = by.cSize * plane;
    switch (by.transposeType) {
        case Type::TRANSPOSE_ND2ND_B16:
            AscendC::Transpose(dst, src);
            return;
        case Type::TRANSPOSE_NCHW2NHWC:
        case Type::TRANSPOSE_NHWC2NCHW: {
            bool to_last = by.transposeType == Type::TRANSPOSE_NCHW2NHWC;
            for (uint32_t n = 0; n < by.nSize; ++n) {
                turn(dst[n * size], src[n * size], to_last ? by.cSize : plane,
                     to_last ? plane : by.cSize, scratch);
            }
            return;
        }
        case Type::TRANSPOSE_TYPE_NONE:
            return;
        default:
            npusim_refuse("Transpose: transposeType must be TRANSPOSE_ND2ND_B16, "
                          "TRANSPOSE_NCHW2NHWC or TRANSPOSE_NHWC2NCHW, not number %d; use one of "
                          "these",
                          int(by.transposeType));
    }
}

}  // namespace npusim

namespace AscendC {

template <typename T>
__aicore__ inline void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                 const LocalTensor<uint8_t>& sharedTmpBuffer,
                                 const TransposeParamsExt& transposeParams)
{
    npusim::transpose(dst, src, transposeParams, npusim::Scratch(sharedTmpBuffer));
}

#define NPUSIM_TRANSPOSE(NAME)                                                                    \
    template <typename T>                                                                         \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,             \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                      \
                                TransposeType transposeType, ConfusionTransposeTiling& tiling)    \
    {                                                                                             \
        npusim::transpose(dst, src, transposeType, tiling, npusim::Scratch(sharedTmpBuffer));     \
    }                                                                                             \
    template <typename T>                                                                         \
    __aicore__ inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src,             \
                                TransposeType transposeType, ConfusionTransposeTiling& tiling)    \
    {                                                                                             \
        npusim::transpose(dst, src, transposeType, tiling, npusim::Scratch());                    \
    }
NPUSIM_TRANSPOSE(Transpose)
NPUSIM_TRANSPOSE(ConfusionTranspose)
#undef NPUSIM_TRANSPOSE

}  // namespace AscendC
