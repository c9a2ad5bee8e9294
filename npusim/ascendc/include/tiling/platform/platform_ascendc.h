// What the host asks of the chip that it runs kernels on.
#pragma once

#include <cstdint>

namespace platform_ascendc {

enum class CoreMemType { L0_A = 0, L0_B, L0_C, L1, L2, UB, HBM, FB, BT, RESERVED };

class PlatformAscendC {
public:
    uint32_t GetCoreNum() const
    {
        return GetCoreNumAiv();
    }
    uint32_t GetCoreNumAic() const
    {
        return NPUSIM_CUBE_CORES;
    }
    uint32_t GetCoreNumAiv() const
    {
        return NPUSIM_VECTOR_CORES;
    }
    uint32_t CalcTschBlockDim(uint32_t sliceNum, uint32_t aicCoreNum, uint32_t aivCoreNum) const
    {
        uint32_t ratio = aicCoreNum != 0 && aivCoreNum > aicCoreNum ? aivCoreNum / aicCoreNum : 1;
        return (sliceNum + ratio - 1) / ratio;
    }
    uint32_t GetLibApiWorkSpaceSize() const
    {
        return 16 << 20;
    }
    void GetCoreMemSize(const CoreMemType& memType, uint64_t& size) const
    {
        switch (memType) {
            case CoreMemType::L0_A:
                size = NPUSIM_L0A_BYTES;
                break;
            case CoreMemType::L0_B:
                size = NPUSIM_L0B_BYTES;
                break;
            case CoreMemType::L0_C:
                size = NPUSIM_L0C_BYTES;
                break;
            case CoreMemType::L1:
                size = NPUSIM_L1_BYTES;
                break;
            case CoreMemType::FB:
                size = NPUSIM_FB_BYTES;
                break;
            case CoreMemType::BT:
                size = NPUSIM_BT_BYTES;
                break;
            default:
                size = NPUSIM_UB_BYTES;
        }
    }
};

class PlatformAscendCManager {
public:
    static PlatformAscendC* GetInstance(const char* = nullptr)
    {
        static PlatformAscendC platform;
        return &platform;
    }
};

}  // namespace platform_ascendc
