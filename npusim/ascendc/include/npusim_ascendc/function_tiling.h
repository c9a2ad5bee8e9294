// The room that functions of the advanced API need, and their tilings, as the host asks for them.
#pragma once

#include <vector>

#include "kernel_operator.h"
#include "npusim_ascendc/tiling_fields.h"
#include "tiling/platform/platform_ascendc.h"

namespace AscendC {

// Types by number, as the host gives them.
enum class TensorDataType {
    DT_FLOAT = 0,
    DT_FLOAT16 = 1,
    DT_INT8 = 2,
    DT_INT32 = 3,
    DT_UINT8 = 4,
    DT_INT16 = 6,
    DT_UINT16 = 7,
    DT_UINT32 = 8,
    DT_INT64 = 9,
    DT_UINT64 = 10,
    DT_BOOL = 12,
    DT_BF16 = 27,
    DT_INT4 = 29,
};

// The lengths of a tensor, as the host gives them.
class TensorShape {
public:
    TensorShape() = default;
    TensorShape(std::initializer_list<int64_t> lengths) : lengths_(lengths) {}
    TensorShape(const std::vector<int64_t>& lengths) : lengths_(lengths) {}
    int64_t GetShapeSize() const
    {
        int64_t size = 1;
        for (int64_t length : lengths_) {
            size *= length;
        }
        return size;
    }
    int64_t GetDim(size_t index) const
    {
        return lengths_[index];
    }
    size_t GetDimNum() const
    {
        return lengths_.size();
    }

private:
    std::vector<int64_t> lengths_;
};

}  // namespace AscendC

namespace npusim {

using Platform = platform_ascendc::PlatformAscendC;
using Shape = AscendC::TensorShape;

constexpr uint32_t LEAST_ELEMENTS = 256;  // that a function computes at once

inline uint32_t columns_of(const Shape& shape)
{
    size_t dims = shape.GetDimNum();
    return dims ? uint32_t(shape.GetDim(dims - 1)) : 1;
}

inline uint32_t rows_of(const Shape& shape)
{
    uint32_t columns = columns_of(shape);
    return columns ? uint32_t(shape.GetShapeSize() / columns) : 0;
}

// Functions of each element compute as many at once as there is room for.
inline void room_of_elements(const Shape& shape, uint32_t& most, uint32_t& least)
{
    uint32_t count = uint32_t(shape.GetShapeSize());
    most = Scratch::needed_bytes(count);
    least = Scratch::needed_bytes(count < LEAST_ELEMENTS ? count : LEAST_ELEMENTS);
}

inline uint32_t room_of_rows(uint32_t rows, uint32_t columns, uint32_t matrices)
{
    return room_of_rows_bytes(rows, columns, matrices) + 4 * columns * sizeof(float) + 1024;
}

// Functions of rows compute as many at once as there is room for, `whole` at least.
inline void room_of_rows(const Shape& shape, uint32_t matrices, uint32_t whole, uint32_t& most,
                         uint32_t& least)
{
    uint32_t rows = rows_of(shape), columns = columns_of(shape);
    most = room_of_rows(rows, columns, matrices);
    least = room_of_rows(rows < whole ? rows : whole, columns, matrices);
}

}  // namespace npusim

namespace AscendC {

// The forms in which the host asks: with what chip it is, or without; of one shape, of two, of a type.
#define NPUSIM_ROOM(NAME)                                                                         \
    inline void NAME(const TensorShape& srcShape, const uint32_t, const bool, uint32_t& maxValue, \
                     uint32_t& minValue)                                                          \
    {                                                                                             \
        npusim::room_of_elements(srcShape, maxValue, minValue);                                   \
    }                                                                                             \
    inline void NAME(const npusim::Platform&, const TensorShape& srcShape, const uint32_t,        \
                     const bool, uint32_t& maxValue, uint32_t& minValue)                          \
    {                                                                                             \
        npusim::room_of_elements(srcShape, maxValue, minValue);                                   \
    }
NPUSIM_ROOM(GetAcoshMaxMinTmpSize)
NPUSIM_ROOM(GetAxpyMaxMinTmpSize)
NPUSIM_ROOM(GetCeilMaxMinTmpSize)
NPUSIM_ROOM(GetClampMaxMinTmpSize)
NPUSIM_ROOM(GetCoshMaxMinTmpSize)
NPUSIM_ROOM(GetErfMaxMinTmpSize)
NPUSIM_ROOM(GetExpMaxMinTmpSize)
NPUSIM_ROOM(GetFloorMaxMinTmpSize)
NPUSIM_ROOM(GetFmodMaxMinTmpSize)
NPUSIM_ROOM(GetFracMaxMinTmpSize)
NPUSIM_ROOM(GetGeGLUMaxMinTmpSize)
NPUSIM_ROOM(GetLogMaxMinTmpSize)
NPUSIM_ROOM(GetReGluMaxMinTmpSize)
NPUSIM_ROOM(GetRintMaxMinTmpSize)
NPUSIM_ROOM(GetSigmoidMaxMinTmpSize)
NPUSIM_ROOM(GetSiluTmpSize)
NPUSIM_ROOM(GetSinhMaxMinTmpSize)
NPUSIM_ROOM(GetSinMaxMinTmpSize)
NPUSIM_ROOM(GetCosMaxMinTmpSize)
NPUSIM_ROOM(GetTanMaxMinTmpSize)
NPUSIM_ROOM(GetAsinMaxMinTmpSize)
NPUSIM_ROOM(GetAcosMaxMinTmpSize)
NPUSIM_ROOM(GetAtanMaxMinTmpSize)
NPUSIM_ROOM(GetAsinhMaxMinTmpSize)
NPUSIM_ROOM(GetAtanhMaxMinTmpSize)
NPUSIM_ROOM(GetErfcMaxMinTmpSize)
NPUSIM_ROOM(GetSignMaxMinTmpSize)
NPUSIM_ROOM(GetSwishTmpSize)
NPUSIM_ROOM(GetTanhMaxMinTmpSize)
NPUSIM_ROOM(GetTruncMaxMinTmpSize)
NPUSIM_ROOM(GetXorMaxMinTmpSize)
NPUSIM_ROOM(GetDropOutMaxMinTmpSize)

inline void GetSwiGLUMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, uint32_t& maxValue,
                                   uint32_t& minValue, const bool)
{
    npusim::room_of_elements(srcShape, maxValue, minValue);
}

inline uint32_t GetGeluMaxTmpSize(const TensorShape& srcShape, const uint32_t)
{
    return npusim::Scratch::needed_bytes(srcShape.GetShapeSize());
}

inline uint32_t GetGeluMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize)
{
    return GetGeluMaxTmpSize(srcShape, typeSize);
}

inline void GetPowerMaxMinTmpSize(const TensorShape& srcShape0, const TensorShape& srcShape1,
                                  const bool, const uint32_t, const bool, uint32_t& maxValue,
                                  uint32_t& minValue)
{
    bool is_first = srcShape0.GetShapeSize() >= srcShape1.GetShapeSize();
    const TensorShape& larger = is_first ? srcShape0 : srcShape1;
    // A number stands for as many elements as the other operand has.
    uint32_t same = npusim::whole_blocks(larger.GetShapeSize() * sizeof(float));
    npusim::room_of_elements(larger, maxValue, minValue);
    maxValue += same;
    minValue += same;
}

inline void GetAscendQuantMaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                        uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_elements(srcShape, maxValue, minValue);
    minValue = maxValue;
}

inline void GetAscendDequantMaxMinTmpSize(const TensorShape& srcShape, const uint32_t,
                                          uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = npusim::Scratch::needed_bytes(npusim::columns_of(srcShape)) + 256;
}

inline void GetAscendAntiQuantMaxMinTmpSize(const TensorShape& srcShape,
                                            const TensorShape& scaleShape, bool, TensorDataType,
                                            TensorDataType, uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = npusim::Scratch::needed_bytes(scaleShape.GetShapeSize()) + 256;
}

inline void GetSelectMaxMinTmpSize(const TensorShape& src0Shape, const TensorShape& src1Shape,
                                   const uint32_t, const TensorShape& maskShape, const uint32_t,
                                   const bool, uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = npusim::MASK_BYTES_AT_ONCE * 8;
}

inline void GetSelectWithBytesMaskMaxMinTmpSize(const TensorShape& src0Shape,
                                                const TensorShape& src1Shape,
                                                const uint32_t srcTypeSize,
                                                const TensorShape& maskShape,
                                                const uint32_t maskTypeSize,
                                                const bool isReuseMask, uint32_t& maxValue,
                                                uint32_t& minValue)
{
    GetSelectMaxMinTmpSize(src0Shape, src1Shape, srcTypeSize, maskShape, maskTypeSize, isReuseMask,
                           maxValue, minValue);
}

inline void GetSumMaxMinTmpSize(const uint32_t n, const uint32_t, const bool, uint32_t& maxSize,
                                uint32_t& minSize)
{
    maxSize = minSize = npusim::room_of_rows(npusim::NORM_ROWS, n, 1);
}

inline void GetMeanMaxMinTmpSize(const uint32_t n, const uint32_t srcTypeSize, const uint32_t,
                                 const bool isReuseSource, uint32_t& maxSize, uint32_t& minSize)
{
    GetSumMaxMinTmpSize(n, srcTypeSize, isReuseSource, maxSize, minSize);
}

#define NPUSIM_ROOM_OF_PATTERN(NAME)                                                            \
    inline void NAME(const TensorShape& srcShape, const TensorDataType, ReducePattern, bool,    \
                     bool, uint32_t& maxValue, uint32_t& minValue)                              \
    {                                                                                           \
        npusim::room_of_rows(srcShape, 1, 1, maxValue, minValue);                                \
        minValue = maxValue;                                                                    \
    }
NPUSIM_ROOM_OF_PATTERN(GetReduceMaxMaxMinTmpSize)
NPUSIM_ROOM_OF_PATTERN(GetReduceSumMaxMinTmpSize)

inline void GetCumSumMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, const bool,
                                   const bool, uint32_t& maxValue, uint32_t& minValue)
{
    uint32_t size = npusim::whole_blocks(srcShape.GetShapeSize() * sizeof(float));
    npusim::room_of_elements(srcShape, maxValue, minValue);
    maxValue += 4 * size;
    minValue += 4 * size;
}

inline void GetBroadCastMaxMinTmpSize(const npusim::Platform&, const TensorShape& srcShape,
                                      const TensorShape& dstShape, uint32_t, const bool,
                                      uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_elements(dstShape, maxValue, minValue);
}

inline void GetPadMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, uint32_t& maxValue,
                                uint32_t& minValue)
{
    npusim::room_of_elements(srcShape, maxValue, minValue);
}

inline void GetUnPadMaxMinTmpSize(const npusim::Platform&, const TensorShape& srcShape,
                                  const uint32_t typeSize, uint32_t& maxValue, uint32_t& minValue)
{
    GetPadMaxMinTmpSize(srcShape, typeSize, maxValue, minValue);
}

inline void PadTilingFunc(const TensorShape srcShape, const TensorShape oriSrcShape, const uint32_t,
                          const uint32_t, tiling::PadTiling& tiling)
{
    tiling = {npusim::rows_of(srcShape), npusim::columns_of(srcShape),
              npusim::columns_of(oriSrcShape)};
}

inline void UnPadTilingFunc(const TensorShape srcShape, const uint32_t, const uint32_t,
                            tiling::UnPadTiling& tiling)
{
    tiling = {npusim::rows_of(srcShape), npusim::columns_of(srcShape)};
}

inline void GetTransposeMaxMinTmpSize(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                      uint32_t& maxValue, uint32_t& minValue)
{
    npusim::room_of_elements(srcShape, maxValue, minValue);
}

inline void GetTransposeTilingInfo(const TensorShape& srcShape, const uint32_t, const uint32_t,
                                   const uint32_t, tiling::ConfusionTransposeTiling& tiling)
{
    size_t dims = srcShape.GetDimNum();
    for (size_t i = 0; i < 4; ++i) {
        tiling.lengths[i] = i + dims < 4 ? 1 : uint32_t(srcShape.GetDim(i + dims - 4));
    }
}

inline void GetArangeMaxMinTmpSize(uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = 0;
}

inline void GetArithProgressionMaxMinTmpSize(uint32_t& maxValue, uint32_t& minValue)
{
    GetArangeMaxMinTmpSize(maxValue, minValue);
}

inline uint32_t GetConcatTmpSize(const npusim::Platform&, const uint32_t, const uint32_t)
{
    return 0;
}

inline uint32_t GetSortTmpSize(const npusim::Platform&, const uint32_t elemCount, const uint32_t)
{
    return elemCount * npusim::PAIR_BYTES;
}

inline void GetSortMaxMinTmpSize(const TensorShape& srcShape, TensorDataType, TensorDataType, bool,
                                 const SortConfig&, uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = uint32_t(srcShape.GetShapeSize()) * npusim::PAIR_BYTES;
}

inline bool GetTopKMaxMinTmpSize(const npusim::Platform&, const int32_t inner, const int32_t,
                                 const bool, const bool, enum TopKMode, const bool, const uint32_t,
                                 uint32_t& maxValue, uint32_t& minValue)
{
    maxValue = minValue = inner * (2 * npusim::PAIR_BYTES + 2 * sizeof(int32_t)) + 128;
    return true;
}

inline bool TopKTilingFunc(const npusim::Platform&, const int32_t inner, const int32_t,
                           const int32_t, const uint32_t, const bool, enum TopKMode, const bool,
                           tiling::TopkTiling& topKTiling)
{
    topKTiling = {inner};
    return true;
}

}  // namespace AscendC

namespace ge {

// The class by which examples name shapes.
class Shape : public AscendC::TensorShape {
public:
    using AscendC::TensorShape::TensorShape;
};

}  // namespace ge
