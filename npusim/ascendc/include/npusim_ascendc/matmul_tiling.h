// The tiling of a Matmul: which core computes what, and in which tiles.
#pragma once

#include <algorithm>
#include <iostream>

#include "kernel_operator.h"
#include "npusim_ascendc/matmul.h"
#include "tiling/platform/platform_ascendc.h"

namespace optiling {

// A tiling with functions for each of its fields.
class TCubeTiling : public ::TCubeTiling {
public:
#define NPUSIM_FIELD(NAME)                                                                        \
    void set_##NAME(int32_t value) { NAME = value; }                                              \
    int32_t get_##NAME() const { return NAME; }
    NPUSIM_TILING_FIELDS(NPUSIM_FIELD)
#undef NPUSIM_FIELD
    size_t GetDataSize() const
    {
        return sizeof(::TCubeTiling);
    }
    void SaveToBuffer(void* place, size_t capacity) const
    {
        memcpy(place, static_cast<const ::TCubeTiling*>(this),
               capacity < GetDataSize() ? capacity : GetDataSize());
    }
};

}  // namespace optiling

namespace matmul_tiling {

using ::CubeFormat;
using ::ScheduleType;
using AscendC::TPosition;

enum class DataType {
    DT_FLOAT = 0,
    DT_FLOAT16 = 1,
    DT_INT8 = 2,
    DT_INT32 = 3,
    DT_UINT8 = 4,
    DT_BFLOAT16 = 27,
    DT_BF16 = 27,
    DT_INT4 = 29,
};
enum class DequantType { SCALAR = 0, TENSOR = 1 };
enum class MatrixTraverse { NOSET = 0, FIRSTM = 1, FIRSTN = 2 };
enum class MatrixMadType { NORMAL = 0, HF32 = 1 };

struct MatmulConfigParams {
    int32_t mmConfigType = 1;
    bool enableL1CacheUB = false;
    ScheduleType scheduleType = ScheduleType::INNER_PRODUCT;
    MatrixTraverse traverse = MatrixTraverse::NOSET;
    bool enVecND2NZ = false;
    MatmulConfigParams(int32_t mmConfigTypeIn = 1, bool enableL1CacheUBIn = false,
                       ScheduleType scheduleTypeIn = ScheduleType::INNER_PRODUCT,
                       MatrixTraverse traverseIn = MatrixTraverse::NOSET,
                       bool enVecND2NZIn = false)
        : mmConfigType(mmConfigTypeIn),
          enableL1CacheUB(enableL1CacheUBIn),
          scheduleType(scheduleTypeIn),
          traverse(traverseIn),
          enVecND2NZ(enVecND2NZIn)
    {}
};

class MatmulApiTilingBase {
public:
    MatmulApiTilingBase() = default;
    explicit MatmulApiTilingBase(const platform_ascendc::PlatformAscendC&) {}

    int32_t SetAType(TPosition, CubeFormat, DataType dataType, bool isTrans = false)
    {
        type_ = dataType;
        is_a_turned_ = isTrans;
        return 0;
    }
    int32_t SetBType(TPosition, CubeFormat, DataType, bool isTrans = false)
    {
        is_b_turned_ = isTrans;
        return 0;
    }
    int32_t SetCType(TPosition, CubeFormat, DataType) { return 0; }
    int32_t SetBiasType(TPosition, CubeFormat, DataType) { return 0; }
    int32_t SetDequantType(DequantType) { return 0; }
    int32_t SetMadType(MatrixMadType) { return 0; }
    // Lengths of -1 are those of SetOrgShape.
    int32_t SetShape(int32_t m, int32_t n, int32_t k)
    {
        m_ = m, n_ = n, k_ = k;
        return 0;
    }
    int32_t SetOrgShape(int32_t orgMIn, int32_t orgNIn, int32_t orgKIn)
    {
        return SetOrgShape(orgMIn, orgNIn, orgKIn, orgKIn);
    }
    int32_t SetOrgShape(int32_t orgMIn, int32_t orgNIn, int32_t orgKaIn, int32_t orgKbIn)
    {
        org_m_ = orgMIn, org_n_ = orgNIn, org_ka_ = orgKaIn, org_kb_ = orgKbIn;
        return 0;
    }
    int32_t EnableBias(bool isBiasIn = false)
    {
        has_bias_ = isBiasIn;
        return 0;
    }
    int32_t SetBias(bool isBiasIn = false)
    {
        return EnableBias(isBiasIn);
    }
    int32_t SetBufferSpace(int32_t = -1, int32_t = -1, int32_t = -1, int32_t = -1) { return 0; }
    int32_t SetFixSplit(int32_t baseMIn = -1, int32_t baseNIn = -1, int32_t baseKIn = -1)
    {
        fixed_m_ = baseMIn, fixed_n_ = baseNIn, fixed_k_ = baseKIn;
        return 0;
    }
    int32_t SetALayout(int32_t b, int32_t s, int32_t n, int32_t g, int32_t d)
    {
        given_.ALayoutInfoB = b, given_.ALayoutInfoS = s, given_.ALayoutInfoN = n;
        given_.ALayoutInfoG = g, given_.ALayoutInfoD = d;
        return 0;
    }
    int32_t SetBLayout(int32_t b, int32_t s, int32_t n, int32_t g, int32_t d)
    {
        given_.BLayoutInfoB = b, given_.BLayoutInfoS = s, given_.BLayoutInfoN = n;
        given_.BLayoutInfoG = g, given_.BLayoutInfoD = d;
        return 0;
    }
    int32_t SetCLayout(int32_t b, int32_t s, int32_t n, int32_t g, int32_t d)
    {
        given_.CLayoutInfoB = b, given_.CLayoutInfoS1 = s, given_.CLayoutInfoN = n;
        given_.CLayoutInfoG = g, given_.CLayoutInfoS2 = d;
        return 0;
    }
    int32_t SetBatchInfoForNormal(int32_t batchA, int32_t batchB, int32_t m, int32_t n, int32_t k)
    {
        SetALayout(batchA, m, 1, 1, k);
        SetBLayout(batchB, k, 1, 1, n);
        return SetCLayout(std::max(batchA, batchB), m, 1, 1, n);
    }
    int32_t SetBatchNum(int32_t batch)
    {
        given_.BatchNum = batch;
        return 0;
    }
    int32_t SetTraverse(MatrixTraverse traverse)
    {
        traverse_ = traverse;
        return 0;
    }
    int32_t SetDoubleBuffer(bool, bool, bool, bool, bool = true, bool = true) { return 0; }
    void SetMatmulConfigParams(int32_t = 1, bool = false,
                               ScheduleType = ScheduleType::INNER_PRODUCT,
                               MatrixTraverse = MatrixTraverse::NOSET, bool = false)
    {}
    void SetMatmulConfigParams(const MatmulConfigParams&) {}
    int32_t SetSplitRange(int32_t = -1, int32_t = -1, int32_t = -1, int32_t = -1, int32_t = -1,
                          int32_t = -1)
    {
        return 0;
    }
    int32_t GetBaseM() const { return base_m_; }
    int32_t GetBaseN() const { return base_n_; }
    int32_t GetBaseK() const { return base_k_; }

    int64_t GetTiling(::TCubeTiling& tiling)
    {
        m_ = m_ == -1 ? org_m_ : m_;
        n_ = n_ == -1 ? org_n_ : n_;
        k_ = k_ == -1 ? std::min(org_ka_, org_kb_) : k_;
        if (m_ <= 0 || n_ <= 0 || k_ <= 0) {
            return -1;
        }
        split();
        fit_tiles();
        tiling = given_;
        tiling.usedCoreNum = used_;
        tiling.M = org_m_ > 0 ? org_m_ : m_;
        tiling.N = org_n_ > 0 ? org_n_ : n_;
        tiling.Ka = org_ka_ > 0 ? org_ka_ : k_;
        tiling.Kb = org_kb_ > 0 ? org_kb_ : k_;
        tiling.singleCoreM = single_m_;
        tiling.singleCoreN = single_n_;
        tiling.singleCoreK = single_k_;
        tiling.baseM = base_m_;
        tiling.baseN = base_n_;
        tiling.baseK = base_k_;
        tiling.stepM = tiling.stepN = 1;
        tiling.stepKa = tiling.stepKb = step();
        tiling.depthA1 = tiling.depthB1 = 2 * tiling.stepKa;
        tiling.isBias = has_bias_;
        tiling.iterateOrder = traverse_ == MatrixTraverse::FIRSTN;
        tiling.dbL0A = tiling.dbL0B = 2;
        tiling.dbL0C = 2 * base_m_ * base_n_ * 4 <= NPUSIM_L0C_BYTES ? 2 : 1;
        return 0;
    }

protected:
    // Which part of the product each core computes.
    virtual void split()
    {
        used_ = 1;
        single_m_ = m_, single_n_ = n_, single_k_ = k_;
    }
    int32_t bits() const
    {
        switch (type_) {
            case DataType::DT_FLOAT:
            case DataType::DT_INT32:
                return 32;
            case DataType::DT_INT8:
            case DataType::DT_UINT8:
                return 8;
            case DataType::DT_INT4:
                return 4;
            default:
                return 16;
        }
    }
    static int32_t whole(int32_t value, int32_t to)
    {
        return int32_t(npusim::align_up(value, to));
    }
    // Tiles of 128 x 256, and as deep as two of each fit into L0 (asc-devkit, TCubeTiling).
    void fit_tiles()
    {
        int32_t c0 = 256 / bits(), step = c0 < 16 ? 16 : c0;
        base_m_ = fixed_m_ > 0 ? fixed_m_ : std::min(whole(single_m_, step), 128);
        base_n_ = fixed_n_ > 0 ? fixed_n_ : std::min(whole(single_n_, step), 256);
        int32_t widest = std::max(whole(base_m_, step), whole(base_n_, step));
        int32_t room = NPUSIM_L0B_BYTES / 2 * 8 / bits() / widest / step * step;
        int32_t depth = std::min(whole(single_k_, step), std::max(room, step));
        base_k_ = fixed_k_ > 0 ? fixed_k_ : depth;
    }
    // How many tiles of k are loaded into L1 at once.
    int32_t step() const
    {
        int64_t room = NPUSIM_L1_BYTES * 3 / 8 * 8 / bits();
        int64_t fits = room / (int64_t(base_m_ + base_n_) * base_k_);
        int64_t needed = (single_k_ + base_k_ - 1) / base_k_;
        return int32_t(std::max<int64_t>(1, std::min(fits, needed)));
    }

    ::TCubeTiling given_;
    DataType type_ = DataType::DT_FLOAT16;
    MatrixTraverse traverse_ = MatrixTraverse::NOSET;
    bool is_a_turned_ = false, is_b_turned_ = false, has_bias_ = false;
    int32_t m_ = 0, n_ = 0, k_ = 0;
    int32_t org_m_ = 0, org_n_ = 0, org_ka_ = 0, org_kb_ = 0;
    int32_t fixed_m_ = -1, fixed_n_ = -1, fixed_k_ = -1;
    int32_t used_ = 1, single_m_ = 0, single_n_ = 0, single_k_ = 0;
    int32_t base_m_ = 0, base_n_ = 0, base_k_ = 0;
};

class MatmulApiTiling : public MatmulApiTilingBase {
public:
    using MatmulApiTilingBase::MatmulApiTilingBase;
};

class BatchMatmulTiling : public MatmulApiTilingBase {
public:
    using MatmulApiTilingBase::MatmulApiTilingBase;
};

class MultiCoreMatmulTiling : public MatmulApiTilingBase {
public:
    using MatmulApiTilingBase::MatmulApiTilingBase;

    int32_t SetDim(int32_t dim)
    {
        dim_ = dim;
        return 0;
    }
    int32_t SetSingleShape(int32_t singleMIn = -1, int32_t singleNIn = -1, int32_t singleKIn = -1)
    {
        given_m_ = singleMIn, given_n_ = singleNIn, given_k_ = singleKIn;
        return 0;
    }
    int32_t SetSingleRange(int32_t = -1, int32_t = -1, int32_t = -1, int32_t = -1, int32_t = -1,
                           int32_t = -1)
    {
        return 0;
    }
    int32_t SetAlignSplit(int32_t, int32_t, int32_t) { return 0; }
    void SetSplitK(bool flag)
    {
        splits_k_ = flag;
    }
    void EnableMultiCoreSplitK(bool flag)
    {
        splits_k_ = flag;
    }
    int32_t GetSingleShape(int32_t& shapeM, int32_t& shapeN, int32_t& shapeK)
    {
        shapeM = single_m_, shapeN = single_n_, shapeK = single_k_;
        return 0;
    }
    int32_t GetCoreNum(int32_t& dim, int32_t& mDim, int32_t& nDim)
    {
        dim = used_;
        mDim = npusim::ceil_div(m_, single_m_);
        nDim = npusim::ceil_div(n_, single_n_);
        return 0;
    }

protected:
    // The split whose largest part is smallest; of several the one that loads least, or cuts more
    // rows. One without a rest comes first, unless its parts are twice as large (assumed).
    void split() override
    {
        int64_t least = INT64_MAX, least_even = INT64_MAX;
        int32_t even_m = 0, even_n = 0, step = bits() < 16 ? 256 / bits() : 16;
        for (int32_t rows = 1; rows <= dim_; ++rows) {
            for (int32_t columns = std::max(dim_ / rows, 1); columns > 0; --columns) {
                int32_t m = given_m_ > 0 ? given_m_ : whole(npusim::ceil_div(m_, rows), step);
                int32_t n = given_n_ > 0 ? given_n_ : whole(npusim::ceil_div(n_, columns), step);
                m = std::min(m, m_), n = std::min(n, n_);
                bool has_tiles = fixed_m_ > 0 && fixed_n_ > 0;
                int64_t cost = int64_t(m) * n * 1024 + (has_tiles ? 0 : m + n);
                if (cost < least || (cost == least && rows > 1 && columns == dim_ / rows)) {
                    least = cost;
                    single_m_ = m, single_n_ = n;
                }
                bool is_even = m_ % m == 0 && n_ % n == 0;
                // Columns of fixed tiles come before rows of them.
                bool is_column = fixed_n_ > 0 && even_n == fixed_n_;
                if (is_even && (cost < least_even || (cost == least_even && !is_column))) {
                    least_even = cost;
                    even_m = m, even_n = n;
                }
            }
        }
        if (least_even / 2 <= least) {
            single_m_ = even_m, single_n_ = even_n;
        }
        used_ = npusim::ceil_div(m_, single_m_) * npusim::ceil_div(n_, single_n_);
        single_k_ = given_k_ > 0 ? given_k_ : k_;
        if (splits_k_ && given_k_ <= 0 && used_ < dim_) {
            single_k_ = part_of_k(dim_ / used_, step);
        }
        used_ *= npusim::ceil_div(k_, single_k_);
    }

private:
    // Parts of k of one length, as many as there may be.
    int32_t part_of_k(int32_t most, int32_t step) const
    {
        while (most > 1 && (k_ % most || k_ / most % step)) {
            --most;
        }
        return k_ / most;
    }

    int32_t dim_ = 1;
    int32_t given_m_ = -1, given_n_ = -1, given_k_ = -1;
    bool splits_k_ = false;
};

}  // namespace matmul_tiling
