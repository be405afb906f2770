#pragma once

#include "server/fine.h"
#include <Eigen/Core>
#include "sideways.h"
#include <vector>
