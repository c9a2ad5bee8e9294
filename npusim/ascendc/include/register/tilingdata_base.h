#pragma once

#include "npusim_ascendc/tiling_fields.h"
