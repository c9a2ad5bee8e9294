// Results of a Matmul that vector cores take into their own buffers, and which tiles it computes.
#pragma once

#include "npusim_ascendc/matmul_parts.h"

namespace AscendC {
namespace Impl {
namespace Detail {

// Which of the tiles of a product are computed (asc-devkit, docs/zh/api, MatmulPolicy.md).
template <const auto&, typename, typename, typename, typename, typename>
struct MatmulPolicy {
    static constexpr bool computes(uint32_t, uint32_t)
    {
        return true;
    }
};
template <const auto& MM_CFG, typename... TYPES>
struct TrianUpperMatmulPolicy {
    static constexpr bool computes(uint32_t row, uint32_t column)
    {
        return row <= column;
    }
};
template <const auto& MM_CFG, typename... TYPES>
struct TrianLowerMatmulPolicy {
    static constexpr bool computes(uint32_t row, uint32_t column)
    {
        return row >= column;
    }
};
// Loads in another order; values are the same.
template <const auto& MM_CFG, typename... TYPES>
struct NBuffer33MatmulPolicy {
    static constexpr bool computes(uint32_t, uint32_t)
    {
        return true;
    }
};

constexpr int QUEUE_DEPTH = 1;

}  // namespace Detail

using Detail::QUEUE_DEPTH;

}  // namespace Impl
}  // namespace AscendC

namespace npusim {

// Where tiles lie between the cube core, which writes them, and the vector core that wants them: in
// what SetWorkspace gives, or in the room of __kfc_workspace__, a tile for each core.
template <typename T>
class TilesInPassing {
public:
    void set(const void* place)
    {
        place_ = static_cast<const uint8_t*>(place);
    }
    AscendC::GlobalTensor<T> tile(uint32_t elements) const
    {
        const uint8_t* place = place_;
        if (place == nullptr && npusim_core()->workspace != nullptr) {
            uint64_t nbytes = align_up(elements * sizeof(T), 512);
            place = static_cast<const uint8_t*>(npusim_core()->workspace) +
                    AscendC::GetBlockIdx() * nbytes;
        }
        if (place == nullptr) {
            npusim_refuse("GetTensorC: a tile for a buffer must pass through global memory; mark "
                          "the kernel's workspace as __kfc_workspace__, or call SetWorkspace");
        }
        AscendC::GlobalTensor<T> found;
        found.SetGlobalBuffer(reinterpret_cast<T*>(const_cast<uint8_t*>(place)), elements);
        return found;
    }
    // Where SetWorkspace says.
    AscendC::GlobalTensor<T> whole() const
    {
        if (place_ == nullptr) {
            npusim_refuse("IterateNBatch: there must be a workspace for the products, but there "
                          "is none; call SetWorkspace");
        }
        AscendC::GlobalTensor<T> found;
        found.SetGlobalBuffer(reinterpret_cast<T*>(const_cast<uint8_t*>(place_)));
        return found;
    }
    // Takes a tile that has been written, before the next one may be.
    static void take(const AscendC::LocalTensor<T>& dst, const AscendC::GlobalTensor<T>& tile,
                     uint32_t elements)
    {
        AscendC::DataCopy(dst, tile, elements);
        auto event = AscendC::TPipe::current()->FetchEventID(AscendC::HardEvent::MTE2_MTE3);
        record("SetFlag", AscendC::HardEvent::MTE2_MTE3, event);
        record("WaitFlag", AscendC::HardEvent::MTE2_MTE3, event);
    }

private:
    const uint8_t* place_ = nullptr;
};

// The tiles of a product, and the one that it is at.
class Tiles {
protected:
    void set_single(int m, int n, int k)
    {
        m_ = m >= 0 ? m : m_;
        n_ = n >= 0 ? n : n_;
        k_ = k >= 0 ? k : k_;
    }
    uint32_t tiles_m() const
    {
        return ceil_div(m_, tiling_.baseM);
    }
    uint32_t tiles_n() const
    {
        return ceil_div(n_, tiling_.baseN);
    }
    uint32_t rows() const
    {
        uint32_t left = m_ - row_ * tiling_.baseM;
        return left < uint32_t(tiling_.baseM) ? left : tiling_.baseM;
    }
    uint32_t columns() const
    {
        uint32_t left = n_ - column_ * tiling_.baseN;
        return left < uint32_t(tiling_.baseN) ? left : tiling_.baseN;
    }
    // Parts of k that come as results of their own, or 1.
    uint32_t parts() const
    {
        return in_parts_ ? ceil_div(k_, tiling_.baseK) : 1;
    }
    // Goes to the next tile that is to be computed, or back to the first.
    template <typename Policy>
    bool find_next()
    {
        for (; next_ < tiles_m() * tiles_n() * parts(); ++next_) {
            uint32_t tile = next_ / parts();
            bool m_first = tiling_.iterateOrder == 0;
            row_ = m_first ? tile % tiles_m() : tile / tiles_n();
            column_ = m_first ? tile / tiles_m() : tile % tiles_n();
            if (Policy::computes(row_, column_)) {
                return true;
            }
        }
        next_ = 0;
        return false;
    }

    TCubeTiling tiling_{};
    uint32_t m_ = 0;
    uint32_t n_ = 0;
    uint32_t k_ = 0;
    uint32_t next_ = 0;
    uint32_t row_ = 0;
    uint32_t column_ = 0;
    bool in_parts_ = false;
};

// What a kernel may say to a Matmul that changes no product.
class MatmulHints {
public:
    __aicore__ inline void WaitIterateAll() {}
    __aicore__ inline void WaitGetTensorC() {}
    __aicore__ inline void SetHF32(bool enableHF32 = false, int32_t transMode = 0)
    {
        (void)transMode;
        using AscendC::HF32Mode;
        AscendC::SetHF32Mode(enableHF32 ? HF32Mode::ENABLE : HF32Mode::DISABLE);
    }
    __aicore__ inline void SetUserDefInfo(const uint64_t) {}
    __aicore__ inline void SetSelfDefineData(const uint64_t) {}
    __aicore__ inline void SetLocalWorkspace(const AscendC::LocalTensor<uint8_t>&) {}
    __aicore__ inline void SetSubBlockIdx(uint8_t) {}
};

template <typename A_TYPE, typename B_TYPE, typename C_TYPE>
void refuse_what_differs(const MatmulConfig& config, bool is_split)
{
    refuse_options(config);
    refuse_layout<A_TYPE>("Matmul", "A", {CubeFormat::ND, CubeFormat::NZ, CubeFormat::VECTOR});
    refuse_layout<B_TYPE>("Matmul", "B", {CubeFormat::ND, CubeFormat::NZ});
    refuse_layout<C_TYPE>("Matmul", "C", {CubeFormat::ND, CubeFormat::NZ, CubeFormat::ND_ALIGN});
    if (config.isEnableChannelSplit && !is_split) {
        npusim_refuse("Matmul: isEnableChannelSplit of MatmulConfig must be false where C is not "
                      "float in NZ; set that, or make it so");
    }
}

// How many tiles of k are loaded at once, and how many such pieces there are.
inline uint32_t at_least_one(int32_t count)
{
    return count > 0 ? count : 1;
}
inline uint32_t pieces(int32_t depth, uint32_t step)
{
    return depth >= int32_t(2 * step) ? 2 : 1;
}

}  // namespace npusim
