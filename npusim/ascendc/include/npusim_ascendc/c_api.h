// The C API: pointers into the unified buffer in place of tensors.
#pragma once

#include "kernel_operator.h"

// Arrays of the unified buffer begin at a block.
#undef __ubuf__
#define __ubuf__ __attribute__((aligned(32)))

namespace npusim {

// Arrays of a kernel lie on the stack of its core, and in the unified buffer as they lie there: this
// is where that begins.
__attribute__((noinline)) inline void begin_arrays()
{
    uintptr_t frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    npusim_core()->arrays = (frame + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

template <typename T>
AscendC::LocalTensor<T> in_unified_buffer(const void* place)
{
    uint64_t address = reinterpret_cast<uintptr_t>(place);
    if (address >= NPUSIM_UB_BYTES) {
        if (npusim_core()->arrays == 0) {
            npusim_refuse("a kernel of the C API must call asc_init first; do so");
        }
        address -= npusim_core()->arrays;
    }
    if (address >= NPUSIM_UB_BYTES) {
        npusim_refuse("a pointer must be into an array that is __ubuf__, of which %u bytes fit; "
                      "make arrays smaller, or pass such a pointer",
                      NPUSIM_UB_BYTES);
    }
    return AscendC::LocalTensor<T>(AscendC::TPosition::VECCALC, uint32_t(address),
                                   (NPUSIM_UB_BYTES - uint32_t(address)) / sizeof(T));
}

inline AscendC::GlobalTensor<uint8_t> in_global_memory(const void* place)
{
    AscendC::GlobalTensor<uint8_t> found;
    found.SetGlobalBuffer(static_cast<uint8_t*>(const_cast<void*>(place)));
    return found;
}

}  // namespace npusim

__aicore__ inline void asc_init()
{
    npusim::begin_arrays();
    AscendC::InitSocState();
}

__aicore__ inline void asc_sync()
{
    npusim::record("PipeBarrier", PIPE_ALL);
}

__aicore__ inline void asc_sync_notify(pipe_t pipe, pipe_t tpipe, event_t id)
{
    npusim::record("SetFlagOfPipes", pipe, tpipe, id);
}

__aicore__ inline void asc_sync_wait(pipe_t pipe, pipe_t tpipe, event_t id)
{
    npusim::record("WaitFlagOfPipes", pipe, tpipe, id);
}

__aicore__ inline int64_t asc_get_block_idx()
{
    return AscendC::GetBlockIdx();
}

__aicore__ inline int64_t asc_get_block_num()
{
    return AscendC::GetBlockNum();
}

__aicore__ inline void asc_copy_gm2ub(void* dst, const void* src, uint32_t size)
{
    AscendC::DataCopyPad(npusim::in_unified_buffer<uint8_t>(dst), npusim::in_global_memory(src),
                         AscendC::DataCopyExtParams(1, size, 0, 0, 0),
                         AscendC::DataCopyPadExtParams<uint8_t>());
}

__aicore__ inline void asc_copy_gm2ub(void* dst, const void* src, uint16_t n_burst,
                                      uint16_t len_burst, uint16_t src_gap, uint16_t dst_gap)
{
    AscendC::DataCopy(npusim::in_unified_buffer<uint8_t>(dst), npusim::in_global_memory(src),
                      {n_burst, len_burst, src_gap, dst_gap});
}

__aicore__ inline void asc_copy_ub2gm(void* dst, const void* src, uint32_t size)
{
    AscendC::DataCopyPad(npusim::in_global_memory(dst), npusim::in_unified_buffer<uint8_t>(src),
                         AscendC::DataCopyExtParams(1, size, 0, 0, 0));
}

__aicore__ inline void asc_copy_ub2gm(void* dst, const void* src, uint16_t n_burst,
                                      uint16_t len_burst, uint16_t src_gap, uint16_t dst_gap)
{
    AscendC::DataCopy(npusim::in_global_memory(dst), npusim::in_unified_buffer<uint8_t>(src),
                      {n_burst, len_burst, src_gap, dst_gap});
}

__aicore__ inline void asc_copy_gm2ub_sync(void* dst, const void* src, uint32_t size)
{
    asc_copy_gm2ub(dst, src, size);
    asc_sync();
}

__aicore__ inline void asc_copy_ub2gm_sync(void* dst, const void* src, uint32_t size)
{
    asc_copy_ub2gm(dst, src, size);
    asc_sync();
}

// Arithmetic of two: so many elements, or repeats with strides in blocks; and one that is waited for.
#define NPUSIM_C_BINARY(NAME, CALL)                                                                \
    template <typename T>                                                                          \
    __aicore__ inline void asc_##NAME(T* dst, T* src0, T* src1, uint32_t count)                    \
    {                                                                                              \
        AscendC::CALL(npusim::in_unified_buffer<T>(dst), npusim::in_unified_buffer<T>(src0),       \
                      npusim::in_unified_buffer<T>(src1), int32_t(count));                         \
    }                                                                                              \
    template <typename T>                                                                          \
    __aicore__ inline void asc_##NAME(T* dst, T* src0, T* src1, uint8_t repeat,                    \
                                      uint8_t dst_block_stride, uint8_t src0_block_stride,         \
                                      uint8_t src1_block_stride, uint8_t dst_repeat_stride,        \
                                      uint8_t src0_repeat_stride, uint8_t src1_repeat_stride)      \
    {                                                                                              \
        AscendC::CALL<T, false>(npusim::in_unified_buffer<T>(dst),                                 \
                                npusim::in_unified_buffer<T>(src0),                                \
                                npusim::in_unified_buffer<T>(src1), uint64_t(0), repeat,           \
                                {dst_block_stride, src0_block_stride, src1_block_stride,           \
                                 dst_repeat_stride, src0_repeat_stride, src1_repeat_stride});      \
    }                                                                                              \
    template <typename T>                                                                          \
    __aicore__ inline void asc_##NAME##_sync(T* dst, T* src0, T* src1, uint32_t count)             \
    {                                                                                              \
        asc_##NAME(dst, src0, src1, count);                                                        \
        asc_sync();                                                                                \
    }
NPUSIM_C_BINARY(add, Add)
NPUSIM_C_BINARY(sub, Sub)
NPUSIM_C_BINARY(mul, Mul)
NPUSIM_C_BINARY(div, Div)
NPUSIM_C_BINARY(max, Max)
NPUSIM_C_BINARY(min, Min)
#undef NPUSIM_C_BINARY
