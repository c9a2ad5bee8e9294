// Buffers of a core that no queue hands on.
#pragma once

#include "npusim_ascendc/pipe.h"

namespace AscendC {

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
    LocalTensor<T> AllocTensor()
    {
        return Get<T>();
    }
    template <typename T>
    void FreeTensor(LocalTensor<T>&)
    {}
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

    // What pools of the user's own call.
    void InitStartBufHandle(TBufHandle startBufhandle, uint8_t, uint32_t)
    {
        buffer_ = startBufhandle;
    }
    template <typename Pool>
    void InitBufHandle(Pool*, uint32_t index, TBufHandle bufhandle, uint32_t curPoolAddr,
                       uint32_t len)
    {
        bufhandle[index] = npusim::Buffer();
        bufhandle[index].position = pos;
        bufhandle[index].address = curPoolAddr;
        bufhandle[index].nbytes = len;
    }

private:
    friend class TPipe;
    npusim::Buffer* buffer_ = nullptr;
};

// What the buffers of the pipe leave of a memory.
template <typename T, TPosition pos>
__aicore__ inline bool PopStackBuffer(LocalTensor<T>& popLocal)
{
    npusim::Memory memory = npusim::memory_of(pos);
    uint32_t used = TPipe::used_bytes(memory), whole = npusim::MEMORY_BYTES[memory];
    popLocal = LocalTensor<T>(pos, used, npusim::elements_in<T>(whole - used));
    return used < whole;
}

constexpr uint32_t defaultBufIDSize = 4;

// A part of a buffer, of which others are handed out.
template <TPosition pos, uint32_t bufIDSize = defaultBufIDSize>
class TBufPool {
public:
    template <class T>
    bool InitBuffer(T& que, uint8_t num, uint32_t len)
    {
        return enter([&](TPipe& pipe) { return pipe.InitBuffer(que, num, len); });
    }
    template <TPosition bufPos>
    bool InitBuffer(TBuf<bufPos>& buf, uint32_t len)
    {
        return enter([&](TPipe& pipe) { return pipe.InitBuffer(buf, len); });
    }
    template <class T>
    bool InitBufPool(T& bufPool, uint32_t len)
    {
        return enter([&](TPipe& pipe) { return pipe.InitBufPool(bufPool, len); });
    }
    template <class T, class U>
    bool InitBufPool(T& bufPool, uint32_t len, U& shareBuf)
    {
        return TPipe::current()->InitBufPool(bufPool, len, shareBuf);
    }
    void Reset()
    {
        TPipe::current()->wait_within(start_, end_);
        used_ = start_;
    }

private:
    friend class TPipe;

    static constexpr TPosition AT = pos;

    // Lets the pipe hand out what is left of the pool.
    template <typename Claim>
    bool enter(const Claim& claim)
    {
        TPipe& pipe = *TPipe::current();
        uint32_t& used = pipe.used_[npusim::memory_of(pos)];
        uint32_t before = used;
        used = used_;
        bool is_done = claim(pipe);
        used_ = used;
        used = before;
        if (used_ > end_) {
            npusim_refuse("InitBuffer: buffers of a pool must fit into its %u bytes, not need %u; "
                          "make it larger",
                          end_ - start_, used_ - start_);
        }
        return is_done;
    }

    uint32_t start_ = 0;
    uint32_t end_ = 0;
    uint32_t used_ = 0;
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

// What a pool of the user's own has: room for so many buffers, and where the next one begins.
#define EXTERN_IMPL_BUFPOOL(EXT_BUFPOOL, POSITION, BUFID_SIZE)                             \
public:                                                                                    \
    static constexpr AscendC::TPosition AT = POSITION;                                     \
    uint32_t start_ = 0, end_ = 0, used_ = 0;                                              \
    void Init()                                                                            \
    {                                                                                      \
        cur_buf_size_ = 0;                                                                 \
    }                                                                                      \
    void Reset()                                                                           \
    {                                                                                      \
        AscendC::TPipe::current()->release_adopted();                                      \
        used_ = start_;                                                                    \
        Init();                                                                            \
    }                                                                                      \
    AscendC::TBufHandle GetBufHandle(uint8_t offset)                                       \
    {                                                                                      \
        if (offset >= BUFID_SIZE) {                                                        \
            npusim_refuse("GetBufHandle: a pool must have at most its %d buffers; give "   \
                          "EXTERN_IMPL_BUFPOOL more", int(BUFID_SIZE));                    \
        }                                                                                  \
        return &buffers_[offset];                                                          \
    }                                                                                      \
    uint32_t GetCurAddr()                                                                  \
    {                                                                                      \
        return used_;                                                                      \
    }                                                                                      \
    void SetCurAddr(uint32_t curAddr)                                                      \
    {                                                                                      \
        used_ = curAddr;                                                                   \
        if (used_ > end_) {                                                                \
            npusim_refuse("SetCurAddr: buffers of a pool must fit into its %u bytes, not " \
                          "need %u; make it larger", end_ - start_, used_ - start_);       \
        }                                                                                  \
    }                                                                                      \
    uint8_t GetCurBufSize()                                                                \
    {                                                                                      \
        return cur_buf_size_;                                                              \
    }                                                                                      \
    void SetCurBufSize(uint8_t curBufSize)                                                 \
    {                                                                                      \
        cur_buf_size_ = curBufSize;                                                        \
    }                                                                                      \
                                                                                           \
private:                                                                                   \
    npusim::Buffer buffers_[BUFID_SIZE];                                                   \
    uint8_t cur_buf_size_ = 0
