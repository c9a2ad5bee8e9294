// Lists of tensors in global memory: where each of them is, and its shape.
#pragma once

#include "npusim_ascendc/tensor.h"

namespace AscendC {

// A tensor of a list, whose lengths are written to where SetShapeAddr says.
template <typename T>
class TensorDesc {
public:
    void SetShapeAddr(uint64_t* shapePtr)
    {
        shape_ = shapePtr;
    }
    uint64_t GetDim()
    {
        return dim_;
    }
    uint64_t GetIndex()
    {
        return index_;
    }
    uint64_t GetShape(uint32_t offset)
    {
        return shape_[offset];
    }
    T* GetDataPtr()
    {
        return data_;
    }
    GlobalTensor<T> GetDataObj()
    {
        GlobalTensor<T> found;
        found.SetGlobalBuffer(data_);
        return found;
    }

private:
    friend class ListTensorDesc;
    uint64_t* shape_ = nullptr;
    uint64_t dim_ = 0;
    uint64_t index_ = 0;
    T* data_ = nullptr;
};

// In memory: where the pointers begin, in bytes; for each tensor how many lengths it has, its number
// and the lengths; then a pointer to each.
class ListTensorDesc {
public:
    ListTensorDesc() = default;
    ListTensorDesc(__gm__ void* data, uint32_t length = 0xffffffff, uint32_t shapeSize = 0xffffffff)
    {
        Init(data, length, shapeSize);
    }
    void Init(__gm__ void* data, uint32_t = 0xffffffff, uint32_t = 0xffffffff)
    {
        npusim::record("ReadTiling");
        npusim_play(data);
        words_ = static_cast<const uint64_t*>(data);
        pointers_ = words_ + words_[0] / sizeof(uint64_t);
        size_ = 0;
        for (const uint64_t* each = words_ + 1; each < pointers_; each += 1 + dims_of(each)) {
            ++size_;
        }
    }
    template <class T>
    void GetDesc(TensorDesc<T>& desc, uint32_t index)
    {
        must_have("GetDesc", index);
        const uint64_t* found = words_ + 1;
        for (uint32_t i = 0; i < index; ++i) {
            found += 1 + dims_of(found);
        }
        desc.dim_ = dims_of(found);
        desc.index_ = *found >> 32;
        for (uint64_t i = 0; i < desc.dim_ && desc.shape_ != nullptr; ++i) {
            desc.shape_[i] = found[1 + i];
        }
        desc.data_ = GetDataPtr<T>(index);
    }
    template <class T>
    T* GetDataPtr(uint32_t index)
    {
        must_have("GetDataPtr", index);
        return reinterpret_cast<T*>(pointers_[index]);
    }
    uint32_t GetSize()
    {
        return size_;
    }

private:
    static uint64_t dims_of(const uint64_t* desc)
    {
        return *desc & 0xffffffff;
    }
    void must_have(const char* call, uint32_t index) const
    {
        if (index >= size_) {
            npusim_refuse("%s: index must be below the %u tensors of the list, not be %u; pass one "
                          "of these",
                          call, size_, index);
        }
    }
    const uint64_t* words_ = nullptr;
    const uint64_t* pointers_ = nullptr;
    uint32_t size_ = 0;
};

}  // namespace AscendC
