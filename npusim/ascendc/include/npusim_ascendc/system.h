// What a kernel asks about the core that it runs on.
#pragma once

#include "npusim_ascendc/pipe.h"

namespace npusim {

inline int64_t block_number()
{
    Core* core = npusim_core();
    bool is_half = core->halves != 0 && core->kind == VECTOR_CORE;
    return is_half ? core->group * core->halves + core->half : core->group;
}

struct BlockIndex {
    operator int64_t() const
    {
        return npusim_core()->group;
    }
};
struct BlockCount {
    operator int64_t() const
    {
        return npusim_core()->groups;
    }
};

}  // namespace npusim

inline constexpr npusim::BlockIndex block_idx{};
inline constexpr npusim::BlockCount block_num{};

#define ASCEND_IS_AIC (npusim_core()->kind != npusim::VECTOR_CORE)
#define ASCEND_IS_AIV (npusim_core()->kind != npusim::CUBE_CORE)
#define ASCEND_IS_NOT_AIC (npusim_core()->kind == npusim::VECTOR_CORE)
#define ASCEND_IS_NOT_AIV (npusim_core()->kind == npusim::CUBE_CORE)

#define g_coreType (npusim_core()->kind == npusim::CUBE_CORE ? AscendC::AIC : AscendC::AIV)

namespace AscendC {

constexpr int AIC = 1;
constexpr int AIV = 2;

__aicore__ inline int64_t GetBlockIdx()
{
    return npusim::block_number();
}

__aicore__ inline int64_t GetBlockNum()
{
    return npusim_core()->groups;
}

__aicore__ inline int64_t GetSubBlockIdx()
{
    return npusim_core()->half;
}

__aicore__ inline int64_t GetSubBlockNum()
{
    return npusim_core()->halves > 1 ? npusim_core()->halves : 1;
}

// Stops the kernel.
__aicore__ inline void Trap()
{
    npusim_refuse("Trap: a kernel must not come to a Trap, but stops itself here; see the line");
}

__aicore__ inline int64_t GetTaskRatio()
{
    npusim::Core* core = npusim_core();
    return core->kind == npusim::VECTOR_CORE && core->halves > 1 ? core->halves : 1;
}

// The older name, which asc-devkit's quant_group_matmul_high_performance still has.
__aicore__ inline int64_t GetTaskRation()
{
    return GetTaskRatio();
}

// Nothing takes time while a kernel records: kernels that measure themselves see none pass.
__aicore__ inline int64_t GetSystemCycle()
{
    return 0;
}

__aicore__ inline constexpr uint32_t GetUBSizeInBytes()
{
    return NPUSIM_UB_BYTES;
}

__aicore__ inline uint32_t GetRuntimeUBSize()
{
    return NPUSIM_UB_BYTES;
}

__aicore__ inline constexpr int16_t GetDataBlockSizeInBytes()
{
    return 32;
}

__aicore__ inline constexpr uint32_t GetVecLen()
{
    return 256;
}

__aicore__ inline void InitSocState()
{
    npusim_core()->counts = false;
    npusim::set_mask(~uint64_t(0), ~uint64_t(0));
    npusim_core()->atomic = npusim::NONE;
}

}  // namespace AscendC
