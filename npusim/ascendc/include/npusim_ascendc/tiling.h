// How a kernel gets its tiling, and what it says of itself.
#pragma once

#include "npusim_ascendc/tensor.h"

// The key of the tiling, and the structure that holds it, are given by --define.
#ifndef TILING_KEY_VAR
#define TILING_KEY_VAR 0
#endif
#define TILING_KEY_IS(...) (TILING_KEY_VAR == (__VA_ARGS__))
#define TILING_KEY_LIST(...)
#define REGISTER_TILING_DEFAULT(...) using NpusimTilingData = __VA_ARGS__
#define REGISTER_TILING_FOR_TILINGKEY(...)
#define REGISTER_NONE_TILING

#define KERNEL_TASK_TYPE_DEFAULT(...)
#define KERNEL_TASK_TYPE(...)

namespace npusim {

template <typename T>
T read_tiling(const void* place)
{
    record("ReadTiling");
    npusim_play(place);
    T tiling;
    memcpy(&tiling, place, sizeof(T));
    return tiling;
}

template <size_t NBYTES>
struct Bytes {
    uint8_t bytes[NBYTES];
};

}  // namespace npusim

// A tiling of bytes that the compiler knows (asc-devkit, docs/zh/guide, AOT).
template <typename T>
constexpr T convert_from_bytes(const uint8_t* bytes)
{
    npusim::Bytes<sizeof(T)> all{};
    for (size_t i = 0; i < sizeof(T); ++i) {
        all.bytes[i] = bytes[i];
    }
    return __builtin_bit_cast(T, all);
}

#define GET_TILING_DATA_WITH_STRUCT(TYPE, NAME, ADDRESS) \
    TYPE NAME = ::npusim::read_tiling<TYPE>(ADDRESS)
#define GET_TILING_DATA(NAME, ADDRESS) \
    NpusimTilingData NAME = ::npusim::read_tiling<NpusimTilingData>(ADDRESS)
#define GET_TILING_DATA_MEMBER(TYPE, MEMBER, NAME, ADDRESS) \
    decltype(TYPE::MEMBER) NAME = ::npusim::read_tiling<TYPE>(ADDRESS).MEMBER
#define GET_TILING_DATA_PTR_WITH_STRUCT(TYPE, NAME, ADDRESS) \
    __gm__ TYPE* NAME = (::npusim::record("ReadTiling"), ::npusim_play(ADDRESS), (__gm__ TYPE*)(ADDRESS))
#define COPY_TILING_WITH_STRUCT(TYPE, SOURCE, NAME) TYPE NAME = *(SOURCE)
#define COPY_TILING_WITH_ARRAY(TYPE, COUNT, SOURCE, NAME) \
    TYPE NAME[COUNT];                                     \
    memcpy(NAME, SOURCE, sizeof(NAME))
