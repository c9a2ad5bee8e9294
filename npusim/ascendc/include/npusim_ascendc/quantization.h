// Quantisation to int8 and back, as the advanced API has it.
#pragma once

#include "npusim_ascendc/scratch.h"

namespace AscendC {

struct AscendQuantConfig {
    uint32_t calcCount = 0;
    uint32_t offsetCount = 0;
    uint32_t scaleCount = 0;
    uint32_t workLocalSize = 0;
};
constexpr AscendQuantConfig ASCEND_QUANT_DEFAULT_CFG = {0, 0, 0, 0};

enum class DeQuantMode { DEQUANT_WITH_SINGLE_ROW = 0, DEQUANT_WITH_MULTI_ROW };
struct DequantParams {
    uint32_t m;
    uint32_t n;
    uint32_t calCount;
};
struct AntiQuantShapeInfo {
    uint32_t offsetHeight{0};
    uint32_t offsetWidth{0};
    uint32_t scaleHeight{0};
    uint32_t scaleWidth{0};
};

}  // namespace AscendC

namespace npusim {

using Halves = AscendC::LocalTensor<half>;

template <typename T>
Halves as_halves(const AscendC::LocalTensor<T>& src, Scratch& scratch, uint32_t count)
{
    if constexpr (std::is_same<T, half>::value) {
        return src;
    } else {
        Halves narrow = scratch.take<half>(count);
        AscendC::Cast(narrow, src, AscendC::RoundMode::CAST_NONE, count);
        step();
        return narrow;
    }
}

template <typename T>
half in_half(T value)
{
    return half(float(value));
}

// src scale + offset, all in half, rounded to nearest: by numbers, or by so many of a tensor again
// and again (asc-devkit, docs/zh/api, AscendQuant.md).
template <typename T, typename Scale, typename Offset>
void quantize(const AscendC::LocalTensor<int8_t>& dst, const AscendC::LocalTensor<T>& src,
              const Scale& scale, const Offset& offset, uint32_t scales, uint32_t count,
              Scratch scratch)
{
    constexpr bool by_tensor = !std::is_arithmetic<Scale>::value;
    constexpr bool has_offsets = !std::is_convertible<Offset, float>::value;
    Halves factors, terms;
    if constexpr (by_tensor) {
        factors = as_halves(scale, scratch, scales);
    }
    if constexpr (has_offsets) {
        terms = as_halves(offset, scratch, scales);
    }
    uint32_t most = by_tensor ? scales : scratch.most_elements() / 32 * 32;
    for (uint32_t done = 0; done < count; done += most) {
        int32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        Halves x = as_halves(src[done], room, part), scaled = room.take<half>(part);
        if constexpr (by_tensor) {
            AscendC::Mul(scaled, x, factors, part);
        } else {
            AscendC::Muls(scaled, x, in_half(scale), part);
        }
        step();
        if constexpr (has_offsets) {
            AscendC::Add(scaled, scaled, terms, part);
        } else {
            AscendC::Adds(scaled, scaled, in_half(offset), part);
        }
        step();
        AscendC::Cast(dst[done], scaled, NEAREST, part);
        step();
    }
}

// Scales in float; those of 64 bits have it in their lower half.
template <typename T>
Floats scales_of(const AscendC::LocalTensor<T>& src, Scratch& scratch, uint32_t count)
{
    if constexpr (std::is_same<T, uint64_t>::value) {
        Floats found = scratch.take(count);
        uint64_t taken = 0;
        AscendC::GatherMask(found, src.template ReinterpretCast<float>(), 1, true, 2 * count,
                            {1, 1, 8, 8}, taken);
        step();
        return found;
    } else {
        return widened(src, scratch, count);
    }
}

// Rows of int32_t times scales, of each row the first elements.
template <typename T, typename Scale>
void dequantize(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<int32_t>& src,
                const Scale& scale, AscendC::DequantParams shape, bool cuts_a_single_row,
                Scratch scratch)
{
    constexpr uint32_t own = BLOCK_BYTES / sizeof(T);
    bool is_cut = cuts_a_single_row && shape.m == 1 && shape.calCount % own == 0 &&
                  shape.n % shape.calCount == 0;
    if (is_cut) {
        shape = {shape.n / shape.calCount, shape.calCount, shape.calCount};
    }
    uint32_t pitch = (shape.n + own - 1) / own * own, count = shape.calCount;
    Floats factors;
    if constexpr (!std::is_convertible<Scale, float>::value) {
        factors = scales_of(scale, scratch, count);
    }
    for (uint32_t row = 0; row < shape.m; ++row) {
        Scratch room = scratch;
        Floats wide = room.take(count);
        Floats result = computed_for(dst[row * pitch], room, count);
        AscendC::Cast(wide, src[row * shape.n], AscendC::RoundMode::CAST_NONE, count);
        step();
        if constexpr (std::is_convertible<Scale, float>::value) {
            steps::Muls(result, wide, float(scale), count);
        } else {
            steps::Mul(result, wide, factors, count);
        }
        rounded_to(dst[row * pitch], result, count);
    }
}

// (src + offset) scale, of int8_t, where `columns` scales are those of `rows_of_each` rows.
template <typename T, typename Values>
void anti_quantize(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<int8_t>& src,
                   const Values* offset, const Values& scale, uint32_t rows, uint32_t columns,
                   uint32_t rows_of_each, const Scratch& scratch)
{
    constexpr bool is_half = std::is_same<T, half>::value;
    using Wide = std::conditional_t<is_half, half, float>;
    for (uint32_t row = 0; row < rows; ++row) {
        Scratch room = scratch;
        int32_t count = int32_t(columns);
        uint32_t at = row / rows_of_each * columns;
        Halves x = room.take<half>(count);
        AscendC::Cast(x, src[row * columns], AscendC::RoundMode::CAST_NONE, count);
        step();
        auto wide = [&](const AscendC::LocalTensor<T>& values) {
            if constexpr (is_half) {
                return values;
            } else {
                return widened(values, room, count);
            }
        };
        AscendC::LocalTensor<Wide> sum;
        if constexpr (is_half) {
            sum = x;
        } else {
            sum = widened(x, room, count);
        }
        if constexpr (std::is_same<Values, T>::value) {
            if (offset != nullptr) {
                AscendC::Adds(sum, sum, Wide(float(*offset)), count);
            }
            step();
            AscendC::Muls(sum, sum, Wide(float(scale)), count);
        } else {
            if (offset != nullptr) {
                AscendC::Add(sum, sum, wide((*offset)[at]), count);
            }
            step();
            AscendC::Mul(sum, sum, wide(scale[at]), count);
        }
        step();
        if constexpr (is_half) {
            AscendC::Adds(dst[row * columns], sum, half(0.0f), count);
            step();
        } else {
            rounded_to(dst[row * columns], sum, columns);
        }
    }
}

// The same by numbers: as many elements at once as there is room for.
template <typename T>
void anti_quantize_all(const AscendC::LocalTensor<T>& dst,
                       const AscendC::LocalTensor<int8_t>& src, T offset, T scale,
                       const Scratch& scratch)
{
    uint32_t count = src.GetSize(), most = scratch.most_elements() / BLOCK_BYTES * BLOCK_BYTES;
    for (uint32_t done = 0; done < count; done += most) {
        uint32_t part = count - done < most ? count - done : most;
        anti_quantize(dst[done], src[done], &offset, scale, 1, part, 1, scratch);
    }
}

// Rows and columns of what is dequantised, and how many rows share a scale.
struct AntiQuantRows {
    uint32_t rows;
    uint32_t columns;
    uint32_t rows_of_each;
};

template <bool IS_TURNED, typename T>
AntiQuantRows anti_quant_rows(uint32_t k, const AscendC::LocalTensor<T>& scale,
                              const AscendC::LocalTensor<T>* offset,
                              const AscendC::AntiQuantShapeInfo& shape)
{
    if (IS_TURNED) {
        npusim_refuse("AscendAntiQuant: isTranspose must be false, since npusim scales columns "
                      "alone; turn src beforehand");
    }
    AscendC::ShapeInfo own = scale.GetShapeInfo();
    if (own.shapeDim != 2 && offset != nullptr) {
        own = offset->GetShapeInfo();
    }
    uint32_t groups = shape.scaleHeight ? shape.scaleHeight : own.shape[0];
    uint32_t columns = shape.scaleWidth ? shape.scaleWidth : own.shape[1];
    if (groups == 0 || columns == 0) {
        npusim_refuse("AscendAntiQuant: the shape of scale must be known; give it by shapeInfo, or "
                      "by SetShapeInfo");
    }
    return {k, columns, k / groups};
}

}  // namespace npusim

namespace AscendC {

#define NPUSIM_QUANT(MORE, SCALE, OFFSET, SCALES, COUNT)                                         \
    template <typename T, bool isReuseSource = false,                                            \
              const AscendQuantConfig& config = ASCEND_QUANT_DEFAULT_CFG>                        \
    __aicore__ inline void AscendQuant(const LocalTensor<int8_t>& dstTensor,                     \
                                       const LocalTensor<T>& srcTensor,                          \
                                       const LocalTensor<uint8_t>& sharedTmpBuffer,              \
                                       NPUSIM_UNPACKED MORE)                                     \
    {                                                                                            \
        npusim::quantize(dstTensor, srcTensor, SCALE, OFFSET, SCALES, COUNT,                     \
                         npusim::Scratch(sharedTmpBuffer));                                      \
    }                                                                                            \
    template <typename T, bool isReuseSource = false,                                            \
              const AscendQuantConfig& config = ASCEND_QUANT_DEFAULT_CFG>                        \
    __aicore__ inline void AscendQuant(const LocalTensor<int8_t>& dstTensor,                     \
                                       const LocalTensor<T>& srcTensor, NPUSIM_UNPACKED MORE)    \
    {                                                                                            \
        npusim::quantize(dstTensor, srcTensor, SCALE, OFFSET, SCALES, COUNT, npusim::Scratch()); \
    }
NPUSIM_QUANT((const float scale, const float offset, const uint32_t calCount), scale, offset, 0,
             calCount)
NPUSIM_QUANT((const float scale, const float offset), scale, offset, 0, srcTensor.GetSize())
NPUSIM_QUANT((const LocalTensor<T>& scaleTensor, const T offset, const uint32_t scaleCount,
              const uint32_t calCount),
             scaleTensor, offset, scaleCount, calCount)
NPUSIM_QUANT((const LocalTensor<T>& scaleTensor, const LocalTensor<T>& offsetTensor,
              const uint32_t scaleCount, const uint32_t offsetCount, const uint32_t calCount),
             scaleTensor, offsetTensor, scaleCount, calCount)
NPUSIM_QUANT((const LocalTensor<T>& scaleTensor, const T offset), scaleTensor, offset,
             scaleTensor.GetSize(), srcTensor.GetSize())
NPUSIM_QUANT((const LocalTensor<T>& scaleTensor, const LocalTensor<T>& offsetTensor), scaleTensor,
             offsetTensor, scaleTensor.GetSize(), srcTensor.GetSize())
#undef NPUSIM_QUANT

#define NPUSIM_DEQUANT(SCALE, MORE, PARAMS)                                                       \
    template <typename dstT, typename scaleT,                                                     \
              DeQuantMode mode = DeQuantMode::DEQUANT_WITH_SINGLE_ROW>                            \
    __aicore__ inline void AscendDequant(const LocalTensor<dstT>& dstTensor,                      \
                                         const LocalTensor<int32_t>& srcTensor, SCALE deqScale,   \
                                         const LocalTensor<uint8_t>& sharedTmpBuffer MORE)        \
    {                                                                                             \
        npusim::dequantize(dstTensor, srcTensor, deqScale, PARAMS,                                \
                           mode == DeQuantMode::DEQUANT_WITH_SINGLE_ROW,                          \
                           npusim::Scratch(sharedTmpBuffer));                                     \
    }                                                                                             \
    template <typename dstT, typename scaleT,                                                     \
              DeQuantMode mode = DeQuantMode::DEQUANT_WITH_SINGLE_ROW>                            \
    __aicore__ inline void AscendDequant(const LocalTensor<dstT>& dstTensor,                      \
                                         const LocalTensor<int32_t>& srcTensor,                   \
                                         SCALE deqScale MORE)                                     \
    {                                                                                             \
        npusim::dequantize(dstTensor, srcTensor, deqScale, PARAMS,                                \
                           mode == DeQuantMode::DEQUANT_WITH_SINGLE_ROW, npusim::Scratch());      \
    }
#define NPUSIM_WITH_PARAMS , DequantParams params
#define NPUSIM_WITH_COUNT , const uint32_t calCount
NPUSIM_DEQUANT(const LocalTensor<scaleT>&, NPUSIM_WITH_PARAMS, params)
NPUSIM_DEQUANT(const scaleT, NPUSIM_WITH_PARAMS, params)
NPUSIM_DEQUANT(const LocalTensor<scaleT>&, NPUSIM_WITH_COUNT,
               (DequantParams{1, srcTensor.GetSize(), calCount}))
NPUSIM_DEQUANT(const LocalTensor<scaleT>&, ,
               (DequantParams{1, srcTensor.GetSize(), deqScale.GetSize()}))
#undef NPUSIM_DEQUANT
#undef NPUSIM_WITH_PARAMS
#undef NPUSIM_WITH_COUNT

#define NPUSIM_ANTI_QUANT(ROOM, SCRATCH)                                                          \
    template <typename InputDataType, typename OutputDataType, bool isTranspose>                  \
    __aicore__ inline void AscendAntiQuant(                                                       \
        const LocalTensor<OutputDataType>& dst, const LocalTensor<InputDataType>& src,            \
        const LocalTensor<OutputDataType>& offset, const LocalTensor<OutputDataType>& scale,      \
        NPUSIM_UNPACKED ROOM const uint32_t k, const AntiQuantShapeInfo& shapeInfo = {})          \
    {                                                                                             \
        auto of = npusim::anti_quant_rows<isTranspose>(k, scale, &offset, shapeInfo);             \
        npusim::anti_quantize(dst, src, &offset, scale, of.rows, of.columns, of.rows_of_each,     \
                              SCRATCH);                                                           \
    }                                                                                             \
    template <typename InputDataType, typename OutputDataType, bool isTranspose>                  \
    __aicore__ inline void AscendAntiQuant(                                                       \
        const LocalTensor<OutputDataType>& dst, const LocalTensor<InputDataType>& src,            \
        const OutputDataType offset, const OutputDataType scale,                                  \
        NPUSIM_UNPACKED ROOM const uint32_t k, const AntiQuantShapeInfo& shapeInfo = {})          \
    {                                                                                             \
        npusim::anti_quantize_all(dst, src, offset, scale, SCRATCH);                              \
    }
NPUSIM_ANTI_QUANT((const LocalTensor<uint8_t>& sharedTmpBuffer, ), npusim::Scratch(sharedTmpBuffer))
NPUSIM_ANTI_QUANT((), npusim::Scratch())
#undef NPUSIM_ANTI_QUANT

}  // namespace AscendC
