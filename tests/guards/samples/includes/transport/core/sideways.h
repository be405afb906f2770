#pragma once

#include "server/job/fine.h"
#include <google/protobuf/message.h>
#include "sideways.h"
#include <vector>
