// Buffers of a core, the queues that hand them from pipe to pipe, and the events of their flags.
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

    static TPipe* current()
    {
        return static_cast<TPipe*>(npusim_core()->pipe);
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
    void wait_until_free()
    {
        for (int i = 0; i < count_; ++i) {
            if (buffers_[i].freed_event >= 0) {
                npusim::record("WaitFlag", freed_[i], buffers_[i].freed_event);
                buffers_[i].freed_event = -1;
            }
        }
    }

    static constexpr int MOST_BUFFERS = 64;

    uint32_t used_[npusim::MEMORIES] = {};
    uint8_t taken_[npusim::HARD_EVENTS + 1] = {};
    npusim::Buffer buffers_[MOST_BUFFERS];
    HardEvent freed_[MOST_BUFFERS] = {};
    int count_ = 0;
    bool is_destroyed_ = false;
};

}  // namespace AscendC

__aicore__ inline AscendC::TPipe* GetTPipePtr()
{
    return AscendC::TPipe::current();
}

namespace AscendC {

using ::GetTPipePtr;

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
public:
    static constexpr HardEvent FILLED = npusim::filled(src, dst);
    static constexpr HardEvent FREED = npusim::reversed(FILLED);
    static constexpr TPosition HELD_AT = src == TPosition::GM ? dst : src;
    static constexpr int MOST = 8;

    TQueBind() = default;

    template <typename T>
    LocalTensor<T> AllocTensor()
    {
        LocalTensor<T> tensor;
        AllocTensor(tensor);
        return tensor;
    }
    template <typename T>
    void AllocTensor(LocalTensor<T>& tensor)
    {
        if (count_ == 0) {
            npusim_refuse("AllocTensor: a queue must have buffers; call InitBuffer first");
        }
        for (int tried = 0; tried < count_; ++tried) {
            npusim::Buffer& buffer = buffers_[next_];
            next_ = (next_ + 1) % count_;
            if (buffer.state == npusim::Buffer::FREE) {
                take(buffer, tensor);
                return;
            }
        }
        npusim_refuse("AllocTensor: one of %d buffers must be free; free a tensor first, or give "
                      "the queue more",
                      count_);
    }
    template <typename T>
    bool EnQue(const LocalTensor<T>& tensor)
    {
        npusim::Buffer& buffer = own(tensor, "EnQue");
        if constexpr (FREED != HardEvent::MAX) {
            buffer.filled_event = TPipe::current()->template AllocEventID<FILLED>();
            npusim::record("SetFlag", FILLED, buffer.filled_event);
        }
        return put(buffer, tensor.GetUserTag());
    }
    template <TPosition srcUserPos, TPosition dstUserPos, typename T>
    bool EnQue(const LocalTensor<T>& tensor)
    {
        return EnQue(tensor);
    }
    template <typename T>
    LocalTensor<T> DeQue()
    {
        LocalTensor<T> tensor;
        DeQue(tensor);
        return tensor;
    }
    template <TPosition srcUserPos, TPosition dstUserPos, typename T>
    LocalTensor<T> DeQue()
    {
        return DeQue<T>();
    }
    template <typename T>
    void DeQue(LocalTensor<T>& tensor)
    {
        if (filled_ == 0) {
            npusim_refuse("DeQue: a tensor must have been enqueued; call EnQue first");
        }
        npusim::Buffer& buffer = *full_[first_];
        first_ = (first_ + 1) % MOST;
        --filled_;
        if (buffer.filled_event >= 0) {
            npusim::record("WaitFlag", FILLED, buffer.filled_event);
            TPipe::current()->template ReleaseEventID<FILLED>(buffer.filled_event);
            buffer.filled_event = -1;
        }
        buffer.state = npusim::Buffer::HELD;
        show(buffer, tensor);
    }
    template <typename T>
    void FreeTensor(LocalTensor<T>& tensor)
    {
        npusim::Buffer& buffer = own(tensor, "FreeTensor");
        if (FREED != HardEvent::MAX && buffer.state == npusim::Buffer::HELD) {
            buffer.freed_event = TPipe::current()->template AllocEventID<FREED>();
            npusim::record("SetFlag", FREED, buffer.freed_event);
        }
        buffer.state = npusim::Buffer::FREE;
    }
    void FreeAllEvent()
    {
        for (int i = 0; i < count_; ++i) {
            wait_until_free(buffers_[i]);
        }
    }
    bool VacantInQue()
    {
        return filled_ < depth_;
    }
    bool HasTensorInQue()
    {
        return filled_ != 0;
    }
    int32_t GetTensorCountInQue()
    {
        return filled_;
    }
    bool HasIdleBuffer()
    {
        for (int i = 0; i < count_; ++i) {
            if (buffers_[i].state == npusim::Buffer::FREE) {
                return true;
            }
        }
        return false;
    }

protected:
    friend class TPipe;

    void begin(npusim::Buffer* buffers, int count)
    {
        buffers_ = buffers;
        count_ = count;
        depth_ = depth > 0 ? depth : 1;
        next_ = first_ = filled_ = 0;
    }
    void wait_until_free(npusim::Buffer& buffer)
    {
        if (buffer.freed_event >= 0) {
            npusim::record("WaitFlag", FREED, buffer.freed_event);
            TPipe::current()->template ReleaseEventID<FREED>(buffer.freed_event);
            buffer.freed_event = -1;
        }
    }
    template <typename T>
    void take(npusim::Buffer& buffer, LocalTensor<T>& tensor)
    {
        wait_until_free(buffer);
        buffer.state = npusim::Buffer::TAKEN;
        buffer.tag = 0;
        show(buffer, tensor);
    }
    template <typename T>
    void show(npusim::Buffer& buffer, LocalTensor<T>& tensor)
    {
        tensor.SetAddr({buffer.nbytes, buffer.address, &buffer, uint8_t(buffer.position)});
        tensor.SetUserTag(buffer.tag);
    }
    bool put(npusim::Buffer& buffer, int32_t tag)
    {
        if (filled_ == MOST) {
            npusim_refuse("EnQue: a queue must hold at most %d tensors; call DeQue first", MOST);
        }
        full_[(first_ + filled_++) % MOST] = &buffer;
        buffer.state = npusim::Buffer::FULL;
        buffer.tag = tag;
        return true;
    }
    template <typename T>
    npusim::Buffer& own(const LocalTensor<T>& tensor, const char* call)
    {
        npusim::Buffer* buffer = tensor.GetBufferHandle();
        if (buffer == nullptr) {
            npusim_refuse("%s: a tensor must be of a queue, which AllocTensor gives; pass such a "
                          "one",
                          call);
        }
        return *buffer;
    }

    npusim::Buffer* buffers_ = nullptr;
    npusim::Buffer* full_[MOST];
    int count_ = 0;
    int depth_ = 1;
    int next_ = 0;
    int first_ = 0;
    int filled_ = 0;
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<pos,
                             pos == TPosition::VECOUT || pos == TPosition::CO2 ? TPosition::GM
                                                                               : TPosition::VECCALC,
                             depth, mask> {};

template <TPosition pos = TPosition::LCM>
class TBuf {
public:
    TBuf() = default;
    template <typename T>
    LocalTensor<T> Get()
    {
        uint32_t nbytes = buffer_ == nullptr ? 0 : buffer_->nbytes;
        return GetWithOffset<T>(npusim::elements_in<PrimT<T>>(nbytes), 0);
    }
    template <typename T>
    LocalTensor<T> Get(uint32_t len)
    {
        return GetWithOffset<T>(len, 0);
    }
    template <typename T>
    LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset)
    {
        if (buffer_ == nullptr) {
            npusim_refuse("Get: a TBuf must have a buffer; call InitBuffer first");
        }
        LocalTensor<T> tensor;
        tensor.SetAddr({buffer_->nbytes, buffer_->address + bufOffset, buffer_, uint8_t(pos)});
        tensor.SetSize(size);
        return tensor;
    }

private:
    friend class TPipe;
    npusim::Buffer* buffer_ = nullptr;
};

template <Hardware hard = Hardware::UB>
class LocalMemAllocator {
public:
    uint32_t GetCurAddr() const
    {
        return used_;
    }
    template <TPosition pos, class DataType, uint32_t tileSize>
    LocalTensor<DataType> Alloc()
    {
        return Alloc<pos, DataType>(tileSize);
    }
    template <TPosition pos, class DataType>
    LocalTensor<DataType> Alloc(uint32_t tileSize)
    {
        LocalTensor<DataType> tensor(pos, used_, tileSize);
        used_ += npusim::whole_blocks(uint64_t(tileSize) * npusim::TypeOf<DataType>::bits / 8);
        return tensor;
    }
    template <class DataType, uint32_t tileSize>
    LocalTensor<DataType> Alloc()
    {
        return Alloc<position(), DataType>(tileSize);
    }
    template <class DataType>
    LocalTensor<DataType> Alloc(uint32_t tileSize)
    {
        return Alloc<position(), DataType>(tileSize);
    }

private:
    static constexpr TPosition position()
    {
        switch (hard) {
            case Hardware::L1:
                return TPosition::A1;
            case Hardware::L0A:
                return TPosition::A2;
            case Hardware::L0B:
                return TPosition::B2;
            case Hardware::L0C:
                return TPosition::CO1;
            case Hardware::BIAS:
                return TPosition::C2;
            case Hardware::FIXBUF:
                return TPosition::C2PIPE2GM;
            default:
                return TPosition::VECCALC;
        }
    }
    uint32_t used_ = 0;
};

}  // namespace AscendC
