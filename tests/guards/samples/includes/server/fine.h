#pragma once

#include "base/up.h"
#include <vector>
#include <Eigen/Core>
