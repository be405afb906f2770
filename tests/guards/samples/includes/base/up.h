#pragma once

#include "transport/core/sideways.h"
