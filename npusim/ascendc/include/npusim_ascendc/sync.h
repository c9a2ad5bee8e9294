// What orders the pipes of a core, and cores among themselves.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace npusim {

// The event of flags from one pipe to another.
constexpr AscendC::HardEvent event_between(pipe_t src, pipe_t dst)
{
    using AscendC::HardEvent;
    struct Pair {
        pipe_t src, dst;
        HardEvent event;
    };
#define NPUSIM_PAIR(SRC, DST) {PIPE_##SRC, PIPE_##DST, HardEvent::SRC##_##DST}, {PIPE_##DST, PIPE_##SRC, HardEvent::DST##_##SRC}
    constexpr Pair PAIRS[] = {
        NPUSIM_PAIR(MTE2, V),    NPUSIM_PAIR(MTE3, V),    NPUSIM_PAIR(MTE2, MTE3), NPUSIM_PAIR(S, V),
        NPUSIM_PAIR(S, MTE2),    NPUSIM_PAIR(S, MTE3),    NPUSIM_PAIR(MTE2, MTE1), NPUSIM_PAIR(MTE1, M),
        NPUSIM_PAIR(MTE3, MTE1), NPUSIM_PAIR(MTE2, M),    NPUSIM_PAIR(M, V),       NPUSIM_PAIR(MTE1, V),
        NPUSIM_PAIR(M, FIX),     NPUSIM_PAIR(MTE2, FIX),  NPUSIM_PAIR(MTE1, FIX),  NPUSIM_PAIR(FIX, V),
        NPUSIM_PAIR(FIX, S),     NPUSIM_PAIR(M, S),       NPUSIM_PAIR(MTE1, S),
    };
#undef NPUSIM_PAIR
    for (const Pair& pair : PAIRS) {
        if (pair.src == src && pair.dst == dst) {
            return pair.event;
        }
    }
    return HardEvent::MAX;
}

}  // namespace npusim

namespace AscendC {

using TEventID = int8_t;

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

// The same by the names of two pipes.
template <pipe_t src, pipe_t dst>
class TQueSync {
public:
    static constexpr HardEvent EVENT = npusim::event_between(src, dst);
    static_assert(EVENT != HardEvent::MAX, "npusim: TQueSync must be of two pipes between which there "
                                           "are flags; see HardEvent");
    __aicore__ inline void SetFlag(TEventID id)
    {
        AscendC::SetFlag<EVENT>(id);
    }
    __aicore__ inline void WaitFlag(TEventID id)
    {
        AscendC::WaitFlag<EVENT>(id);
    }
};

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
