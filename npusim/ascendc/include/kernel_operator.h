// The basic API of Ascend C, for kernels that npusim runs.
#pragma once

#include "npusim_ascendc/types.h"
#include "npusim_ascendc/recorder.h"
#include "npusim_ascendc/tensor.h"
#include "npusim_ascendc/sync.h"
#include "npusim_ascendc/pipe.h"
#include "npusim_ascendc/mask.h"
#include "npusim_ascendc/vector.h"
#include "npusim_ascendc/compound.h"
#include "npusim_ascendc/reductions.h"
#include "npusim_ascendc/selection.h"
#include "npusim_ascendc/copy.h"
#include "npusim_ascendc/system.h"
#include "npusim_ascendc/debug.h"
