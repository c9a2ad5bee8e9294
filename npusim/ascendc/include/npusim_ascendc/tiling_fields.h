// Structures of a tiling that a host fills in field by field.
#pragma once

#include <cstdint>
#include <cstring>

// Each field is a member, with a function that sets it and one that gives it.
#define BEGIN_TILING_DATA_DEF(NAME)                                                       \
    struct NAME {                                                                         \
        using NpusimOwn = NAME;                                                           \
        size_t GetDataSize() const                                                        \
        {                                                                                 \
            return sizeof(NpusimOwn);                                                     \
        }                                                                                 \
        void SaveToBuffer(void* place, size_t capacity) const                             \
        {                                                                                 \
            memcpy(place, this, capacity < sizeof(NpusimOwn) ? capacity : sizeof(NpusimOwn)); \
        }
#define TILING_DATA_FIELD_DEF(TYPE, NAME) \
    TYPE NAME = {};                       \
    void set_##NAME(TYPE value)           \
    {                                     \
        NAME = value;                     \
    }                                     \
    TYPE get_##NAME() const               \
    {                                     \
        return NAME;                      \
    }
#define TILING_DATA_FIELD_DEF_ARR(TYPE, COUNT, NAME) \
    TYPE NAME[COUNT] = {};                           \
    void set_##NAME(const TYPE* values)              \
    {                                                \
        memcpy(NAME, values, sizeof(NAME));          \
    }                                                \
    TYPE* get_##NAME()                               \
    {                                                \
        return NAME;                                 \
    }
#define TILING_DATA_FIELD_DEF_STRUCT(TYPE, NAME) TYPE NAME
#define END_TILING_DATA_DEF }
#define REGISTER_TILING_DATA_CLASS(OPERATOR, NAME)
