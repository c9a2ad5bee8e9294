// Layer norm and its gradients, RMS norm, and Welford's means and variances, as the API calls them.
#pragma once

#include "npusim_ascendc/normalization.h"

namespace npusim {

// The rows of a tiling of three lengths.
template <typename Tiling>
LayerNormOf norm_of(const Tiling& tiling, float epsilon, bool gives_root, bool gives_both)
{
    uint32_t counted = tiling.originalHLength ? tiling.originalHLength : tiling.hLength;
    return {tiling.bLength * tiling.sLength, tiling.hLength, counted, epsilon, gives_root,
            gives_both};
}

template <typename Para>
LayerNormOf norm_of_para(const Para& para, float epsilon, bool gives_root, bool gives_both)
{
    return {para.aLength, para.rLengthWithPadding, para.rLength, epsilon, gives_root, gives_both};
}

template <typename T>
void welford_update(const Floats& mean_after, const Floats& sum_after, const Floats& mean,
                    const Floats& sum, const AscendC::LocalTensor<T>& src, bool is_in_place,
                    const AscendC::WelfordUpdateParam& para, Scratch scratch)
{
    uint32_t count = para.abComputeLength, all = para.abLength;
    if (is_in_place && count < all) {
        AscendC::DataCopy(mean_after, mean, all);
        AscendC::DataCopy(sum_after, sum, all);
        step();
    }
    Floats x = widened(src, scratch, count), less = scratch.take(count);
    Floats after = scratch.take(count);
    steps::Sub(less, x, mean, count);
    steps::Muls(after, less, para.nRec, count);
    steps::Add(mean_after, mean, after, count);
    steps::Sub(after, x, mean_after, count);
    steps::Mul(less, less, after, count);
    steps::Add(sum_after, sum, less, count);
}

// The mean and the variance of all, from those of parts; `counts` says of how many elements each is.
inline void welford_finalize(const Floats& mean, const Floats& variance, const Floats& means,
                             const Floats& sums, const Floats& counts,
                             const AscendC::WelfordFinalizePara& para, Scratch scratch)
{
    uint32_t count = para.abLength;
    auto sum_into = [&](const Floats& dst, const Floats& src) {
        reduce_rows(AscendC::ReduceType::SUM, dst, src, 1, count, count, scratch);
    };
    Floats product = scratch.take(count), blocks = blocks_of_rows(scratch, 1);
    Floats total = values_of_rows(scratch, 1);
    steps::Mul(product, means, counts, count);
    sum_into(total, product);
    steps::Muls(total, total, para.rRec, 1);
    spread(blocks, total, 1);
    across_rows("Sub", product, means, blocks, 1, count);
    steps::Adds(mean, total, 0.0f, 1);
    steps::Mul(product, product, product, count);
    steps::Mul(product, product, counts, count);
    steps::Add(product, product, sums, count);
    sum_into(total, product);
    steps::Muls(variance, total, para.rRec, 1);
}

// How many elements the first means are of, and the last.
inline Floats counts_of_parts(const AscendC::WelfordFinalizePara& para, Scratch& scratch)
{
    Floats counts = scratch.take(para.abLength);
    bool has_tail = para.tailCount != 0;
    steps::Duplicate(counts, float(has_tail ? para.tailCount : para.rnLength), para.abLength);
    if (has_tail) {
        steps::Duplicate(counts, float(para.headCount), para.headCountLength);
    }
    return counts;
}

}  // namespace npusim

namespace AscendC {

// Each function with room, and without it: TENSORS are its first parameters, MORE its last.
#define NPUSIM_NORM(NAME, TEMPLATE, TENSORS, MORE, BODY)                                         \
    template <NPUSIM_UNPACKED TEMPLATE>                                                          \
    __aicore__ inline void NAME(NPUSIM_UNPACKED TENSORS,                                         \
                                const LocalTensor<uint8_t>& sharedTmpBuffer, NPUSIM_UNPACKED MORE) \
    {                                                                                            \
        npusim::Scratch room(sharedTmpBuffer);                                                   \
        BODY;                                                                                    \
    }                                                                                            \
    template <NPUSIM_UNPACKED TEMPLATE>                                                          \
    __aicore__ inline void NAME(NPUSIM_UNPACKED TENSORS, NPUSIM_UNPACKED MORE)                   \
    {                                                                                            \
        npusim::Scratch room;                                                                    \
        BODY;                                                                                    \
    }

NPUSIM_NORM(LayerNorm, (typename T, bool isReuseSource = false),
            (const LocalTensor<T>& output, const LocalTensor<T>& outputMean,
             const LocalTensor<T>& outputVariance, const LocalTensor<T>& inputX,
             const LocalTensor<T>& gamma, const LocalTensor<T>& beta),
            (const T epsilon, const LayerNormTiling& tiling),
            npusim::layer_norm_of(output, outputMean, outputVariance, inputX, &gamma, &beta,
                                  npusim::norm_of(tiling, float(epsilon), false, true), room))
NPUSIM_NORM(LayerNorm,
            (typename U, typename T, bool isReuseSource = false,
             const LayerNormConfig& config = LNCFG_NORM),
            (const LocalTensor<T>& output, const LocalTensor<float>& outputMean,
             const LocalTensor<float>& outputRstd, const LocalTensor<T>& inputX,
             const LocalTensor<U>& gamma, const LocalTensor<U>& beta, const float epsilon),
            (const LayerNormPara& para, const LayerNormSeparateTiling& tiling),
            npusim::layer_norm_of(output, outputMean, outputRstd, inputX,
                                  config.isNoGamma ? nullptr : &gamma,
                                  config.isNoBeta ? nullptr : &beta,
                                  npusim::norm_of_para(para, epsilon, config.isOutputRstd,
                                                       !config.isOnlyOutput),
                                  room))
NPUSIM_NORM(DeepNorm, (typename T, bool isReuseSrc = false, bool isBasicBlock = false),
            (const LocalTensor<T>& dstLocal, const LocalTensor<T>& meanLocal,
             const LocalTensor<T>& rstdLocal, const LocalTensor<T>& srcLocal,
             const LocalTensor<T>& gxLocal, const LocalTensor<T>& betaLocal,
             const LocalTensor<T>& gammaLocal),
            (const T alpha, const T epsilon, const DeepNormTiling& tiling),
            npusim::deep_norm(dstLocal, meanLocal, rstdLocal, srcLocal, gxLocal, betaLocal,
                              gammaLocal, float(alpha),
                              npusim::norm_of(tiling, float(epsilon), false, true), room))
NPUSIM_NORM(RmsNorm, (typename T, bool isBasicBlock = false),
            (const LocalTensor<T>& dstLocal, const LocalTensor<T>& srcLocal,
             const LocalTensor<T>& gammaLocal),
            (const T epsilon, const RmsNormTiling& tiling),
            npusim::rms_norm(dstLocal, srcLocal, gammaLocal,
                             npusim::norm_of(tiling, float(epsilon), false, false), room))
NPUSIM_NORM(LayerNormGrad, (typename T, bool isReuseSource = false),
            (const LocalTensor<T>& outputPdX, const LocalTensor<T>& resForGamma,
             const LocalTensor<T>& inputDy, const LocalTensor<T>& inputX,
             const LocalTensor<T>& inputVariance, const LocalTensor<T>& inputMean,
             const LocalTensor<T>& inputGamma),
            (T epsilon, const LayerNormGradTiling& tiling,
             const LayerNormGradShapeInfo& shapeInfo = {}),
            npusim::layer_norm_gradient(outputPdX, resForGamma, inputDy, inputX, inputVariance,
                                        inputMean, inputGamma,
                                        npusim::norm_of(tiling, float(epsilon), false, false),
                                        room))
NPUSIM_NORM(LayerNormGradBeta, (typename T, bool isReuseSource = false),
            (const LocalTensor<T>& outputPdGamma, const LocalTensor<T>& outputPdBeta,
             const LocalTensor<T>& resForGamma, const LocalTensor<T>& inputDy),
            (const LayerNormGradBetaTiling& tiling),
            npusim::layer_norm_gradient_beta(outputPdGamma, outputPdBeta, resForGamma, inputDy,
                                             npusim::norm_of(tiling, 0.0f, false, false), room))
NPUSIM_NORM(Normalize,
            (typename U, typename T, bool isReuseSource = false,
             const NormalizeConfig& config = NLCFG_NORM),
            (const LocalTensor<T>& output, const LocalTensor<float>& outputRstd,
             const LocalTensor<float>& inputMean, const LocalTensor<float>& inputVariance,
             const LocalTensor<T>& inputX, const LocalTensor<U>& gamma,
             const LocalTensor<U>& beta),
            (const float epsilon, const NormalizePara& para),
            npusim::normalize(output, outputRstd, inputMean, inputVariance, inputX,
                              config.isNoGamma ? nullptr : &gamma,
                              config.isNoBeta ? nullptr : &beta,
                              npusim::norm_of_para(para, epsilon, true, !config.isOnlyOutput),
                              room))
NPUSIM_NORM(WelfordUpdate,
            (typename T, typename U, bool isReuseSource = false,
             const WelfordUpdateConfig& config = WFUPDATE_DEFAULT_CFG),
            (const LocalTensor<U>& outputMean, const LocalTensor<U>& outputVariance,
             const LocalTensor<U>& inputMean, const LocalTensor<U>& inputVariance,
             const LocalTensor<T>& inputX),
            (const WelfordUpdateParam& para),
            npusim::welford_update(outputMean, outputVariance, inputMean, inputVariance, inputX,
                                   config.isInplace, para, room))
NPUSIM_NORM(WelfordFinalize,
            (bool isReuseSource = false,
             const WelfordFinalizeConfig& config = WFFINALIZE_DEFAULT_CFG),
            (const LocalTensor<float>& outputMean, const LocalTensor<float>& outputVariance,
             const LocalTensor<float>& inputMean, const LocalTensor<float>& inputVariance),
            (const WelfordFinalizePara& para),
            npusim::Floats counts = npusim::counts_of_parts(para, room);
            npusim::welford_finalize(outputMean, outputVariance, inputMean, inputVariance, counts,
                                     para, room))
NPUSIM_NORM(WelfordFinalize,
            (bool isReuseSource = false,
             const WelfordFinalizeConfig& config = WFFINALIZE_DEFAULT_CFG),
            (const LocalTensor<float>& outputMean, const LocalTensor<float>& outputVariance,
             const LocalTensor<float>& inputMean, const LocalTensor<float>& inputVariance,
             const LocalTensor<int32_t>& counts),
            (const WelfordFinalizePara& para),
            npusim::Floats wide = room.take(para.abLength);
            Cast(wide, counts, RoundMode::CAST_NONE, para.abLength);
            npusim::step();
            npusim::welford_finalize(outputMean, outputVariance, inputMean, inputVariance, wide,
                                     para, room))
#undef NPUSIM_NORM

}  // namespace AscendC
