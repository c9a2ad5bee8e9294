// Matmul: products of large matrices, cut into tiles that are loaded ahead of the cube.
#pragma once

#include "npusim_ascendc/matmul_config.h"
#include "npusim_ascendc/buffers.h"
#include "npusim_ascendc/queue.h"

namespace npusim {

constexpr uint32_t FRACTAL_ROWS = 16;

template <typename T>
constexpr uint32_t C0 = BLOCK_BYTES * 8 / TypeOf<T>::bits;

template <typename T>
constexpr uint32_t bytes_of(uint32_t count)
{
    return uint64_t(count) * TypeOf<T>::bits / 8;
}

constexpr uint32_t ceil_div(uint32_t value, uint32_t by)
{
    return (value + by - 1) / by;
}

constexpr uint32_t align_up(uint32_t value, uint32_t to)
{
    return ceil_div(value, to) * to;
}

// What TPipe::current() is while an object of the library works with buffers of its own.
class Within {
public:
    explicit Within(AscendC::TPipe& pipe) : outer_(npusim_core()->pipe)
    {
        npusim_core()->pipe = &pipe;
    }
    ~Within()
    {
        npusim_core()->pipe = outer_;
    }

private:
    void* outer_;
};

// Lines of a matrix that are multiplied, and the lines of k behind each other in each of them.
struct Part {
    uint32_t line;
    uint32_t lines;
    uint32_t k;
    uint32_t depth;
};

// One operand: its piece in L1 stays there until another one is asked for.
template <typename TYPE, AscendC::TPosition IN_L1, AscendC::TPosition IN_L0, bool IS_RIGHT>
class Factor {
    using T = typename TYPE::T;

public:
    AscendC::GlobalTensor<T> matrix;
    bool is_turned = TYPE::isTrans;
    uint32_t lines_in_all = 0;
    uint32_t k_in_all = 0;

    void claim(AscendC::TPipe& pipe, uint32_t lines, uint32_t depth, uint32_t step,
               uint32_t pieces, bool twice)
    {
        uint32_t whole = align_up(lines, FRACTAL_ROWS > C0<T> ? FRACTAL_ROWS : C0<T>);
        uint32_t most = C0<T> > FRACTAL_ROWS ? C0<T> : FRACTAL_ROWS;
        chunk_ = depth * step;
        pipe.InitBuffer(in_l1_, pieces, bytes_of<T>(whole * align_up(chunk_, most)));
        pipe.InitBuffer(in_l0_, twice ? 2 : 1, bytes_of<T>(whole * align_up(depth, most)));
    }
    // A part in L0, from which the cube may read.
    AscendC::LocalTensor<T> take(const Part& part, uint32_t k_end)
    {
        load(part, k_end);
        auto tile = in_l0_.template AllocTensor<T>();
        uint32_t rows = k_is_first() ? part.depth : part.lines;
        uint32_t columns = k_is_first() ? part.lines : part.depth;
        uint32_t from = part.k - held_.k;
        record("LoadMatrix", tile, piece_, padded(k_is_first() ? held_.depth : held_.lines),
               k_is_first() ? from : 0, k_is_first() ? 0 : from, rows, columns, k_is_first());
        in_l0_.EnQue(tile);
        return in_l0_.template DeQue<T>();
    }
    void give_back(AscendC::LocalTensor<T>& tile)
    {
        in_l0_.FreeTensor(tile);
    }
    void forget()
    {
        if (is_held_) {
            in_l1_.FreeTensor(piece_);
            is_held_ = false;
        }
    }

private:
    bool k_is_first() const
    {
        return is_turned != IS_RIGHT;
    }
    uint32_t padded(uint32_t rows) const
    {
        return align_up(rows, k_is_first() && C0<T> > FRACTAL_ROWS ? C0<T> : FRACTAL_ROWS);
    }
    void load(const Part& part, uint32_t k_end)
    {
        uint32_t k = part.k / chunk_ * chunk_;
        Part wanted{part.line, part.lines, k, k_end - k < chunk_ ? k_end - k : chunk_};
        if (is_held_ && held_.line == wanted.line && held_.k == k &&
            held_.lines == wanted.lines && held_.depth == wanted.depth) {
            return;
        }
        forget();
        piece_ = in_l1_.template AllocTensor<T>();
        held_ = wanted;
        if (k_is_first()) {
            fetch(k, wanted.line, wanted.depth, wanted.lines, lines_in_all, k_in_all);
        } else {
            fetch(wanted.line, k, wanted.lines, wanted.depth, k_in_all, lines_in_all);
        }
        in_l1_.EnQue(piece_);
        piece_ = in_l1_.template DeQue<T>();
        is_held_ = true;
    }
    void fetch(uint32_t row, uint32_t column, uint32_t rows, uint32_t columns, uint32_t width,
               uint32_t height)
    {
        if constexpr (TYPE::format == CubeFormat::NZ) {
            uint32_t high = align_up(height, FRACTAL_ROWS), whole = align_up(rows, FRACTAL_ROWS);
            record("DataCopyBlocks", piece_,
                   matrix[uint64_t(column / C0<T>) * high * C0<T> + row * C0<T>],
                   ceil_div(columns, C0<T>), whole, high - whole, padded(rows) - whole);
        } else {
            uint32_t pair = TypeOf<T>::bits < 8 ? 2 : 1;
            record("DataCopyNd2Nz", piece_, matrix[uint64_t(row) * width + column], 1, rows,
                   columns / pair, 0, width / pair, padded(rows), 1, 0);
        }
    }

    AscendC::TQue<IN_L1, 1> in_l1_;
    AscendC::TQue<IN_L0, 1> in_l0_;
    AscendC::LocalTensor<T> piece_;
    Part held_{};
    uint32_t chunk_ = 1;
    bool is_held_ = false;
};

// How sums become what they are in global memory.
template <typename Sum, typename Out>
constexpr QuantMode_t mode_of(bool has_vector)
{
    if constexpr (std::is_same<Sum, Out>::value) {
        return NoQuant;
    } else if constexpr (std::is_same<Out, bfloat16_t>::value) {
        return F322BF16;
    } else if constexpr (std::is_same<Out, half>::value) {
        return std::is_same<Sum, float>::value ? F322F16 : has_vector ? VDEQF16 : DEQF16;
    } else if constexpr (std::is_same<Sum, float>::value) {
        return has_vector ? VQF322B8_PRE : QF322B8_PRE;
    } else {
        return has_vector ? VREQ8 : REQ8;
    }
}

}  // namespace npusim

namespace AscendC {

template <class A_TYPE, class B_TYPE, class C_TYPE, class BIAS_TYPE = C_TYPE,
          const auto& MM_CFG = CFG_NORM, class MM_CB = MatmulCallBackFunc<nullptr, nullptr, nullptr>>
class Matmul {
    using SrcAT = typename A_TYPE::T;
    using SrcBT = typename B_TYPE::T;
    using DstT = typename C_TYPE::T;
    using BiasT = typename BIAS_TYPE::T;
    using Sum = std::conditional_t<(npusim::TypeOf<SrcAT>::bits <= 8), int32_t, float>;

public:
    Matmul() : outer_(npusim_core()->pipe)
    {
        npusim_core()->pipe = outer_;
    }
    __aicore__ inline void Init(const TCubeTiling* __restrict cubeTiling, TPipe* tpipe = nullptr)
    {
        (void)tpipe;
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
        SetOrgShape(tiling_.M, tiling_.N, tiling_.Ka, tiling_.Kb);
        SetSingleShape(tiling_.singleCoreM, tiling_.singleCoreN, tiling_.singleCoreK);
    }
    __aicore__ inline void SetOrgShape(int orgM, int orgN, int orgK)
    {
        SetOrgShape(orgM, orgN, orgK, orgK);
    }
    __aicore__ inline void SetOrgShape(int orgM, int orgN, int orgKa, int orgKb, int orgKc = 0)
    {
        a_.lines_in_all = orgM;
        a_.k_in_all = orgKa;
        b_.lines_in_all = orgN;
        b_.k_in_all = orgKb;
        width_ = orgKc != 0 ? orgKc : orgN;
    }
    __aicore__ inline void SetSingleShape(int singleM, int singleN, int singleK)
    {
        SetTail(singleM, singleN, singleK);
    }
    __aicore__ inline void SetTail(int tailM = -1, int tailN = -1, int tailK = -1)
    {
        m_ = tailM >= 0 ? tailM : m_;
        n_ = tailN >= 0 ? tailN : n_;
        k_ = tailK >= 0 ? tailK : k_;
    }
    __aicore__ inline void SetTensorA(const GlobalTensor<SrcAT>& gm, bool isTransposeA = false)
    {
        begin();
        a_.forget();
        a_.matrix = gm;
        a_.is_turned = isTransposeA;
        next_ = 0;
    }
    __aicore__ inline void SetTensorB(const GlobalTensor<SrcBT>& gm, bool isTransposeB = false)
    {
        begin();
        b_.forget();
        b_.matrix = gm;
        b_.is_turned = isTransposeB;
        next_ = 0;
    }
    __aicore__ inline void SetBias(const GlobalTensor<BiasT>& biasGlobal)
    {
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
        scale_ = quantScalar;
        has_scales_ = false;
    }
    __aicore__ inline void SetQuantVector(const GlobalTensor<uint64_t>& quantTensor)
    {
        scales_ = quantTensor;
        has_scales_ = true;
    }
    template <bool sync = true>
    __aicore__ inline bool Iterate(bool enPartialSum = false)
    {
        npusim::Within own(pipe_);
        if (next_ == tiles_m() * tiles_n()) {
            next_ = 0;
            return false;
        }
        take_over();
        bool m_first = tiling_.iterateOrder == 0;
        row_ = m_first ? next_ % tiles_m() : next_ / tiles_n();
        column_ = m_first ? next_ / tiles_m() : next_ % tiles_n();
        ++next_;
        multiply(enPartialSum);
        return true;
    }
    template <bool sync = true>
    __aicore__ inline void GetTensorC(const GlobalTensor<DstT>& gm, uint8_t enAtomic = 0,
                                      bool enSequentialWrite = false)
    {
        npusim::Within own(pipe_);
        int32_t before = npusim_core()->atomic, type = npusim_core()->atomic_type;
        if (enAtomic != 0) {
            npusim::set_atomic(npusim::Atomic(enAtomic), npusim::TypeOf<DstT>::number);
        }
        drain(gm, enSequentialWrite);
        npusim::set_atomic(npusim::Atomic(before), type);
    }
    template <bool sync = true>
    __aicore__ inline void IterateAll(const GlobalTensor<DstT>& gm, uint8_t enAtomic = 0,
                                      bool enSequentialWrite = false, bool waitIterateAll = false,
                                      bool fakeMsg = false)
    {
        (void)waitIterateAll, (void)fakeMsg;
        while (Iterate<sync>()) {
            GetTensorC<sync>(gm, enAtomic, enSequentialWrite);
        }
    }
    __aicore__ inline MatrixOffset GetOffsetC()
    {
        int32_t row = row_ * tiling_.baseM, column = column_ * tiling_.baseN;
        return {int32_t(row * width_) + column, row, column, int32_t(rows()), int32_t(columns())};
    }
    __aicore__ inline void End()
    {
        if (is_begun_) {
            npusim::Within own(pipe_);
            a_.forget();
            b_.forget();
            npusim::record("PipeBarrier", PIPE_ALL);
        }
    }
    __aicore__ inline void WaitIterateAll() {}
    __aicore__ inline void WaitGetTensorC() {}
    __aicore__ inline void SetHF32(bool enableHF32 = false, int32_t transMode = 0)
    {
        (void)transMode;
        SetHF32Mode(enableHF32 ? HF32Mode::ENABLE : HF32Mode::DISABLE);
    }
    __aicore__ inline void SetUserDefInfo(const uint64_t) {}
    __aicore__ inline void SetSelfDefineData(const uint64_t) {}
    __aicore__ inline void SetLocalWorkspace(const LocalTensor<uint8_t>&) {}
    __aicore__ inline void SetSubBlockIdx(uint8_t) {}
    template <class T>
    __aicore__ inline void SetWorkspace(GlobalTensor<T>&)
    {}
    template <class T>
    __aicore__ inline void SetWorkspace(__gm__ const T*, int)
    {}

private:
    static_assert(A_TYPE::pos == TPosition::GM && B_TYPE::pos == TPosition::GM &&
                      C_TYPE::pos == TPosition::GM,
                  "npusim: the matrices of a Matmul must be in global memory");
    static_assert(!MM_CB::is_set, "npusim: a Matmul must have no functions of MatmulCallBackFunc");

    // Buffers are claimed when the first matrix comes.
    void begin()
    {
        if (is_begun_) {
            return;
        }
        is_begun_ = true;
        npusim::Within own(pipe_);
        npusim::record("PipeBarrier", PIPE_ALL);
        uint32_t step_a = at_least_one(tiling_.stepKa), step_b = at_least_one(tiling_.stepKb);
        a_.claim(pipe_, tiling_.baseM, tiling_.baseK, step_a, pieces(tiling_.depthA1, step_a),
                 tiling_.dbL0A == 2);
        b_.claim(pipe_, tiling_.baseN, tiling_.baseK, step_b, pieces(tiling_.depthB1, step_b),
                 tiling_.dbL0B == 2);
        uint32_t sums = npusim::align_up(tiling_.baseM, npusim::FRACTAL_ROWS) *
                        npusim::align_up(tiling_.baseN, npusim::FRACTAL_ROWS);
        pipe_.InitBuffer(sums_, tiling_.dbL0C == 2 ? 2 : 1, sums * sizeof(Sum));
        uint32_t wide = npusim::align_up(tiling_.baseN, npusim::FRACTAL_ROWS);
        if (tiling_.isBias) {
            pipe_.InitBuffer(bias_in_l1_, 1, wide * sizeof(Sum));
            pipe_.InitBuffer(bias_table_, 1, wide * sizeof(Sum));
        }
        pipe_.InitBuffer(scales_in_l1_, wide * sizeof(uint64_t));
    }
    // Objects of a core work in the same places, one after the other.
    void take_over()
    {
        if (npusim::matrix().owner != this) {
            a_.forget();
            b_.forget();
            npusim::record("PipeBarrier", PIPE_ALL);
            npusim::matrix().owner = this;
        }
    }
    static uint32_t at_least_one(int32_t count)
    {
        return count > 0 ? count : 1;
    }
    static uint32_t pieces(int32_t depth, uint32_t step)
    {
        return depth >= int32_t(2 * step) ? 2 : 1;
    }
    uint32_t tiles_m() const
    {
        return npusim::ceil_div(m_, tiling_.baseM);
    }
    uint32_t tiles_n() const
    {
        return npusim::ceil_div(n_, tiling_.baseN);
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
    // The sums of a tile, which stay in the queue of L0C.
    void multiply(bool goes_on)
    {
        LocalTensor<Sum> sums;
        if (goes_on && sums_.HasTensorInQue()) {
            sums = sums_.template DeQue<Sum>();
        } else {
            sums = sums_.template AllocTensor<Sum>();
            goes_on = false;
        }
        LocalTensor<Sum> table;
        bool with_bias = has_bias_ && !goes_on;
        if (with_bias) {
            table = load_bias();
        }
        for (uint32_t k = 0; k < k_; k += tiling_.baseK) {
            uint32_t depth = k_ - k < uint32_t(tiling_.baseK) ? k_ - k : tiling_.baseK;
            auto a = a_.take({row_ * tiling_.baseM, rows(), k, depth}, k_);
            auto b = b_.take({column_ * tiling_.baseN, columns(), k, depth}, k_);
            MmadParams by(rows(), columns(), depth);
            by.disableGemv = true;
            by.cmatrixInitVal = k == 0 && !goes_on;
            if (k == 0 && with_bias) {
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
        constexpr uint32_t wide = sizeof(DstT) == 1 ? 32 : npusim::FRACTAL_ROWS;
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
    TCubeTiling tiling_{};
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
    uint32_t m_ = 0;
    uint32_t n_ = 0;
    uint32_t k_ = 0;
    uint32_t next_ = 0;
    uint32_t row_ = 0;
    uint32_t column_ = 0;
    bool has_bias_ = false;
    bool has_scales_ = false;
    bool is_begun_ = false;
};

// Objects of vector cores are served by the cube core of their group; npusim has those of the cube
// core alone, which calls them itself.
template <class A_TYPE, class B_TYPE, class C_TYPE, class BIAS_TYPE = C_TYPE,
          const auto& MM_CFG = CFG_NORM, class MM_CB = MatmulCallBackFunc<nullptr, nullptr, nullptr>>
using MatmulImpl = Matmul<A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE, MM_CFG, MM_CB>;

}  // namespace AscendC

namespace matmul {
using AscendC::Matmul;
using AscendC::MatmulImpl;
using AscendC::MatmulType;
}  // namespace matmul

namespace npusim {

template <typename Pipe>
void regist(Pipe*)
{}

template <typename Pipe, typename Object, typename Tiling, typename... More>
void regist(Pipe* pipe, Object& object, Tiling tiling, More&&... more)
{
    if (npusim_core()->kind == VECTOR_CORE) {
        npusim_refuse("REGIST_MATMUL_OBJ: a Matmul must be of a cube core, not of a vector core; "
                      "define ASCENDC_CUBE_ONLY and launch cube cores");
    }
    object.Init(tiling, pipe);
    regist(pipe, more...);
}

}  // namespace npusim

#define REGIST_MATMUL_OBJ(tpipe, workspace, ...) \
    ((void)(workspace), ::npusim::regist(tpipe, __VA_ARGS__))

__aicore__ inline GM_ADDR GetSysWorkSpacePtr()
{
    static uint8_t none[32];
    return none;
}
