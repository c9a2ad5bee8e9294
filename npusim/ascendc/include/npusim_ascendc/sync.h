// What orders the pipes of a core, and cores among themselves.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace AscendC {

template <HardEvent event>
__aicore__ inline void SetFlag(int32_t eventID)
{
    npusim::record("SetFlag", event, eventID);
}

template <HardEvent event>
__aicore__ inline void WaitFlag(int32_t eventID)
{
    npusim::record("WaitFlag", event, eventID);
}

template <pipe_t pipe>
__aicore__ inline void PipeBarrier()
{
    npusim::record("PipeBarrier", pipe);
}

// Tasks of one launch follow each other as a whole.
__aicore__ inline void SetNextTaskStart() {}
__aicore__ inline void WaitPreTaskEnd() {}

enum class MemDsbT : uint8_t { ALL = 0, DDR, UB, SEQ };

// What leaves the scalar unit's cache is in global memory at once.
template <MemDsbT arg0>
__aicore__ inline void DataSyncBarrier()
{}

template <uint8_t modeId, pipe_t pipe>
__aicore__ inline void CrossCoreSetFlag(uint16_t flagId)
{
    npusim_cross_core_set(modeId, pipe, flagId);
}

template <uint8_t modeId = 0, pipe_t pipe = PIPE_S>
__aicore__ inline void CrossCoreWaitFlag(uint16_t flagId)
{
    npusim_cross_core_wait(modeId, pipe, flagId);
}

}  // namespace AscendC

namespace npusim {

// The flags of SyncAll, the last of those that there are (assumed).
enum CrossCoreFlag : uint16_t { OF_THE_GROUP = 9, ALL_OF_A_KIND = 10 };

inline void sync_all(bool vector_cores_alone)
{
    record("PipeBarrier", PIPE_ALL);
    bool is_cube = npusim_core()->kind == CUBE_CORE;
    pipe_t pipe = is_cube ? PIPE_FIX : PIPE_MTE3;
    if (vector_cores_alone && is_cube) {
        return;
    }
    if (vector_cores_alone || npusim_core()->halves == 0) {
        npusim_cross_core_set(0, pipe, ALL_OF_A_KIND);
        npusim_cross_core_wait(0, PIPE_S, ALL_OF_A_KIND);
    } else if (is_cube) {
        npusim_cross_core_wait(2, PIPE_S, OF_THE_GROUP);
        npusim_cross_core_set(0, pipe, ALL_OF_A_KIND);
        npusim_cross_core_wait(0, PIPE_S, ALL_OF_A_KIND);
        npusim_cross_core_set(2, pipe, OF_THE_GROUP);
    } else {
        npusim_cross_core_set(2, pipe, OF_THE_GROUP);
        npusim_cross_core_wait(2, PIPE_S, OF_THE_GROUP);
    }
}

}  // namespace npusim

namespace AscendC {

template <bool isAIVOnly = true>
__aicore__ inline void SyncAll()
{
    npusim::sync_all(isAIVOnly);
}

template <bool isAIVOnly = true>
__aicore__ inline void SyncAll(const GlobalTensor<int32_t>&, const LocalTensor<int32_t>&,
                               const int32_t usedCores = 0)
{
    if (usedCores != 0 && usedCores != npusim_core()->groups) {
        npusim_refuse("SyncAll: usedCores must be 0 or the %d blocks that are launched, not %d; "
                      "launch as many as are to wait",
                      npusim_core()->groups, usedCores);
    }
    npusim::sync_all(isAIVOnly);
}

}  // namespace AscendC
