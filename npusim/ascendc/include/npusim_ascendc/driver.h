// Runs one kernel for the process that simulates it, with arguments that this one sends.
#pragma once

#include <cstring>
#include <tuple>
#include <utility>

#include "npusim_ascendc/launch.h"
#include "npusim_ascendc/layout.h"

extern "C" {
// Says what parameters the kernel has, and reads its blocks and the bytes of its arguments.
void npusim_describe(const int64_t* kinds_and_sizes, int count);
uint64_t npusim_read_blocks();
void npusim_read_argument(void* to, uint64_t nbytes);
void* npusim_read_pointer();
}

namespace npusim {

template <typename T>
void read_argument(T& argument)
{
    if constexpr (std::is_pointer<T>::value) {
        argument = reinterpret_cast<T>(npusim_read_pointer());
    } else {
        npusim_read_argument(&argument, sizeof(T));
    }
}

template <typename... Parameters>
int drive(const char* name, Cores cores, void (*kernel)(Parameters...))
{
    const int64_t kinds[] = {kind_of<std::decay_t<Parameters>>()...,
                             int64_t(sizeof(std::decay_t<Parameters>))..., 0};
    npusim_describe(kinds, 2 * sizeof...(Parameters));
    uint64_t blocks = npusim_read_blocks();
    std::tuple<std::decay_t<Parameters>...> arguments;
    std::apply([](auto&... each) { (read_argument(each), ...); }, arguments);
    Pointers places = std::apply([](auto&... each) { return pointers(each...); }, arguments);
    launch(name, cores, blocks, places, [&] { std::apply(kernel, arguments); });
    return 0;
}

}  // namespace npusim
