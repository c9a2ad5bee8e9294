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

// Each of the two vector cores has the cube core of its group multiply half of the rows.
extern "C" __global__ __mix__(1, 2) void halves_each(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m,
                                                     int n, int k)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    int own = m / (2 * GetBlockNum()), first = own * GetBlockIdx();
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TCubeTiling tiling;
    tiling.M = m, tiling.N = n, tiling.Ka = tiling.Kb = k;
    tiling.singleCoreM = own, tiling.singleCoreN = n, tiling.singleCoreK = k;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    TPipe pipe;
    Tiles<half, float, false, false> tiles;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), tiles.product, &tiling);
    tiles.product.SetTensorA(aGm[first * k]);
    tiles.product.SetTensorB(bGm);
    tiles.product.IterateAll(cGm[first * n]);
    tiles.product.End();
}

// A product with a configuration: in NZ, with the tiling of the configuration or a given one.
template <CubeFormat FORMAT, const auto& CONFIG>
__aicore__ inline void whole(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m, int n, int k,
                             TCubeTiling* tiling)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TPipe pipe;
    Matmul<MatmulType<TPosition::GM, CubeFormat::ND, half>,
           MatmulType<TPosition::GM, CubeFormat::ND, half>,
           MatmulType<TPosition::GM, FORMAT, float>, MatmulType<TPosition::GM, FORMAT, float>,
           CONFIG>
        product;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, tiling);
    product.SetOrgShape(m, n, k);
    product.SetTail(m, n, k);
    product.SetTensorA(aGm);
    product.SetTensorB(bGm);
    product.IterateAll(cGm);
    product.End();
}

constexpr MatmulConfig split_config()
{
    MatmulConfig config = CFG_NORM;
    config.isEnableChannelSplit = true;
    return config;
}
constexpr MatmulConfig SPLIT = split_config();

extern "C" __global__ __cube__ void split(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m, int n, int k)
{
    TCubeTiling tiling;
    tiling.M = tiling.singleCoreM = m, tiling.N = tiling.singleCoreN = n;
    tiling.Ka = tiling.Kb = tiling.singleCoreK = k;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    whole<CubeFormat::NZ, SPLIT>(a, b, c, m, n, k, &tiling);
}

using HalfType = MatmulType<TPosition::GM, CubeFormat::ND, half>;
using FloatType = MatmulType<TPosition::GM, CubeFormat::ND, float>;
constexpr MatmulShapeParams SHAPES = {512, 512, 512, 32, 48, 64};
constexpr auto STATIC = GetMatmulApiTiling<HalfType, HalfType, FloatType, FloatType>(
    GetMMConfig<MatmulConfigMode::CONFIG_MDL>(SHAPES));

extern "C" __global__ __cube__ void tiled_by_type(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m, int n,
                                                  int k)
{
    whole<CubeFormat::ND, STATIC>(a, b, c, m, n, k, nullptr);
}

// As halves_each, where both vector cores share B.
extern "C" __global__ __mix__(1, 2) void halves_shared(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m,
                                                       int n, int k)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    int own = m / 2, first = own * GetBlockIdx();
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TCubeTiling tiling;
    tiling.M = m, tiling.N = n, tiling.Ka = tiling.Kb = k;
    tiling.singleCoreM = own, tiling.singleCoreN = n, tiling.singleCoreK = k;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    TPipe pipe;
    Matmul<HalfType, MatmulType<TPosition::GM, CubeFormat::ND, half, false, LayoutMode::NONE, true>,
           FloatType, FloatType, CFG_IBSHARE_NORM>
        product;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(aGm[first * k]);
    product.SetTensorB(bGm);
    product.IterateAll(cGm[first * n]);
    product.End();
}

// Each vector core takes its tiles into its own buffer, through a part of the workspace that is its
// own, and doubles them; the second one stops early where `stops` says so.
template <bool WAITS>
__global__ __mix__(1, 2) void doubled(GM_ADDR a, GM_ADDR b, GM_ADDR c,
                                      __kfc_workspace__ GM_ADDR workspace, int m, int n, int k,
                                      int stops)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    int own = m / 2, first = own * GetBlockIdx();
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TCubeTiling tiling;
    tiling.M = m, tiling.N = n, tiling.Ka = tiling.Kb = k;
    tiling.singleCoreM = own, tiling.singleCoreN = n, tiling.singleCoreK = k;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    TPipe pipe;
    TQue<TPosition::VECIN, 1> tiles;
    TQue<TPosition::VECOUT, 1> results;
    pipe.InitBuffer(tiles, 1, 32 * 32 * sizeof(float));
    pipe.InitBuffer(results, 1, 32 * 32 * sizeof(float));
    Matmul<HalfType, HalfType, MatmulType<TPosition::VECIN, CubeFormat::ND, float>, FloatType>
        product;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    if (stops && GetBlockIdx() == 1) {
        return;
    }
    product.SetTensorA(aGm[first * k]);
    product.SetTensorB(bGm);
    if (!WAITS) {
        product.template Iterate<false>();
    }
    for (int tile = 0; tile < own / 32 * (n / 32); ++tile) {
        if (WAITS) {
            product.template Iterate<true>();
        }
        auto sums = tiles.AllocTensor<float>();
        product.template GetTensorC<WAITS>(sums, false, true);
        tiles.EnQue(sums);
        sums = tiles.DeQue<float>();
        auto twice = results.AllocTensor<float>();
        Adds(twice, sums, 0.0f, 32 * 32);
        PipeBarrier<PIPE_V>();
        Muls(twice, twice, 2.0f, 32 * 32);
        tiles.FreeTensor(sums);
        results.EnQue(twice);
        twice = results.DeQue<float>();
        int row = tile % (own / 32) * 32, column = tile / (own / 32) * 32;
        DataCopy(cGm[(first + row) * n + column], twice,
                 {32, 4, 0, uint16_t((n - 32) * sizeof(float) / 32)});
        results.FreeTensor(twice);
    }
    product.End();
}

// The tiles on and above the diagonal.
extern "C" __global__ __cube__ void upper(GM_ADDR a, GM_ADDR b, GM_ADDR c, int m, int n, int k)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TCubeTiling tiling;
    tiling.M = tiling.singleCoreM = m, tiling.N = tiling.singleCoreN = n;
    tiling.Ka = tiling.Kb = tiling.singleCoreK = k;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    TPipe pipe;
    Matmul<HalfType, HalfType, FloatType, FloatType, CFG_NORM,
           MatmulCallBackFunc<nullptr, nullptr, nullptr>, Impl::Detail::TrianUpperMatmulPolicy>
        product;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(aGm);
    product.SetTensorB(bGm);
    product.IterateAll(cGm);
    product.End();
}
