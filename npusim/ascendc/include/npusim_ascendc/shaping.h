// Matrices in the unified buffer broadcast, padded, transposed, summed up and reduced.
#pragma once

#include "npusim_ascendc/mathematics.h"
#include "npusim_ascendc/normalization.h"
#include "npusim_ascendc/selection.h"

namespace AscendC {

struct PadParams {
    uint16_t leftPad = 0;
    uint16_t rightPad = 0;
    int32_t padValue = 0;
};
struct UnPadParams {
    uint16_t leftPad = 0;
    uint16_t rightPad = 0;
};
struct SumParams {
    uint32_t outter = 1;
    uint32_t inner;
    uint32_t n;
};
struct MeanParams {
    uint32_t outter = 1;
    uint32_t inner;
    uint32_t n;
};
enum class CumSumAlgorithm { CUMSUM_ALGORITHM_LINEBYLINE = 0, CUMSUM_ALGORITHM_SKLANSKY = 1 };
struct CumSumConfig {
    bool isLastAxis{true};
    bool isReuseSource{false};
    bool outputLastRow{false};
    CumSumAlgorithm algorithm{CumSumAlgorithm::CUMSUM_ALGORITHM_LINEBYLINE};
};
constexpr CumSumConfig defaultCumSumConfig = {
    true, false, false, CumSumAlgorithm::CUMSUM_ALGORITHM_LINEBYLINE};
struct CumSumInfo {
    uint32_t outter{0};
    uint32_t inner{0};
};

namespace Pattern {
namespace Reduce {
struct AR {};
struct RA {};
}  // namespace Reduce
}  // namespace Pattern

// No page gives their fields: the lengths that npusim reads.
namespace tiling {

struct PadTiling {
    uint32_t srcHeight = 0;
    uint32_t srcWidth = 0;
    uint32_t srcOriWidth = 0;
};
struct UnPadTiling {
    uint32_t srcHeight = 0;
    uint32_t srcWidth = 0;
};

}  // namespace tiling

}  // namespace AscendC

using PadTiling = AscendC::tiling::PadTiling;
using UnPadTiling = AscendC::tiling::UnPadTiling;

namespace npusim {

// Where the elements of a matrix of so many columns come from: bytes from row to row and from column
// to column of the source.
struct Origin {
    uint32_t columns;
    int32_t row_bytes;
    int32_t column_bytes;
    int32_t first_bytes;
    int32_t last_bytes;  // no further than there
};

// Elements from `first` on, in order, of a matrix of elements that lie elsewhere.
template <typename T>
void gather(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
            const Origin& from, uint32_t count, const Scratch& scratch)
{
    uint32_t most = scratch.most_elements() / FLOATS * FLOATS;
    most = most ? most : scratch.most_elements();
    for (uint32_t done = 0; done < count; done += most) {
        uint32_t part = count - done < most ? count - done : most;
        Scratch room = scratch;
        Floats number = room.take(part), row = room.take(part);
        AscendC::CreateVecIndex(number, float(done), part);
        step();
        steps::Adds(row, number, 0.5f, part);
        steps::Muls(row, row, 1.0f / float(from.columns), part);
        to_whole<AscendC::RoundMode::CAST_FLOOR>(row, row, part, room);
        // row row_bytes + (number - row columns) column_bytes.
        steps::Muls(number, number, float(from.column_bytes), part);
        steps::Muls(row, row, float(from.row_bytes - int32_t(from.columns) * from.column_bytes),
                    part);
        steps::Add(number, number, row, part);
        steps::Adds(number, number, float(from.first_bytes), part);
        steps::Maxs(number, number, 0.0f, part);
        steps::Mins(number, number, float(from.last_bytes), part);
        auto places = room.take<int32_t>(part);
        AscendC::Cast(places, number, AscendC::RoundMode::CAST_RINT, part);
        step();
        AscendC::Gather(dst[done], src, places.template ReinterpretCast<uint32_t>(), 0, part);
        step();
    }
}

template <typename T>
void broadcast(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
               uint32_t rows, uint32_t columns, bool has_rows, bool has_columns, Scratch scratch)
{
    if constexpr (sizeof(T) == 1) {
        // Bytes are too narrow to be gathered: they become halves, and bytes again.
        uint32_t given = (has_rows ? rows : 1) * (has_columns ? columns : 1);
        auto wide = scratch.take<half>(given), spread_out = scratch.take<half>(rows * columns);
        AscendC::Cast(wide, src, AscendC::RoundMode::CAST_NONE, given);
        step();
        broadcast(spread_out, wide, rows, columns, has_rows, has_columns, scratch);
        AscendC::Cast(dst, spread_out, AscendC::RoundMode::CAST_NONE, rows * columns);
        step();
    } else {
        int32_t own = sizeof(T);
        int32_t row_bytes = has_rows ? own * int32_t(has_columns ? columns : 1) : 0;
        int32_t last = own * int32_t((has_rows ? rows : 1) * (has_columns ? columns : 1) - 1);
        gather(dst, src, {columns, row_bytes, has_columns ? own : 0, 0, last}, rows * columns,
               scratch);
    }
}

// Rows of a whole number of blocks, in which columns to the left and to the right have a value.
template <typename T>
void pad(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
         const AscendC::PadParams& by, const PadTiling& of, const Scratch& scratch)
{
    constexpr uint32_t own = BLOCK_BYTES / sizeof(T);
    uint32_t columns = (of.srcWidth + own - 1) / own * own;
    uint32_t counted = of.srcWidth % own ? of.srcWidth : of.srcOriWidth;
    int32_t size = sizeof(T), last = size * int32_t(of.srcHeight * of.srcWidth - 1);
    gather(dst, src, {columns, size * int32_t(of.srcWidth), size, -size * by.leftPad, last},
           of.srcHeight * columns, scratch);
    uint32_t block = columns - own;
    for (uint32_t row = 0; row < of.srcHeight; ++row) {
        auto fill = [&](uint32_t begin, uint32_t end, uint32_t from) {
            if (begin < end) {
                uint64_t mask[2] = {((uint64_t(1) << (end - begin)) - 1) << begin, 0};
                AscendC::Duplicate(dst[row * columns + from], T(by.padValue), mask, 1, 1, 8);
            }
        };
        fill(0, by.leftPad, 0);
        fill(by.leftPad + counted - block, by.leftPad + counted + by.rightPad - block, block);
    }
    step();
}

// Rows without their last elements, closed up.
template <typename T>
void unpad(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
           const AscendC::UnPadParams& by, const UnPadTiling& of, const Scratch& scratch)
{
    int32_t size = sizeof(T);
    uint32_t columns = of.srcWidth - by.rightPad;
    gather(dst, src, {columns, size * int32_t(of.srcWidth), size, 0,
                      size * int32_t(of.srcHeight * of.srcWidth - 1)},
           of.srcHeight * columns, scratch);
}

// The sum of the first elements of each row.
template <typename T>
void sum_rows(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              uint32_t rows, uint32_t columns, uint32_t counted, float by, const Scratch& room)
{
    each_rows(rows, columns, 1, NORM_ROWS, room, [&](uint32_t row, uint32_t part) {
        Scratch scratch = room;
        Floats values = values_of_rows(scratch, part);
        Floats x = widened(src[row * columns], scratch, part * columns);
        reduce_rows(AscendC::ReduceType::SUM, values, x, part, counted, columns, scratch);
        steps::Muls(values, values, by, part);
        put_values(dst[row], values, part);
    });
}

// Reduces a matrix along its rows, or down its columns; the inner length fills whole blocks.
template <typename PATTERN, typename T, typename Function>
void reduce_pattern(AscendC::ReduceType type, const char* name, const AscendC::LocalTensor<T>& dst,
                    const AscendC::LocalTensor<T>& src, const uint32_t shape[], bool is_padded,
                    Scratch scratch, const Function& combine)
{
    constexpr bool down = std::is_same<PATTERN, AscendC::Pattern::Reduce::RA>::value;
    constexpr uint32_t own = BLOCK_BYTES / sizeof(T);
    if (!is_padded) {
        npusim_refuse("%s: srcInnerPad must be true, since npusim reduces rows of whole blocks "
                      "alone; pad the inner axis",
                      name);
    }
    uint32_t rows = shape[0], columns = (shape[1] + own - 1) / own * own;
    if constexpr (down) {
        Floats total = scratch.take(columns);
        auto load = [&](uint32_t row, Scratch& room) {
            return widened(src[row * columns], room, columns);
        };
        Scratch first = scratch;
        steps::Adds(total, load(0, first), 0.0f, columns);
        for (uint32_t row = 1; row < rows; ++row) {
            Scratch room = scratch;
            combine(total, total, load(row, room), columns);
        }
        put_values(dst, total, columns);
    } else {
        Floats values = values_of_rows(scratch, rows);
        reduce_rows(type, values, widened(src, scratch, rows * columns), rows, shape[1], columns,
                    scratch);
        put_values(dst, values, rows);
    }
}

// Sums of all rows so far, or of all columns so far.
template <typename T>
void sum_so_far(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& last_row,
                const AscendC::LocalTensor<T>& src, const AscendC::CumSumInfo& of,
                const AscendC::CumSumConfig& config, Scratch scratch)
{
    uint32_t rows = of.outter, columns = of.inner, size = rows * columns;
    Floats x = widened(src, scratch, size), result = computed_for(dst, scratch, size);
    if (!config.isLastAxis) {
        steps::Adds(result, x, 0.0f, columns);
        for (uint32_t row = 1; row < rows; ++row) {
            steps::Add(result[row * columns], result[(row - 1) * columns], x[row * columns],
                       columns);
        }
    } else {
        // Each pass adds what is `by` columns before; the first `by` columns add nothing.
        Floats other = scratch.take(size), moved = scratch.take(size);
        steps::Adds(result, x, 0.0f, size);
        for (uint32_t by = 1; by < columns; by *= 2) {
            gather(moved, result, {columns, int32_t(4 * columns), 4, -int32_t(4 * by),
                                   int32_t(4 * (size - 1))},
                   size, scratch);
            for (uint32_t row = 0; row < rows; ++row) {
                uint32_t whole = by / BLOCK_FLOATS * BLOCK_FLOATS;
                if (whole) {
                    steps::Duplicate(moved[row * columns], 0.0f, whole);
                }
                if (by % BLOCK_FLOATS) {
                    uint64_t mask[2] = {(uint64_t(1) << by % BLOCK_FLOATS) - 1, 0};
                    AscendC::Duplicate(moved[row * columns + whole], 0.0f, mask, 1, 1, 8);
                }
            }
            step();
            steps::Add(other, result, moved, size);
            steps::Adds(result, other, 0.0f, size);
        }
    }
    rounded_to(dst, result, size);
    if (config.outputLastRow) {
        AscendC::DataCopy(last_row, dst[(rows - 1) * columns], columns);
        step();
    }
}

}  // namespace npusim

namespace AscendC {

#define NPUSIM_BROADCAST(NAME, ROOM, SCRATCH)                                                  \
    template <typename T, int32_t dim, int32_t axis, bool isReuseSource = false>               \
    __aicore__ inline void NAME(const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal, \
                                const uint32_t dstShape[dim],                                  \
                                const uint32_t srcShape[dim] NPUSIM_UNPACKED ROOM)             \
    {                                                                                          \
        static_assert(dim == 1 || dim == 2, "npusim: Broadcast must be of 1 or 2 dimensions"); \
        uint32_t rows = dim == 2 ? dstShape[0] : 1, columns = dstShape[dim - 1];               \
        npusim::broadcast(dstLocal, srcLocal, rows, columns,                                   \
                          dim == 2 && srcShape[0] == rows, srcShape[dim - 1] == columns,       \
                          SCRATCH);                                                            \
    }
NPUSIM_BROADCAST(Broadcast, (, LocalTensor<uint8_t>& sharedTmpBuffer),
                 npusim::Scratch(sharedTmpBuffer))
NPUSIM_BROADCAST(Broadcast, (), npusim::Scratch())
// The older name.
NPUSIM_BROADCAST(BroadCast, (, LocalTensor<uint8_t>& sharedTmpBuffer),
                 npusim::Scratch(sharedTmpBuffer))
NPUSIM_BROADCAST(BroadCast, (), npusim::Scratch())
#undef NPUSIM_BROADCAST

template <typename T>
__aicore__ inline void Pad(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                           PadParams& padParams, const LocalTensor<uint8_t>& sharedTmpBuffer,
                           PadTiling& tiling)
{
    npusim::pad(dstTensor, srcTensor, padParams, tiling, npusim::Scratch(sharedTmpBuffer));
}

template <typename T>
__aicore__ inline void Pad(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                           PadParams& padParams, PadTiling& tiling)
{
    npusim::pad(dstTensor, srcTensor, padParams, tiling, npusim::Scratch());
}

template <typename T>
__aicore__ inline void UnPad(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                             UnPadParams& unPadParams, LocalTensor<uint8_t>& sharedTmpBuffer,
                             UnPadTiling& tiling)
{
    npusim::unpad(dstTensor, srcTensor, unPadParams, tiling, npusim::Scratch(sharedTmpBuffer));
}

template <typename T>
__aicore__ inline void UnPad(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                             UnPadParams& unPadParams, UnPadTiling& tiling)
{
    npusim::unpad(dstTensor, srcTensor, unPadParams, tiling, npusim::Scratch());
}

template <typename T, int32_t reduceDim = -1, bool isReuseSource = false, bool isBasicBlock = false>
__aicore__ inline void Sum(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                           const LocalTensor<uint8_t>& sharedTmpBuffer, const SumParams& sumParams)
{
    npusim::sum_rows(dstTensor, srcTensor, sumParams.outter, sumParams.inner, sumParams.n, 1.0f,
                     npusim::Scratch(sharedTmpBuffer));
}

template <typename T, int32_t reduceDim = -1, bool isReuseSource = false, bool isBasicBlock = false>
__aicore__ inline void Sum(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                           const SumParams& sumParams)
{
    npusim::sum_rows(dstTensor, srcTensor, sumParams.outter, sumParams.inner, sumParams.n, 1.0f,
                     npusim::Scratch());
}

template <typename T, typename accType = T, bool isReuseSource = false, bool isBasicBlock = false,
          int32_t reduceDim = -1>
__aicore__ inline void Mean(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                            const LocalTensor<uint8_t>& sharedTmpBuffer,
                            const MeanParams& meanParams)
{
    npusim::sum_rows(dstTensor, srcTensor, meanParams.outter, meanParams.inner, meanParams.n,
                     1.0f / float(meanParams.n), npusim::Scratch(sharedTmpBuffer));
}

template <typename T, typename accType = T, bool isReuseSource = false, bool isBasicBlock = false,
          int32_t reduceDim = -1>
__aicore__ inline void Mean(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,
                            const MeanParams& meanParams)
{
    npusim::sum_rows(dstTensor, srcTensor, meanParams.outter, meanParams.inner, meanParams.n,
                     1.0f / float(meanParams.n), npusim::Scratch());
}

#define NPUSIM_REDUCE_PATTERN(NAME, TYPE, STEP)                                                    \
    template <class T, class pattern, bool isReuseSource = false>                                  \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,  \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                       \
                                const uint32_t srcShape[], bool srcInnerPad)                       \
    {                                                                                              \
        npusim::reduce_pattern<pattern>(ReduceType::TYPE, #NAME, dstTensor, srcTensor, srcShape,   \
                                        srcInnerPad, npusim::Scratch(sharedTmpBuffer),             \
                                        npusim::steps::STEP);                                      \
    }                                                                                              \
    template <class T, class pattern, bool isReuseSource = false>                                  \
    __aicore__ inline void NAME(const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor,  \
                                const uint32_t srcShape[], bool srcInnerPad)                       \
    {                                                                                              \
        npusim::reduce_pattern<pattern>(ReduceType::TYPE, #NAME, dstTensor, srcTensor, srcShape,   \
                                        srcInnerPad, npusim::Scratch(), npusim::steps::STEP);      \
    }
NPUSIM_REDUCE_PATTERN(ReduceMax, MAX, Max)
NPUSIM_REDUCE_PATTERN(ReduceSum, SUM, Add)
#undef NPUSIM_REDUCE_PATTERN

template <typename T, const CumSumConfig& config = defaultCumSumConfig>
__aicore__ inline void CumSum(LocalTensor<T>& dstTensor, LocalTensor<T>& lastRowTensor,
                              const LocalTensor<T>& srcTensor,
                              LocalTensor<uint8_t>& sharedTmpBuffer, const CumSumInfo& cumSumInfo)
{
    npusim::sum_so_far(dstTensor, lastRowTensor, srcTensor, cumSumInfo, config,
                       npusim::Scratch(sharedTmpBuffer));
}

template <typename T, const CumSumConfig& config = defaultCumSumConfig>
__aicore__ inline void CumSum(LocalTensor<T>& dstTensor, LocalTensor<T>& lastRowTensor,
                              const LocalTensor<T>& srcTensor, const CumSumInfo& cumSumInfo)
{
    npusim::sum_so_far(dstTensor, lastRowTensor, srcTensor, cumSumInfo, config, npusim::Scratch());
}

}  // namespace AscendC

namespace npusim {

constexpr uint32_t MOST_FILLED = 8192;  // elements of a buffer that is copied again and again

// Writes one value to so many elements of global memory.
template <typename T>
void fill(const AscendC::GlobalTensor<T>& dst, uint64_t size, T value)
{
    Scratch scratch;
    uint32_t most = scratch.left_bytes() / sizeof(T) / FLOATS * FLOATS;
    most = most < MOST_FILLED ? most : MOST_FILLED;
    auto same = scratch.take<T>(size < most ? uint32_t(size) : most);
    record("PipeBarrier", PIPE_ALL);
    AscendC::Duplicate(same, value, int32_t(same.GetSize()));
    record("PipeBarrier", PIPE_ALL);
    for (uint64_t done = 0; done < size; done += most) {
        uint64_t part = size - done < most ? size - done : most;
        AscendC::DataCopyPad(dst[done], same,
                             AscendC::DataCopyExtParams(1, part * sizeof(T), 0, 0, 0));
    }
    record("PipeBarrier", PIPE_ALL);
}

}  // namespace npusim

namespace AscendC {

template <typename T>
__aicore__ inline void Fill(GlobalTensor<T>& gmWorkspaceAddr, const uint64_t size, const T value)
{
    if (npusim_core()->kind == npusim::CUBE_CORE) {
        npusim_refuse("Fill: it must be called on a vector core, not on a cube core, which has no "
                      "vector unit; fill from vector cores, or in host code");
    }
    npusim::fill(gmWorkspaceAddr, size, value);
}

// The older name.
template <typename T>
__aicore__ inline void InitOutput(GlobalTensor<T> gmWorkspaceAddr, uint32_t size, T value = 0)
{
    npusim::fill(gmWorkspaceAddr, size, value);
}

}  // namespace AscendC
