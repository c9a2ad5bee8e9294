// Large products by Matmul, each core a part of the rows.
#include "kernel_operator.h"
#include "lib/matmul_intf.h"
using namespace AscendC;

template <typename T, typename OUT, bool A_TURNED, bool B_TURNED>
struct Tiles {
    Matmul<MatmulType<TPosition::GM, CubeFormat::ND, T, A_TURNED>,
           MatmulType<TPosition::GM, CubeFormat::ND, T, B_TURNED>,
           MatmulType<TPosition::GM, CubeFormat::ND, OUT>,
           MatmulType<TPosition::GM, CubeFormat::ND, float>>
        product;
};

template <typename T, typename OUT, bool A_TURNED, bool B_TURNED>
__global__ __cube__ void rows_each(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR c, int m, int n,
                                   int k, int has_bias)
{
    GlobalTensor<T> aGm, bGm;
    GlobalTensor<float> biasGm;
    GlobalTensor<OUT> cGm;
    aGm.SetGlobalBuffer((__gm__ T*)a);
    bGm.SetGlobalBuffer((__gm__ T*)b);
    biasGm.SetGlobalBuffer((__gm__ float*)bias);
    cGm.SetGlobalBuffer((__gm__ OUT*)c);
    int own = (m + GetBlockNum() - 1) / GetBlockNum(), first = own * GetBlockIdx();
    TCubeTiling tiling;
    tiling.M = m, tiling.N = n, tiling.Ka = tiling.Kb = k;
    tiling.singleCoreM = own, tiling.singleCoreN = n, tiling.singleCoreK = k;
    tiling.baseM = 32, tiling.baseN = 64, tiling.baseK = 64;
    tiling.stepKa = tiling.stepKb = 2;
    tiling.depthA1 = tiling.depthB1 = 4;
    tiling.dbL0A = tiling.dbL0B = 2;
    tiling.isBias = has_bias;
    TPipe pipe;
    Tiles<T, OUT, A_TURNED, B_TURNED> tiles;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), tiles.product, &tiling);
    tiles.product.SetTensorA(aGm[A_TURNED ? first : first * k], A_TURNED);
    tiles.product.SetTensorB(bGm, B_TURNED);
    if (has_bias) {
        tiles.product.SetBias(biasGm);
    }
    tiles.product.SetTail(m - first < own ? m - first : own, n, k);
    tiles.product.IterateAll(cGm[first * n]);
    tiles.product.End();
}
