// The functions of the safe C library that tilings of the host call.
#pragma once

#include <cstddef>
#include <cstring>

using errno_t = int;
constexpr errno_t EOK = 0;
constexpr errno_t ERANGE_AND_RESET = 162;

inline errno_t memcpy_s(void* dest, size_t destMax, const void* src, size_t count)
{
    if (count > destMax) {
        return ERANGE_AND_RESET;
    }
    memcpy(dest, src, count);
    return EOK;
}

inline errno_t memset_s(void* dest, size_t destMax, int value, size_t count)
{
    if (count > destMax) {
        return ERANGE_AND_RESET;
    }
    memset(dest, value, count);
    return EOK;
}
