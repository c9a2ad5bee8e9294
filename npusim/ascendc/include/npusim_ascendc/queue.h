// Queues, which hand the buffers of a core from pipe to pipe.
#pragma once

#include "npusim_ascendc/pipe.h"

namespace AscendC {

// What a queue is configured with; its buffers are those of InitBuffer all the same.
struct TQueConfig {
    bool nd2nz = false;
    bool nz2nd = false;
    bool scmBlockGroup = false;
    uint32_t bufferLen = 0;
    uint32_t bufferNumber = 0;
    uint32_t consumerSize = 0;
    TPosition consumer[8] = {};
    bool enableStaticEvtId = false;
    bool enableLoopQueue = false;
};

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
public:
    static constexpr bool converts()
    {
        if constexpr (std::is_pointer<decltype(mask)>::value) {
            return mask->nd2nz || mask->nz2nd;
        } else {
            return __NPU_ARCH__ == 2002 && mask != 0;
        }
    }
    static_assert(!converts(), "npusim: a queue must leave the format as it is; convert it by "
                               "DataCopy with Nd2NzParams, or by Fixpipe");
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
    TBufHandle DeQue()
    {
        return DeQue<uint8_t>().GetBufferHandle();
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
        // Whether or not it has been in the queue.
        if (FREED != HardEvent::MAX && buffer.state != npusim::Buffer::FREE) {
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

    // What pools of the user's own call.
    void InitStartBufHandle(TBufHandle startBufhandle, uint8_t num, uint32_t)
    {
        begin(startBufhandle, num);
    }
    template <typename Pool>
    void InitBufHandle(Pool*, uint32_t index, TBufHandle bufhandle, uint32_t curPoolAddr,
                       uint32_t len)
    {
        bufhandle[index] = npusim::Buffer();
        bufhandle[index].position = HELD_AT;
        bufhandle[index].address = curPoolAddr;
        bufhandle[index].nbytes = len;
        TPipe::current()->adopt(bufhandle[index], FREED);
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

}  // namespace AscendC
