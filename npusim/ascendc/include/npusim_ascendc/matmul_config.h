// What a Matmul object is of: types of its matrices, its tiling and its configuration.
#pragma once

#include "npusim_ascendc/cube.h"

enum class CubeFormat : uint8_t {
    ND = 0,
    NZ,
    ZN,
    ZZ,
    NN,
    ND_ALIGN,
    SCALAR,
    VECTOR,
    COLUMN_MAJOR,
};
enum class LayoutMode : uint8_t { NONE = 0, BSNGD, SBNGD, BNGS1S2, NORMAL };
enum class BatchMode : uint8_t {
    NONE = 0,
    BATCH_LESS_THAN_L1,
    BATCH_LARGE_THAN_L1,
    SINGLE_LARGE_THAN_L1,
};
enum class IterateOrder : uint8_t { ORDER_M = 0, ORDER_N, UNDEF };
enum class ScheduleType : uint8_t { INNER_PRODUCT = 0, OUTER_PRODUCT, N_BUFFER_33 };
enum class IterateMode : uint8_t {
    ITERATE_MODE_NORMAL = 1,
    ITERATE_MODE_ALL = 2,
    ITERATE_MODE_BATCH = 4,
    ITERATE_MODE_N_BATCH = 8,
    ITERATE_MODE_DEFAULT = 255,
};
enum class MatmulConfigMode : uint8_t { CONFIG_NORM = 0, CONFIG_MDL, CONFIG_SPECIALMDL, CONFIG_IBSHARE };

#define NPUSIM_TILING_FIELDS(FIELD)                                                             \
    FIELD(usedCoreNum) FIELD(M) FIELD(N) FIELD(Ka) FIELD(Kb)                                    \
    FIELD(singleCoreM) FIELD(singleCoreN) FIELD(singleCoreK)                                    \
    FIELD(baseM) FIELD(baseN) FIELD(baseK) FIELD(depthA1) FIELD(depthB1)                        \
    FIELD(stepM) FIELD(stepN) FIELD(isBias) FIELD(transLength) FIELD(iterateOrder)              \
    FIELD(shareMode) FIELD(shareL1Size) FIELD(shareL0CSize) FIELD(shareUbSize)                  \
    FIELD(batchM) FIELD(batchN) FIELD(singleBatchM) FIELD(singleBatchN)                         \
    FIELD(stepKa) FIELD(stepKb) FIELD(depthAL1CacheUB) FIELD(depthBL1CacheUB)                   \
    FIELD(dbL0A) FIELD(dbL0B) FIELD(dbL0C)                                                      \
    FIELD(ALayoutInfoB) FIELD(ALayoutInfoS) FIELD(ALayoutInfoN) FIELD(ALayoutInfoG)             \
    FIELD(ALayoutInfoD) FIELD(BLayoutInfoB) FIELD(BLayoutInfoS) FIELD(BLayoutInfoN)             \
    FIELD(BLayoutInfoG) FIELD(BLayoutInfoD) FIELD(CLayoutInfoB) FIELD(CLayoutInfoS1)            \
    FIELD(CLayoutInfoN) FIELD(CLayoutInfoG) FIELD(CLayoutInfoS2) FIELD(BatchNum)                \
    FIELD(mxTypePara)

namespace AscendC {

using ::CubeFormat;
using ::LayoutMode;

namespace tiling {

struct TCubeTiling {
#define NPUSIM_FIELD(NAME) int32_t NAME = 0;
    NPUSIM_TILING_FIELDS(NPUSIM_FIELD)
#undef NPUSIM_FIELD
};

}  // namespace tiling

template <TPosition POSITION, CubeFormat FORMAT, typename TYPE, bool ISTRANS = false,
          LayoutMode LAYOUT = LayoutMode::NONE, bool IBSHARE = false,
          TPosition SRCPOS = TPosition::GM>
struct MatmulType {
    constexpr static TPosition pos = POSITION;
    constexpr static CubeFormat format = FORMAT;
    using T = TYPE;
    constexpr static bool isTrans = ISTRANS;
    constexpr static LayoutMode layout = LAYOUT;
    constexpr static bool ibShare = IBSHARE;
    constexpr static TPosition srcPos = SRCPOS;
};

}  // namespace AscendC

using TCubeTiling = AscendC::tiling::TCubeTiling;

struct MatmulConfig {
    bool doNorm = false;
    bool doBasicBlock = false;
    bool doMultiDataLoad = false;
    uint32_t basicM = 0;
    uint32_t basicN = 0;
    uint32_t basicK = 0;
    bool intrinsicsCheck = false;
    bool isNBatch = false;
    bool enVecND2NZ = false;
    bool doSpecialBasicBlock = false;
    uint32_t doMTE2Preload = 0;
    uint32_t singleCoreM = 0;
    uint32_t singleCoreN = 0;
    uint32_t singleCoreK = 0;
    uint32_t stepM = 0;
    uint32_t stepN = 0;
    uint32_t baseMN = 0;
    uint32_t singleCoreMN = 0;
    bool enUnitFlag = true;
    bool isPerTensor = false;
    bool hasAntiQuantOffset = false;
    bool doIBShareNorm = false;
    bool doSpecialMDL = false;
    bool enableInit = true;
    BatchMode batchMode = BatchMode::NONE;
    bool enableEnd = true;
    bool enableGetTensorC = true;
    bool enableSetOrgShape = true;
    bool enableSetBias = true;
    bool enableSetTail = true;
    bool enableQuantVector = true;
    bool enableSetDefineData = true;
    uint8_t iterateMode = uint8_t(IterateMode::ITERATE_MODE_DEFAULT);
    bool enableReuse = true;
    bool enableUBReuse = true;
    bool enableL1CacheUB = false;
    bool intraBlockPartSum = false;
    IterateOrder iterateOrder = IterateOrder::UNDEF;
    ScheduleType scheduleType = ScheduleType::INNER_PRODUCT;
    bool enableDoubleCache = false;
    bool isBiasBatch = true;
    bool enableStaticPadZeros = false;
    bool isPartialOutput = false;
    bool enableMixDualMaster = false;
    bool isA2B2Shared = false;
    bool isEnableChannelSplit = false;
    bool enableKdimReorderLoad = false;
    bool isCO1Shared = false;
    uint32_t sharedCO1BufferSize = 64 * 1024;
    BatchMode bmmOutMode = BatchMode::NONE;
    bool enableL1BankConflictOptimise = false;
    bool enableRelu = false;
};

namespace npusim {

constexpr MatmulConfig normal_config()
{
    MatmulConfig config;
    config.doNorm = true;
    return config;
}

constexpr MatmulConfig multi_load_config()
{
    MatmulConfig config;
    config.doMultiDataLoad = true;
    config.enUnitFlag = false;
    return config;
}

constexpr MatmulConfig shared_config()
{
    MatmulConfig config;
    config.doIBShareNorm = true;
    return config;
}

}  // namespace npusim

constexpr MatmulConfig CFG_NORM = npusim::normal_config();
constexpr MatmulConfig CFG_MDL = npusim::multi_load_config();
constexpr MatmulConfig CFG_IBSHARE_NORM = npusim::shared_config();

__aicore__ constexpr MatmulConfig GetNormalConfig(
    const bool intrinsicsLimit = false, const bool batchLoop = false,
    const bool isVecND2NZ = false, const BatchMode bmmMode = BatchMode::BATCH_LESS_THAN_L1,
    const bool isMsgReuse = true, const IterateOrder iterateOrder = IterateOrder::UNDEF,
    const ScheduleType scheduleType = ScheduleType::INNER_PRODUCT, const bool enUnitFlag = true,
    const bool enableMixDualMaster = false)
{
    MatmulConfig config = CFG_NORM;
    config.intrinsicsCheck = intrinsicsLimit;
    config.isNBatch = batchLoop;
    config.enVecND2NZ = isVecND2NZ;
    config.batchMode = bmmMode;
    config.enableReuse = isMsgReuse;
    config.iterateOrder = iterateOrder;
    config.scheduleType = scheduleType;
    config.enUnitFlag = enUnitFlag;
    config.enableMixDualMaster = enableMixDualMaster;
    return config;
}

__aicore__ constexpr MatmulConfig GetMDLConfig(
    const bool intrinsicsLimit = false, const bool batchLoop = false,
    const uint32_t doMTE2Preload = 0, const bool isVecND2NZ = false, bool isPerTensor = false,
    bool hasAntiQuantOffset = false, const bool enUnitFlag = false, const bool isMsgReuse = true,
    const bool enableUBReuse = true, const bool enableL1CacheUB = false,
    const bool enableMixDualMaster = false, const bool enableKdimReorderLoad = false)
{
    MatmulConfig config = CFG_MDL;
    config.intrinsicsCheck = intrinsicsLimit;
    config.isNBatch = batchLoop;
    config.doMTE2Preload = doMTE2Preload;
    config.enVecND2NZ = isVecND2NZ;
    config.isPerTensor = isPerTensor;
    config.hasAntiQuantOffset = hasAntiQuantOffset;
    config.enUnitFlag = enUnitFlag;
    config.enableReuse = isMsgReuse;
    config.enableUBReuse = enableUBReuse;
    config.enableL1CacheUB = enableL1CacheUB;
    config.enableMixDualMaster = enableMixDualMaster;
    config.enableKdimReorderLoad = enableKdimReorderLoad;
    return config;
}

struct MatmulShapeParams {
    uint32_t singleCoreM;
    uint32_t singleCoreN;
    uint32_t singleCoreK;
    uint32_t basicM;
    uint32_t basicN;
    uint32_t basicK;
};

namespace npusim {

constexpr void take(MatmulConfig& config, const MatmulShapeParams& shape)
{
    config.singleCoreM = shape.singleCoreM;
    config.singleCoreN = shape.singleCoreN;
    config.singleCoreK = shape.singleCoreK;
    config.basicM = shape.basicM;
    config.basicN = shape.basicN;
    config.basicK = shape.basicK;
}

}  // namespace npusim

template <MatmulConfigMode configMode, typename... ArgTypes>
__aicore__ inline constexpr MatmulConfig GetMMConfig(ArgTypes&&... args)
{
    MatmulConfig config = configMode == MatmulConfigMode::CONFIG_NORM  ? CFG_NORM
                          : configMode == MatmulConfigMode::CONFIG_MDL ? CFG_MDL
                                                                       : CFG_IBSHARE_NORM;
    (npusim::take(config, args), ...);
    return config;
}

namespace AscendC {

struct MatmulApiStaticTiling : tiling::TCubeTiling {
    MatmulConfig cfg;
};

template <auto... functions>
struct MatmulCallBackFunc {
    static constexpr bool is_set = (!std::is_same<decltype(functions), std::nullptr_t>::value || ...);
};

struct MatrixOffset {
    int32_t offset;
    int32_t row, col;
    int32_t height, width;
};

template <class A_TYPE, class B_TYPE, class C_TYPE, class BIAS_TYPE>
__aicore__ constexpr MatmulApiStaticTiling GetMatmulApiTiling(const MatmulConfig& mmCFG,
                                                              int32_t l1Size = NPUSIM_L1_BYTES)
{
    MatmulApiStaticTiling found{};
    found.cfg = mmCFG;
    found.singleCoreM = mmCFG.singleCoreM;
    found.singleCoreN = mmCFG.singleCoreN;
    found.singleCoreK = mmCFG.singleCoreK;
    found.baseM = mmCFG.basicM;
    found.baseN = mmCFG.basicN;
    found.baseK = mmCFG.basicK;
    found.stepM = found.stepN = found.stepKa = found.stepKb = 1;
    found.depthA1 = found.depthB1 = 2;
    found.dbL0A = found.dbL0B = 2;
    found.dbL0C = 1;
    return found;
}

}  // namespace AscendC
