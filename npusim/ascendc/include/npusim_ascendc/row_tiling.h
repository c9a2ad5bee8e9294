// The room and the tilings of softmaxes and norms, as the host asks for them.
#pragma once

#include "npusim_ascendc/function_tiling.h"

namespace npusim {

inline void tiling_of(const Shape& shape, SoftMaxTiling& tiling)
{
    tiling = {};
    tiling.srcM = rows_of(shape);
    tiling.srcK = columns_of(shape);
    tiling.srcSize = tiling.srcM * tiling.srcK;
}

// The most room that a softmax can use, and the least that it needs.
inline std::pair<uint32_t, uint32_t> softmax_room(const Shape& shape, uint32_t type_bytes)
{
    uint32_t most, least;
    room_of_rows(shape, softmax_matrices(type_bytes), 1, most, least);
    return {most, least};
}

// Of three lengths, B, S and H, or of fewer.
template <typename Tiling>
void tiling_of(const Shape& shape, const Shape& original, Tiling& tiling)
{
    size_t dims = shape.GetDimNum();
    tiling = {};
    tiling.bLength = dims > 2 ? uint32_t(shape.GetDim(dims - 3)) : 1;
    tiling.sLength = dims > 1 ? uint32_t(shape.GetDim(dims - 2)) : 1;
    tiling.hLength = columns_of(shape);
    tiling.originalHLength = columns_of(original);
}

// Layer norms come with four lengths: B, S, H as it is stored, and H as it counts.
inline Shape stored(const Shape& shape)
{
    return shape.GetDimNum() < 4 ? shape : Shape({shape.GetDim(0), shape.GetDim(1), shape.GetDim(2)});
}

}  // namespace npusim

namespace AscendC {

// Softmaxes: MORE are the parameters between the sizes of the types and the result.
#define NPUSIM_ROOM_OF_SOFTMAX(NAME, MORE)                                              \
    inline uint32_t Get##NAME##MinTmpSize(const TensorShape& srcShape, \
                                              const uint32_t typeSize MORE) \
    {                                                                                   \
        return npusim::softmax_room(srcShape, typeSize).second;                                   \
    }                                                                                   \
    inline uint32_t Get##NAME##MaxTmpSize(const TensorShape& srcShape, \
                                              const uint32_t typeSize MORE) \
    {                                                                                   \
        return npusim::softmax_room(srcShape, typeSize).first;                                    \
    }
#define NPUSIM_REUSES , const bool
#define NPUSIM_IS_UPDATED_REUSES , const bool, const bool
#define NPUSIM_OF_TWO_TYPES \
    , const uint32_t, const bool, const bool isBasicBlock = false, const bool isFlashOutputBrc = false
NPUSIM_ROOM_OF_SOFTMAX(SoftMax, NPUSIM_REUSES)
NPUSIM_ROOM_OF_SOFTMAX(LogSoftMax, NPUSIM_REUSES)
NPUSIM_ROOM_OF_SOFTMAX(SoftMaxGrad, NPUSIM_IS_UPDATED_REUSES)
NPUSIM_ROOM_OF_SOFTMAX(SoftMaxFlashV2, NPUSIM_OF_TWO_TYPES)

inline void SoftMaxTilingFunc(const TensorShape& srcShape, const uint32_t, const uint32_t,
                              tiling::SoftMaxTiling& softmaxTiling)
{
    npusim::tiling_of(srcShape, softmaxTiling);
}

inline void LogSoftMaxTilingFunc(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                 tiling::LogSoftMaxTiling& softmaxTiling)
{
    npusim::tiling_of(srcShape, softmaxTiling);
}

inline void SoftMaxGradTilingFunc(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                  tiling::SoftMaxTiling& softmaxGradTiling,
                                  const bool isFront = false)
{
    npusim::tiling_of(srcShape, softmaxGradTiling);
}

inline void SoftMaxFlashV2TilingFunc(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                     const uint32_t, tiling::SoftMaxTiling& softmaxFlashTiling,
                                     const bool, const bool isBasicBlock = false,
                                     const bool isFlashOutputBrc = false)
{
    npusim::tiling_of(srcShape, softmaxFlashTiling);
}

inline void GetSoftMaxFlashV3MaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                           const uint32_t, uint32_t& maxValue, uint32_t& minValue,
                                           const bool, const bool isBasicBlock = false)
{
    npusim::room_of_rows(srcShape, npusim::softmax_matrices(sizeof(half)), 1, maxValue, minValue);
}

inline void SoftMaxFlashV3TilingFunc(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                     const uint32_t, tiling::SoftMaxTiling& softmaxFlashV3Tiling,
                                     const bool, const bool isBasicBlock = false)
{
    npusim::tiling_of(srcShape, softmaxFlashV3Tiling);
}

// Norms: the room that they need, and the tiling that their rows give.
#define NPUSIM_ROOM_OF_NORM(NAME, MATRICES)                                              \
    inline void Get##NAME##MaxMinTmpSize(const TensorShape& srcShape, const uint32_t,    \
                                         const bool, uint32_t& maxValue, uint32_t& minValue) \
    {                                                                                    \
        npusim::room_of_rows(npusim::stored(srcShape), MATRICES, npusim::NORM_ROWS, maxValue, minValue);                    \
    }                                                                                    \
    inline void Get##NAME##NDTilingInfo(const TensorShape& srcShape, const uint32_t,     \
                                        const uint32_t, const bool,                      \
                                        tiling::NAME##Tiling& tiling)                    \
    {                                                                                    \
        npusim::tiling_of(npusim::stored(srcShape), srcShape, tiling);                   \
    }
NPUSIM_ROOM_OF_NORM(LayerNorm, npusim::NORM_MATRICES)
NPUSIM_ROOM_OF_NORM(LayerNormGrad, 2 * npusim::NORM_MATRICES)
NPUSIM_ROOM_OF_NORM(LayerNormGradBeta, npusim::NORM_MATRICES)

inline void GetLayerNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, const bool,
                                      const bool, const bool, uint32_t& maxValue,
                                      uint32_t& minValue)
{
    npusim::room_of_rows(srcShape, npusim::NORM_MATRICES, npusim::NORM_ROWS, maxValue,
                         minValue);
}

inline void GetLayerNormNDTilingInfo(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                     const bool, const bool,
                                     tiling::LayerNormSeparateTiling& tiling)
{
    tiling = {npusim::rows_of(srcShape), npusim::columns_of(srcShape)};
}

inline void GetNormalizeMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                      const bool, const bool, const bool, uint32_t& maxValue,
                                      uint32_t& minValue)
{
    npusim::room_of_rows(srcShape, npusim::NORM_MATRICES, npusim::NORM_ROWS, maxValue,
                         minValue);
}

inline bool GetDeepNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, const bool,
                                     const bool, uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_rows(srcShape, npusim::NORM_MATRICES, npusim::NORM_ROWS, maxValue,
                         minValue);
    return true;
}

inline bool GetDeepNormTilingInfo(const TensorShape& srcShape, const TensorShape& originSrcShape,
                                  const uint32_t, const uint32_t, const bool, const bool,
                                  tiling::DeepNormTiling& tiling)
{
    npusim::tiling_of(srcShape, originSrcShape, tiling);
    return true;
}

inline bool GetRmsNormMaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                    uint32_t& maxValue, uint32_t& minValue,
                                    const bool isBasicBlock = false)
{
    npusim::room_of_rows(srcShape, npusim::NORM_MATRICES, npusim::NORM_ROWS, maxValue,
                         minValue);
    return true;
}

inline bool GetRmsNormTilingInfo(const TensorShape& srcShape, const TensorShape& originSrcShape,
                                 const uint32_t, const uint32_t, tiling::RmsNormTiling& tiling,
                                 const bool isBasicBlock = false)
{
    npusim::tiling_of(srcShape, originSrcShape, tiling);
    return true;
}

inline void GetWelfordUpdateMaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                          const uint32_t, const bool, const bool,
                                          uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_elements(srcShape, maxValue, minValue);
    minValue = maxValue;
}

inline void GetWelfordFinalizeMaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                            const bool, uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_rows(srcShape, npusim::NORM_MATRICES, npusim::NORM_ROWS, maxValue,
                         minValue);
}

}  // namespace AscendC

// What a tiling of the host's names as its fields.
namespace optiling {

using namespace AscendC::tiling;

}  // namespace optiling
