// What a program, or the driver of a kernel, starts kernels with.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "npusim_ascendc/qualifiers.h"

namespace npusim {

using Kernel = std::function<void()>;
using Pointers = std::vector<const void*>;

template <typename T>
const void* pointer_of(const T& argument)
{
    if constexpr (std::is_pointer<T>::value) {
        return reinterpret_cast<const void*>(argument);
    } else {
        return nullptr;
    }
}

// The pointers among the arguments of a kernel, and null for the others.
template <typename... Arguments>
Pointers pointers(const Arguments&... arguments)
{
    return {pointer_of(arguments)...};
}

// The cores of a kernel: what a block is, and the vector cores of each cube core.
struct Cores {
    int kind;
    int halves;
};

// Runs a kernel on so many blocks.
void launch(const char* name, Cores cores, uint64_t blocks, const Pointers& pointers,
            const Kernel& kernel);

// A launch that a program writes with angle brackets: blocks, and what npusim has no use for.
struct Grid {
    template <typename Blocks, typename... Rest>
    explicit Grid(Blocks blocks_given, const Rest&...) : blocks(uint64_t(blocks_given))
    {}
    uint64_t blocks;
};

// Global memory; null where none is left.
void* allocate(uint64_t nbytes);
void release(void* place);

}  // namespace npusim
