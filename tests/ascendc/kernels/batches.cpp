// Products of batches, whose matrices lie as LAYOUT says: one batch of x is of axes b, s, n, g, d.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"
using namespace AscendC;

constexpr MatmulBatchParams SHARED_BIAS{false, BatchMode::BATCH_LESS_THAN_L1, false};
constexpr MatmulBatchParams MANY{true, BatchMode::BATCH_LESS_THAN_L1, true};
constexpr MatmulConfig CFG_SHARED_BIAS = GetMMConfig<MatmulConfigMode::CONFIG_NORM>(SHARED_BIAS);
constexpr MatmulConfig CFG_MANY = GetMMConfig<MatmulConfigMode::CONFIG_NORM>(MANY);

struct Axes {
    int b, n, g, m, columns, k;
};

template <LayoutMode LAYOUT, const auto& CONFIG>
struct Product {
    Matmul<MatmulType<TPosition::GM, CubeFormat::ND, half, false, LAYOUT>,
           MatmulType<TPosition::GM, CubeFormat::ND, half, true, LAYOUT>,
           MatmulType<TPosition::GM, CubeFormat::ND, float, false, LAYOUT>,
           MatmulType<TPosition::GM, CubeFormat::ND, float>, CONFIG>
        matmul;
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> biasGm, cGm;
    TCubeTiling tiling{};

    __aicore__ inline Product(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, const Axes& axes)
    {
        aGm.SetGlobalBuffer((__gm__ half*)a);
        bGm.SetGlobalBuffer((__gm__ half*)b);
        biasGm.SetGlobalBuffer((__gm__ float*)bias);
        cGm.SetGlobalBuffer((__gm__ float*)c);
        tiling.M = axes.m, tiling.N = axes.columns, tiling.Ka = tiling.Kb = axes.k;
        tiling.singleCoreM = axes.m, tiling.singleCoreN = axes.columns, tiling.singleCoreK = axes.k;
        tiling.baseM = tiling.baseN = tiling.baseK = 32;
        tiling.isBias = bias != nullptr;
        tiling.ALayoutInfoB = tiling.BLayoutInfoB = tiling.CLayoutInfoB = axes.b;
        tiling.ALayoutInfoN = tiling.BLayoutInfoN = tiling.CLayoutInfoN = axes.n;
        tiling.ALayoutInfoG = tiling.BLayoutInfoG = tiling.CLayoutInfoG = axes.g;
        tiling.ALayoutInfoS = tiling.CLayoutInfoS1 = axes.m;
        tiling.BLayoutInfoS = tiling.CLayoutInfoS2 = axes.columns;
        tiling.ALayoutInfoD = tiling.BLayoutInfoD = axes.k;
    }
    __aicore__ inline void Set()
    {
        matmul.SetTensorA(aGm);
        matmul.SetTensorB(bGm, true);
        if (tiling.isBias) {
            matmul.SetBias(biasGm);
        }
    }
};

template <LayoutMode LAYOUT, const auto& CONFIG>
__global__ __cube__ void batches(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, Axes axes, int count)
{
    TPipe pipe;
    Product<LAYOUT, CONFIG> product(a, b, bias, c, axes);
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product.matmul, &product.tiling);
    product.Set();
    product.matmul.IterateBatch(product.cGm, count, count, false);
}

// Both vector cores have the same products computed.
template <LayoutMode LAYOUT>
__global__ __mix__(1, 2) void rounds(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, Axes axes,
                                     int count)
{
    TPipe pipe;
    Product<LAYOUT, CFG_MANY> product(a, b, bias, c, axes);
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product.matmul, &product.tiling);
    product.Set();
    product.matmul.SetWorkspace(product.cGm);
    product.matmul.IterateNBatch(axes.b * axes.n * axes.g / count, count, count, false);
    product.matmul.End();
}

// What npusim refuses, by number.
__global__ __cube__ void refused(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, Axes axes, int which)
{
    TPipe pipe;
    Product<LayoutMode::BSNGD, CFG_NORM> product(a, b, bias, c, axes);
    if (which == 0) {
        product.tiling.CLayoutInfoN = 0;
    }
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product.matmul, &product.tiling);
    product.Set();
    switch (which) {
        case 0:
            return product.matmul.IterateBatch(product.cGm, 2, 2, false);
        case 1:
            return product.matmul.IterateBatch(product.cGm, 4, 2, false);
        case 2:
            return product.matmul.IterateNBatch(1, 2, 2, false);
        case 3:
            return product.matmul.IterateAll(product.cGm);
        case 4:
            return product.matmul.IterateBatch(LocalTensor<float>(), 2, 2, false);
        case 5:
            return product.matmul.IterateBatch(product.cGm, 2, 2, false, 0, 0, 0, true);
    }
}
