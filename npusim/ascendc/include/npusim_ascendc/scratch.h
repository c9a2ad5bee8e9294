// Room that functions of the API use between their steps.
#pragma once

#include "npusim_ascendc/buffers.h"
#include "npusim_ascendc/vector.h"

// The parameters in parentheses, without these.
#define NPUSIM_UNPACKED(...) __VA_ARGS__

namespace npusim {

using Floats = AscendC::LocalTensor<float>;

// Room in the unified buffer that a function may use: what it is given, or all that the buffers of
// the pipe leave. It is taken from the end on.
class Scratch {
public:
    static constexpr uint32_t TENSORS = 7;  // of floats, which functions of each element need

    Scratch(const AscendC::LocalTensor<uint8_t>& given)
        : begin_(given.GetPhyAddr()), end_(begin_ + given.GetLength() / BLOCK_BYTES * BLOCK_BYTES)
    {}
    Scratch() : begin_(AscendC::TPipe::used_bytes(UB)), end_(NPUSIM_UB_BYTES) {}

    static constexpr uint32_t needed_bytes(uint32_t count)
    {
        return TENSORS * whole_blocks(count * sizeof(float));
    }
    uint32_t left_bytes() const
    {
        return end_ - begin_;
    }
    // How many elements there is room for.
    uint32_t most_elements() const
    {
        uint32_t found = (end_ - begin_) / TENSORS / BLOCK_BYTES * BLOCK_BYTES / sizeof(float);
        if (found == 0) {
            npusim_refuse("the room of a function must have %u bytes at least, not the %u that are "
                          "left in sharedTmpBuffer, or behind the buffers of the pipe; give it as "
                          "much as its Get...TmpSize says",
                          TENSORS * BLOCK_BYTES, end_ - begin_);
        }
        return found;
    }
    template <typename T = float>
    AscendC::LocalTensor<T> take(uint32_t count)
    {
        uint32_t nbytes = whole_blocks(uint64_t(count) * TypeOf<T>::bits / 8);
        if (nbytes > end_ - begin_) {
            npusim_refuse("the room of a function must have %u bytes more, not the %u that are left "
                          "in sharedTmpBuffer, or behind the buffers of the pipe; give it as much "
                          "as its Get...TmpSize says",
                          nbytes, end_ - begin_);
        }
        end_ -= nbytes;
        return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, end_, count);
    }

private:
    uint32_t begin_;
    uint32_t end_;
};

// To nearest, ties to even, by the name that a chip has for it.
constexpr AscendC::RoundMode NEAREST =
    __NPU_ARCH__ == 2201 ? AscendC::RoundMode::CAST_RINT : AscendC::RoundMode::CAST_NONE;

inline void step()
{
    record("PipeBarrier", PIPE_V);
}

// Calls of floats, each of which is done before the next begins.
namespace steps {

#define NPUSIM_STEP_OF_TWO(NAME)                                                       \
    inline void NAME(const Floats& dst, const Floats& a, const Floats& b, uint32_t count) \
    {                                                                                  \
        AscendC::NAME(dst, a, b, int32_t(count));                                      \
        step();                                                                        \
    }
NPUSIM_STEP_OF_TWO(Add)
NPUSIM_STEP_OF_TWO(Sub)
NPUSIM_STEP_OF_TWO(Mul)
NPUSIM_STEP_OF_TWO(Div)
NPUSIM_STEP_OF_TWO(Max)
NPUSIM_STEP_OF_TWO(Min)
#undef NPUSIM_STEP_OF_TWO

#define NPUSIM_STEP_WITH_SCALAR(NAME)                                                 \
    inline void NAME(const Floats& dst, const Floats& a, float scalar, uint32_t count) \
    {                                                                                 \
        AscendC::NAME(dst, a, scalar, int32_t(count));                                \
        step();                                                                       \
    }
NPUSIM_STEP_WITH_SCALAR(Adds)
NPUSIM_STEP_WITH_SCALAR(Muls)
NPUSIM_STEP_WITH_SCALAR(Maxs)
NPUSIM_STEP_WITH_SCALAR(Mins)
#undef NPUSIM_STEP_WITH_SCALAR

#define NPUSIM_STEP_OF_ONE(NAME)                                        \
    inline void NAME(const Floats& dst, const Floats& a, uint32_t count) \
    {                                                                   \
        AscendC::NAME(dst, a, int32_t(count));                          \
        step();                                                         \
    }
NPUSIM_STEP_OF_ONE(Abs)
NPUSIM_STEP_OF_ONE(Exp)
NPUSIM_STEP_OF_ONE(Ln)
NPUSIM_STEP_OF_ONE(Sqrt)
NPUSIM_STEP_OF_ONE(Relu)
#undef NPUSIM_STEP_OF_ONE

inline void Duplicate(const Floats& dst, float value, uint32_t count)
{
    AscendC::Duplicate(dst, value, int32_t(count));
    step();
}

}  // namespace steps

// Whole numbers next to floats. Chips that have them as integers alone take those of 32 bits.
template <AscendC::RoundMode MODE>
void to_whole(const Floats& dst, const Floats& src, uint32_t count, Scratch scratch)
{
    if constexpr (__NPU_ARCH__ == 2201) {
        AscendC::Cast(dst, src, MODE, count);
    } else {
        auto whole = scratch.take<int32_t>(count);
        AscendC::Cast(whole, src, MODE, count);
        step();
        AscendC::Cast(dst, whole, AscendC::RoundMode::CAST_NONE, count);
    }
    step();
}

// Elements of a type as floats: those themselves, or a copy.
template <typename T>
Floats widened(const AscendC::LocalTensor<T>& src, Scratch& scratch, uint32_t count)
{
    if constexpr (std::is_same<T, float>::value) {
        return src;
    } else {
        Floats wide = scratch.take(count);
        AscendC::Cast(wide, src, AscendC::RoundMode::CAST_NONE, count);
        step();
        return wide;
    }
}

// Where floats are computed that become elements of dst: dst itself, or room.
template <typename T>
Floats computed_for(const AscendC::LocalTensor<T>& dst, Scratch& scratch, uint32_t count)
{
    if constexpr (std::is_same<T, float>::value) {
        return dst;
    } else {
        return scratch.take(count);
    }
}

// Rounds floats to the type of dst, unless they are there already.
template <typename T>
void rounded_to(const AscendC::LocalTensor<T>& dst, const Floats& src, uint32_t count)
{
    if constexpr (!std::is_same<T, float>::value) {
        AscendC::Cast(dst, src, NEAREST, count);
        step();
    }
}

}  // namespace npusim
