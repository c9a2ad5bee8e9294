// Tensors: ranges of a core's buffers and of global memory.
#pragma once

#include "npusim_ascendc/types.h"

namespace npusim {

// A buffer of a queue, or the whole of a TBuf.
struct Buffer {
    enum State : uint8_t { FREE, TAKEN, FULL, HELD };
    AscendC::TPosition position = AscendC::TPosition::MAX;
    uint32_t address = 0;
    uint32_t nbytes = 0;
    State state = FREE;
    int8_t filled_event = -1;  // the flag that its producer has set
    int8_t freed_event = -1;   // the flag that its consumer has set
    int32_t tag = 0;
};

}  // namespace npusim

namespace AscendC {

using TBufHandle = npusim::Buffer*;

struct TBuffAddr {
    uint32_t dataLen = 0;
    uint32_t bufferAddr = 0;
    TBufHandle bufferHandle = nullptr;
    uint8_t logicPos = 0;
};

constexpr uint8_t K_MAX_SHAPE_DIM = 8;
enum class DataFormat : uint8_t { ND = 0, NZ, NCHW, NC1HWC0, NHWC };

struct ShapeInfo {
    ShapeInfo() = default;
    ShapeInfo(const uint8_t inputShapeDim, const uint32_t inputShape[],
              const uint8_t inputOriginalShapeDim, const uint32_t inputOriginalShape[],
              const DataFormat inputFormat)
        : shapeDim(inputShapeDim), originalShapeDim(inputOriginalShapeDim), dataFormat(inputFormat)
    {
        for (int i = 0; i < inputShapeDim; ++i) {
            shape[i] = inputShape[i];
        }
        for (int i = 0; i < inputOriginalShapeDim; ++i) {
            originalShape[i] = inputOriginalShape[i];
        }
    }
    ShapeInfo(const uint8_t inputShapeDim, const uint32_t inputShape[],
              const DataFormat inputFormat)
        : ShapeInfo(inputShapeDim, inputShape, inputShapeDim, inputShape, inputFormat)
    {}
    ShapeInfo(const uint8_t inputShapeDim, const uint32_t inputShape[])
        : ShapeInfo(inputShapeDim, inputShape, DataFormat::ND)
    {}
    uint8_t shapeDim = 0;
    uint8_t originalShapeDim = 0;
    uint32_t shape[K_MAX_SHAPE_DIM] = {};
    uint32_t originalShape[K_MAX_SHAPE_DIM] = {};
    DataFormat dataFormat = DataFormat::ND;
};

template <typename T>
class LocalTensor;

}  // namespace AscendC

namespace npusim {

// What an operator of two tensors stands for, until it is assigned to a third.
template <typename T>
struct Operation {
    const char* name;
    const AscendC::LocalTensor<T>& a;
    const AscendC::LocalTensor<T>& b;
};

template <typename T>
struct Element;

}  // namespace npusim

namespace AscendC {

template <typename T>
class LocalTensor {
public:
    using PrimType = PrimT<T>;

    LocalTensor() = default;
    LocalTensor(TPosition pos, uint32_t addr, uint32_t tileSize)
        : position_(pos), bits_(uint64_t(addr) * 8), size_(tileSize)
    {}
    explicit LocalTensor(uint32_t addr)
        : position_(TPosition::VECCALC), bits_(uint64_t(addr) * 8)
    {}

    uint64_t GetPhyAddr() const
    {
        return bits_ / 8;
    }
    uint64_t GetPhyAddr(const uint32_t offset) const
    {
        return (bits_ + uint64_t(offset) * npusim::TypeOf<PrimType>::bits) / 8;
    }
    int32_t GetPosition() const
    {
        return int32_t(position_);
    }
    uint32_t GetSize() const
    {
        return size_;
    }
    uint32_t GetLength() const
    {
        return uint64_t(size_) * npusim::TypeOf<PrimType>::bits / 8;
    }
    void SetSize(const uint32_t size)
    {
        size_ = size;
    }
    void SetBufferLen(uint32_t dataLen)
    {
        size_ = npusim::elements_in<PrimType>(dataLen);
    }
    void SetUserTag(const TTagType tag)
    {
        tag_ = tag;
    }
    TTagType GetUserTag() const
    {
        return tag_;
    }
    void SetShapeInfo(const ShapeInfo& shapeInfo)
    {
        shape_ = shapeInfo;
    }
    ShapeInfo GetShapeInfo() const
    {
        return shape_;
    }

    PrimType GetValue(const uint32_t index) const
    {
        PrimType value{};
        LocalTensor<T> element = (*this)[index];
        element.describe().record("GetValue");
        npusim_read_local(int32_t(position_), element.bits_ / 8, &value, sizeof(PrimType));
        return value;
    }
    template <typename T1>
    void SetValue(const uint32_t index, const T1 value) const
    {
        (*this)[index].describe().scalar(PrimType(value)).record("SetValue");
    }

    // An element, to be read or written.
    npusim::Element<T> operator()(const uint32_t offset) const
    {
        return {*this, offset};
    }

    // dst = a + b, and its like: of all elements.
    void operator=(const npusim::Operation<T>& of);

    template <typename CAST_T>
    LocalTensor<CAST_T> ReinterpretCast() const
    {
        LocalTensor<CAST_T> other;
        other.position_ = position_;
        other.bits_ = bits_;
        other.size_ = uint64_t(size_) * npusim::TypeOf<PrimType>::bits /
                      npusim::TypeOf<PrimT<CAST_T>>::bits;
        other.handle_ = handle_;
        other.tag_ = tag_;
        other.shape_ = shape_;
        return other;
    }
    LocalTensor operator[](const uint32_t offset) const
    {
        LocalTensor other = *this;
        other.bits_ += uint64_t(offset) * npusim::TypeOf<PrimType>::bits;
        other.size_ = size_ > offset ? size_ - offset : 0;
        return other;
    }
    template <typename T1>
    void SetAddrWithOffset(LocalTensor<T1>& src, uint32_t offset)
    {
        *this = src.template ReinterpretCast<T>();
        bits_ = src.bits_ + uint64_t(offset) * npusim::TypeOf<PrimT<T1>>::bits;
    }

    void SetAddr(const TBuffAddr& address)
    {
        position_ = TPosition(address.logicPos);
        bits_ = uint64_t(address.bufferAddr) * 8;
        size_ = npusim::elements_in<PrimType>(address.dataLen);
        handle_ = address.bufferHandle;
    }
    TBufHandle GetBufferHandle() const
    {
        return handle_;
    }
    // Elements from here to the end of its buffer.
    uint64_t room() const
    {
        if (handle_ == nullptr) {
            return size_;
        }
        uint64_t end = (uint64_t(handle_->address) + handle_->nbytes) * 8;
        return end > bits_ ? (end - bits_) / npusim::TypeOf<PrimType>::bits : 0;
    }

private:
    template <typename U>
    friend class LocalTensor;
    template <typename U>
    friend npusim::Words& operator<<(npusim::Words&, const LocalTensor<U>&);

    npusim::Words describe() const
    {
        npusim::Words words;
        words << *this;
        return words;
    }

    TPosition position_ = TPosition::MAX;
    uint64_t bits_ = 0;  // where it begins: elements of 4 bits are half bytes
    uint32_t size_ = 0;
    TBufHandle handle_ = nullptr;
    TTagType tag_ = 0;
    ShapeInfo shape_;
};

}  // namespace AscendC

namespace npusim {

// An element of a tensor in a core's buffers, which is read where it is used, and written by =.
template <typename T>
struct Element {
    using PrimType = typename AscendC::LocalTensor<T>::PrimType;
    AscendC::LocalTensor<T> tensor;
    uint32_t offset;

    operator PrimType() const
    {
        return tensor.GetValue(offset);
    }
    Element& operator=(PrimType value)
    {
        tensor.SetValue(offset, value);
        return *this;
    }
    Element& operator=(const Element& other)
    {
        return *this = PrimType(other);
    }
};

}  // namespace npusim

namespace AscendC {

template <typename T>
class GlobalTensor {
public:
    using PrimType = PrimT<T>;

    GlobalTensor() = default;
    void SetGlobalBuffer(__gm__ PrimType* buffer, uint64_t bufferSize)
    {
        address_ = reinterpret_cast<uint8_t*>(buffer);
        size_ = bufferSize;
    }
    void SetGlobalBuffer(__gm__ PrimType* buffer)
    {
        SetGlobalBuffer(buffer, 0);
    }
    const __gm__ PrimType* GetPhyAddr() const
    {
        return reinterpret_cast<PrimType*>(address_);
    }
    __gm__ PrimType* GetPhyAddr(const uint64_t offset) const
    {
        return reinterpret_cast<PrimType*>(at(offset));
    }
    PrimType GetValue(const uint64_t offset) const
    {
        PrimType value;
        npusim::Words words;
        words.global(npusim::TypeOf<PrimType>::number, at(offset)).record("GetGlobalValue");
        npusim_play(at(offset));
        memcpy(&value, at(offset), sizeof(PrimType));
        return value;
    }
    void SetValue(const uint64_t offset, PrimType value)
    {
        npusim::Words words;
        words.global(npusim::TypeOf<PrimType>::number, at(offset));
        words.scalar(value).record("SetGlobalValue");
    }
    __gm__ PrimType& operator()(const uint64_t offset) const
    {
        npusim_play(at(offset));
        return *reinterpret_cast<PrimType*>(at(offset));
    }
    GlobalTensor operator[](const uint64_t offset) const
    {
        GlobalTensor other = *this;
        other.address_ = at(offset);
        other.size_ = size_ > offset ? size_ - offset : 0;
        return other;
    }
    template <typename CAST_T>
    GlobalTensor<CAST_T> ReinterpretCast() const
    {
        GlobalTensor<CAST_T> other;
        other.SetGlobalBuffer(reinterpret_cast<PrimT<CAST_T>*>(address_),
                              size_ * npusim::TypeOf<PrimType>::bits /
                                  npusim::TypeOf<PrimT<CAST_T>>::bits);
        return other;
    }
    uint64_t GetSize() const
    {
        return size_;
    }
    void SetShapeInfo(const ShapeInfo& shapeInfo)
    {
        shape_ = shapeInfo;
    }
    ShapeInfo GetShapeInfo() const
    {
        return shape_;
    }
    template <CacheRwMode rwMode = CacheRwMode::RW>
    void SetL2CacheHint(CacheMode mode)
    {
        is_cached_ = mode != CacheMode::CACHE_MODE_DISABLE;
    }

private:
    template <typename U>
    friend npusim::Words& operator<<(npusim::Words&, const GlobalTensor<U>&);

    uint8_t* at(uint64_t offset) const
    {
        return address_ + offset * npusim::TypeOf<PrimType>::bits / 8;
    }

    uint8_t* address_ = nullptr;
    uint64_t size_ = 0;
    bool is_cached_ = true;
    ShapeInfo shape_;
};

}  // namespace AscendC

namespace npusim {

// A tensor with the strides of a vector instruction, in blocks.
template <typename T>
struct Strided {
    const AscendC::LocalTensor<T>& tensor;
    uint64_t block_stride;
    uint64_t repeat_stride;
};

template <typename T>
Strided<T> strided(const AscendC::LocalTensor<T>& tensor, uint64_t block, uint64_t repeat)
{
    return {tensor, block, repeat};
}

inline Words& operator<<(Words& words, const Lanes& lanes)
{
    return words.lanes(lanes);
}

template <typename T>
std::enable_if_t<std::is_integral<T>::value || std::is_enum<T>::value, Words&> operator<<(
    Words& words, T value)
{
    return words.integer(int64_t(value));
}

template <typename T>
Words& operator<<(Words& words, const Strided<T>& operand)
{
    using Element = AscendC::PrimT<T>;
    return words.local(operand.tensor.GetPosition(),
                       operand.tensor.GetPhyAddr() * 8, TypeOf<Element>::number,
                       operand.tensor.room(), operand.block_stride, operand.repeat_stride);
}

// A number of the type of the elements.
template <typename T>
struct Scalar {
    T value;
};
template <typename T>
Scalar<T> scalar(T value)
{
    return {value};
}
template <typename T>
Words& operator<<(Words& words, const Scalar<T>& scalar)
{
    return words.scalar(scalar.value);
}

// Records a call: its name, then its arguments in order.
template <typename... Arguments>
__attribute__((always_inline)) inline void record(const char* name, const Arguments&... arguments)
{
    Words words;
    (void)(words << ... << arguments);
    words.record(name);
}

}  // namespace npusim

namespace AscendC {

template <typename U>
npusim::Words& operator<<(npusim::Words& words, const LocalTensor<U>& tensor)
{
    return words.local(tensor.GetPosition(), tensor.bits_, npusim::TypeOf<PrimT<U>>::number,
                       tensor.room(), 1, 8);
}

template <typename U>
npusim::Words& operator<<(npusim::Words& words, const GlobalTensor<U>& tensor)
{
    return words.global(npusim::TypeOf<PrimT<U>>::number, tensor.GetPhyAddr());
}

}  // namespace AscendC
