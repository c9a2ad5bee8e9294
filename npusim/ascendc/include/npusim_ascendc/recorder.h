// The narrow interface between what a kernel calls and the process that simulates it.
//
// Every call of the API becomes one record: its name, and words that describe its arguments. An
// operand in global memory is described without its address, which goes apart, so that the same
// line of a loop gives the same words again and again.
#pragma once

#include <cstdint>
#include <cstring>

namespace npusim {

// What a copy to global memory does with what is there.
enum Atomic : int32_t { NONE = 0, SUM = 1, MAXIMUM = 2, MINIMUM = 3 };

// What a core is to the code that runs on it.
enum CoreKind : int32_t { VECTOR_CORE = 0, CUBE_CORE = 1, AI_CORE = 2 };

// What calls of the cube have set for later ones.
struct MatrixState {
    uint64_t scale;           // SetFixpipePreQuantFlag
    uint64_t scales_address;  // SetFixPipeConfig, in the fixpipe buffer
    uint16_t count;           // SetFixpipeNz2ndFlag
    uint16_t src_nd_stride;
    uint16_t dst_nd_stride;
    uint16_t height;          // SetFmatrix
    uint16_t width;
    uint8_t padding[4];
    uint64_t padding_bits;    // SetLoadDataPaddingValue
    void* owner;              // the Matmul that has what is in L1 and L0
    bool is_handed_over;      // whether the last Mmad lets a Fixpipe work right behind it
};

struct Core {
    int32_t kind;
    int32_t group;       // number of the block that is launched
    int32_t groups;      // blocks that are launched
    int32_t half;        // which vector core of the group
    int32_t halves;      // vector cores of a group; 0 where the launch has vector cores alone
    void* workspace;     // what SetSysWorkspace gave
    void* pipe;          // the TPipe that was made last
    uint64_t mask[2];    // high and low word, as the last call that set them left them
    bool counts;         // mask mode: count of elements, or bits of a repeat
    int32_t atomic;      // what copies to global memory do with what is there: an Atomic
    int32_t atomic_type;
    bool has_pad;        // whether SetPadValue was called, and the bits that it set
    uint64_t pad;
    uint64_t arrays;     // where arrays of the C API begin on the stack; 0 before asc_init
    int32_t rounds;      // how often NotifyNextBlock was called
    uint64_t summed;     // 1 + where the last ReduceSum is in the unified buffer; 0 without one
    float deq_scale;     // what casts of int32_t to half multiply by
    MatrixState matrix;
};

}  // namespace npusim

extern "C" {
// The core that runs now.
npusim::Core* npusim_core();
// One call of the API; `gm_address` is a host address, or null.
void npusim_record(const char* name, const int64_t* words, int count, const void* gm_address);
// Bytes of a buffer of this core, once all that was recorded has been played.
void npusim_read_local(int32_t position, uint64_t address_bytes, void* to, uint64_t nbytes);
// What lies at that place of global memory is from here on as the calls so far leave it.
void npusim_play(const void* place);
// Lets other cores go on.
void npusim_yield();
// Flags between cores: other cores go on until this one can.
void npusim_cross_core_set(int32_t mode, int32_t pipe, int32_t flag);
void npusim_cross_core_wait(int32_t mode, int32_t pipe, int32_t flag);
// Stops the run: what must hold, what came, what to do.
[[noreturn]] void npusim_refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));
}

namespace npusim {

// Types of elements, by number; the same table is in recording.py.
template <typename T>
struct TypeOf;
#define NPUSIM_TYPE(TYPE, NUMBER, BITS)              \
    template <>                                      \
    struct TypeOf<TYPE> {                            \
        static constexpr int number = NUMBER;        \
        static constexpr uint32_t bits = BITS;       \
    };
NPUSIM_TYPE(int8_t, 0, 8)
NPUSIM_TYPE(uint8_t, 1, 8)
NPUSIM_TYPE(int16_t, 2, 16)
NPUSIM_TYPE(uint16_t, 3, 16)
NPUSIM_TYPE(int32_t, 4, 32)
NPUSIM_TYPE(uint32_t, 5, 32)
NPUSIM_TYPE(int64_t, 6, 64)
NPUSIM_TYPE(uint64_t, 7, 64)
NPUSIM_TYPE(float, 10, 32)
NPUSIM_TYPE(double, 12, 64)
NPUSIM_TYPE(bool, 13, 8)

// Kinds of arguments, by number; the same table is in recording.py.
enum Kind : int64_t { LOCAL = 1, GLOBAL = 2, INTEGER = 3, SCALAR = 4, LANES = 5 };

// Which elements of each repeat take part, and how many repeats there are.
struct Lanes {
    enum Form : int64_t { COUNT = 0, FIRST = 1, BITS = 2, COUNTER = 3 };
    Form form;
    uint64_t low;      // elements, or the bits of the first 64
    uint64_t high;     // the bits of the others
    uint64_t repeats;
};

// Describes the arguments of one call.
class Words {
public:
    static constexpr int MOST = 192;

    Words& integer(int64_t value)
    {
        return add(INTEGER), add(value);
    }

    Words& local(int32_t position, uint64_t bits, int type, uint64_t size, uint64_t block_stride,
                 uint64_t repeat_stride)
    {
        add(LOCAL), add(position), add(bits / 8), add(type), add(size);
        return add(block_stride), add(repeat_stride);
    }

    Words& global(int type, const void* address)
    {
        address_ = address;
        return add(GLOBAL), add(type);
    }

    Words& lanes(const Lanes& lanes)
    {
        add(LANES), add(lanes.form), add(lanes.low), add(lanes.high);
        return add(lanes.repeats);
    }

    template <typename T>
    Words& scalar(T value)
    {
        int64_t bits = 0;
        memcpy(&bits, &value, sizeof(T));
        return add(SCALAR), add(TypeOf<T>::number), add(bits);
    }

    __attribute__((always_inline)) void record(const char* name) const
    {
        npusim_record(name, words_, count_, address_);
    }

private:
    Words& add(int64_t word)
    {
        if (count_ == MOST) {
            npusim_refuse("a call must have at most %d words; pass fewer tensors", MOST);
        }
        words_[count_++] = word;
        return *this;
    }

    int64_t words_[MOST];
    int count_ = 0;
    const void* address_ = nullptr;
};

}  // namespace npusim
