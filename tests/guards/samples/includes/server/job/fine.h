#pragma once

#include "base/up.h"
#include <vector>
