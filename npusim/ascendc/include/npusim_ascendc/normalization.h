// Norms of rows: layer norm and its gradients, RMS norm, and means and variances of parts.
#pragma once

#include "npusim_ascendc/rows.h"

namespace AscendC {

enum class ReducePattern : uint32_t {
    R,
    AR,
    RA,
    ARA,
    RAR,
};

// No page gives the structures of these tilings: fields are those that public examples use.
namespace tiling {

struct LayerNormTiling {
    uint32_t bLength = 0;
    uint32_t sLength = 0;
    uint32_t hLength = 0;
    uint32_t originalHLength = 0;
    uint32_t inputXSize = 0;
    uint32_t meanVarSize = 0;
};
struct LayerNormGradTiling : LayerNormTiling {};
struct LayerNormGradBetaTiling : LayerNormTiling {};
struct DeepNormTiling : LayerNormTiling {};
struct LayerNormSeparateTiling {
    uint32_t aLength = 0;
    uint32_t rLength = 0;
};
struct RmsNormTiling {
    uint32_t bLength = 0;
    uint32_t sLength = 0;
    uint32_t hLength = 0;
    uint32_t originalHLength = 0;
    float reciprocalOfHLength = 0;
    uint32_t mainBshLength = 0;
    uint32_t mainBsLength = 0;
    uint32_t mainBsLengthAlign = 0;
    uint32_t loopRound = 0;
    uint32_t inputTailPos = 0;
    uint32_t tailBshLength = 0;
    uint32_t tailBsLength = 0;
};

}  // namespace tiling

struct LayerNormPara {
    uint32_t aLength;
    uint32_t rLength;
    uint32_t rLengthWithPadding;
};
struct LayerNormConfig {
    bool isNoBeta = false;
    bool isNoGamma = false;
    bool isOnlyOutput = false;
    bool isOutputRstd = true;
};
constexpr LayerNormConfig LNCFG_NORM = {false, false, false, true};
struct LayerNormGradShapeInfo {
    DataFormat dataFormat = DataFormat::ND;
};
struct NormalizeConfig {
    ReducePattern reducePattern = ReducePattern::AR;
    int32_t aLength = -1;
    bool isNoBeta = false;
    bool isNoGamma = false;
    bool isOnlyOutput = false;
};
constexpr NormalizeConfig NLCFG_NORM = {};
struct NormalizePara {
    uint32_t aLength;
    uint32_t rLength;
    uint32_t rLengthWithPadding;
};
struct WelfordUpdateConfig {
    bool isInplace = false;
};
constexpr WelfordUpdateConfig WFUPDATE_DEFAULT_CFG = {false};
struct WelfordUpdateParam {
    uint32_t rnLength;
    uint32_t abLength;
    uint32_t abComputeLength;
    float nRec;
};
struct WelfordFinalizeConfig {
    bool isCorrection = false;
};
constexpr WelfordFinalizeConfig WFFINALIZE_DEFAULT_CFG = {false};
struct WelfordFinalizePara {
    uint32_t rnLength;
    uint32_t abLength;
    uint32_t headCount;
    uint32_t headCountLength;
    uint32_t tailCount;
    uint32_t tailCountLength;
    float abRec;
    float rRec;
    float rRecWithCorrection;
};

}  // namespace AscendC

using AscendC::tiling::DeepNormTiling;
using AscendC::tiling::LayerNormGradBetaTiling;
using AscendC::tiling::LayerNormGradTiling;
using AscendC::tiling::LayerNormSeparateTiling;
using AscendC::tiling::LayerNormTiling;
using AscendC::tiling::RmsNormTiling;

namespace npusim {

constexpr uint32_t NORM_MATRICES = 4;
constexpr uint32_t NORM_ROWS = 16;  // whose means in half fill a block

// A row of factors or terms, or none.
struct Affine {
    Floats gamma;
    Floats beta;
    bool has_gamma;
    bool has_beta;
};

template <typename U>
Affine affine(const AscendC::LocalTensor<U>* gamma, const AscendC::LocalTensor<U>* beta,
              Scratch& scratch, uint32_t columns)
{
    return {gamma ? widened(*gamma, scratch, columns) : Floats(),
            beta ? widened(*beta, scratch, columns) : Floats(), gamma != nullptr, beta != nullptr};
}

// values = 1 / sqrt(variances + epsilon).
inline void reciprocal_roots(const Floats& values, const Floats& variances, float epsilon,
                             uint32_t rows, Scratch scratch)
{
    Floats one = values_of_rows(scratch, rows), root = values_of_rows(scratch, rows);
    steps::Adds(root, variances, epsilon, rows);
    steps::Sqrt(root, root, rows);
    steps::Duplicate(one, 1.0f, rows);
    steps::Div(values, one, root, rows);
}

// dst = (x - mean) / sqrt(variance + epsilon) gamma + beta, and what comes in between; `dst` may be x.
struct NormOfRows {
    uint32_t rows;
    uint32_t columns;
    uint32_t counted;
    Floats means, variances, roots;

    NormOfRows(uint32_t rows_given, uint32_t columns_given, uint32_t counted_given,
               Scratch& scratch)
        : rows(rows_given),
          columns(columns_given),
          counted(counted_given),
          means(values_of_rows(scratch, rows_given)),
          variances(values_of_rows(scratch, rows_given)),
          roots(values_of_rows(scratch, rows_given))
    {}
    void mean_of(const Floats& values, const Floats& x, Scratch& scratch) const
    {
        reduce_rows(AscendC::ReduceType::SUM, values, x, rows, counted, columns, scratch);
        steps::Muls(values, values, 1.0f / float(counted), rows);
    }
    void across(const char* name, const Floats& dst, const Floats& src, const Floats& values,
                Scratch scratch) const
    {
        Floats blocks = blocks_of_rows(scratch, rows);
        spread(blocks, values, rows);
        across_rows(name, dst, src, blocks, rows, columns);
    }
    void measure(const Floats& less, const Floats& x, Scratch scratch) const
    {
        mean_of(means, x, scratch);
        across("Sub", less, x, means, scratch);
        Floats square = scratch.take(rows * columns);
        steps::Mul(square, less, less, rows * columns);
        mean_of(variances, square, scratch);
    }
    void scale(const Floats& dst, const Floats& less, const Affine& by, Scratch scratch) const
    {
        across("Mul", dst, less, roots, scratch);
        if (by.has_gamma) {
            down_columns("Mul", dst, dst, by.gamma, rows, columns);
        }
        if (by.has_beta) {
            down_columns("Add", dst, dst, by.beta, rows, columns);
        }
    }
};

// Writes one element of each row, which are floats.
template <typename T>
void put_values(const AscendC::LocalTensor<T>& dst, const Floats& values, uint32_t rows)
{
    if constexpr (std::is_same<T, float>::value) {
        steps::Adds(dst, values, 0.0f, rows);
    } else {
        rounded_to(dst, values, rows);
    }
}

struct LayerNormOf {
    uint32_t rows;
    uint32_t columns;
    uint32_t counted;
    float epsilon;
    bool gives_root;  // of the variance, as a reciprocal
    bool gives_both;  // the mean and what is beside it
};

// `source(start, rows, scratch)` gives the elements of some rows in float.
template <typename T, typename M, typename Source>
void layer_norm(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<M>& mean,
                const AscendC::LocalTensor<M>& variance, const Affine& by, const LayerNormOf& of,
                const Scratch& room, const Source& source)
{
    each_rows(of.rows, of.columns, NORM_MATRICES, NORM_ROWS, room, [&](uint32_t row, uint32_t rows) {
        Scratch scratch = room;
        uint32_t start = row * of.columns, size = rows * of.columns;
        NormOfRows norm(rows, of.columns, of.counted, scratch);
        Floats less = scratch.take(size);
        norm.measure(less, source(start, size, scratch), scratch);
        reciprocal_roots(norm.roots, norm.variances, of.epsilon, rows, scratch);
        norm.scale(less, less, by, scratch);
        if constexpr (std::is_same<T, float>::value) {
            steps::Adds(dst[start], less, 0.0f, size);
        } else {
            rounded_to(dst[start], less, size);
        }
        if (of.gives_both) {
            put_values(mean[row], norm.means, rows);
            put_values(variance[row], of.gives_root ? norm.roots : norm.variances, rows);
        }
    });
}

template <typename T, typename M, typename U>
void layer_norm_of(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<M>& mean,
                   const AscendC::LocalTensor<M>& variance, const AscendC::LocalTensor<T>& src,
                   const AscendC::LocalTensor<U>* gamma, const AscendC::LocalTensor<U>* beta,
                   const LayerNormOf& of, Scratch scratch)
{
    Affine by = affine(gamma, beta, scratch, of.columns);
    layer_norm(dst, mean, variance, by, of, scratch,
               [&](uint32_t start, uint32_t size, Scratch& room) {
                   return widened(src[start], room, size);
               });
}

template <typename T>
void deep_norm(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& mean,
               const AscendC::LocalTensor<T>& root, const AscendC::LocalTensor<T>& src,
               const AscendC::LocalTensor<T>& sublayer, const AscendC::LocalTensor<T>& beta,
               const AscendC::LocalTensor<T>& gamma, float alpha, const LayerNormOf& of,
               Scratch scratch)
{
    Affine by = affine(&gamma, &beta, scratch, of.columns);
    layer_norm(dst, mean, root, by, of, scratch,
               [&](uint32_t start, uint32_t size, Scratch& room) {
                   Floats sum = room.take(size);
                   Scratch rest = room;
                   steps::Muls(sum, widened(src[start], rest, size), alpha, size);
                   Scratch again = room;
                   steps::Add(sum, sum, widened(sublayer[start], again, size), size);
                   return sum;
               });
}

// x / sqrt(mean of x^2 + epsilon) gamma.
template <typename T>
void rms_norm(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
              const AscendC::LocalTensor<T>& gamma, const LayerNormOf& of, Scratch room)
{
    Affine by = affine<T>(&gamma, nullptr, room, of.columns);
    each_rows(of.rows, of.columns, NORM_MATRICES, NORM_ROWS, room, [&](uint32_t row, uint32_t rows) {
        Scratch scratch = room;
        uint32_t start = row * of.columns, size = rows * of.columns;
        NormOfRows norm(rows, of.columns, of.counted, scratch);
        Floats x = widened(src[start], scratch, size), square = scratch.take(size);
        steps::Mul(square, x, x, size);
        norm.mean_of(norm.variances, square, scratch);
        reciprocal_roots(norm.roots, norm.variances, of.epsilon, rows, scratch);
        Floats result = computed_for(dst[start], scratch, size);
        norm.scale(result, x, by, scratch);
        rounded_to(dst[start], result, size);
    });
}

template <typename T, typename U>
void normalize(const AscendC::LocalTensor<T>& dst, const Floats& roots, const Floats& means,
               const Floats& variances, const AscendC::LocalTensor<T>& src,
               const AscendC::LocalTensor<U>* gamma, const AscendC::LocalTensor<U>* beta,
               const LayerNormOf& of, Scratch room)
{
    Affine by = affine(gamma, beta, room, of.columns);
    each_rows(of.rows, of.columns, NORM_MATRICES, NORM_ROWS, room, [&](uint32_t row, uint32_t rows) {
        Scratch scratch = room;
        uint32_t start = row * of.columns, size = rows * of.columns;
        NormOfRows norm(rows, of.columns, of.counted, scratch);
        Floats less = scratch.take(size);
        steps::Adds(norm.means, means[row], 0.0f, rows);
        norm.across("Sub", less, widened(src[start], scratch, size), norm.means, scratch);
        reciprocal_roots(norm.roots, variances[row], of.epsilon, rows, scratch);
        Floats result = computed_for(dst[start], scratch, size);
        norm.scale(result, less, by, scratch);
        rounded_to(dst[start], result, size);
        if (of.gives_both) {
            put_values(roots[row], norm.roots, rows);
        }
    });
}

// The formulas of asc-devkit, docs/zh/api, LayerNormGrad.md.
template <typename T>
void layer_norm_gradient(const AscendC::LocalTensor<T>& dst,
                         const AscendC::LocalTensor<T>& for_gamma,
                         const AscendC::LocalTensor<T>& gradient,
                         const AscendC::LocalTensor<T>& src,
                         const AscendC::LocalTensor<T>& variance,
                         const AscendC::LocalTensor<T>& mean, const AscendC::LocalTensor<T>& gamma,
                         const LayerNormOf& of, Scratch room)
{
    Affine by = affine<T>(&gamma, nullptr, room, of.columns);
    float part = 1.0f / float(of.counted);
    each_rows(of.rows, of.columns, 2 * NORM_MATRICES, NORM_ROWS, room, [&](uint32_t row, uint32_t rows) {
        Scratch scratch = room;
        uint32_t start = row * of.columns, size = rows * of.columns;
        NormOfRows norm(rows, of.columns, of.counted, scratch);
        auto sum_of = [&](const Floats& values, const Floats& x) {
            reduce_rows(AscendC::ReduceType::SUM, values, x, rows, of.counted, of.columns, scratch);
        };
        auto own = [&](const AscendC::LocalTensor<T>& values, const Floats& to) {
            if constexpr (std::is_same<T, float>::value) {
                steps::Adds(to, values[row], 0.0f, rows);
            } else {
                AscendC::Cast(to, values[row], AscendC::RoundMode::CAST_NONE, rows);
                step();
            }
        };
        own(mean, norm.means);
        own(variance, norm.variances);
        Floats less = scratch.take(size), scaled = scratch.take(size), product = scratch.take(size);
        down_columns("Mul", scaled, widened(gradient[start], scratch, size), by.gamma, rows,
                     of.columns);
        norm.across("Sub", less, widened(src[start], scratch, size), norm.means, scratch);
        reciprocal_roots(norm.roots, norm.variances, of.epsilon, rows, scratch);
        Floats of_variance = values_of_rows(scratch, rows), of_mean = values_of_rows(scratch, rows);
        Floats other = values_of_rows(scratch, rows);
        steps::Mul(product, scaled, less, size);
        sum_of(of_variance, product);
        steps::Mul(other, norm.roots, norm.roots, rows);
        steps::Mul(other, other, norm.roots, rows);
        steps::Mul(of_variance, of_variance, other, rows);
        steps::Muls(of_variance, of_variance, -0.5f, rows);
        sum_of(of_mean, scaled);
        steps::Mul(of_mean, of_mean, norm.roots, rows);
        steps::Muls(of_mean, of_mean, -1.0f, rows);
        sum_of(other, less);
        steps::Mul(other, other, of_variance, rows);
        steps::Muls(other, other, -2.0f * part, rows);
        steps::Add(of_mean, of_mean, other, rows);
        steps::Muls(of_mean, of_mean, part, rows);
        steps::Muls(of_variance, of_variance, 2.0f * part, rows);
        norm.across("Mul", product, less, of_variance, scratch);
        norm.across("Add", product, product, of_mean, scratch);
        norm.across("Mul", scaled, scaled, norm.roots, scratch);
        norm.across("Mul", less, less, norm.roots, scratch);
        steps::Add(product, product, scaled, size);
        put_values(dst[start], product, size);
        put_values(for_gamma[start], less, size);
    });
}

// Sums over rows of the gradient, and of its product with what LayerNormGrad gives.
template <typename T>
void layer_norm_gradient_beta(const AscendC::LocalTensor<T>& of_gamma,
                              const AscendC::LocalTensor<T>& of_beta,
                              const AscendC::LocalTensor<T>& for_gamma,
                              const AscendC::LocalTensor<T>& gradient, const LayerNormOf& of,
                              const Scratch& room)
{
    Scratch scratch = room;
    Floats gammas = scratch.take(of.columns), betas = scratch.take(of.columns);
    steps::Duplicate(gammas, 0.0f, of.columns);
    steps::Duplicate(betas, 0.0f, of.columns);
    for (uint32_t row = 0; row < of.rows; ++row) {
        Scratch rest = scratch;
        Floats product = rest.take(of.columns);
        Floats given = widened(gradient[row * of.columns], rest, of.columns);
        steps::Add(betas, betas, given, of.columns);
        steps::Mul(product, given, widened(for_gamma[row * of.columns], rest, of.columns),
                   of.columns);
        steps::Add(gammas, gammas, product, of.columns);
    }
    put_values(of_gamma, gammas, of.columns);
    put_values(of_beta, betas, of.columns);
}

}  // namespace npusim
