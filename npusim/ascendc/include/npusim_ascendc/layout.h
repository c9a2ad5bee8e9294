// Says where the fields of structures lie, for the process that fills them in.
#pragma once

#include <cstddef>
#include <cstdio>
#include <type_traits>

#include "npusim_ascendc/types.h"

namespace npusim {

// Kinds of values, by number; the same table is in arguments.py.
template <typename T>
constexpr int64_t kind_of()
{
    if (std::is_pointer<T>::value) {
        return 0;
    }
    if (std::is_integral<T>::value || std::is_enum<T>::value) {
        return std::is_signed<T>::value ? 1 : 2;
    }
    if (std::is_floating_point<T>::value) {
        return 3;
    }
    return std::is_same<T, half>::value ? 4 : std::is_same<T, bfloat16_t>::value ? 5 : 6;
}

template <typename T>
void print_field(const char* structure, const char* field, const char* type, size_t offset,
                 size_t whole)
{
    using Element = std::remove_cv_t<std::remove_all_extents_t<T>>;
    printf("%s %s %s %zu %zu %zu %ld %zu\n", structure, field, type, offset, sizeof(Element), sizeof(T),
           long(kind_of<Element>()), whole);
}

}  // namespace npusim
