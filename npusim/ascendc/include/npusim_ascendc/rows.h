// Matrices of floats in the unified buffer, row by row.
#pragma once

#include "npusim_ascendc/reductions.h"
#include "npusim_ascendc/scratch.h"

namespace npusim {

constexpr uint32_t FLOATS = 64;       // of a repeat
constexpr uint32_t BLOCK_FLOATS = 8;  // of a block
constexpr uint32_t MOST_REPEATS = 248;
constexpr uint32_t MOST_STRIDE = 255;

// What one instruction does of a matrix: so many elements of each of its repeats.
struct RowPart {
    uint32_t row;
    uint32_t column;
    uint32_t width;
    uint32_t repeats;
    uint8_t stride;      // blocks from repeat to repeat
    uint8_t row_stride;  // 1 where each repeat is of the next row, 0 where all are of one
};

// Cuts a matrix into columns of a repeat each, or its rows into repeats, as takes fewer calls; from
// row to row it is `pitch` elements.
template <typename Function>
void each_part(uint32_t rows, uint32_t columns, uint32_t pitch, const Function& function)
{
    if (pitch / BLOCK_FLOATS <= MOST_STRIDE && rows * FLOATS >= columns) {
        for (uint32_t column = 0; column < columns; column += FLOATS) {
            for (uint32_t row = 0; row < rows; row += MOST_REPEATS) {
                uint32_t width = columns - column < FLOATS ? columns - column : FLOATS;
                uint32_t repeats = rows - row < MOST_REPEATS ? rows - row : MOST_REPEATS;
                function(RowPart{row, column, width, repeats, uint8_t(pitch / BLOCK_FLOATS), 1});
            }
        }
        return;
    }
    for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t column = 0; column < columns;) {
            uint32_t left = (columns - column) / FLOATS;
            uint32_t repeats = left == 0 ? 1 : left < MOST_REPEATS ? left : MOST_REPEATS;
            uint32_t width = left == 0 ? columns - column : FLOATS;
            function(RowPart{row, column, width, repeats, 8, 0});
            column += repeats * width;
        }
    }
}

// One element of each row, as a block of it: BLOCK_FLOATS times the same.
inline void spread(const Floats& blocks, const Floats& values, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row += MOST_REPEATS) {
        uint32_t left = rows - row < MOST_REPEATS ? rows - row : MOST_REPEATS;
        AscendC::Brcb(blocks[row * BLOCK_FLOATS], values[row],
                      uint8_t((left + BLOCK_FLOATS - 1) / BLOCK_FLOATS), {1, 8});
    }
    step();
}

// Room for one element of each row, and for a block of each.
inline Floats values_of_rows(Scratch& scratch, uint32_t rows)
{
    return scratch.take((rows + BLOCK_FLOATS - 1) / BLOCK_FLOATS * BLOCK_FLOATS);
}
inline Floats blocks_of_rows(Scratch& scratch, uint32_t rows)
{
    return scratch.take((rows + BLOCK_FLOATS - 1) / BLOCK_FLOATS * BLOCK_FLOATS * BLOCK_FLOATS);
}

// Room for each row of so many matrices, and for what it takes to reduce it.
constexpr uint32_t row_bytes(uint32_t columns, uint32_t matrices)
{
    return (matrices * columns + FLOATS + 10 * BLOCK_FLOATS) * sizeof(float);
}

constexpr uint32_t ROUNDED_BYTES = 10 * BLOCK_FLOATS * BLOCK_FLOATS * sizeof(float);

// What functions of rows need for some, so that all can be done at once.
constexpr uint32_t room_of_rows_bytes(uint32_t rows, uint32_t columns, uint32_t matrices)
{
    return rows * row_bytes(columns, matrices) + ROUNDED_BYTES;
}

// Calls `function(first row, rows)` for as many rows at once as there is room for, a multiple of
// `whole` unless it is all.
template <typename Function>
void each_rows(uint32_t rows, uint32_t columns, uint32_t matrices, uint32_t whole,
               const Scratch& scratch, const Function& function)
{
    uint32_t left = scratch.left_bytes(), least = room_of_rows_bytes(whole, columns, matrices);
    uint32_t most = rows;
    if (room_of_rows_bytes(rows, columns, matrices) > left) {
        if (least > left) {
            npusim_refuse("the room of a function must have %u bytes for %u rows, not the %u that "
                          "are left in sharedTmpBuffer, or behind the buffers of the pipe; give it "
                          "as much as its Get...TmpSize says",
                          least, whole, left);
        }
        most = (left - ROUNDED_BYTES) / row_bytes(columns, matrices) / whole * whole;
    }
    for (uint32_t row = 0; row < rows; row += most) {
        function(row, rows - row < most ? rows - row : most);
    }
}

// dst = src NAME, for the elements of a row, the block of that row; NAME is a call of two tensors.
inline void across_rows(const char* name, const Floats& dst, const Floats& src,
                        const Floats& blocks, uint32_t rows, uint32_t columns)
{
    each_part(rows, columns, columns, [&](const RowPart& part) {
        uint32_t begin = part.row * columns + part.column;
        binary(name, dst[begin], src[begin], blocks[part.row * BLOCK_FLOATS],
               lanes<true>(part.width, part.repeats),
               {1, 1, 0, part.stride, part.stride, part.row_stride});
    });
    step();
}

// dst = src NAME, for the elements of each row, those of one row.
inline void down_columns(const char* name, const Floats& dst, const Floats& src, const Floats& row,
                         uint32_t rows, uint32_t columns)
{
    each_part(rows, columns, columns, [&](const RowPart& part) {
        uint32_t begin = part.row * columns + part.column;
        uint8_t along = part.row_stride ? 0 : part.stride;
        binary(name, dst[begin], src[begin], row[part.column],
               lanes<true>(part.width, part.repeats), {1, 1, 1, part.stride, part.stride, along});
    });
    step();
}

// The sum or the greatest of the first elements of each row, which is `pitch` elements long.
inline void reduce_rows(AscendC::ReduceType type, const Floats& values, const Floats& src,
                        uint32_t rows, uint32_t columns, uint32_t pitch, Scratch scratch)
{
    const char* name = type == AscendC::ReduceType::SUM ? "Add" : "Max";
    bool is_one_repeat = columns <= FLOATS && pitch / BLOCK_FLOATS <= MOST_STRIDE;
    Floats folded = is_one_repeat ? src : scratch.take(rows * FLOATS);
    if (!is_one_repeat) {
        uint32_t first = columns < FLOATS ? columns : FLOATS;
        each_part(rows, first, pitch, [&](const RowPart& part) {
            AscendC::Copy(folded[part.row * FLOATS], src[part.row * pitch], uint64_t(part.width),
                          uint8_t(part.repeats), {1, 1, 8, part.stride});
        });
        step();
        each_part(rows, columns - first, pitch, [&](const RowPart& part) {
            Floats own = folded[part.row * FLOATS];
            uint8_t along = part.row_stride ? 8 : 0;
            binary(name, own, own, src[part.row * pitch + first + part.column],
                   lanes<true>(part.width, part.repeats), {1, 1, 1, along, along, part.stride});
            step();
        });
    }
    uint32_t width = columns < FLOATS ? columns : FLOATS;
    uint32_t stride = is_one_repeat ? pitch / BLOCK_FLOATS : 8;
    for (uint32_t row = 0; row < rows; row += MOST_REPEATS) {
        uint32_t repeats = rows - row < MOST_REPEATS ? rows - row : MOST_REPEATS;
        reduce("ReduceRepeat", type, values[row], folded[row * stride * BLOCK_FLOATS],
               lanes<true>(width, repeats), 1, 1, stride, AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    }
    step();
}

}  // namespace npusim
