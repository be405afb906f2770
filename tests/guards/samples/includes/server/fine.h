#pragma once

#include <Eigen/Core>
#include <vector>
#include "base/up.h"
