// Matmul: products of large matrices, cut into tiles that are loaded ahead of the cube.
#pragma once

#include "npusim_ascendc/matmul_batches.h"

namespace AscendC {

template <class A_TYPE, class B_TYPE, class C_TYPE, class BIAS_TYPE = C_TYPE,
          const auto& MM_CFG = CFG_NORM, class MM_CB = MatmulCallBackFunc<nullptr, nullptr, nullptr>,
          template <const auto&, typename...> class MATMUL_POLICY = Impl::Detail::MatmulPolicy>
class Matmul : public npusim::MatmulHints,
               public npusim::Batches<Matmul<A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE, MM_CFG, MM_CB,
                                             MATMUL_POLICY>, A_TYPE, B_TYPE, C_TYPE>,
               npusim::Owner,
               npusim::Tiles {
    friend class npusim::Batches<Matmul, A_TYPE, B_TYPE, C_TYPE>;
    using SrcAT = typename A_TYPE::T;
    using SrcBT = typename B_TYPE::T;
    using DstT = typename C_TYPE::T;
    using BiasT = typename BIAS_TYPE::T;
    using Sum = std::conditional_t<(npusim::TypeOf<SrcAT>::bits <= 8), int32_t, float>;
    static constexpr const MatmulConfig& CONFIG = npusim::config_of(MM_CFG);
    static constexpr bool IS_SPLIT = CONFIG.isEnableChannelSplit &&
                                     C_TYPE::format == CubeFormat::NZ &&
                                     std::is_same<DstT, float>::value;

public:
    Matmul() : outer_(npusim_core()->pipe)
    {
        npusim_core()->pipe = outer_;
    }
    ~Matmul()
    {
        if (npusim_core()->kind == npusim::VECTOR_CORE && tiling_.baseM > 0) {
            End();
        }
        if (npusim::matrix().owner == static_cast<npusim::Owner*>(this)) {
            settle();
            npusim::matrix().owner = nullptr;
        }
    }
    __aicore__ inline void Init(const TCubeTiling* __restrict cubeTiling, TPipe* tpipe = nullptr)
    {
        (void)tpipe;
        npusim::refuse_what_differs<A_TYPE, B_TYPE, C_TYPE>(CONFIG, IS_SPLIT);
        in_parts_ = CONFIG.isPartialOutput;
        if (cubeTiling != nullptr) {
            tiling_ = *cubeTiling;
        } else if constexpr (std::is_base_of<TCubeTiling, std::decay_t<decltype(MM_CFG)>>::value) {
            tiling_ = MM_CFG;
        }
        if (tiling_.baseM <= 0 || tiling_.baseN <= 0 || tiling_.baseK <= 0) {
            npusim_refuse("Matmul: the tiling must have baseM, baseN and baseK of at least 1, not "
                          "%d, %d and %d; take it from GetTiling",
                          tiling_.baseM, tiling_.baseN, tiling_.baseK);
        }
        set_whole(tiling_.M, tiling_.N, tiling_.Ka, tiling_.Kb, 0);
        set_single(tiling_.singleCoreM, tiling_.singleCoreN, tiling_.singleCoreK);
    }
    __aicore__ inline void SetOrgShape(int orgM, int orgN, int orgK)
    {
        SetOrgShape(orgM, orgN, orgK, orgK);
    }
    __aicore__ inline void SetOrgShape(int orgM, int orgN, int orgKa, int orgKb, int orgKc = 0)
    {
        npusim::refuse_call(CONFIG.enableSetOrgShape, "SetOrgShape", "enableSetOrgShape");
        set_whole(orgM, orgN, orgKa, orgKb, orgKc);
    }
    __aicore__ inline void SetSingleShape(int singleM, int singleN, int singleK)
    {
        set_single(singleM, singleN, singleK);
    }
    __aicore__ inline void SetTail(int tailM = -1, int tailN = -1, int tailK = -1)
    {
        npusim::refuse_call(CONFIG.enableSetTail, "SetTail", "enableSetTail");
        set_single(tailM, tailN, tailK);
    }
    __aicore__ inline void SetTensorA(const GlobalTensor<SrcAT>& gm, bool isTransposeA = false)
    {
        is_stale_ = true;
        a_.matrix = gm;
        a_.is_turned = isTransposeA;
        next_ = 0;
    }
    __aicore__ inline void SetTensorB(const GlobalTensor<SrcBT>& gm, bool isTransposeB = false)
    {
        is_stale_ = true;
        b_.matrix = gm;
        b_.is_turned = isTransposeB;
        next_ = 0;
    }
    __aicore__ inline void SetBias(const GlobalTensor<BiasT>& biasGlobal)
    {
        npusim::refuse_call(CONFIG.enableSetBias, "SetBias", "enableSetBias");
        npusim::refuse_layout<BIAS_TYPE>("SetBias", "the bias", {CubeFormat::ND});
        bias_ = biasGlobal;
        has_bias_ = true;
    }
    __aicore__ inline void ClearBias()
    {
        has_bias_ = false;
    }
    __aicore__ inline void DisableBias()
    {
        has_bias_ = false;
    }
    __aicore__ inline void SetQuantScalar(const uint64_t quantScalar)
    {
        npusim::refuse_call(CONFIG.enableQuantVector, "SetQuantScalar", "enableQuantVector");
        scale_ = quantScalar;
        has_scales_ = false;
    }
    __aicore__ inline void SetQuantVector(const GlobalTensor<uint64_t>& quantTensor)
    {
        npusim::refuse_call(CONFIG.enableQuantVector, "SetQuantVector", "enableQuantVector");
        scales_ = quantTensor;
        has_scales_ = true;
    }
    template <bool sync = true>
    __aicore__ inline bool Iterate(bool enPartialSum = false)
    {
        npusim::refuse_iterating(CONFIG, IterateMode::ITERATE_MODE_NORMAL, "Iterate");
        npusim::refuse_batches<A_TYPE, B_TYPE, C_TYPE>("Iterate");
        npusim::refuse_order(CONFIG);
        npusim::refuse_sharing<A_TYPE, B_TYPE>("Iterate", true);
        if (npusim_core()->kind == npusim::VECTOR_CORE) {
            // Both vector cores have objects, and one tile is in L0C: it is computed for the one
            // that takes it, when that does.
            is_awaited_ = !enPartialSum;
            bool found = is_awaited_ ? find_next<Policy>() : false;
            if (enPartialSum) {
                npusim::serve([&] { found = Iterate<sync>(enPartialSum); });
            }
            return found;
        }
        return advance(enPartialSum);
    }
    template <bool sync = true>
    __aicore__ inline void GetTensorC(const GlobalTensor<DstT>& gm, uint8_t enAtomic = 0,
                                      bool enSequentialWrite = false)
    {
        npusim::refuse_call(CONFIG.enableGetTensorC, "GetTensorC", "enableGetTensorC");
        if (npusim_core()->kind == npusim::VECTOR_CORE) {
            npusim::serve([&] {
                if (!is_awaited_ || advance(false)) {
                    GetTensorC<sync>(gm, enAtomic, enSequentialWrite);
                }
            });
            return;
        }
        write(gm, enAtomic, enSequentialWrite);
    }
    // Into a buffer of a vector core, by way of global memory.
    template <bool sync = true>
    __aicore__ inline void GetTensorC(const LocalTensor<DstT>& co2Local, uint8_t enAtomic = 0,
                                      bool = false)
    {
        uint32_t elements = tiling_.baseM * tiling_.baseN;
        GlobalTensor<DstT> tile = in_passing_.tile(elements);
        GetTensorC<sync>(tile, enAtomic, true);
        in_passing_.take(co2Local, tile, elements);
    }
    template <bool sync = true>
    __aicore__ inline void IterateAll(const GlobalTensor<DstT>& gm, uint8_t enAtomic = 0,
                                      bool enSequentialWrite = false, bool = false, bool = false)
    {
        npusim::refuse_iterating(CONFIG, IterateMode::ITERATE_MODE_ALL, "IterateAll");
        npusim::refuse_batches<A_TYPE, B_TYPE, C_TYPE>("IterateAll");
        npusim::refuse_sharing<A_TYPE, B_TYPE>("IterateAll", enAtomic != 0);
        if (npusim_core()->kind == npusim::VECTOR_CORE) {
            npusim::serve([&] { IterateAll<sync>(gm, enAtomic, enSequentialWrite); });
            return;
        }
        while (advance(false)) {
            write(gm, enAtomic, enSequentialWrite);
        }
    }
    __aicore__ inline MatrixOffset GetOffsetC()
    {
        int32_t row = row_ * tiling_.baseM, column = column_ * tiling_.baseN;
        return {int32_t(row * width_) + column, row, column, int32_t(rows()), int32_t(columns())};
    }
    __aicore__ inline void End()
    {
        if (npusim_core()->kind == npusim::VECTOR_CORE) {
            if (!is_ended_) {
                is_ended_ = true;
                npusim::serve_last([&] { End(); });
            }
            return;
        }
        if (is_begun_) {
            settle();
            npusim::matrix().owner = nullptr;
        }
    }
    template <class T>
    __aicore__ inline void SetWorkspace(GlobalTensor<T>& addr)
    {
        in_passing_.set(addr.GetPhyAddr());
    }
    template <class T>
    __aicore__ inline void SetWorkspace(__gm__ const T* addr, int)
    {
        in_passing_.set(addr);
    }

private:
    static_assert(A_TYPE::pos == TPosition::GM && B_TYPE::pos == TPosition::GM,
                  "npusim: the factors of a Matmul must be in global memory");
    static_assert(C_TYPE::pos == TPosition::GM || C_TYPE::pos == TPosition::VECIN ||
                      C_TYPE::pos == TPosition::VECCALC,
                  "npusim: the product of a Matmul must be for global memory or a vector core");
    using Policy = MATMUL_POLICY<MM_CFG, Matmul, A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE>;
    static_assert(!MM_CB::is_set, "npusim: a Matmul must have no functions of MatmulCallBackFunc");

    void set_whole(int m, int n, int ka, int kb, int width)
    {
        a_.lines_in_all = m;
        a_.k_in_all = ka;
        b_.lines_in_all = n;
        b_.k_in_all = kb;
        width_ = width != 0 ? width : n;
    }
    // The next tile of the product, if there is one.
    bool advance(bool goes_on)
    {
        begin();
        npusim::Within own(pipe_);
        if (!find_next<Policy>()) {
            return false;
        }
        take_over();
        uint32_t from = parts() == 1 ? 0 : next_ % parts() * tiling_.baseK;
        multiply(goes_on, from, parts() == 1 ? k_ : from + tiling_.baseK);
        ++next_;
        return true;
    }
    // The product of one batch: how far its matrices are from those that are set, and the pitches
    // of their rows where they are not those of the whole.
    void multiply_batch(uint64_t a, uint32_t pitch_a, uint64_t b, uint32_t pitch_b, uint32_t number,
                        const GlobalTensor<DstT>& gm, uint32_t pitch_c, bool is_alone,
                        uint8_t atomic)
    {
        npusim::InMemory<SrcAT> whole_a = a_;
        npusim::InMemory<SrcBT> whole_b = b_;
        auto bias = bias_;
        uint32_t width = width_;
        a_.matrix = a_.matrix[a], b_.matrix = b_.matrix[b], width_ = pitch_c;
        if (pitch_a != 0) {
            (a_.is_turned ? a_.lines_in_all : a_.k_in_all) = pitch_a;
            (b_.is_turned ? b_.k_in_all : b_.lines_in_all) = pitch_b;
        }
        if (has_bias_ && CONFIG.isBiasBatch) {
            bias_ = bias_[uint64_t(number) * tiling_.N];
        }
        is_stale_ = true;
        next_ = 0;
        while (advance(false)) {
            write(gm, atomic, is_alone);
        }
        static_cast<npusim::InMemory<SrcAT>&>(a_) = whole_a;
        static_cast<npusim::InMemory<SrcBT>&>(b_) = whole_b;
        bias_ = bias, width_ = width;
    }
    void write(const GlobalTensor<DstT>& gm, uint8_t atomic, bool is_alone)
    {
        npusim::Within own(pipe_);
        int32_t before = npusim_core()->atomic, type = npusim_core()->atomic_type;
        if (atomic != 0) {
            npusim::set_atomic(npusim::Atomic(atomic), npusim::TypeOf<DstT>::number);
        }
        drain(gm, is_alone);
        npusim::set_atomic(npusim::Atomic(before), type);
    }
    // Buffers are claimed when the first matrix comes.
    void begin()
    {
        if (is_begun_) {
            return;
        }
        if (a_.lines_in_all == 0 || b_.lines_in_all == 0 || a_.k_in_all == 0 ||
            b_.k_in_all == 0) {
            npusim_refuse("Matmul: M, N, Ka and Kb of the whole matrices must be at least 1, not "
                          "%u, %u, %u and %u; call SetOrgShape",
                          a_.lines_in_all, b_.lines_in_all, a_.k_in_all, b_.k_in_all);
        }
        is_begun_ = true;
        npusim::Within own(pipe_);
        npusim::record("PipeBarrier", PIPE_ALL);
        uint32_t step_a = npusim::at_least_one(tiling_.stepKa), step_b = npusim::at_least_one(tiling_.stepKb);
        a_.claim(pipe_, tiling_.baseM, tiling_.baseK, step_a, npusim::pieces(tiling_.depthA1, step_a),
                 tiling_.dbL0A == 2);
        b_.claim(pipe_, tiling_.baseN, tiling_.baseK, step_b, npusim::pieces(tiling_.depthB1, step_b),
                 tiling_.dbL0B == 2);
        uint32_t wide = npusim::align_up(tiling_.baseN, npusim::FRACTAL_ROWS);
        uint32_t sums = npusim::align_up(tiling_.baseM, npusim::FRACTAL_ROWS) * wide;
        pipe_.InitBuffer(sums_, tiling_.dbL0C == 2 ? 2 : 1, sums * sizeof(Sum));
        if (tiling_.isBias) {
            pipe_.InitBuffer(bias_in_l1_, 1, wide * sizeof(Sum));
            pipe_.InitBuffer(bias_table_, 1, wide * sizeof(Sum));
        }
        pipe_.InitBuffer(scales_in_l1_, wide * sizeof(uint64_t));
    }
    // Objects of a core work in the same places, one after the other.
    void take_over()
    {
        auto* owner = static_cast<npusim::Owner*>(npusim::matrix().owner);
        if (owner != this) {
            if (owner != nullptr) {
                owner->settle();
            }
            npusim::matrix().owner = static_cast<npusim::Owner*>(this);
        }
        if (is_stale_) {
            a_.forget();
            b_.forget();
            is_stale_ = false;
        }
    }
    void settle() override
    {
        npusim::Within own(pipe_);
        a_.settle();
        b_.settle();
        sums_.FreeAllEvent();
        bias_in_l1_.FreeAllEvent();
        bias_table_.FreeAllEvent();
        npusim::record("PipeBarrier", PIPE_ALL);
    }
    // The sums of a tile, which stay in the queue of L0C.
    void multiply(bool goes_on, uint32_t from, uint32_t to)
    {
        to = to < k_ ? to : k_;
        LocalTensor<Sum> sums;
        if (goes_on && sums_.HasTensorInQue()) {
            sums = sums_.template DeQue<Sum>();
        } else {
            sums = sums_.template AllocTensor<Sum>();
            goes_on = false;
        }
        LocalTensor<Sum> table;
        bool with_bias = has_bias_ && !goes_on && from == 0;
        if (with_bias) {
            table = load_bias();
        }
        for (uint32_t k = from; k < to; k += tiling_.baseK) {
            uint32_t depth = to - k < uint32_t(tiling_.baseK) ? to - k : tiling_.baseK;
            auto a = a_.take({row_ * tiling_.baseM, rows(), k, depth}, k_);
            auto b = b_.take({column_ * tiling_.baseN, columns(), k, depth}, k_);
            MmadParams by(rows(), columns(), depth);
            by.disableGemv = true;
            by.cmatrixInitVal = k == from && !goes_on;
            if (k == from && with_bias) {
                Mmad(sums, a, b, table, by);
            } else {
                Mmad(sums, a, b, by);
            }
            if (rows() * columns() < 10 * npusim::FRACTAL_ROWS * npusim::FRACTAL_ROWS) {
                npusim::record("PipeBarrier", PIPE_M);
            }
            a_.give_back(a);
            b_.give_back(b);
        }
        if (with_bias) {
            bias_table_.FreeTensor(table);
        }
        sums_.EnQue(sums);
    }
    LocalTensor<Sum> load_bias()
    {
        auto piece = bias_in_l1_.template AllocTensor<BiasT>();
        uint32_t count = npusim::align_up(columns(), npusim::BLOCK_BYTES / sizeof(BiasT));
        DataCopy(piece, bias_[column_ * tiling_.baseN],
                 Nd2NzParams(1, 1, columns(), 0, columns(), 1, 1, 0));
        bias_in_l1_.EnQue(piece);
        piece = bias_in_l1_.template DeQue<BiasT>();
        auto table = bias_table_.template AllocTensor<Sum>();
        npusim::record("DataCopy", table, piece, count);
        bias_table_.EnQue(table);
        bias_in_l1_.FreeTensor(piece);
        return bias_table_.template DeQue<Sum>();
    }
    void drain(const GlobalTensor<DstT>& gm, bool is_alone)
    {
        auto sums = sums_.template DeQue<Sum>();
        constexpr bool is_nz = C_TYPE::format == CubeFormat::NZ;
        constexpr uint32_t wide = sizeof(DstT) == 1 ? 32 : IS_SPLIT ? 8 : npusim::FRACTAL_ROWS;
        uint32_t row = is_alone ? 0 : row_ * tiling_.baseM;
        uint32_t column = is_alone ? 0 : column_ * tiling_.baseN;
        uint64_t high = npusim::align_up(is_alone ? rows() : a_.lines_in_all, npusim::FRACTAL_ROWS);
        uint64_t width = is_alone ? uint32_t(tiling_.baseN) : width_;
        if constexpr (C_TYPE::format == CubeFormat::ND_ALIGN) {
            width = npusim::align_up(width, npusim::BLOCK_BYTES / sizeof(DstT));
        }
        FixpipeParamsV220 by(columns(), rows(), npusim::align_up(rows(), npusim::FRACTAL_ROWS),
                             is_nz ? high * wide * sizeof(DstT) / npusim::BLOCK_BYTES : width,
                             false);
        if constexpr (is_nz) {
            by.nSize = npusim::align_up(columns(), wide);
        }
        by.quantPre = npusim::mode_of<Sum, DstT>(has_scales_);
        by.deqScalar = scale_;
        by.isChannelSplit = IS_SPLIT;
        auto there = is_nz ? gm[column * high + row * wide] : gm[row * width + column];
        constexpr auto& layout = is_nz ? CFG_NZ : CFG_ROW_MAJOR;
        if (has_scales_) {
            auto scales = scales_in_l1_.template Get<uint64_t>();
            npusim::record("PipeBarrier", PIPE_ALL);
            DataCopy(scales, scales_[column_ * tiling_.baseN], npusim::align_up(columns(), 4));
            npusim::record("PipeBarrier", PIPE_ALL);
            Fixpipe<DstT, Sum, layout>(there, sums, scales, by);
        } else {
            Fixpipe<DstT, Sum, layout>(there, sums, by);
        }
        sums_.FreeTensor(sums);
    }

    void* outer_;
    TPipe pipe_;
    npusim::Factor<A_TYPE, TPosition::A1, TPosition::A2, false> a_;
    npusim::Factor<B_TYPE, TPosition::B1, TPosition::B2, true> b_;
    TQue<TPosition::CO1, 1> sums_;
    TQue<TPosition::C1, 1> bias_in_l1_;
    TQue<TPosition::C2, 1> bias_table_;
    TBuf<TPosition::C1> scales_in_l1_;
    GlobalTensor<BiasT> bias_;
    GlobalTensor<uint64_t> scales_;
    uint64_t scale_ = 0;
    uint32_t width_ = 0;
    bool has_bias_ = false;
    bool has_scales_ = false;
    bool is_begun_ = false;
    bool is_stale_ = false;
    bool is_ended_ = false;
    bool is_awaited_ = false;
    npusim::TilesInPassing<DstT> in_passing_;
};

template <class A_TYPE, class B_TYPE, class C_TYPE, class BIAS_TYPE = C_TYPE,
          const auto& MM_CFG = CFG_NORM, class MM_CB = MatmulCallBackFunc<nullptr, nullptr, nullptr>,
          template <const auto&, typename...> class MATMUL_POLICY = Impl::Detail::MatmulPolicy>
using MatmulImpl = Matmul<A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE, MM_CFG, MM_CB, MATMUL_POLICY>;

}  // namespace AscendC

namespace matmul {
using namespace AscendC;
}  // namespace matmul
