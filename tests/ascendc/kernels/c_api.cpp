// A kernel of the C API.
#include "c_api/asc_simd.h"

extern "C" __vector__ __global__ void scaled_sum(__gm__ float* x, __gm__ float* y, __gm__ float* z)
{
    asc_init();
    __ubuf__ float a[256];
    __ubuf__ float b[256];
    __ubuf__ float c[256];
    int64_t start = asc_get_block_idx() * 256;
    asc_copy_gm2ub(a, x + start, 1, 32, 0, 0);
    asc_copy_gm2ub(b, y + start, 256 * sizeof(float));
    asc_sync_notify(PIPE_MTE2, PIPE_V, EVENT_ID0);
    asc_sync_wait(PIPE_MTE2, PIPE_V, EVENT_ID0);
    asc_add(c, a, b, uint8_t(4), 1, 1, 1, 8, 8, 8);
    asc_sync();
    asc_mul_sync(c, c, a, 256);
    asc_copy_ub2gm_sync(z + start, c, 256 * sizeof(float));
}
