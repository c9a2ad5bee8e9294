// The pipe of a core: what hands out its buffers, and the events of flags between its pipes.
#pragma once

#include "npusim_ascendc/sync.h"

namespace npusim {

// The memories of a core; the sizes are those of the chip, given to the compiler.
enum Memory : int { UB, L1, L0A, L0B, L0C, BIAS, FIXPIPE, MEMORIES };
constexpr uint32_t MEMORY_BYTES[MEMORIES] = {NPUSIM_UB_BYTES,  NPUSIM_L1_BYTES,  NPUSIM_L0A_BYTES,
                                             NPUSIM_L0B_BYTES, NPUSIM_L0C_BYTES, NPUSIM_BT_BYTES,
                                             NPUSIM_FB_BYTES};
constexpr const char* MEMORY_NAMES[MEMORIES] = {"ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"};
constexpr uint32_t BLOCK_BYTES = 32;
constexpr int HARD_EVENTS = int(AscendC::HardEvent::MAX);
constexpr int EVENT_IDS = 8;

constexpr Memory memory_of(AscendC::TPosition position)
{
    using P = AscendC::TPosition;
    switch (position) {
        case P::A1:
        case P::B1:
        case P::C1:
        case P::TSCM:
            return L1;
        case P::A2:
            return L0A;
        case P::B2:
            return L0B;
        case P::CO1:
            return L0C;
        case P::C2:
            return __NPU_ARCH__ == 2201 ? BIAS : L0C;
        case P::C2PIPE2GM:
            return FIXPIPE;
        default:
            return UB;
    }
}

// The pipes of a queue, by where its tensors come from and where they go.
constexpr AscendC::HardEvent filled(AscendC::TPosition src, AscendC::TPosition dst)
{
    using P = AscendC::TPosition;
    using E = AscendC::HardEvent;
    constexpr bool is_coupled = __NPU_ARCH__ == 2002;
    if (src == P::GM) {
        return dst == P::VECIN ? E::MTE2_V : E::MTE2_MTE1;
    }
    if (src == P::VECIN) {
        return dst == P::VECOUT ? E::MTE2_MTE3 : dst == P::GM ? E::MTE2_MTE3 : E::MTE2_V;
    }
    if (src == P::VECOUT) {
        return E::V_MTE3;
    }
    if (src == P::VECCALC) {
        return E::V_V;
    }
    if (src == P::A1 || src == P::B1 || src == P::C1) {
        return E::MTE2_MTE1;
    }
    if (src == P::A2 || src == P::B2) {
        return E::MTE1_M;
    }
    if (src == P::C2) {
        return is_coupled ? E::V_M : E::MTE1_M;
    }
    if (src == P::CO1) {
        return is_coupled ? E::M_V : E::M_FIX;
    }
    if (src == P::CO2) {
        return E::V_MTE3;
    }
    if (src == P::C2PIPE2GM) {
        return E::MTE1_FIX;
    }
    return E::MAX;
}

constexpr AscendC::HardEvent reversed(AscendC::HardEvent event)
{
    using E = AscendC::HardEvent;
    constexpr E PAIRS[][2] = {
        {E::MTE2_V, E::V_MTE2},       {E::V_MTE3, E::MTE3_V},     {E::MTE2_MTE3, E::MTE3_MTE2},
        {E::MTE2_MTE1, E::MTE1_MTE2}, {E::MTE1_M, E::M_MTE1},     {E::M_FIX, E::FIX_M},
        {E::M_V, E::V_M},             {E::V_M, E::M_V},           {E::MTE1_FIX, E::FIX_MTE1},
        {E::MTE3_MTE1, E::MTE1_MTE3}, {E::MTE2_FIX, E::FIX_MTE2}, {E::S_V, E::V_S},
    };
    for (auto& pair : PAIRS) {
        if (pair[0] == event) {
            return pair[1];
        }
    }
    return E::MAX;
}

constexpr uint32_t whole_blocks(uint32_t nbytes)
{
    return (nbytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

}  // namespace npusim

namespace AscendC {

template <TPosition src, TPosition dst, int32_t depth, auto mask>
class TQueBind;
template <TPosition pos>
class TBuf;
template <TPosition pos, uint32_t bufIDSize>
class TBufPool;

class TPipe {
public:
    TPipe()
    {
        Init();
    }
    ~TPipe()
    {
        if (!is_destroyed_) {
            Destroy();
        }
    }
    void Init()
    {
        Reset();
        is_destroyed_ = false;
        npusim_core()->pipe = this;
    }
    template <class T>
    bool InitBuffer(T& que, uint8_t num, uint32_t len)
    {
        if (num == 0 || num > T::MOST) {
            npusim_refuse("InitBuffer: a queue must have 1 to %d buffers, not %d; pass fewer",
                          T::MOST, num);
        }
        que.begin(claim(T::HELD_AT, len, T::FREED), num);
        for (int i = 1; i < num; ++i) {
            claim(T::HELD_AT, len, T::FREED);
        }
        return true;
    }
    template <TPosition bufPos>
    bool InitBuffer(TBuf<bufPos>& buf, uint32_t len)
    {
        buf.buffer_ = claim(bufPos, len, HardEvent::MAX);
        return true;
    }
    template <class T>
    bool InitBufPool(T& bufPool, uint32_t len)
    {
        npusim::Buffer* buffer = claim(T::AT, len, HardEvent::MAX);
        bufPool.start_ = bufPool.used_ = buffer->address;
        bufPool.end_ = buffer->address + buffer->nbytes;
        return true;
    }
    template <class T, class U>
    bool InitBufPool(T& bufPool, uint32_t len, U& shareBuf)
    {
        bufPool.start_ = bufPool.used_ = shareBuf.start_;
        bufPool.end_ = bufPool.start_ + npusim::whole_blocks(len);
        return true;
    }
    template <HardEvent evt>
    TEventID AllocEventID()
    {
        TEventID id = FetchEventID(evt);
        taken_[int(evt)] |= 1 << id;
        return id;
    }
    template <HardEvent evt>
    void ReleaseEventID(TEventID id)
    {
        taken_[int(evt)] &= ~(1 << id);
    }
    template <HardEvent evt>
    TEventID FetchEventID()
    {
        return FetchEventID(evt);
    }
    TEventID FetchEventID(HardEvent evt)
    {
        for (int id = 0; id < npusim::EVENT_IDS; ++id) {
            if (!(taken_[int(evt)] >> id & 1)) {
                return TEventID(id);
            }
        }
        npusim_refuse("FetchEventID: one of the %d events of this direction must be free; release "
                      "one, or use fewer buffers",
                      npusim::EVENT_IDS);
    }
    void Reset()
    {
        wait_until_free();
        for (auto& used : used_) {
            used = 0;
        }
        for (auto& taken : taken_) {
            taken = 0;
        }
        count_ = 0;
    }
    void Destroy()
    {
        DestroyWithoutPipeAll();
        npusim::record("PipeBarrier", PIPE_ALL);
    }
    void DestroyWithoutPipeAll()
    {
        is_destroyed_ = true;
        wait_until_free();
    }

    // Waits for the flags of the buffers in a part of a memory.
    void wait_within(uint32_t start, uint32_t end)
    {
        for (int i = 0; i < count_; ++i) {
            if (buffers_[i].address >= start && buffers_[i].address < end) {
                wait_until_free(i);
            }
        }
    }

    // Takes up a buffer that a pool of the user's hands out, so that its flags are waited for.
    void adopt(npusim::Buffer& buffer, HardEvent freed)
    {
        if (adopted_count_ == MOST_BUFFERS) {
            npusim_refuse("InitBufHandle: pools must have at most %d buffers; use fewer",
                          MOST_BUFFERS);
        }
        adopted_[adopted_count_] = &buffer;
        adopted_freed_[adopted_count_++] = freed;
    }

    void release_adopted()
    {
        for (int i = 0; i < adopted_count_; ++i) {
            wait_until_free(*adopted_[i], adopted_freed_[i]);
        }
        adopted_count_ = 0;
    }

    static TPipe* current()
    {
        return static_cast<TPipe*>(npusim_core()->pipe);
    }
    // What the buffers of this core take of a memory.
    static uint32_t used_bytes(npusim::Memory memory)
    {
        return current() == nullptr ? 0 : current()->used_[memory];
    }
    // The next buffer; those of a queue lie one behind the other.
    npusim::Buffer* claim(TPosition position, uint32_t nbytes, HardEvent freed)
    {
        npusim::Memory memory = npusim::memory_of(position);
        nbytes = npusim::whole_blocks(nbytes);
        uint32_t left = npusim::MEMORY_BYTES[memory] - used_[memory];
        if (nbytes > left) {
            npusim_refuse("InitBuffer: a buffer must fit into the %u bytes of %s that are left, "
                          "not need %u; use smaller tiles",
                          left, npusim::MEMORY_NAMES[memory], nbytes);
        }
        if (count_ == MOST_BUFFERS) {
            npusim_refuse("InitBuffer: a TPipe must have at most %d buffers; use fewer",
                          MOST_BUFFERS);
        }
        npusim::Buffer& buffer = buffers_[count_];
        buffer = npusim::Buffer();
        buffer.position = position;
        buffer.address = used_[memory];
        buffer.nbytes = nbytes;
        freed_[count_++] = freed;
        used_[memory] += nbytes;
        return &buffer;
    }

private:
    template <TPosition pos, uint32_t bufIDSize>
    friend class TBufPool;

    void wait_until_free(npusim::Buffer& buffer, HardEvent freed)
    {
        if (buffer.freed_event >= 0) {
            npusim::record("WaitFlag", freed, buffer.freed_event);
            taken_[int(freed)] &= ~(1 << buffer.freed_event);
            buffer.freed_event = -1;
        }
    }
    void wait_until_free(int index)
    {
        wait_until_free(buffers_[index], freed_[index]);
    }
    void wait_until_free()
    {
        for (int i = 0; i < count_; ++i) {
            wait_until_free(i);
        }
        release_adopted();
    }

    static constexpr int MOST_BUFFERS = 64;

    uint32_t used_[npusim::MEMORIES] = {};
    uint8_t taken_[npusim::HARD_EVENTS + 1] = {};
    npusim::Buffer buffers_[MOST_BUFFERS];
    HardEvent freed_[MOST_BUFFERS] = {};
    int count_ = 0;
    npusim::Buffer* adopted_[MOST_BUFFERS] = {};
    HardEvent adopted_freed_[MOST_BUFFERS] = {};
    int adopted_count_ = 0;
    bool is_destroyed_ = false;
};

}  // namespace AscendC

__aicore__ inline AscendC::TPipe* GetTPipePtr()
{
    return AscendC::TPipe::current();
}

namespace AscendC {

using ::GetTPipePtr;

}  // namespace AscendC
