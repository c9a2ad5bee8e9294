// What a Matmul object is of: types of its matrices, its tiling and its configuration.
#pragma once

#include "kernel_operator.h"

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
// Reserved: npusim has no use for it.
enum class BatchOutMode : uint8_t { SINGLE_BATCH, MULTI_BATCH, DYNAMIC };
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

// Fields: asc-devkit, docs/zh/api, MatmulConfig. No page gives the struct: assumed to be in the order
// of that table.
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
    BatchOutMode bmmOutMode = BatchOutMode::SINGLE_BATCH;
    bool enableL1BankConflictOptimise = false;
    bool enableRelu = false;
};

// Options that change values: npusim refuses them, or the calls that they take away.
//
// | option | what npusim does |
// |---|---|
// | those of NPUSIM_REFUSED_OPTIONS | refuses true, with what to do instead |
// | isEnableChannelSplit | writes fractals of 16 x 8, of an NZ matrix of float alone |
// | enableGetTensorC, enableSetOrgShape, enableSetBias, enableSetTail, enableQuantVector, |
// | iterateMode | refuses the calls that they take away |
// | scheduleType | refuses Iterate where it is not INNER_PRODUCT: its tiles come in another order |
// | CubeFormat of MatmulType | refuses all but ND, NZ, VECTOR of A and ND_ALIGN of C |
// | LAYOUT of MatmulType | NONE, and those of batches in IterateBatch and IterateNBatch alone |
// | IBSHARE of A and B | refuses all but IterateAll that adds to nothing, on vector cores |
// | IBSHARE of one | ignores it: each vector core loads the matrix |
// | all others | ignores them: values stay, and times are those without the option |
#define NPUSIM_REFUSED_OPTIONS(OPTION)                                                          \
    OPTION(isPerTensor, "bring B to the type of A before")                                      \
    OPTION(hasAntiQuantOffset, "bring B to the type of A before")                               \
    OPTION(intraBlockPartSum, "add the parts by enAtomic")                                      \
    OPTION(enableKdimReorderLoad, "leave k in its order")                                       \
    OPTION(isCO1Shared, "call GetTensorC after each Iterate")                                   \
    OPTION(enableRelu, "apply Relu to the product")

namespace npusim {

constexpr const MatmulConfig& config_of(const MatmulConfig& config)
{
    return config;
}

// A static tiling carries its configuration.
template <typename Tiling>
constexpr const MatmulConfig& config_of(const Tiling& tiling)
{
    return tiling.cfg;
}

inline void refuse_options(const MatmulConfig& config)
{
#define NPUSIM_OPTION(NAME, INSTEAD)                                                            \
    if (config.NAME) {                                                                          \
        npusim_refuse("Matmul: %s of MatmulConfig must be false, since npusim does not "        \
                      "simulate it; %s", #NAME, INSTEAD);                                       \
    }
    NPUSIM_REFUSED_OPTIONS(NPUSIM_OPTION)
#undef NPUSIM_OPTION
}

// Calls that the vendor's compiler takes away where an option is off.
inline void refuse_call(bool is_on, const char* call, const char* option)
{
    if (!is_on) {
        npusim_refuse("%s: %s of MatmulConfig must allow this call, but takes it away; leave out "
                      "one of them", call, option);
    }
}

inline void refuse_iterating(const MatmulConfig& config, IterateMode mode, const char* call)
{
    refuse_call((config.iterateMode & uint8_t(mode)) != 0, call, "iterateMode");
}

inline void refuse_order(const MatmulConfig& config)
{
    if (config.scheduleType != ScheduleType::INNER_PRODUCT) {
        npusim_refuse("Iterate: scheduleType of MatmulConfig must be INNER_PRODUCT, since npusim "
                      "knows no other order of tiles; call IterateAll");
    }
}

// Both vector cores of a group want the same product of matrices that they share.
template <typename A_TYPE, typename B_TYPE>
void refuse_sharing(const char* call, bool counts_twice)
{
    if (A_TYPE::ibShare && B_TYPE::ibShare && counts_twice &&
        npusim_core()->kind == npusim::VECTOR_CORE) {
        npusim_refuse("%s: where both A and B are IBSHARE, vector cores must call IterateAll "
                      "without enAtomic, since npusim multiplies for each of them; share one "
                      "matrix, or none", call);
    }
}

template <typename TYPE>
void refuse_layout(const char* call, const char* matrix, std::initializer_list<CubeFormat> known)
{
    for (CubeFormat format : known) {
        if (format == TYPE::format) {
            return;
        }
    }
    npusim_refuse("%s: %s must be of a CubeFormat that npusim simulates there, not of "
                  "CubeFormat %d; copy it to ND", call, matrix, int(TYPE::format));
}

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

constexpr MatmulConfig special_config()
{
    MatmulConfig config;
    config.doSpecialMDL = true;
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

// What sums of products of a type are.
template <typename T>
struct GetMmDstType {
    using Type = std::conditional_t<(npusim::TypeOf<T>::bits <= 8), int32_t, float>;
};

}  // namespace AscendC

using AscendC::MatmulApiStaticTiling;
