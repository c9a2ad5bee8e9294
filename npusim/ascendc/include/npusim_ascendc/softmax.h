// Softmax and its relatives, row by row.
#pragma once

#include "npusim_ascendc/rows.h"

namespace AscendC {

enum class SoftmaxMode { SOFTMAX_NORMAL = 0, SOFTMAX_OUTPUT_WITHOUT_BRC = 1 };

struct SoftmaxConfig {
    bool isCheckTiling = true;
    uint32_t oriSrcM = 0;
    uint32_t oriSrcK = 0;
    SoftmaxMode mode = SoftmaxMode::SOFTMAX_NORMAL;
};
constexpr SoftmaxConfig SOFTMAX_DEFAULT_CFG = {true, 0, 0, SoftmaxMode::SOFTMAX_NORMAL};

struct SoftMaxShapeInfo {
    uint32_t srcM = 0;
    uint32_t srcK = 0;
    uint32_t oriSrcM = 0;
    uint32_t oriSrcK = 0;
};

struct SoftMaxParams {
    uint32_t srcM = 0;
    uint32_t srcK = 0;
    uint32_t oriSrcM = 0;
    uint32_t oriSrcK = 0;
    uint32_t loopCnt = 0;
    uint32_t splitMeanCnt = 0;
    float alpha = 0;
};

namespace tiling {

// Fields as public examples of asc-devkit fill them in; npusim reads the first two.
struct SoftMaxTiling {
    uint32_t srcM = 0;
    uint32_t srcK = 0;
    uint32_t srcSize = 0;
    uint32_t outMaxM = 0;
    uint32_t outMaxK = 0;
    uint32_t outMaxSize = 0;
    uint32_t splitM = 0;
    uint32_t splitK = 0;
    uint32_t splitSize = 0;
    uint32_t reduceM = 0;
    uint32_t reduceK = 0;
    uint32_t reduceSize = 0;
    uint32_t rangeM = 0;
    uint32_t tailM = 0;
    uint32_t tailSplitSize = 0;
    uint32_t tailReduceSize = 0;
};
struct LogSoftMaxTiling : SoftMaxTiling {};

}  // namespace tiling

}  // namespace AscendC

using SoftMaxTiling = AscendC::tiling::SoftMaxTiling;
using LogSoftMaxTiling = AscendC::tiling::LogSoftMaxTiling;

namespace npusim {

// A matrix of which each row is a softmax: so many of its elements count, the others fill it up.
struct Matrix {
    uint32_t rows;
    uint32_t columns;
    uint32_t counted;
    uint32_t size() const
    {
        return rows * columns;
    }
};

// The shape that a call gives, or that of its tiling.
inline Matrix matrix_of(const AscendC::SoftMaxShapeInfo& shape, const SoftMaxTiling& tiling)
{
    uint32_t rows = shape.srcM ? shape.srcM : tiling.srcM;
    uint32_t columns = shape.srcK ? shape.srcK : tiling.srcK;
    return {rows, columns, shape.oriSrcK ? shape.oriSrcK : columns};
}

template <bool IS_NZ>
void softmax_must_be_of_rows(const char* name)
{
    if (IS_NZ) {
        npusim_refuse("%s: isDataFormatNZ must be false, since npusim reduces rows of ND alone; "
                      "leave it out",
                      name);
    }
}

template <typename T>
constexpr uint32_t block_elements()
{
    return BLOCK_BYTES * 8 / TypeOf<T>::bits;
}

// Rounds blocks of rows to blocks of that type.
template <typename T>
void copy_blocks(const AscendC::LocalTensor<T>& dst, const Floats& blocks, uint32_t rows,
                 Scratch scratch)
{
    if constexpr (std::is_same<T, float>::value) {
        AscendC::DataCopy(dst, blocks, rows * BLOCK_FLOATS);
    } else {
        // A block of half is two of float.
        Floats twice = scratch.take(2 * rows * BLOCK_FLOATS);
        AscendC::DataCopy(twice, blocks, {uint16_t(rows), 1, 0, 1});
        AscendC::DataCopy(twice[BLOCK_FLOATS], blocks, {uint16_t(rows), 1, 0, 1});
        step();
        rounded_to(dst, twice, 2 * rows * BLOCK_FLOATS);
    }
    step();
}

// Writes one element of each row as a block of that type.
template <typename T>
void put_blocks(const AscendC::LocalTensor<T>& dst, const Floats& values, uint32_t rows,
                Scratch scratch)
{
    Floats blocks = blocks_of_rows(scratch, rows);
    spread(blocks, values, rows);
    copy_blocks(dst, blocks, rows, scratch);
}

// The blocks of rows in float.
template <typename T>
Floats get_blocks(const AscendC::LocalTensor<T>& src, uint32_t rows, Scratch& scratch)
{
    if constexpr (std::is_same<T, float>::value) {
        return src;
    } else {
        Floats wide = scratch.take(rows * block_elements<T>()), blocks = blocks_of_rows(scratch, rows);
        AscendC::Cast(wide, src, AscendC::RoundMode::CAST_NONE, rows * block_elements<T>());
        step();
        // Every other block, since a block of half is two of float.
        AscendC::DataCopy(blocks, wide, {uint16_t(rows), 1, 1, 0});
        step();
        return blocks;
    }
}

// How many matrices of floats a softmax holds besides those that it is given.
constexpr uint32_t softmax_matrices(uint32_t type_bytes)
{
    return type_bytes == sizeof(float) ? 1 : 3;
}

// Calls `function(first element, first row, matrix)` for as many rows as there is room for.
template <typename T, typename Function>
void softmax_rows(const Matrix& of, const Scratch& scratch, const Function& function)
{
    each_rows(of.rows, of.columns, softmax_matrices(sizeof(T)), 1, scratch, [&](uint32_t row, uint32_t rows) {
        function(row * of.columns, row, Matrix{rows, of.columns, of.counted});
    });
}

// The blocks of rows from one on.
template <typename T>
AscendC::LocalTensor<T> from_row(const AscendC::LocalTensor<T>& blocks, uint32_t row)
{
    return blocks[row * block_elements<T>()];
}

// exp(x - the greatest of its row): leaves it in dst, and the greatest and the sum of each row.
inline void exp_of_rows(const Floats& dst, const Floats& x, const Floats& greatest,
                        const Floats& sums, const Matrix& of, Scratch scratch)
{
    Floats blocks = blocks_of_rows(scratch, of.rows);
    reduce_rows(AscendC::ReduceType::MAX, greatest, x, of.rows, of.counted, of.columns, scratch);
    spread(blocks, greatest, of.rows);
    across_rows("Sub", dst, x, blocks, of.rows, of.columns);
    steps::Exp(dst, dst, of.size());
    reduce_rows(AscendC::ReduceType::SUM, sums, dst, of.rows, of.counted, of.columns, scratch);
}

// A softmax of each row, or its logarithm to the base of 10; tensors of blocks may be null.
template <typename T, typename U>
void softmax(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>* sum,
             const AscendC::LocalTensor<U>* greatest, const AscendC::LocalTensor<T>& src,
             const Matrix& whole, const Scratch& room, bool of_logarithms = false)
{
    softmax_rows<T>(whole, room, [&](uint32_t start, uint32_t row, const Matrix& of) {
        Scratch scratch = room;
        Floats values = values_of_rows(scratch, of.rows), sums = values_of_rows(scratch, of.rows);
        Floats result = computed_for(dst[start], scratch, of.size());
        exp_of_rows(result, widened(src[start], scratch, of.size()), values, sums, of, scratch);
        Scratch rest = scratch;
        Floats blocks = blocks_of_rows(rest, of.rows);
        spread(blocks, sums, of.rows);
        across_rows("Div", result, result, blocks, of.rows, of.columns);
        if (of_logarithms) {
            steps::Ln(result, result, of.size());
            steps::Muls(result, result, 0.4342944819f, of.size());  // 1 / ln 10
        }
        rounded_to(dst[start], result, of.size());
        if (sum != nullptr) {
            put_blocks(from_row(*sum, row), sums, of.rows, scratch);
            put_blocks(from_row(*greatest, row), values, of.rows, scratch);
        }
    });
}

template <typename T, typename U>
void simple_softmax(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& sum,
                    const AscendC::LocalTensor<U>& greatest, const AscendC::LocalTensor<T>& src,
                    const Matrix& whole, const Scratch& room)
{
    softmax_rows<T>(whole, room, [&](uint32_t start, uint32_t row, const Matrix& of) {
        Scratch scratch = room;
        Floats result = computed_for(dst[start], scratch, of.size());
        Floats less = get_blocks(from_row(greatest, row), of.rows, scratch);
        Floats by = get_blocks(from_row(sum, row), of.rows, scratch);
        Floats x = widened(src[start], scratch, of.size());
        across_rows("Sub", result, x, less, of.rows, of.columns);
        steps::Exp(result, result, of.size());
        across_rows("Div", result, result, by, of.rows, of.columns);
        rounded_to(dst[start], result, of.size());
    });
}

// One step of a softmax over parts of a row: what comes in are the sum and the greatest so far.
template <bool IS_UPDATE, typename T, typename U>
void flash(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& sum,
           const AscendC::LocalTensor<U>& greatest, const AscendC::LocalTensor<T>& src,
           const AscendC::LocalTensor<T>& factor, const AscendC::LocalTensor<U>& sum_before,
           const AscendC::LocalTensor<U>& greatest_before, const Matrix& of, Scratch scratch)
{
    Floats values = values_of_rows(scratch, of.rows), result = computed_for(dst, scratch, of.size());
    Floats x = widened(src, scratch, of.size());
    if constexpr (!IS_UPDATE) {
        Floats sums = values_of_rows(scratch, of.rows);
        exp_of_rows(result, x, values, sums, of, scratch);
        rounded_to(dst, result, of.size());
        put_blocks(greatest, values, of.rows, scratch);
        put_blocks(sum, sums, of.rows, scratch);
        return;
    }
    uint32_t size = of.rows * BLOCK_FLOATS;
    Floats blocks = blocks_of_rows(scratch, of.rows), power = blocks_of_rows(scratch, of.rows);
    Floats before = get_blocks(greatest_before, of.rows, scratch);
    Floats summed = get_blocks(sum_before, of.rows, scratch);
    reduce_rows(AscendC::ReduceType::MAX, values, x, of.rows, of.counted, of.columns, scratch);
    spread(blocks, values, of.rows);
    steps::Max(blocks, blocks, before, size);
    steps::Sub(power, before, blocks, size);
    steps::Exp(power, power, size);
    across_rows("Sub", result, x, blocks, of.rows, of.columns);
    steps::Exp(result, result, of.size());
    copy_blocks(greatest, blocks, of.rows, scratch);
    reduce_rows(AscendC::ReduceType::SUM, values, result, of.rows, of.counted, of.columns, scratch);
    spread(blocks, values, of.rows);
    Floats scaled = blocks_of_rows(scratch, of.rows);
    steps::Mul(scaled, power, summed, size);
    steps::Add(blocks, scaled, blocks, size);
    copy_blocks(sum, blocks, of.rows, scratch);
    copy_blocks(factor, power, of.rows, scratch);
    rounded_to(dst, result, of.size());
}

template <bool IS_UPDATE, typename T, typename U>
void flash_rows(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& sum,
                const AscendC::LocalTensor<U>& greatest, const AscendC::LocalTensor<T>& src,
                const AscendC::LocalTensor<T>& factor, const AscendC::LocalTensor<U>& sum_before,
                const AscendC::LocalTensor<U>& greatest_before, const Matrix& of,
                const Scratch& scratch)
{
    softmax_rows<T>(of, scratch, [&](uint32_t start, uint32_t row, const Matrix& part) {
        flash<IS_UPDATE>(dst[start], from_row(sum, row), from_row(greatest, row), src[start],
                         from_row(factor, row), from_row(sum_before, row),
                         from_row(greatest_before, row), part, scratch);
    });
}

// The sum of each row of gradients times results; and, unless that is all, (gradient - sum) result.
template <typename T>
void softmax_gradient(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& gradient,
                      const AscendC::LocalTensor<T>& src, const Matrix& whole, bool is_front,
                      const Scratch& room)
{
    softmax_rows<T>(whole, room, [&](uint32_t start, uint32_t row, const Matrix& of) {
        Scratch scratch = room;
        Floats values = values_of_rows(scratch, of.rows), product = scratch.take(of.size());
        Floats given = widened(gradient[start], scratch, of.size());
        Floats y = widened(src[start], scratch, of.size());
        steps::Mul(product, given, y, of.size());
        reduce_rows(AscendC::ReduceType::SUM, values, product, of.rows, of.counted, of.columns,
                    scratch);
        if (is_front) {
            put_blocks(from_row(dst, row), values, of.rows, scratch);
            return;
        }
        Floats blocks = blocks_of_rows(scratch, of.rows);
        spread(blocks, values, of.rows);
        across_rows("Sub", product, given, blocks, of.rows, of.columns);
        if constexpr (std::is_same<T, float>::value) {
            steps::Mul(dst[start], product, y, of.size());
        } else {
            steps::Mul(product, product, y, of.size());
            rounded_to(dst[start], product, of.size());
        }
    });
}

}  // namespace npusim

namespace AscendC {

// Each function with room, and without it. DECLARED are the tensors as the API declares them, GIVEN
// their names; BODY uses `of` and `room`.
#define NPUSIM_SOFTMAX(NAME, TEMPLATE, IS_NZ, DECLARED, TILING, MORE, BODY)                   \
    template <NPUSIM_UNPACKED TEMPLATE>                                                       \
    __aicore__ inline void NAME(NPUSIM_UNPACKED DECLARED,                                     \
                                const LocalTensor<uint8_t>& sharedTmpBuffer,                  \
                                const TILING& tiling, NPUSIM_UNPACKED MORE)                   \
    {                                                                                         \
        npusim::softmax_must_be_of_rows<IS_NZ>(#NAME);                                        \
        npusim::Matrix of = npusim::matrix_of(softmaxShapeInfo, tiling);                      \
        npusim::Scratch room(sharedTmpBuffer);                                                \
        BODY;                                                                                 \
    }                                                                                         \
    template <NPUSIM_UNPACKED TEMPLATE>                                                       \
    __aicore__ inline void NAME(NPUSIM_UNPACKED DECLARED, const TILING& tiling,               \
                                NPUSIM_UNPACKED MORE)                                         \
    {                                                                                         \
        npusim::softmax_must_be_of_rows<IS_NZ>(#NAME);                                        \
        npusim::Matrix of = npusim::matrix_of(softmaxShapeInfo, tiling);                      \
        npusim::Scratch room;                                                                 \
        BODY;                                                                                 \
    }

#define NPUSIM_SHAPE (const SoftMaxShapeInfo& softmaxShapeInfo = {})
#define NPUSIM_FORMS                                                                            \
    (typename T, bool isReuseSource = false, bool isBasicBlock = false,                         \
     bool isDataFormatNZ = false, const SoftmaxConfig& config = SOFTMAX_DEFAULT_CFG)
#define NPUSIM_FORMS_OF_ROWS                                            \
    (typename T, bool isReuseSource = false, bool isBasicBlock = false, \
     const SoftmaxConfig& config = SOFTMAX_DEFAULT_CFG)
#define NPUSIM_UPDATED_FORMS                                                                   \
    (typename T, bool isUpdate = false, bool isReuseSource = false, bool isBasicBlock = false, \
     bool isDataFormatNZ = false, const SoftmaxConfig& config = SOFTMAX_DEFAULT_CFG)

NPUSIM_SOFTMAX(SoftMax, NPUSIM_FORMS, isDataFormatNZ,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& sumTensor,
                const LocalTensor<T>& maxTensor, const LocalTensor<T>& srcTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::softmax(dstTensor, &sumTensor, &maxTensor, srcTensor, of, room))
NPUSIM_SOFTMAX(SoftMax, NPUSIM_FORMS, isDataFormatNZ,
               (const LocalTensor<half>& dstTensor, const LocalTensor<float>& sumTensor,
                const LocalTensor<float>& maxTensor, const LocalTensor<half>& srcTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::softmax(dstTensor, &sumTensor, &maxTensor, srcTensor, of, room))
NPUSIM_SOFTMAX(SoftMax, NPUSIM_FORMS_OF_ROWS, false,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& srcTensor), SoftMaxTiling,
               NPUSIM_SHAPE,
               (npusim::softmax<T, T>(dstTensor, nullptr, nullptr, srcTensor, of, room)))
NPUSIM_SOFTMAX(SimpleSoftMax, NPUSIM_FORMS, isDataFormatNZ,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& inSumTensor,
                const LocalTensor<T>& inMaxTensor, const LocalTensor<T>& srcTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::simple_softmax(dstTensor, inSumTensor, inMaxTensor, srcTensor, of, room))
NPUSIM_SOFTMAX(SimpleSoftMax, NPUSIM_FORMS, isDataFormatNZ,
               (const LocalTensor<half>& dstTensor, const LocalTensor<float>& inSumTensor,
                const LocalTensor<float>& inMaxTensor, const LocalTensor<half>& srcTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::simple_softmax(dstTensor, inSumTensor, inMaxTensor, srcTensor, of, room))
NPUSIM_SOFTMAX(LogSoftMax,
               (typename T, bool isReuseSource = false, bool isDataFormatNZ = false), isDataFormatNZ,
               (const LocalTensor<T>& dst, const LocalTensor<T>& sum, const LocalTensor<T>& max,
                const LocalTensor<T>& src),
               LogSoftMaxTiling, NPUSIM_SHAPE,
               npusim::softmax(dst, &sum, &max, src, of, room, true))
NPUSIM_SOFTMAX(SoftmaxFlashV2, NPUSIM_UPDATED_FORMS, isDataFormatNZ,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& expSumTensor,
                const LocalTensor<T>& maxTensor, const LocalTensor<T>& srcTensor,
                const LocalTensor<T>& expMaxTensor, const LocalTensor<T>& inExpSumTensor,
                const LocalTensor<T>& inMaxTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::flash_rows<isUpdate>(dstTensor, expSumTensor, maxTensor, srcTensor,
                                            expMaxTensor, inExpSumTensor, inMaxTensor, of, room))
NPUSIM_SOFTMAX(SoftmaxFlashV2, NPUSIM_UPDATED_FORMS, isDataFormatNZ,
               (const LocalTensor<half>& dstTensor, const LocalTensor<float>& expSumTensor,
                const LocalTensor<float>& maxTensor, const LocalTensor<half>& srcTensor,
                const LocalTensor<half>& expMaxTensor, const LocalTensor<float>& inExpSumTensor,
                const LocalTensor<float>& inMaxTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::flash_rows<isUpdate>(dstTensor, expSumTensor, maxTensor, srcTensor,
                                            expMaxTensor, inExpSumTensor, inMaxTensor, of, room))
NPUSIM_SOFTMAX(SoftmaxGradFront,
               (typename T, bool isBasicBlock = false, bool isDataFormatNZ = false), isDataFormatNZ,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& gradTensor,
                const LocalTensor<T>& srcTensor),
               SoftMaxTiling, NPUSIM_SHAPE,
               npusim::softmax_gradient(dstTensor, gradTensor, srcTensor, of, true, room))
NPUSIM_SOFTMAX(SoftmaxGrad,
               (typename T, bool isReuseSource = false, bool isDataFormatNZ = false), isDataFormatNZ,
               (const LocalTensor<T>& dstTensor, const LocalTensor<T>& gradTensor,
                const LocalTensor<T>& srcTensor),
               SoftMaxTiling, (bool isFront = false, const SoftMaxShapeInfo& softmaxShapeInfo = {}),
               npusim::softmax_gradient(dstTensor, gradTensor, srcTensor, of, isFront, room))
#undef NPUSIM_SOFTMAX
#undef NPUSIM_SHAPE
#undef NPUSIM_FORMS
#undef NPUSIM_FORMS_OF_ROWS
#undef NPUSIM_UPDATED_FORMS

// Sets the rows whose greatest has the bits `from`; whether there is one.
template <typename T1, typename T2, bool isDataFormatNZ = false, uint8_t stepSizeMode = 0>
__aicore__ inline bool AdjustSoftMaxRes(const LocalTensor<T1>& softMaxRes,
                                        const LocalTensor<T2>& maxTensor, const uint32_t from,
                                        const T1 to, const SoftMaxShapeInfo& softmaxShapeInfo)
{
    npusim::softmax_must_be_of_rows<isDataFormatNZ>("AdjustSoftMaxRes");
    constexpr uint32_t step = stepSizeMode ? 1 : npusim::block_elements<T2>();
    bool is_found = false;
    for (uint32_t row = 0; row < softmaxShapeInfo.srcM; ++row) {
        T2 greatest = maxTensor.GetValue(row * step);
        uint32_t bits = 0;
        memcpy(&bits, &greatest, sizeof(T2));
        if (bits == from) {
            is_found = true;
            Duplicate(softMaxRes[row * softmaxShapeInfo.srcK], to, int32_t(softmaxShapeInfo.srcK));
        }
    }
    return is_found;
}

}  // namespace AscendC
