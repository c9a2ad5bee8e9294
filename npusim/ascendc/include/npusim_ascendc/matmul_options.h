// The configuration of a Matmul put together of groups of options.
#pragma once

#include "npusim_ascendc/matmul_config.h"

struct MatmulShapeParams {
    uint32_t singleCoreM;
    uint32_t singleCoreN;
    uint32_t singleCoreK;
    uint32_t basicM;
    uint32_t basicN;
    uint32_t basicK;
};

struct MatmulQuantParams {
    bool isPerTensor;
    bool hasAntiQuantOffset;
};

struct MatmulBatchParams {
    bool isNBatch = false;
    BatchMode batchMode = BatchMode::BATCH_LESS_THAN_L1;
    bool isBiasBatch = true;
    BatchOutMode bmmOutMode = BatchOutMode::SINGLE_BATCH;
};

struct MatmulFuncParams {
    bool intrinsicsLimit = false;
    bool enVecND2NZ = false;
    bool enableDoubleCache = false;
    bool enableL1CacheUB = false;
    uint32_t doMTE2Preload = 0;
    IterateOrder iterateOrder = IterateOrder::UNDEF;
    ScheduleType scheduleType = ScheduleType::INNER_PRODUCT;
    bool enableReuse = true;
    bool enableUBReuse = true;
    bool isPartialOutput = false;
    bool isA2B2Shared = false;
    bool isEnableChannelSplit = false;
    bool enableKdimReorderLoad = false;
    bool enableL1BankConflictOptimise = false;
};

namespace npusim {

constexpr void take(MatmulConfig& config, const MatmulQuantParams& quant)
{
    config.isPerTensor = quant.isPerTensor;
    config.hasAntiQuantOffset = quant.hasAntiQuantOffset;
}

constexpr void take(MatmulConfig& config, const MatmulBatchParams& batch)
{
    config.isNBatch = batch.isNBatch;
    config.batchMode = batch.batchMode;
    config.isBiasBatch = batch.isBiasBatch;
    config.bmmOutMode = batch.bmmOutMode;
}

constexpr void take(MatmulConfig& config, const MatmulFuncParams& own)
{
    config.intrinsicsCheck = own.intrinsicsLimit;
    config.enVecND2NZ = own.enVecND2NZ;
    config.enableDoubleCache = own.enableDoubleCache;
    config.enableL1CacheUB = own.enableL1CacheUB;
    config.doMTE2Preload = own.doMTE2Preload;
    config.iterateOrder = own.iterateOrder;
    config.scheduleType = own.scheduleType;
    config.enableReuse = own.enableReuse;
    config.enableUBReuse = own.enableUBReuse;
    config.isPartialOutput = own.isPartialOutput;
    config.isA2B2Shared = own.isA2B2Shared;
    config.isEnableChannelSplit = own.isEnableChannelSplit;
    config.enableKdimReorderLoad = own.enableKdimReorderLoad;
    config.enableL1BankConflictOptimise = own.enableL1BankConflictOptimise;
}

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
    MatmulConfig config = configMode == MatmulConfigMode::CONFIG_NORM         ? CFG_NORM
                          : configMode == MatmulConfigMode::CONFIG_MDL        ? CFG_MDL
                          : configMode == MatmulConfigMode::CONFIG_SPECIALMDL ? npusim::special_config()
                                                                              : CFG_IBSHARE_NORM;
    (npusim::take(config, args), ...);
    return config;
}
