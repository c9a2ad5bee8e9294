// What the host computes before it launches kernels of the layers above.
#pragma once

#include "securec.h"

#include "npusim_ascendc/function_tiling.h"
#include "npusim_ascendc/row_tiling.h"
#include "npusim_ascendc/matmul_tiling.h"
