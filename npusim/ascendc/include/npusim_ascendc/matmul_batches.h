// Batches of a Matmul: many products of one shape, and where their matrices lie.
#pragma once

#include "npusim_ascendc/matmul_results.h"

namespace npusim {

// The axes of a tensor of batches; those of C call d S2.
struct BatchAxes {
    uint64_t b, s, n, g, d;
};

// Where batch number t begins, and how far apart its rows lie (asc-devkit, IterateBatch.md). Rows
// of NORMAL lie as those of one matrix do.
inline uint64_t batch_offset(LayoutMode layout, const BatchAxes& axes, uint64_t t)
{
    uint64_t heads = axes.n * axes.g;
    switch (layout) {
        case LayoutMode::BSNGD:
            return t / heads * axes.s * heads * axes.d + t % heads * axes.d;
        case LayoutMode::SBNGD:
            return t * axes.d;
        default:
            return t * axes.s * axes.d;
    }
}
inline uint32_t batch_pitch(LayoutMode layout, const BatchAxes& axes)
{
    switch (layout) {
        case LayoutMode::BSNGD:
            return axes.n * axes.g * axes.d;
        case LayoutMode::SBNGD:
            return axes.b * axes.n * axes.g * axes.d;
        default:
            return axes.d;
    }
}

template <typename A_TYPE, typename B_TYPE, typename C_TYPE>
void refuse_batches(const char* call)
{
    for (LayoutMode layout : {A_TYPE::layout, B_TYPE::layout, C_TYPE::layout}) {
        if (layout != LayoutMode::NONE) {
            npusim_refuse("%s: matrices must be of LayoutMode::NONE, not of LayoutMode %d, which "
                          "is of batches; call IterateBatch", call, int(layout));
        }
    }
}

// The calls of a Matmul that multiply batches, one after the other; the vendor's library loads
// several at once, which takes less time.
template <class OWN, class A_TYPE, class B_TYPE, class C_TYPE>
class Batches {
    using DstT = typename C_TYPE::T;

public:
#ifdef ASCENDC_CUBE_ONLY
    __aicore__ inline void SetBatchNum(int32_t batchA, int32_t batchB)
    {
        batch_a_ = batchA, batch_b_ = batchB;
    }
    __aicore__ inline void IterateBatch(const AscendC::GlobalTensor<DstT>& gm, bool enPartialSum,
                                        uint8_t enAtomic, bool enSequentialWrite,
                                        const uint32_t matrixStrideA = 0,
                                        const uint32_t matrixStrideB = 0,
                                        const uint32_t matrixStrideC = 0)
    {
        check(false, "IterateBatch", batch_a_, batch_b_, enPartialSum || matrixStrideC != 0);
        multiply(gm, 0, batch_a_, enSequentialWrite, {matrixStrideA, matrixStrideB}, enAtomic);
    }
#else
    template <bool sync = true, bool waitIterateBatch = false>
    __aicore__ inline void IterateBatch(const AscendC::GlobalTensor<DstT>& gm, uint32_t batchA,
                                        uint32_t batchB, bool enSequentialWrite,
                                        const uint32_t matrixStrideA = 0,
                                        const uint32_t matrixStrideB = 0,
                                        const uint32_t matrixStrideC = 0,
                                        const bool enPartialSum = false,
                                        const uint8_t enAtomic = 0)
    {
        check(false, "IterateBatch", batchA, batchB, enPartialSum || matrixStrideC != 0);
        on_the_cube([&] {
            multiply(gm, 0, batchA, enSequentialWrite, {matrixStrideA, matrixStrideB}, enAtomic);
        });
    }
#endif
    template <typename... Arguments>
    __aicore__ inline void IterateBatch(const AscendC::LocalTensor<DstT>&, Arguments...)
    {
        npusim_refuse("IterateBatch: products must go to global memory, not into a buffer, which "
                      "npusim does not simulate; copy them from there");
    }
    // Each round is one of as many batches behind each other, in the workspace.
    template <bool sync = true, bool waitIterateBatch = false>
    __aicore__ inline void IterateNBatch(const uint32_t batchLoop, uint32_t batchA,
                                         uint32_t batchB, bool enSequentialWrite,
                                         const uint32_t matrixStrideA = 0,
                                         const uint32_t matrixStrideB = 0,
                                         const uint32_t matrixStrideC = 0)
    {
        check(true, "IterateNBatch", batchA, batchB, matrixStrideC != 0);
        AscendC::GlobalTensor<DstT> gm = own().in_passing_.whole();
        on_the_cube([&] {
            for (uint32_t round = 0; round < batchLoop; ++round) {
                multiply(gm, round * batchA, batchA, enSequentialWrite,
                         {matrixStrideA, matrixStrideB}, 0);
            }
        });
    }
    // A call is over when it comes back.
    __aicore__ inline void WaitIterateBatch() {}

private:
    struct Strides {
        uint32_t a, b;
    };
    OWN& own()
    {
        return static_cast<OWN&>(*this);
    }
    template <typename Work>
    void on_the_cube(const Work& work)
    {
        if (npusim_core()->kind == VECTOR_CORE) {
            serve(work);
        } else {
            work();
        }
    }
    void check(bool of_many, const char* call, uint32_t batch_a, uint32_t batch_b, bool is_other)
    {
        IterateMode mode = of_many ? IterateMode::ITERATE_MODE_N_BATCH : IterateMode::ITERATE_MODE_BATCH;
        refuse_iterating(OWN::CONFIG, mode, call);
        if (OWN::CONFIG.isNBatch != of_many) {
            npusim_refuse("%s: isNBatch of MatmulConfig must be %s; set it so, or call %s", call,
                          of_many ? "true" : "false", of_many ? "IterateBatch" : "IterateNBatch");
        }
        if (A_TYPE::layout == LayoutMode::NONE || A_TYPE::layout != B_TYPE::layout ||
            C_TYPE::layout == LayoutMode::NONE) {
            npusim_refuse("%s: A and B must be of one LayoutMode, and C of one, not of %d, %d and "
                          "%d; name one other than NONE", call, int(A_TYPE::layout),
                          int(B_TYPE::layout), int(C_TYPE::layout));
        }
        if (batch_a != batch_b || batch_a == 0) {
            npusim_refuse("%s: batchA and batchB must be one number of 1 or more, not %u and %u, "
                          "since npusim repeats no matrix; make them alike", call, batch_a, batch_b);
        }
        if (is_other) {
            npusim_refuse("%s: enPartialSum must be false and matrixStrideC 0, since npusim does "
                          "not simulate them; add by enAtomic", call);
        }
    }
    void multiply(const AscendC::GlobalTensor<DstT>& gm, uint32_t first, uint32_t count,
                  bool is_alone, Strides strides, uint8_t atomic)
    {
        const TCubeTiling& by = own().tiling_;
        bool is_normal = A_TYPE::layout == LayoutMode::NORMAL;
        BatchAxes a = axes(by.ALayoutInfoB, by.ALayoutInfoS, by.ALayoutInfoN, by.ALayoutInfoG,
                           by.ALayoutInfoD);
        BatchAxes b = axes(by.BLayoutInfoB, by.BLayoutInfoS, by.BLayoutInfoN, by.BLayoutInfoG,
                           by.BLayoutInfoD);
        BatchAxes c = axes(by.CLayoutInfoB, by.CLayoutInfoS1, by.CLayoutInfoN, by.CLayoutInfoG,
                           by.CLayoutInfoS2);
        if (is_normal) {
            a = axes(1, by.M, 1, 1, by.Ka), b = axes(1, by.Kb, 1, 1, by.N);
        }
        if (C_TYPE::layout == LayoutMode::NORMAL) {
            c = axes(1, by.M, 1, 1, by.N);
        }
        if (a.s * a.n * a.g * a.d == 0 || b.s * b.n * b.g * b.d == 0 || c.s * c.n * c.g * c.d == 0) {
            npusim_refuse("IterateBatch: the tiling must have the axes of A, B and C; call "
                          "SetALayout, SetBLayout and SetCLayout, or SetBatchInfoForNormal");
        }
        for (uint32_t t = first; t < first + count; ++t) {
            own().multiply_batch(
                strides.a ? uint64_t(t) * strides.a : batch_offset(A_TYPE::layout, a, t),
                is_normal ? 0 : batch_pitch(A_TYPE::layout, a),
                strides.b ? uint64_t(t) * strides.b : batch_offset(B_TYPE::layout, b, t),
                is_normal ? 0 : batch_pitch(B_TYPE::layout, b), t,
                gm[batch_offset(C_TYPE::layout, c, t)], batch_pitch(C_TYPE::layout, c), is_alone,
                atomic);
        }
    }
    static BatchAxes axes(int64_t b, int64_t s, int64_t n, int64_t g, int64_t d)
    {
        return {uint64_t(b), uint64_t(s), uint64_t(n), uint64_t(g), uint64_t(d)};
    }

#ifdef ASCENDC_CUBE_ONLY
    uint32_t batch_a_ = 0, batch_b_ = 0;
#endif
};

}  // namespace npusim
