// What headers of a user's asc-devkit ask for by names that no page gives (--adv-api): the limits
// of repeats, and traces, which are nothing here. The names are those that the compiler misses.
#pragma once

#include "npusim_ascendc/vector.h"

namespace AscendC {

constexpr int32_t MAX_REPEAT_TIMES = 255;          // docs/zh/api, repeatTime
constexpr uint8_t HALF_DEFAULT_REPEAT_STRIDE = 4;  // half of 8 blocks: assumed

}  // namespace AscendC

#define TRACE_START(...)
#define TRACE_STOP(...)
