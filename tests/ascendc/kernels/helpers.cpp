// What listed.asc is linked with.
#include "kernel_operator.h"

void fill(float* to, float value)
{
    for (int i = 0; i < 256; ++i) {
        to[i] = value;
    }
}

void add_tensors(AscendC::LocalTensor<float>& to, AscendC::LocalTensor<float>& a,
                 AscendC::LocalTensor<float>& b)
{
    AscendC::Add(to, a, b, 256);
}
