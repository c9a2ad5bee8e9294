// The cube: matrices on their way from L1 through L0 and out again.
#pragma once

#include "npusim_ascendc/copy.h"
#include "npusim_ascendc/cube_params.h"

namespace npusim {

inline MatrixState& matrix()
{
    return npusim_core()->matrix;
}

// Options that no page of asc-devkit gives these chips, or that npusim does not simulate.
inline void must_be_off(uint8_t option, const char* call, const char* name)
{
    if (option != 0) {
        npusim_refuse("%s: %s must be 0, the only value that npusim simulates; set that", call,
                      name);
    }
}

template <typename Dst, typename Src>
void load_fractals(const Dst& dst, const Src& src, uint16_t first, uint8_t repeats,
                   uint16_t src_stride, uint16_t dst_gap, bool is_turned, uint16_t inner_gap)
{
    if (repeats != 0) {
        record("LoadFractals", dst, src, first, repeats, src_stride, dst_gap, is_turned,
               inner_gap);
    }
}

// Where the sum begins.
enum Start : int { FROM_ZERO = 0, FROM_BIAS = 1, FROM_SUM = 2 };

template <typename T, typename U, typename S, typename... Bias>
void multiply(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<U>& fm,
              const AscendC::LocalTensor<S>& filter, const AscendC::MmadParams& by, Start start,
              const Bias&... bias)
{
    if (by.m == 0 || by.n == 0 || by.k == 0) {
        return;
    }
    if (by.kDirectionAlign && TypeOf<U>::bits == 32 && (by.k + 7) / 8 % 2 != 0) {
        npusim_refuse("Mmad: kDirectionAlign must be false where k of float, %d, rounds up to one "
                      "multiple of 8 and another of 16, since npusim reads L0 in eights of k; fill "
                      "L0 with zeros and pass a k of %d",
                      by.k, (by.k + 15) / 16 * 16);
    }
    matrix().is_handed_over = by.unitFlag == 3;
    record("Mmad", dst, fm, filter, by.m, by.n, by.k, start, by.unitFlag,
           by.m == 1 && !by.disableGemv, bias...);
}

// The parameters of FixpipeParamsV220 and of DataCopyCO12DstParams.
struct Drained {
    uint16_t columns;
    uint16_t rows;
    uint16_t src_stride;
    uint32_t dst_stride;
    QuantMode_t mode;
    uint64_t scale;
    bool is_relu;
    bool is_split;
    bool is_nd;
    uint8_t unit_flag;
    uint16_t count;
    uint16_t src_nd_stride;
    uint16_t dst_nd_stride;
};

template <typename Dst, typename Src, typename Scales>
void drain(const Dst& dst, const Src& src, const Drained& by, const Scales& scales)
{
    if (by.columns == 0 || by.rows == 0 || by.count == 0) {
        return;
    }
    record("Fixpipe", dst, src, scales, by.columns, by.rows, by.src_stride, by.dst_stride,
           by.mode, by.scale, by.is_relu, by.is_split, by.is_nd, by.unit_flag,
           matrix().is_handed_over, by.count, by.src_nd_stride, by.dst_nd_stride, atomic());
    if (by.unit_flag != 0) {
        matrix().is_handed_over = false;
    }
}

inline Drained drained(const AscendC::FixpipeParamsV220& by, AscendC::CO2Layout format)
{
    return {by.nSize,  by.mSize,          by.srcStride, by.dstStride,
            by.quantPre, by.deqScalar,    by.reluEn,    by.isChannelSplit,
            format == AscendC::CO2Layout::ROW_MAJOR,
            by.unitFlag, by.ndNum,        by.srcNdStride, by.dstNdStride};
}

inline Drained drained(const AscendC::DataCopyCO12DstParams& by)
{
    must_be_off(by.clipReluPre, "DataCopy", "clipReluPre");
    must_be_off(by.eltWiseOp, "DataCopy", "eltWiseOp");
    const MatrixState& state = matrix();
    bool is_nd = by.nz2ndEn;
    return {by.nSize,    by.mSize,
            by.srcStride, by.dstStride,
            by.quantPre, state.scale,
            by.reluPre != 0, by.channelSplit,
            is_nd,       by.unitFlag,
            is_nd ? state.count : uint16_t(1), state.src_nd_stride,
            state.dst_nd_stride};
}

// The scales that SetFixPipeConfig has named.
inline AscendC::LocalTensor<uint64_t> scales(uint32_t columns)
{
    return {AscendC::TPosition::C2PIPE2GM, uint32_t(matrix().scales_address), columns};
}

}  // namespace npusim

namespace AscendC {

// ---- into L1 and the tables ----

template <typename T>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const Nd2NzParams& intriParams)
{
    const Nd2NzParams& by = intriParams;
    if (by.ndNum != 0 && by.nValue != 0 && by.dValue != 0) {
        npusim::record("DataCopyNd2Nz", dst, src, by.ndNum, by.nValue, by.dValue,
                       by.srcNdMatrixStride, by.srcDValue, by.dstNzC0Stride, by.dstNzNStride,
                       by.dstNzMatrixStride);
    }
}

template <typename T, typename U>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                                const DataCopyParams& repeatParams)
{
    npusim::copy_blocks(dst, src, repeatParams);
}

template <typename T>
__aicore__ inline void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src,
                                const LoadData2DParams& loadDataParams)
{
    npusim::must_be_off(loadDataParams.addrMode, "LoadData", "addrMode");
    npusim::load_fractals(dst, src, loadDataParams.startIndex, loadDataParams.repeatTimes,
                          loadDataParams.srcStride, loadDataParams.dstGap,
                          loadDataParams.ifTranspose, 0);
}

// ---- from L1 into L0 ----

template <typename T>
__aicore__ inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                const LoadData2DParams& loadDataParams)
{
    npusim::must_be_off(loadDataParams.addrMode, "LoadData", "addrMode");
    npusim::load_fractals(dst, src, loadDataParams.startIndex, loadDataParams.repeatTimes,
                          loadDataParams.srcStride, loadDataParams.dstGap,
                          loadDataParams.ifTranspose, 0);
}

template <typename T>
__aicore__ inline void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                             const LoadData2dTransposeParams& loadDataParams)
{
    npusim::must_be_off(loadDataParams.addrMode, "LoadDataWithTranspose", "addrMode");
    npusim::load_fractals(dst, src, loadDataParams.startIndex, loadDataParams.repeatTimes,
                          loadDataParams.srcStride, loadDataParams.dstGap, true,
                          loadDataParams.dstFracGap);
}

template <typename T, const IsResetLoad3dConfig& defaultConfig = IS_RESER_LOAD3D_DEFAULT_CONFIG,
          typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
__aicore__ inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                const LoadData3DParamsV2<U>& loadDataParams)
{
    const LoadData3DParamsV2<U>& by = loadDataParams;
    npusim::must_be_off(by.fMatrixCtrl, "LoadData", "fMatrixCtrl");
    npusim::must_be_off(by.enSmallK, "LoadData", "enSmallK");
    npusim::MatrixState& state = npusim::matrix();
    if constexpr (defaultConfig.isSetFMatrix) {
        SetFmatrix(by.l1H, by.l1W, by.padList, FmatrixMode::FMATRIX_LEFT);
    }
    if constexpr (defaultConfig.isSetPadding) {
        SetLoadDataPaddingValue(by.padValue);
    }
    U value;
    memcpy(&value, &state.padding_bits, sizeof(value));
    uint16_t wide = by.filterW + (by.filterSizeW ? 256 : 0);
    uint16_t high = by.filterH + (by.filterSizeH ? 256 : 0);
    if (state.height == 0 || state.width == 0 || by.channelSize == 0 || by.kExtension == 0 ||
        by.mExtension == 0 || wide == 0 || high == 0) {
        return;
    }
    npusim::record("LoadImage", dst, src, state.height, state.width, by.channelSize,
                   by.mExtension, by.kExtension, by.mStartPt, by.kStartPt, by.enTranspose, high,
                   wide, by.strideH, by.strideW, by.dilationFilterH, by.dilationFilterW,
                   state.padding[0], state.padding[1], state.padding[2], state.padding[3],
                   npusim::scalar(value));
}

// ---- products ----

template <typename T, typename U, typename S>
__aicore__ inline void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm,
                            const LocalTensor<S>& filter, const MmadParams& mmadParams)
{
    bool adds = mmadParams.isBias || !mmadParams.cmatrixInitVal;
    if (adds && mmadParams.cmatrixSource) {
        // The bias table from its beginning on (assumed).
        LocalTensor<T> bias(TPosition::C2, 0, mmadParams.n);
        npusim::multiply(dst, fm, filter, mmadParams, npusim::FROM_BIAS, bias);
        return;
    }
    npusim::multiply(dst, fm, filter, mmadParams, adds ? npusim::FROM_SUM : npusim::FROM_ZERO);
}

template <typename T, typename U, typename S, typename V>
__aicore__ inline void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm,
                            const LocalTensor<S>& filter, const LocalTensor<V>& bias,
                            const MmadParams& mmadParams)
{
    npusim::multiply(dst, fm, filter, mmadParams, npusim::FROM_BIAS, bias);
}

__aicore__ inline void SetHF32Mode(HF32Mode mode)
{
    if (mode == HF32Mode::ENABLE) {
        npusim_refuse("SetHF32Mode: the mode must be DISABLE, since npusim multiplies float as it "
                      "is; set that");
    }
}

__aicore__ inline void SetHF32TransMode(HF32TransMode) {}

__aicore__ inline void SetMMColumnMajor() {}

__aicore__ inline void SetMMRowMajor() {}

// ---- out of L0C ----

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
__aicore__ inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
                               const FixpipeParamsV220& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams, config.format), 0);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR,
          typename S = uint64_t,
          typename std::enable_if<std::is_same<PrimT<S>, uint64_t>::value, bool>::type = true>
__aicore__ inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
                               const LocalTensor<S>& cbufWorkspace,
                               const FixpipeParamsV220& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams, config.format), cbufWorkspace);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
__aicore__ inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                               const FixpipeParamsV220& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams, CO2Layout::NZ), 0);
}

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR,
          typename S = uint64_t,
          typename std::enable_if<std::is_same<PrimT<S>, uint64_t>::value, bool>::type = true>
__aicore__ inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                               const LocalTensor<S>& cbufWorkspace,
                               const FixpipeParamsV220& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams, CO2Layout::NZ), cbufWorkspace);
}

template <typename T, typename U>
__aicore__ inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
                                const DataCopyCO12DstParams& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams), npusim::scales(intriParams.nSize));
}

template <typename T, typename U>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                                const DataCopyCO12DstParams& intriParams)
{
    npusim::drain(dst, src, npusim::drained(intriParams), npusim::scales(intriParams.nSize));
}

template <typename T, typename U>
__aicore__ inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                                const DataCopyParams& intriParams,
                                const DataCopyEnhancedParams& enhancedParams)
{
    npusim::record("CopyL0c", dst, src, intriParams.blockCount, intriParams.blockLen,
                   intriParams.srcStride, intriParams.dstStride, enhancedParams.blockMode,
                   enhancedParams.deqScale, enhancedParams.deqValue, enhancedParams.isRelu);
}

}  // namespace AscendC
