#pragma once

#include "kernel_operator.h"
#include "npusim_ascendc/matmul.h"
