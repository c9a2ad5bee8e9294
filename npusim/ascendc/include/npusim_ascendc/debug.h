// Printing from a kernel.
#pragma once

#include <cassert>
#include <cstdio>
#include <utility>

#include "npusim_ascendc/pipe.h"

namespace npusim {

// What printf of C takes in place of the short floats.
template <typename T>
T printable(T value)
{
    return value;
}
inline double printable(half value)
{
    return float(value);
}
inline double printable(bfloat16_t value)
{
    return float(value);
}

template <typename T>
void print(const T* elements, uint32_t count)
{
    for (uint32_t i = 0; i < count; ++i) {
        const char* before = i == 0 ? "[" : ", ";
        if constexpr (std::is_integral<T>::value) {
            ::printf("%s%lld", before, (long long)(elements[i]));
        } else {
            ::printf("%s%f", before, double(printable(elements[i])));
        }
    }
    ::printf(count ? "]\n" : "[]\n");
}

}  // namespace npusim

namespace AscendC {

template <class... Args>
__aicore__ inline void printf(const char* fmt, Args&&... args)
{
    ::printf(fmt, npusim::printable(std::decay_t<Args>(args))...);
}

template <class... Args>
__aicore__ inline void PRINTF(const char* fmt, Args&&... args)
{
    AscendC::printf(fmt, args...);
}

template <typename T>
__aicore__ inline void DumpTensor(const LocalTensor<T>& tensor, uint32_t desc, uint32_t dumpSize)
{
    constexpr uint32_t MOST = 4096;
    PrimT<T> part[MOST];
    ::printf("DumpTensor: desc=%u, block=%d, position=%s, data=", desc, npusim_core()->group,
             npusim::MEMORY_NAMES[npusim::memory_of(TPosition(tensor.GetPosition()))]);
    uint32_t count = dumpSize < MOST ? dumpSize : MOST;
    npusim_read_local(tensor.GetPosition(), tensor.GetPhyAddr(), part, count * sizeof(part[0]));
    npusim::print(part, count);
}

template <typename T>
__aicore__ inline void DumpTensor(const GlobalTensor<T>& tensor, uint32_t desc, uint32_t dumpSize)
{
    npusim_play(tensor.GetPhyAddr());
    ::printf("DumpTensor: desc=%u, block=%d, position=gm, data=", desc, npusim_core()->group);
    npusim::print(tensor.GetPhyAddr(), dumpSize);
}

}  // namespace AscendC

namespace npusim {

constexpr uint32_t MOST_WATCHED = 16;  // elements that are printed of a tensor

// Prints what a tensor is now, as --watch asks for.
template <typename T>
void watch(const char* name, int line, const AscendC::LocalTensor<T>& tensor)
{
    T part[MOST_WATCHED];
    uint32_t size = tensor.GetSize(), count = size < MOST_WATCHED ? size : MOST_WATCHED;
    ::printf("line %d, block %d: %s[%u] in %s = ", line, npusim_core()->group, name, size,
             MEMORY_NAMES[memory_of(AscendC::TPosition(tensor.GetPosition()))]);
    npusim_read_local(tensor.GetPosition(), tensor.GetPhyAddr(), part, count * sizeof(T));
    print(part, count);
}

template <typename T>
void watch(const char* name, int line, const AscendC::GlobalTensor<T>& tensor)
{
    npusim_play(tensor.GetPhyAddr());
    uint64_t size = tensor.GetSize();
    ::printf("line %d, block %d: %s[%lu] in gm = ", line, npusim_core()->group, name,
             (unsigned long)(size));
    print(tensor.GetPhyAddr(), size < MOST_WATCHED ? uint32_t(size) : MOST_WATCHED);
}

}  // namespace npusim

// The same of pointers into global memory and the buffers of a core.
#define NPUSIM_DUMP(NAME, POSITION)                                                               \
    template <typename T>                                                                         \
    __aicore__ inline void NAME(T* input, uint32_t desc, uint32_t dump_size)                      \
    {                                                                                             \
        uint32_t place = uint32_t(reinterpret_cast<uintptr_t>(input));                            \
        AscendC::DumpTensor(AscendC::LocalTensor<T>(AscendC::TPosition::POSITION, place, dump_size), \
                            desc, dump_size);                                                     \
    }
NPUSIM_DUMP(asc_dump_ubuf, VECCALC)
NPUSIM_DUMP(asc_dump_l1buf, A1)
NPUSIM_DUMP(asc_dump_cbuf, CO1)
#undef NPUSIM_DUMP

template <typename T>
__aicore__ inline void asc_dump_gm(__gm__ T* input, uint32_t desc, uint32_t dump_size)
{
    AscendC::GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(input, dump_size);
    AscendC::DumpTensor(tensor, desc, dump_size);
}

#define ascendc_assert(condition, ...)                                                    \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            npusim_refuse("ascendc_assert: %s must hold; see the line", #condition);      \
        }                                                                                 \
    } while (0)

#undef assert
#define assert(condition, ...)                                                  \
    do {                                                                        \
        if (!(condition)) {                                                     \
            __VA_OPT__(::printf(__VA_ARGS__);)                                  \
            npusim_refuse("assert: %s must hold, but does not; see the line",    \
                          #condition);                                       \
        }                                                                       \
    } while (0)

// The same under the older names; a log is printed.
#define ASSERT(...) ascendc_assert((__VA_ARGS__))
#define ASCENDC_ASSERT(CONDITION, BEHAVIOUR)                                            \
    do {                                                                                \
        if (!(CONDITION)) {                                                             \
            BEHAVIOUR;                                                                  \
            npusim_refuse("ASCENDC_ASSERT: %s must hold; see the line", #CONDITION);    \
        }                                                                               \
    } while (0)
#define KERNEL_LOG(LEVEL, ...) ::printf(__VA_ARGS__)
