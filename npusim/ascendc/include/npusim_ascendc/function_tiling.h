// The room that functions of each element need, as the host asks for it.
#pragma once

#include <vector>

#include "kernel_operator.h"

namespace AscendC {

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

#define NPUSIM_ROOM(NAME)                                                                        \
    inline void NAME(const TensorShape& srcShape, const uint32_t, const bool, uint32_t& maxValue, \
                     uint32_t& minValue)                                                         \
    {                                                                                            \
        maxValue = minValue = npusim::Scratch::needed_bytes(srcShape.GetShapeSize());            \
    }
NPUSIM_ROOM(GetSigmoidMaxMinTmpSize)
NPUSIM_ROOM(GetTanhMaxMinTmpSize)
NPUSIM_ROOM(GetCeilMaxMinTmpSize)
NPUSIM_ROOM(GetFloorMaxMinTmpSize)
NPUSIM_ROOM(GetTruncMaxMinTmpSize)
NPUSIM_ROOM(GetFracMaxMinTmpSize)
NPUSIM_ROOM(GetClampMaxMinTmpSize)
NPUSIM_ROOM(GetLogMaxMinTmpSize)
NPUSIM_ROOM(GetSiluTmpSize)
NPUSIM_ROOM(GetSwishTmpSize)

inline uint32_t GetGeluMaxTmpSize(const TensorShape& srcShape, const uint32_t)
{
    return npusim::Scratch::needed_bytes(srcShape.GetShapeSize());
}

inline uint32_t GetGeluMinTmpSize(const TensorShape& srcShape, const uint32_t typeSize)
{
    return GetGeluMaxTmpSize(srcShape, typeSize);
}

}  // namespace AscendC

namespace ge {

// The class by which examples name shapes.
class Shape : public AscendC::TensorShape {
public:
    using AscendC::TensorShape::TensorShape;
};

}  // namespace ge
