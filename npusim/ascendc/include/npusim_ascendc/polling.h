// Cores that wait for each other by way of global memory: one writes, another looks until it is there.
#pragma once

#include "npusim_ascendc/copy.h"
#include "npusim_ascendc/system.h"

namespace npusim {

constexpr int32_t FLAG_ELEMENTS = 8;  // a block of memory for each flag

// Writes a flag. The cores of a launch see it at once: time of the copy is not counted, nor is what
// the others wait.
inline void put_flag(const AscendC::GlobalTensor<int32_t>& flag, int32_t value)
{
    record("PipeBarrier", PIPE_ALL);
    npusim_play(flag.GetPhyAddr());
    *const_cast<int32_t*>(flag.GetPhyAddr()) = value;
}

// Looks at a flag until it has that value.
inline void await_flag(const AscendC::GlobalTensor<int32_t>& flag, int32_t value)
{
    record("PipeBarrier", PIPE_ALL);
    for (;;) {
        npusim_play(flag.GetPhyAddr());
        if (*flag.GetPhyAddr() == value) {
            return;
        }
        npusim_yield();
    }
}

// Where the flag of an event from one core lies (asc-devkit, docs/zh/api, IBSet.md).
inline AscendC::GlobalTensor<int32_t> flag_of(const AscendC::GlobalTensor<int32_t>& room,
                                              int32_t block, int32_t event)
{
    int64_t cores = AscendC::GetBlockNum() * AscendC::GetSubBlockNum();
    return room[(cores * event + block) * FLAG_ELEMENTS];
}

}  // namespace npusim

namespace AscendC {

template <bool isAIVOnly = true>
__aicore__ inline void IBSet(const GlobalTensor<int32_t>& gmWorkspace,
                             const LocalTensor<int32_t>&, int32_t blockIdx,
                             int32_t eventID)
{
    if (npusim_core()->kind != npusim::CUBE_CORE) {
        auto flag = npusim::flag_of(gmWorkspace, blockIdx, eventID);
        npusim::await_flag(flag, 0);
        npusim::put_flag(flag, 1);
    }
}

template <bool isAIVOnly = true>
__aicore__ inline void IBWait(const GlobalTensor<int32_t>& gmWorkspace,
                              const LocalTensor<int32_t>&, int32_t blockIdx,
                              int32_t eventID)
{
    if (npusim_core()->kind != npusim::CUBE_CORE) {
        auto flag = npusim::flag_of(gmWorkspace, blockIdx, eventID);
        npusim::await_flag(flag, 1);
        npusim::put_flag(flag, 0);
    }
}

// Cores in the order of their numbers, again and again: each has a flag that counts its rounds.
__aicore__ inline void InitDetermineComputeWorkspace(GlobalTensor<int32_t>& gmWorkspace,
                                                     LocalTensor<int32_t>&)
{
    npusim_core()->rounds = 0;
    npusim::put_flag(gmWorkspace[GetBlockIdx() * npusim::FLAG_ELEMENTS], 0);
    npusim::sync_all(true);
}

__aicore__ inline void WaitPreBlock(GlobalTensor<int32_t>& gmWorkspace,
                                    LocalTensor<int32_t>&)
{
    int64_t block = GetBlockIdx(), last = GetBlockNum() - 1;
    int32_t rounds = npusim_core()->rounds;
    if (block != 0) {
        npusim::await_flag(gmWorkspace[(block - 1) * npusim::FLAG_ELEMENTS], rounds + 1);
    } else if (rounds == 0) {
        PipeBarrier<PIPE_ALL>();
    } else {
        npusim::await_flag(gmWorkspace[last * npusim::FLAG_ELEMENTS], rounds);
    }
}

__aicore__ inline void NotifyNextBlock(GlobalTensor<int32_t>& gmWorkspace,
                                       LocalTensor<int32_t>&)
{
    npusim::put_flag(gmWorkspace[GetBlockIdx() * npusim::FLAG_ELEMENTS],
                     ++npusim_core()->rounds);
}

enum class PipeMode : uint8_t { SCALAR_MODE = 0, MTE3_MODE = 1, MAX };

// Cores that wait until others have arrived: these count up a place for each of those that wait.
template <PipeMode pipeMode>
class GroupBarrier {
public:
    static constexpr uint64_t ROOM_BYTES = 512;

    GroupBarrier(GM_ADDR groupWorkspace, uint32_t arriveSizeIn, uint32_t waitSizeIn)
        : arrived_(arriveSizeIn), waiting_(waitSizeIn)
    {
        flags_.SetGlobalBuffer((__gm__ int32_t*)groupWorkspace,
                               waitSizeIn * ROOM_BYTES / sizeof(int32_t));
    }
    __aicore__ inline void Arrive(uint32_t)
    {
        for (uint32_t i = 0; i < waiting_; ++i) {
            auto flag = flags_[i * ROOM_BYTES / sizeof(int32_t)];
            npusim::put_flag(flag, *flag.GetPhyAddr() + 1);
        }
    }
    __aicore__ inline void Wait(uint32_t waitIndex)
    {
        rounds_ += 1;
        npusim::await_flag(flags_[waitIndex * ROOM_BYTES / sizeof(int32_t)], rounds_ * arrived_);
    }
    __aicore__ inline uint64_t GetWorkspaceLen()
    {
        return waiting_ * ROOM_BYTES;
    }

private:
    GlobalTensor<int32_t> flags_;
    uint32_t arrived_;
    uint32_t waiting_;
    int32_t rounds_ = 0;
};

}  // namespace AscendC
