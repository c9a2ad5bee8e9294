// The mask register: which elements of a vector instruction take part.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace npusim {

inline Lanes first(uint64_t count)
{
    return {Lanes::COUNT, count, 0, 1};
}

inline void set_mask(uint64_t high, uint64_t low)
{
    Core* core = npusim_core();
    core->mask[0] = high;
    core->mask[1] = low;
}

// What the mask register says, in the mode that it has.
inline Lanes set_before(uint64_t repeats)
{
    Core* core = npusim_core();
    if (core->counts) {
        return {Lanes::COUNTER, core->mask[1], 0, 1};
    }
    return {Lanes::BITS, core->mask[1], core->mask[0], repeats};
}

template <bool IS_SET>
Lanes lanes(uint64_t mask, uint64_t repeats)
{
    if (!IS_SET) {
        return set_before(repeats);
    }
    if (npusim_core()->counts) {
        set_mask(0, mask);
        return {Lanes::COUNTER, mask, 0, 1};
    }
    constexpr uint64_t ALL = ~uint64_t(0);
    set_mask(mask <= 64 ? 0 : mask >= 128 ? ALL : ALL >> (128 - mask),
             mask >= 64 ? ALL : (uint64_t(1) << mask) - 1);
    return {Lanes::FIRST, mask, 0, repeats};
}

template <bool IS_SET>
Lanes lanes(const uint64_t mask[], uint64_t repeats)
{
    if (!IS_SET) {
        return set_before(repeats);
    }
    set_mask(mask[1], mask[0]);
    return set_before(repeats);
}

}  // namespace npusim

namespace AscendC {

__aicore__ inline void SetMaskCount()
{
    npusim_core()->counts = true;
}

__aicore__ inline void SetMaskNorm()
{
    npusim_core()->counts = false;
}

// These set the register alone: the mode is what SetMaskCount or SetMaskNorm left.
template <typename T, MaskMode mode = MaskMode::NORMAL>
__aicore__ static inline void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow)
{
    npusim::set_mask(maskHigh, maskLow);
}

template <typename T, MaskMode mode = MaskMode::NORMAL>
__aicore__ static inline void SetVectorMask(int32_t len)
{
    if (mode == MaskMode::COUNTER || npusim_core()->counts) {
        npusim::set_mask(0, len);
    } else {
        npusim::lanes<true>(uint64_t(len), 1);
    }
}

__aicore__ inline void ResetMask()
{
    npusim::set_mask(~uint64_t(0), ~uint64_t(0));
}

// The older names of these.
class AscendCUtils {
public:
    template <typename T>
    static void SetMask(const uint64_t maskHigh, const uint64_t maskLow)
    {
        SetVectorMask<T>(maskHigh, maskLow);
    }
    template <typename T>
    static void SetMask(int32_t len)
    {
        SetVectorMask<T>(len);
    }
    static void SetOverflow(uint64_t)
    {}
    static void ResetMask()
    {
        AscendC::ResetMask();
    }
};

}  // namespace AscendC
